"""Tokens per second on PyTorch: GPT-2 with 124 million random weights, against `transformers.generate`.

Run it with ``python -m bench.generation``. Both sides run in turns, in one process, on the same weights, and have to
write the same tokens.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from typing import Any

import mithril as ml
import numpy as np
from mithril.generation import compile_decoder, generate_tokens
from mithril.models import create_gpt


def ours(network: Any, backend: ml.Backend, jit: bool) -> Any:
    """Return a function of prompts and a number that gives the tokens Mithril writes."""
    config = network.config
    sizes = {"dims": config.n_embd, "num_heads": config.n_head, "num_layers": config.n_layer}
    model = create_gpt(block_size=config.n_positions, vocab_size=config.vocab_size, **sizes, cache=True, last_only=True)
    compiled = compile_decoder(model, backend, jit=jit)
    ml.load_weights(compiled, network.state_dict(), layout="transformers")

    def run(prompts: np.ndarray[Any, Any], count: int) -> Any:
        stream = generate_tokens(compiled, prompts.tolist(), count, context=config.n_positions)
        for _ in stream:
            pass
        return stream.tokens

    return run


def theirs(network: Any, cache: str | None) -> Any:
    """Return a function of prompts and a number that gives the tokens transformers writes."""
    import torch

    def run(prompts: np.ndarray[Any, Any], count: int) -> Any:
        tokens = torch.from_numpy(prompts)
        options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "cache_implementation": cache}
        generated = network.generate(tokens, attention_mask=torch.ones_like(tokens), **options)
        return generated[:, prompts.shape[1] :].tolist()

    return run


def seconds(run: Any, prompts: np.ndarray[Any, Any], count: int) -> float:
    """Return how long a run takes."""
    start = time.perf_counter()
    run(prompts, count)
    return time.perf_counter() - start


def main() -> None:
    """Print the table."""
    import torch
    import transformers

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens that are written")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side, in turns; the median counts")
    parser.add_argument("--threads", type=int, help="threads of PyTorch; 1 gives steadier numbers on a busy machine")
    parser.add_argument("--jit", action="store_true", help="also by torch.compile")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    config = transformers.GPT2Config(n_layer=args.layers, pad_token_id=0, bos_token_id=None, eos_token_id=None)
    network = transformers.GPT2LMHeadModel(config).eval()
    kinds = {"": False, ", jit": True} if args.jit else {"": False}
    print(f"{'':<24}{'batch':>6}{'Mithril':>14}{'transformers':>14}{'ratio':>8}")
    for label, jit in kinds.items():
        mine = ours(network, ml.TorchBackend(), jit)
        for cache in ("static", None):
            other = theirs(network, cache)
            for batch in (1, 8):
                prompts = np.random.default_rng(0).integers(0, config.vocab_size, (batch, args.prompt))
                same = mine(prompts, args.tokens) == other(prompts, args.tokens)
                times = [seconds(run, prompts, args.tokens) for _ in range(args.rounds) for run in (mine, other)]
                speeds = [batch * args.tokens / statistics.median(times[side::2]) for side in (0, 1)]
                name = f"{cache or 'dynamic'} cache{label}"
                print(
                    f"{name:<24}{batch:>6}{speeds[0]:>8.1f} tok/s{speeds[1]:>8.1f} tok/s"
                    f"{speeds[0] / speeds[1]:>8.2f}{'' if same else '  OTHER TOKENS'}"
                )


if __name__ == "__main__":
    main()
