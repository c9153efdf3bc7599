"""Single ops in C against PyTorch and NumPy, side by side: `python -m bench.ops_in_c [WORD…] [--threads 1 2]`.

Prints for each op the time of ours, and how many times ours is as fast as the others; below 1 the other is faster.
Words choose the ops whose names contain one of them. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .timing import turns

RANDOM = np.random.default_rng(0)
#: Pairs of turns wait this long, so that threads of the other side are asleep.
PAUSE = 0.002
#: Turns of each pair, at most.
ROUNDS = 11


def floats(*shape: int) -> np.ndarray:
    """Return normally distributed numbers in float32."""
    return RANDOM.standard_normal(shape, dtype=np.float32)


def positive(*shape: int) -> np.ndarray:
    """Return numbers between a tenth and ten."""
    return np.exp(RANDOM.uniform(-2.3, 2.3, shape)).astype(np.float32)


def definite(count: int, size: int) -> np.ndarray:
    """Return symmetric matrices that are positive definite."""
    a = floats(count, size, size)
    return a @ a.transpose(0, 2, 1) + size * np.eye(size, dtype=np.float32)


def places(size: int, *shape: int) -> np.ndarray:
    """Return positions below a size."""
    return RANDOM.integers(0, size, shape)


#: Dtypes of halves, by the names that both sides know.
HALVES = ("float16", "bfloat16")


@functools.cache
def cases() -> dict[str, tuple[Any, tuple[Any, ...], Callable[..., Any], Callable[..., Any] | None]]:
    """Return for each name: our layer, the arrays, the function of PyTorch, the function of NumPy if it has one."""
    import mithril as ml
    import torch
    from torch.nn import functional

    vector, million = floats(1 << 20), (floats(1024, 1024),)
    square, batch = (floats(1024, 1024), floats(1024, 1024)), floats(256, 1024)
    entries: dict[str, tuple[Any, tuple[Any, ...], Any, Any]] = {}
    for name, layer, theirs, numpy in [
        ("exp", ml.Exp(), torch.exp, np.exp),
        ("tanh", ml.Tanh(), torch.tanh, np.tanh),
        ("erf", ml.Erf(), torch.erf, None),
        ("sin", ml.Sin(), torch.sin, np.sin),
        ("sigmoid", ml.Sigmoid(), torch.sigmoid, None),
        ("gelu", ml.Gelu(), functional.gelu, None),
        ("gelu tanh", ml.Gelu(approximate="tanh"), lambda x: functional.gelu(x, approximate="tanh"), None),
        ("silu", ml.Silu(), functional.silu, None),
        ("softplus", ml.Softplus(), functional.softplus, None),
    ]:
        entries[name] = (layer, (vector,), theirs, numpy)
    entries["log"] = (ml.Log(), (positive(1 << 20),), torch.log, np.log)
    entries["power"] = (ml.Power(), (positive(1 << 20), floats(1 << 20)), torch.pow, np.power)
    entries["add"] = (ml.Add(), (vector, floats(1 << 20)), torch.add, np.add)
    big = floats(10_000_000)
    entries["sum of all"] = (ml.Sum(), (big,), torch.sum, np.sum)
    entries["sum of 4 long rows"] = (ml.Sum(axis=1), (floats(4, 1 << 20),), lambda x: x.sum(1), lambda x: x.sum(1))
    entries["sum of columns"] = (ml.Sum(axis=0), (floats(4096, 1024),), lambda x: x.sum(0), lambda x: x.sum(0))
    entries["max of all"] = (ml.Max(), (big,), torch.max, np.max)
    entries["max of rows"] = (ml.Max(axis=1), million, lambda x: x.amax(1), lambda x: x.max(1))
    entries["variance of rows"] = (ml.Var(axis=1), million, lambda x: x.var(1, correction=0), lambda x: x.var(1))
    entries["argmax of rows"] = (ml.ArgMax(axis=1), million, lambda x: x.argmax(1), lambda x: x.argmax(1))
    entries["argmax of columns"] = (ml.ArgMax(axis=0), million, lambda x: x.argmax(0), lambda x: x.argmax(0))
    entries["softmax"] = (ml.Softmax(axis=-1), million, lambda x: x.softmax(-1), None)
    entries["cumsum"] = (ml.CumSum(axis=1), million, lambda x: x.cumsum(1), lambda x: x.cumsum(1))
    entries["cumsum of columns"] = (ml.CumSum(axis=0), million, lambda x: x.cumsum(0), lambda x: x.cumsum(0))
    entries["sort"] = (ml.Sort(), (batch,), lambda x: torch.sort(x).values, np.sort)
    entries["sort of all"] = (ml.Sort(), (vector,), lambda x: torch.sort(x).values, np.sort)
    entries["argsort"] = (ml.ArgSort(), (batch,), torch.argsort, np.argsort)
    entries["topk"] = (ml.TopK(k=8), (batch,), lambda x: x.topk(8).values, None)
    table = floats(32_000, 256)
    entries["take"] = (ml.Take(axis=0), (table, places(32_000, 4096)), lambda x, i: x[i], lambda x, i: x[i])
    along = places(1024, 1024, 1024)
    take = (lambda x, i: x.gather(1, i), lambda x, i: np.take_along_axis(x, i, 1))
    entries["take along axis"] = (ml.TakeAlongAxis(axis=1), (*million, along), *take)
    source = (floats(1024, 1024), along, floats(1024, 1024))
    entries["scatter add"] = (ml.ScatterAdd(axis=1), source, lambda x, i, s: x.scatter_add(1, i, s), None)
    rows = (floats(4096, 256), places(4096, 4096), floats(4096, 256))
    entries["index add"] = (ml.IndexAdd(axis=0), rows, lambda x, i, s: x.index_add(0, i, s), None)
    for size in (256, 1000, 1024):
        data = (floats(512, size),)
        entries[f"rfft {size}"] = (ml.RealFft(), data, torch.fft.rfft, np.fft.rfft)
    entries["matmul"] = (ml.MatrixMultiply(), square, torch.matmul, np.matmul)
    for size, count in ((16, 512), (256, 4)):
        a, b = definite(count, size), floats(count, size, 8)
        entries[f"cholesky {size}"] = (ml.Cholesky(), (a,), torch.linalg.cholesky, np.linalg.cholesky)
        entries[f"solve {size}"] = (ml.Solve(), (a, b), torch.linalg.solve, np.linalg.solve)
        entries[f"inverse {size}"] = (ml.Inverse(), (a,), torch.linalg.inv, np.linalg.inv)
        entries[f"determinant {size}"] = (ml.Determinant(), (a,), torch.linalg.det, np.linalg.det)
    small = [RANDOM.integers(-9, 9, (512, 512)) for _ in range(2)]
    for dtype in ("int8", "int32", "int64"):
        pair = tuple(x.astype(dtype) for x in small)
        entries[f"matmul {dtype}"] = (ml.MatrixMultiply(), pair, torch.matmul, np.matmul)
    for dtype in HALVES:
        pair = tuple(torch.from_numpy(x).to(getattr(torch, dtype)) for x in square)
        entries[f"matmul {dtype}"] = (ml.MatrixMultiply(), pair, torch.matmul, None)
        image = torch.from_numpy(floats(1, 64, 56, 56)).to(getattr(torch, dtype))
        entries[f"gelu {dtype}"] = (ml.Gelu(), (image,), functional.gelu, None)
    return entries


def arrays(values: tuple[Any, ...]) -> list[np.ndarray]:
    """Return tensors of PyTorch as arrays, which share their memory where NumPy has the dtype."""
    import ml_dtypes
    import torch

    def one(x: Any) -> np.ndarray:
        if isinstance(x, np.ndarray):
            return x
        return x.view(torch.uint16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()

    return [one(x) for x in values]


def measure(name: str, threads: int) -> str:
    """Return the line of an op."""
    import mithril as ml
    import torch

    torch.set_num_threads(threads)
    layer, values, theirs, numpy = cases()[name]
    arguments = arrays(values)
    inputs = list(layer.input_keys)[: len(arguments)]
    model = ml.Model()
    model |= layer(**dict(zip(inputs, inputs, strict=True)))
    data = dict(zip(inputs, arguments, strict=True))
    compiled = ml.compile(
        model,
        ml.CBackend(num_threads=threads),
        shapes={key: list(x.shape) for key, x in data.items()},
        dtypes={key: str(x.dtype) for key, x in data.items()},
        inference=True,
    )
    tensors = [x if isinstance(x, torch.Tensor) else torch.from_numpy(x) for x in values]

    def ours() -> Any:
        return compiled.evaluate({}, data)

    mine, torch_time = turns(ours, lambda: theirs(*tensors), pause=PAUSE if threads > 1 else 0.0, rounds=ROUNDS)
    line = f"{name:24} {mine * 1e6:10.1f} {torch_time / mine:8.2f}"
    if numpy is not None and threads == 1:
        again, numpy_time = turns(ours, lambda: numpy(*arguments), rounds=ROUNDS)
        line += f" {numpy_time / again:8.2f}"
    return line


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="take only ops whose names contain one of these")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2], help="numbers of threads")
    options = parser.parse_args()
    for threads in options.threads:
        print(f"{f'{threads} thread(s)':24} {'ours, µs':>10} {'PyTorch':>8} {'NumPy':>8}")
        for name in cases():
            if options.words and not any(word in name for word in options.words):
                continue
            try:
                print(measure(name, threads), flush=True)
            except Exception as error:
                print(f"{name:24} {type(error).__name__}: {str(error)[:150]}", flush=True)


if __name__ == "__main__":
    main()
