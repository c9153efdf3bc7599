"""What few bits cost on GGML, as tables of Markdown: `python -m bench.few_bits`.

Outputs on GGML with weights in each type are compared with those in float32, for networks of random weights, and for a
GPT that learns the texts of the documentation for a minute; `--models` does so for other models of the zoo. `--seconds`
says how long it takes to make weights of few bits. `--rounding` compares float32 on GGML and on NumPy with NumPy in
float64.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import mithril as ml
import numpy as np
from mithril import _core, models
from mithril.backends.with_manualgrad.ggml_backend.quantization import types
from mithril.quantization.mixtures import MIXTURES
from mithril.quantization.parameters import distance

ROOT = Path(__file__).parent.parent
LENGTH, SEEDS = 32, 3
GPT: dict[str, Any] = {"block_size": LENGTH, "dims": 256, "num_heads": 4, "num_layers": 2, "vocab_size": 128}
LLAMA: dict[str, Any] = {"vocab_size": 128, "dims": 256, "num_heads": 8, "num_kv_heads": 2, "num_layers": 2}
LLAMA |= {"hidden": 512}
VIT: dict[str, Any] = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 64}
BERT = {"model_type": "bert", "vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT |= {"intermediate_size": 128, "max_position_embeddings": 64}
T5 = {"model_type": "t5", "vocab_size": 128, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
CLIP: dict[str, Any] = {"embed_dim": 32, "image_resolution": 32, "vision_layers": 2, "vision_width": 64}
CLIP |= {"vision_patch_size": 8, "context_length": 16, "vocab_size": 128, "transformer_width": 64}
CLIP |= {"transformer_heads": 4, "transformer_layers": 2}


def tokens(rows: int) -> np.ndarray[Any, Any]:
    """Return texts of random tokens."""
    return np.random.default_rng(3).integers(0, 128, (rows, LENGTH))


def compiled(model: ml.Model, backend: Any, data: dict[str, Any]) -> ml.PhysicalModel:
    """Compile a model for data."""
    return ml.compile(model, backend, shapes={name: list(np.shape(x)) for name, x in data.items()}, inference=True)


# --- few bits ---------------------------------------------------------------------------------------------------


def trained(steps: int) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """Train a GPT on the bytes of the documentation; its parameters, and texts that it has not seen."""
    text = b"".join(path.read_bytes() for path in sorted((ROOT / "docs").glob("*.md")))
    numbers = np.frombuffer(text, np.uint8).astype(np.int64)
    rows = np.lib.stride_tricks.sliding_window_view(numbers[numbers < 128], LENGTH + 1)[:: LENGTH + 1]
    rows = np.random.default_rng(0).permutation(rows)
    model = ml.compile(models.create_gpt(**GPT), ml.NumpyBackend(), shapes={"input": ["batch", LENGTH]})
    data = rows[8 : 8 + 16 * steps]
    ml.train.fit(
        model,
        (data[:, :-1], data[:, 1:]),
        optimizer=ml.optim.Adam(1e-3),
        loss="token_cross_entropy",
        batch_size=16,
        progress=False,
    )
    return dict(model.get_parameters()), rows[:8, :-1]


def few_bits(steps: int) -> None:
    """Print the table of types."""
    gpt, llama = models.create_gpt(**GPT), models.create_llama(**LLAMA)
    learned, unseen = trained(steps)
    cases = []
    for model in (gpt, llama):
        data = {"input": tokens(4)}
        drawn = compiled(model, ml.NumpyBackend(), data)
        cases.append((model, data, [dict(drawn.randomize_params(seed=seed)) for seed in range(SEEDS)]))
    cases.append((gpt, {"input": unseen}, [learned]))
    exact = [[outputs(compiled(model, ml.GGMLBackend(), data), p, data) for p in ps] for model, data, ps in cases]
    print("| type | bits | RMSE | without search | GPT-2 | Llama | least of both | trained GPT |")
    print("|---|---|---|---|---|---|---|---|")
    for form in (*(name for name in types() if name != "f32"), *MIXTURES):
        distances = []
        for (model, data, several), expected in zip(cases, exact, strict=True):
            program = compiled(model, ml.GGMLBackend(quantize=form), data)
            each = zip(several, expected, strict=True)
            distances.append([distance(outputs(program, params, data), right)[1] for params, right in each])
        matrices = {name: value for name, value in cases[0][2][0].items() if np.ndim(value) > 1}
        bits, error = cost(matrices, form)
        means = " | ".join(f"{np.mean(some):.5f}" for some in distances[:2])
        least = min(*distances[0], *distances[1])
        costs = f"{bits:.4g} | {error:.4f} | {plain(matrices, form)}"
        print(f"| `{form}` | {costs} | {means} | {least:.5f} | {distances[2][0]:.5f} |", flush=True)


def other_models() -> None:
    """Print the least cosine of three networks of random weights, for other models and the types that are used most."""
    random = np.random.default_rng(0)
    image = {"input": random.standard_normal((2, 3, 32, 32)).astype(np.float32)}
    large = {"input": random.standard_normal((1, 3, 64, 64)).astype(np.float32)}
    # Blocks of 256 want rows as long.
    vit = models.vit(**(VIT | {"hidden_dim": 256}), mlp_dim=512)
    t5 = models.from_config(T5 | {"d_model": 256, "d_kv": 64, "d_ff": 512}, part="encoder")
    clip = models.clip(**(CLIP | {"embed_dim": 256, "vision_width": 256, "transformer_width": 256}))
    networks: dict[str, tuple[ml.Model, dict[str, Any]]] = {
        "ResNet-18": (models.resnet18(), large),
        "ViT": (vit, image),
        "T5, encoder": (t5, {"input": tokens(2)}),
        "CLIP": (clip, {"image": image["input"], "text": tokens(2)[:, :16]}),
    }
    forms = ("q8_0", "q6_k", "q5_k", "q4_k", "q4_0", "q3_k")
    print(f"| model | {' | '.join(f'`{form}`' for form in forms)} |")
    print("|---" * (len(forms) + 1) + "|")
    for name, (model, data) in networks.items():
        exact = compiled(model, ml.GGMLBackend(), data)
        drawn = [dict(exact.randomize_params(seed=seed)) for seed in range(SEEDS)]
        expected = [outputs(exact, params, data) for params in drawn]
        least = []
        for form in forms:
            program = compiled(model, ml.GGMLBackend(quantize=form), data)
            pairs = zip(drawn, expected, strict=True)
            least.append(min(distance(outputs(program, params, data), right)[1] for params, right in pairs))
        print(f"| {name} | {' | '.join(f'{cosine:.5f}' for cosine in least)} |", flush=True)


def outputs(model: ml.PhysicalModel, params: dict[str, Any], data: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return the outputs of a model as one vector."""
    arrays = {name: np.array(value) for name, value in params.items()}
    results = model.evaluate(arrays, data)
    return np.concatenate([np.asarray(value, np.float64).ravel() for value in results.values()])


