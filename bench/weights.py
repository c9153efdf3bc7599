"""Loading a checkpoint of 500 MB: ours against the library `safetensors`, as ratios of medians taken in turns.

What is loaded is also read once, since a map costs when it is read: a number of every page. The last rows fill the
parameters of a model, with all checks, where the library only makes a dict.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mithril as ml
import numpy as np
import safetensors.numpy
import safetensors.torch
import torch

from .timing import turns

#: Matrices of 4 MiB, as many as make 500 MB.
SIZE, COUNT = 1024, 119
PAGE = 1024


def touched(arrays: dict[str, Any]) -> float:
    """Read a number of every page."""
    return sum(float(array.reshape(-1)[::PAGE].sum()) for array in arrays.values())


def cases(path: Path) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Return what is compared: name -> ours, and that of the library."""
    numpy, torch_ = safetensors.numpy.load_file, safetensors.torch.load_file
    compiled = {backend.name: model(backend) for backend in (ml.NumpyBackend(), ml.TorchBackend())}

    def params(name: str) -> dict[str, Any]:
        ml.load_weights(compiled[name], path)
        return dict(compiled[name].parameters)

    def tensors() -> dict[str, Any]:
        return {name: torch.from_numpy(array) for name, array in ml.weights.open(path).items()}

    return {
        "NumPy arrays, opened": (lambda: ml.load(path), lambda: numpy(path)),
        "NumPy arrays, read": (lambda: touched(ml.load(path)), lambda: touched(numpy(path))),
        "tensors of PyTorch, opened": (tensors, lambda: torch_(path)),
        "tensors of PyTorch, read": (lambda: touched(tensors()), lambda: touched(torch_(path))),
        "into a model of PyTorch, read": (lambda: touched(params("torch")), lambda: touched(torch_(path))),
        "into a model of NumPy, read": (lambda: touched(params("numpy")), lambda: touched(numpy(path))),
    }


def model(backend: Any) -> Any:
    """Compile a chain of matrices that wants what the file holds."""
    network = ml.Model()
    for i in range(COUNT):
        ends = {"input": "input"} if i == 0 else {"input": f"h{i - 1}"}
        network |= ml.Linear(SIZE, bias=False, name=f"layer{i}")(**ends, output=f"h{i}" if i < COUNT - 1 else "output")
    return ml.compile(network, backend, shapes={"input": [1, SIZE]})


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        weights = {f"layer{i}.weight": np.full((SIZE, SIZE), i, np.float32) for i in range(COUNT)}
        ml.save(weights, path)
        del weights
        print(f"{path.stat().st_size / 1e6:.0f} MB".ljust(40) + f"{'ours':>12}{'library':>12}{'ratio':>8}{'aim':>8}")
        for name, (ours, library) in cases(path).items():
            first, second = turns(ours, library)
            print(f"{name:<40}{first * 1e3:>9.1f} ms{second * 1e3:>9.1f} ms{first / second:>8.2f}{1.2:>8}")


if __name__ == "__main__":
    main()
