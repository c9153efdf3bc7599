"""Compares the architectures of transformers with PyTorch: ``python -m tools.architectures --only bert gpt2``.

Each architecture that the installed package has is built with random weights, as small as its config allows, imported
by ``ml.from_torch`` and compared with PyTorch: what it returns on each backend, and with ``--gradients`` the gradients
of all of its parameters in C. Architectures run in processes of their own, which may end in any way.

What cannot be built or called without knowing more about it, and what ``torch.export`` refuses, is counted, not
compared. Where gradients differ, finite differences of PyTorch in float64 decide.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

#: Sizes that make networks small, by the names that configs have for them.
SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "emb_dim", "embedding_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "hidden_dim"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"), 64),
    **dict.fromkeys(("head_dim", "d_kv", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("linear_num_value_heads", "linear_num_key_heads", "rotary_dim"), 4),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("first_k_dense_replace", "n_group", "topk_group", "bos_token_id"), 1),
    **dict.fromkeys(("num_experts_per_tok", "num_key_value_heads", "type_vocab_size", "eos_token_id"), 2),
    "moe_intermediate_size": 32,
    "pad_token_id": 0,
    "image_size": 32,
    "patch_size": 8,
    "sliding_window": 4,
    "vocab_size": 99,
}

#: Those that fit almost any other size.
FEW = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers", "vocab_size")

#: Elements of all parameters at most, and how far results may be apart: as a part of the largest one.
MOST_PARAMETERS, CLOSE, CLOSE_GRADIENTS = 60e6, 2e-4, 2e-3

#: Architectures of a process, and seconds for it.
EACH, PATIENCE = 8, 1920


class NotCompared(Exception):
    """An architecture that PyTorch does not run as it is asked to here."""


def names() -> list[str]:
    """Names of all architectures."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return list(MODEL_MAPPING_NAMES)


def _shrink(config: Any, sizes: Sequence[str], depth: int = 0) -> Any:
    """Set the sizes that a config has, also in the configs inside of it; dropout is switched off."""
    for key, value in list(vars(config).items()):
        if hasattr(value, "to_dict") and depth < 2:
            _shrink(value, sizes, depth + 1)
        elif isinstance(value, float) and "drop" in key:
            setattr(config, key, 0.0)
    for key in sizes:
        if type(getattr(config, key, None)) is int:
            setattr(config, key, SIZES[key])
    return config


def _build(name: str, sizes: Sequence[str]) -> tuple[Any, Any]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    kind = CONFIG_MAPPING[name]
    try:
        # Some sizes follow from others when a config is made.
        plain = kind().to_dict()
        config = _shrink(kind(**{key: SIZES[key] for key in sizes if type(plain.get(key)) is int}), ())
        for value in vars(config).values():
            if hasattr(value, "to_dict"):
                _shrink(value, sizes, 1)
    except Exception:
        config = _shrink(kind(), sizes)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    model = MODEL_MAPPING[type(config)]
    model = model[0] if isinstance(model, (tuple, list)) else model
    import torch

    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in model(config).parameters())
    if count > MOST_PARAMETERS:
        raise NotCompared(f"{count / 1e6:.0f} million parameters")
    return config, model(config).eval()


def _inputs(config: Any, model: Any) -> dict[str, Any]:
    """Return inputs by the name of the main one."""
    import torch

    name, generator = model.main_input_name, np.random.default_rng(0)
    if name == "input_ids":
        tokens = torch.from_numpy(generator.integers(3, 90, (2, 7)))
        is_pair = getattr(config, "is_encoder_decoder", False)
        return {name: tokens, **({"decoder_input_ids": tokens[:, :5].contiguous()} if is_pair else {})}

    def size(key: str, otherwise: int) -> int:
        value = getattr(config, key, otherwise)
        return value if isinstance(value, int) else otherwise

    shapes = {
        "pixel_values": (1, size("num_channels", 3), size("image_size", 32), size("image_size", 32)),
        "input_values": (1, 2000),
        "input_features": (1, size("num_mel_bins", 80), 3000 if config.model_type == "whisper" else 64),
    }
    if name not in shapes:
        raise NotCompared(f"it reads `{name}`")
    return {name: torch.from_numpy(generator.standard_normal(shapes[name], np.float32))}


