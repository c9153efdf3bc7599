"""Time from nothing to a compiled model, for the models that people really use."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import mithril as ml
from mithril.models import create_gpt, resnet18

#: Name -> model, shape of its input, milliseconds to build and compile it that are aimed at.
MODELS: dict[str, tuple[Callable[[], ml.Model], list[int], int]] = {
    "ResNet-18": (resnet18, [1, 3, 224, 224], 20),
    "GPT-2, 124 million parameters": (create_gpt, [1, 128], 60),
}


def build_and_compile(make: Callable[[], ml.Model], shape: list[int], repeats: int = 9) -> tuple[float, float]:
    """Return the median milliseconds to build a model, and to compile it for NumPy."""
    times: tuple[list[float], list[float]] = ([], [])
    backend = ml.NumpyBackend()
    for _ in range(repeats):
        gc.collect()
        start = time.perf_counter()
        model = make()
        built = time.perf_counter()
        ml.compile(model, backend, shapes={"input": shape})
        for found, seconds in zip(times, (built - start, time.perf_counter() - built), strict=True):
            found.append(seconds * 1e3)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    """Print the rows of the table."""
    for name, (make, shape, aim) in MODELS.items():
        build, compile_ = build_and_compile(make, shape)
        print(f"{'build and compile ' + name:<58}{build + compile_:>9.1f} ms{aim:>9} ms")
        print(f"{'  of which building':<58}{build:>9.1f} ms{'':>12}")


if __name__ == "__main__":
    main()
