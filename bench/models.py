"""Time from nothing to a compiled model, for the models that people really use."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import mithril as ml
from mithril.models import clip, create_gpt, resnet18, resnet50, vit_b_16


def clip_rn50() -> ml.Model:
    """Build the smallest of the published CLIPs with a residual network."""
    texts = {"context_length": 77, "vocab_size": 49408, "transformer_width": 512, "transformer_heads": 8}
    return clip(1024, 224, (3, 4, 6, 3), 64, 0, **texts, transformer_layers=12)


IMAGE = [1, 3, 224, 224]
#: Name -> model, shapes of its inputs, milliseconds to build and compile it that are aimed at, if any.
MODELS: dict[str, tuple[Callable[[], ml.Model], dict[str, list[int]], int | None]] = {
    "ResNet-18": (resnet18, {"input": IMAGE}, 20),
    "ResNet-50": (resnet50, {"input": IMAGE}, None),
    "ViT-B/16": (vit_b_16, {"input": IMAGE}, None),
    "GPT-2, 124 million parameters": (create_gpt, {"input": [1, 128]}, 60),
    "CLIP RN50": (clip_rn50, {"image": IMAGE, "text": [1, 77]}, 120),
}


def build_and_compile(
    make: Callable[[], ml.Model], shapes: dict[str, list[int]], repeats: int = 9
) -> tuple[float, float]:
    """Return the median milliseconds to build a model, and to compile it for NumPy."""
    times: tuple[list[float], list[float]] = ([], [])
    backend = ml.NumpyBackend()
    for _ in range(repeats):
        gc.collect()
        start = time.perf_counter()
        model = make()
        built = time.perf_counter()
        ml.compile(model, backend, shapes=shapes)
        for series, seconds in zip(times, (built - start, time.perf_counter() - built), strict=True):
            series.append(seconds * 1e3)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    """Print the rows of the table."""
    for name, (make, shapes, aim) in MODELS.items():
        build, compile_ = build_and_compile(make, shapes)
        aimed = f"{aim:>9} ms" if aim else ""
        print(f"{'build and compile ' + name:<58}{build + compile_:>9.1f} ms{aimed}")
        print(f"{'  of which building':<58}{build:>9.1f} ms{'':>12}")


if __name__ == "__main__":
    main()
