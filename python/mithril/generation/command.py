"""The command line of text generation: `mithril generate`, and the programs of `mithril.examples`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..checkpoints.folders import Folder
from ..command.backends import PREFERRED, add_device, chosen
from ..command.ending import guarded
from ..errors import InvalidValueError
from .text import EncoderDecoder, TextGenerator

__all__ = ["add_arguments", "generate", "main"]


def main(description: str, arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Parameters
    ----------
    description : str
        What it says about itself.
    arguments : sequence of str, optional
        Default: what the program was called with.

    Returns
    -------
    int
        0 if all is well, 1 after an error, 130 if it was interrupted.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--weights", required=True, metavar="FOLDER", help="config.json, weights and tokenizer; or a GGUF"
    )
    add_arguments(parser)
    args = parser.parse_args(arguments)
    return guarded(lambda: _printed(args))


def _printed(args: argparse.Namespace) -> int:
    print(generate(args))
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options, all but ``weights``, to a parser."""
    text = (
        "where it runs (default: the first that is installed of torch, mlx, jax, numpy; ggml for its options and files)"
    )
    parser.add_argument("--backend", metavar="NAME", help=text)
    add_device(parser)
    parser.add_argument("--dtype", default="float32", help="dtype of the model (default: float32)")
    few = "keep the low-bit weights, as ggml and c offer it: q8_0, q4_k_m …, int8_weights …; or PATTERN=TYPE for "
    parser.add_argument("--quantize", action="append", metavar="TYPE", help=f"{few}some names; may repeat")
    parser.add_argument("--threads", type=int, metavar="N", help="of ggml and c (default: all)")
    parser.add_argument("--memory-limit", metavar="SIZE", help="of ggml and c: an error if more is needed, e.g. 4GB")
    parser.add_argument("--jit", action="store_true", help="compile by the framework's compiler")
    parser.add_argument("--no-cache", action="store_true", help="compute the whole text anew for each token")
    parser.add_argument("--prompt", required=True, help="the text to be answered; - reads it from the standard input")
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="default: 128")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text; may repeat")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 (default): the likeliest tokens")
    parser.add_argument("--top-k", type=int, metavar="K", help="only the K likeliest tokens")
    parser.add_argument("--top-p", type=float, metavar="P", help="only the likeliest tokens of this probability")
    parser.add_argument("--min-p", type=float, metavar="P", help="only tokens this probable beside the likeliest")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, metavar="X", help="1 (default): none")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (default: 0)")


def by_pattern(entries: Sequence[str]) -> str | dict[str, str]:
    """Read ``TYPE`` and ``PATTERN=TYPE``: what is said of some names goes before what is said of all.

    Examples
    --------
    >>> from mithril.generation.command import by_pattern
    >>> by_pattern(["q4_k", "*.wte.*=q8_0"])
    {'*.wte.*': 'q8_0', '*': 'q4_k'}
    """
    pairs = [entry.rpartition("=") for entry in entries]
    if len(pairs) == 1 and not pairs[0][0]:
        return pairs[0][2]
    return {pattern or "*": form for pattern, _, form in sorted(pairs, key=lambda pair: not pair[0])}


def generate(args: argparse.Namespace) -> str:
    """Write what a model answers to the standard output, piece by piece; return what is left to print."""
    forms = None if args.quantize is None else by_pattern(args.quantize)
    own = {"quantize": forms, "num_threads": args.threads, "memory_limit": args.memory_limit}
    own = {name: value for name, value in own.items() if value is not None}
    is_gguf = Path(args.weights).suffix == ".gguf"
    # Low-bit weights stay so on ggml.
    preferred = ("ggml",) if own or (is_gguf and args.dtype == "float32") else PREFERRED
    try:
        backend = chosen(args.backend, preferred, args.device, dtype=args.dtype, **own)
    except TypeError as error:
        hint = "--quantize, --threads and --memory-limit are for ggml and c"
        raise InvalidValueError(str(error), hint=hint) from error
    is_pair = not is_gguf and Folder(args.weights).config.get("is_encoder_decoder", False)
    kind: Any = EncoderDecoder if is_pair else TextGenerator
    generator = kind.from_folder(args.weights, backend, cache=not args.no_cache, progress=True, jit=args.jit)
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    options = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    sampling = {name: getattr(args, name) for name in options}
    for piece in generator.stream(prompt, args.max_new_tokens, stop_strings=args.stop, **sampling):
        print(piece, end="", flush=True)
    return ""