def cost(matrices: dict[str, Any], form: str) -> tuple[float, float]:
    """Bits per weight, and the error in parts of the root mean square of the weights."""
    quantized = ml.quantize(matrices, form, strict=True)
    squares = sum(float(np.square(np.asarray(quantized[name], "f8") - value).sum()) for name, value in matrices.items())
    size = sum(value.size for value in matrices.values())
    return 8 * quantized.report.after / size, (
        squares / sum(float(np.square(v).sum()) for v in matrices.values())
    ) ** 0.5


def plain(matrices: dict[str, Any], form: str) -> str:
    """Return the error where scales are not looked for, if that can be made."""
    if not any(name == form and is_writable for name, _, _, is_writable in _core.block_formats()):
        return ""
    errors = sizes = 0.0
    for value in matrices.values():
        blocks = _core.quantize_blocks(form, np.ascontiguousarray(value, np.float32).tobytes())
        values = np.frombuffer(_core.dequantize_blocks(form, blocks), np.float32)
        errors += float(np.square(values.astype("f8") - value.ravel()).sum())
        sizes += float(np.square(value.astype("f8")).sum())
    return f"{(errors / sizes) ** 0.5:.4f}"


def seconds() -> None:
    """Print how long a million weights take on this machine, on all its processors; the best of three."""
    weight = {"weight": np.random.default_rng(0).standard_normal((512, 2048)).astype(np.float32)}
    print("| type | seconds |")
    print("|---|---|")
    for form in (name for name in types() if name != "f32"):
        took = []
        for _ in range(3):
            start = time.perf_counter()
            ml.quantize(weight, form, strict=True)
            took.append(time.perf_counter() - start)
        print(f"| `{form}` | {min(took) * 1e6 / weight['weight'].size:.3f} |", flush=True)


# --- rounding ---------------------------------------------------------------------------------------------------


def rounding() -> None:
    """Print how far outputs in float32 are from those in float64, in parts of the largest."""
    text = {"input": tokens(2)}
    random = np.random.default_rng(0)
    image = {"input": random.standard_normal((2, 3, 32, 32)).astype(np.float32)}
    large = {"input": random.standard_normal((1, 3, 64, 64)).astype(np.float32)}
    pair = {"image": image["input"], "text": tokens(2)[:, :16]}
    networks: dict[str, tuple[ml.Model, dict[str, Any]]] = {
        "GPT-2": (models.create_gpt(**GPT), text),
        "Llama": (models.create_llama(**LLAMA), text),
        "Qwen2": (models.create_llama(**LLAMA, biases="qkv", tied=True), text),
        "BERT": (models.from_config(BERT), text),
        "T5, encoder": (models.from_config(T5, part="encoder"), text),
        "ViT": (models.vit(**VIT, mlp_dim=128), image),
        "CLIP": (models.clip(**CLIP), pair),
        "ResNet-18": (models.resnet18(), large),
    }
    print("| model | GGML | NumPy |")
    print("|---|---|---|")
    for name, (model, data) in networks.items():
        double = {key: x.astype(np.float64) if x.dtype == np.float32 else x for key, x in data.items()}
        exact = compiled(model, ml.NumpyBackend(dtype="float64"), double)
        params = exact.randomize_params(seed=0)
        narrow = {key: np.asarray(value, np.float32) for key, value in params.items()}
        expected = outputs(exact, {key: value.astype(np.float64) for key, value in narrow.items()}, double)
        errors = []
        for backend in (ml.GGMLBackend(), ml.NumpyBackend()):
            actual = outputs(compiled(model, backend, data), narrow, data)
            errors.append(float(np.abs(actual - expected).max() / np.abs(expected).max()))
        print(f"| {name} | {errors[0]:.1e} | {errors[1]:.1e} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounding", action="store_true", help="what float32 costs, and nothing else")
    parser.add_argument("--models", action="store_true", help="other models than GPT-2 and Llama, and nothing else")
    parser.add_argument("--seconds", action="store_true", help="how long weights take, and nothing else")
    parser.add_argument("--steps", type=int, default=300, help="of training")
    args = parser.parse_args()
    if args.rounding:
        rounding()
    elif args.models:
        other_models()
    elif args.seconds:
        seconds()
    else:
        few_bits(args.steps)


if __name__ == "__main__":
    main()