def _network(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return a module with tensors for its arguments, which returns one tensor; as small as it works."""
    import torch

    class First(torch.nn.Module):
        def __init__(self, model: Any, keys: Sequence[str]) -> None:
            super().__init__()
            self.model, self.keys = model, keys

        def forward(self, *args: Any) -> Any:
            output = self.model(**dict(zip(self.keys, args, strict=True)))
            output = output.to_tuple() if hasattr(output, "to_tuple") else output
            while isinstance(output, tuple | list):
                output = output[0]
            return output

    reason: NotCompared | None = None
    for sizes in (tuple(SIZES), FEW):
        torch.manual_seed(0)
        stage = "build"
        try:
            config, model = _build(name, sizes)
            for parameter in model.parameters():
                # What starts at zero would hide mistakes, and routers that start there choose by chance.
                if parameter.numel() > 1 and not parameter.any():
                    parameter.data.normal_(0, 0.02)
            stage = "call"
            inputs = _inputs(config, model)
            module, args = First(model, list(inputs)).eval(), tuple(inputs.values())
            with torch.no_grad():
                module(*args)
        except Exception as failure:
            # That of the smallest network says most.
            reason = reason or NotCompared(f"{stage}: {type(failure).__name__}: {failure}")
        else:
            return module, args
    raise reason or NotCompared("build: there are no sizes")


def compare(name: str, backends: Sequence[str], gradients: bool) -> tuple[str, Any]:
    """Compare an architecture; what came of it and, of what differs or is refused, more."""
    import mithril as ml
    import torch

    torch.set_num_threads(1)
    try:
        module, args = _network(name)
    except NotCompared as reason:
        return str(reason).partition(":")[0], str(reason)
    expected = module(*args)
    try:
        with torch.no_grad():
            exported = torch.export.export(module, args).module()(*args)
    except Exception as reason:
        return "export", f"{type(reason).__name__}: {reason}"
    if exported.shape != expected.shape or not torch.allclose(exported, expected, rtol=1e-3, atol=1e-4):
        return "export", "what torch.export returns computes something else"
    try:
        model, params = ml.from_torch(module, args)
        keys = [key for key in model.input_keys if key not in params]
        if len(keys) != len(args):
            return "call", "its first output does not depend on all inputs"
        data = {key: value.numpy() for key, value in zip(keys, args, strict=True)}
        worst = {}
        for backend in backends:
            compiled = ml.compile(model, ml.get_backend(backend), inference=True)
            compiled.load_params(params)
            own = {key: compiled.backend.array(value) for key, value in data.items()}
            (output,) = compiled.evaluate(compiled.parameters, own).values()
            worst[backend] = _apart(compiled.backend.to_numpy(output), expected.detach().numpy())
        different = {key: value for key, value in worst.items() if not value <= CLOSE}
        if gradients:
            different |= _gradients(module, args, model, params, data, expected)
    except ml.errors.UnsupportedOpError as reason:
        return "refused", str(reason)
    except Exception as reason:
        return "fails", f"{type(reason).__name__}: {reason}"
    return ("different", different) if different else ("agrees", max(worst.values(), default=0.0))


def _apart(actual: Any, expected: Any, least: float = 0.0) -> float:
    if actual.shape != expected.shape:
        return float("inf")
    return float(np.abs(actual - expected).max(initial=0) / max(np.abs(expected).max(initial=0), least, 1e-30))


def _gradients(module: Any, args: Any, model: Any, params: Any, data: Any, expected: Any) -> dict[str, float]:
    """Return the parameters whose gradients in C are not those of PyTorch."""
    import mithril as ml
    import torch

    compiled = ml.compile(model, ml.CBackend())
    compiled.load_params(params)
    cotangent = torch.randn_like(expected)
    expected.backward(cotangent)
    (output,) = compiled.output_keys
    _, found = compiled.evaluate(compiled.parameters, data, {output: cotangent.numpy()})
    theirs = {key: p.grad.numpy() for key, p in module.named_parameters() if p.grad is not None}
    # What nearly cancels is small beside the other gradients.
    least = 1e-3 * max((np.abs(gradient).max(initial=0) for gradient in theirs.values()), default=0)
    different = {key: float("inf") for key, gradient in theirs.items() if key not in found and gradient.any()}
    for key, gradient in found.items():
        apart = _apart(gradient, theirs.get(key, np.zeros_like(gradient)), least)
        theirs_of_it = theirs.get(key, np.zeros_like(gradient))
        if not apart <= CLOSE_GRADIENTS and not _is_slope(module, args, cotangent, key, gradient, theirs_of_it):
            different[f"gradient of {key}"] = apart
    return different


def _is_slope(module: Any, args: Any, cotangent: Any, key: str, gradient: Any, other: Any) -> bool:
    """Whether a gradient is that of finite differences: along its difference from another, and in random directions."""
    import torch

    exact = copy.deepcopy(module).double()
    wide = [arg.double() if arg.is_floating_point() else arg for arg in args]
    parameter = dict(exact.named_parameters())[key]
    ours = torch.from_numpy(gradient).double()
    apart = ours - torch.from_numpy(other).double()
    for direction in (apart, torch.randn_like(ours), torch.randn_like(ours)):
        direction = direction / direction.norm()
        sides = []
        with torch.no_grad():
            for step in (1e-5, -1e-5):
                moved = parameter + direction * step
                result = torch.func.functional_call(exact, {key: moved}, tuple(wide))
                sides.append(float((result * cotangent.double()).sum()))
        error = abs((sides[0] - sides[1]) / 2e-5 - float((ours * direction).sum()))
        if not error <= CLOSE_GRADIENTS * float(apart.norm()):
            return False
    return True


def _results(chosen: Sequence[str], options: Sequence[str]) -> Iterator[tuple[str, str, Any]]:
    """Compare in processes of several architectures each; that one hangs or ends its process is a result, too."""
    rest = list(chosen)
    while rest:
        call = [sys.executable, "-m", "tools.architectures", "--measure", *options, "--only", *rest[:EACH]]
        process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            printed, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            printed, _ = process.communicate()
        # Architectures print, too.
        found = [
            json.loads(line.removeprefix("RESULT ")) for line in printed.splitlines() if line.startswith("RESULT ")
        ]
        yield from map(tuple, found)
        if len(found) < len(rest[:EACH]):
            yield rest[len(found)], "ended", f"the process returned {process.returncode}"
            found.append(None)
        rest = rest[len(found) :]


def main() -> int:
    """Compare what the command line asks for; 1 if something differs or fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.architectures", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", help="names of architectures (default: all)")
    parser.add_argument("--backends", default="numpy,c", help="numpy, c, torch, jax, mlx (default: numpy,c)")
    parser.add_argument("--gradients", action="store_true", help="compare gradients in C as well")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    chosen = args.only or names()
    if args.measure:
        warnings.filterwarnings("ignore")
        for name in chosen:
            print("RESULT", json.dumps([name, *compare(name, args.backends.split(","), args.gradients)]), flush=True)
        return 0
    options = ["--backends", args.backends, *(["--gradients"] if args.gradients else [])]
    counts: Counter[str] = Counter()
    for name, outcome, more in _results(chosen, options):
        counts[outcome] += 1
        print(f"{name}: {outcome}, {more if outcome == 'agrees' else str(more)[:300]}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    return int(any(counts[outcome] for outcome in ("different", "fails", "ended")))


if __name__ == "__main__":
    raise SystemExit(main())
