"""Optimizers on PyTorch: a step of ours against `torch.optim`, as ratios of medians taken in turns.

Run it with ``python -m bench.optimizers``. Parameters are those of ResNet-18 (62 arrays, 12 million numbers) and of
many small layers, where what a step costs besides arithmetic shows. `torch.optim` runs with ``foreach``, which takes
lists of arrays as the generated program does, and without, one array after the other. Both write into the parameters
and what they remember of them. ``--device cuda`` measures on a GPU, waiting for it after each step.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import mithril as ml
import torch
from mithril.models import resnet18

from .timing import turns

#: Name -> ours, and that of PyTorch.
OPTIMIZERS: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
    "SGD, momentum": (
        lambda: ml.optim.SGD(0.01, momentum=0.9),
        lambda params, **options: torch.optim.SGD(params, 0.01, momentum=0.9, **options),
    ),
    "Adam": (lambda: ml.optim.Adam(0.001), lambda params, **options: torch.optim.Adam(params, 0.001, **options)),
    "AdamW": (lambda: ml.optim.AdamW(0.001), lambda params, **options: torch.optim.AdamW(params, 0.001, **options)),
}


def networks() -> dict[str, list[tuple[int, ...]]]:
    """Return shapes of parameters by name of a network."""
    compiled = ml.compile(resnet18(), ml.TorchBackend(), shapes={"input": [1, 3, 64, 64]})
    shapes = [tuple(array.shape) for array in compiled.parameters.values()]
    return {"ResNet-18": shapes, "100 layers of 32": [(32, 32), (32,)] * 100}


def steps(
    name: str, shapes: list[tuple[int, ...]], device: str, **options: Any
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return a step of ours and one of PyTorch, each on parameters and gradients of its own."""
    ours, theirs = OPTIMIZERS[name]
    params = {str(i): torch.randn(shape, device=device) for i, shape in enumerate(shapes)}
    gradients = {key: torch.randn_like(value) for key, value in params.items()}
    optimizer = ours()
    leaves = [torch.nn.Parameter(value.clone()) for value in params.values()]
    for leaf, gradient in zip(leaves, gradients.values(), strict=True):
        leaf.grad = gradient.clone()
    hand = theirs(leaves, **options)
    kept = {"params": params}

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    def step() -> None:
        kept["params"] = optimizer.update(kept["params"], gradients, donate=True)
        wait()

    def step_by_hand() -> None:
        hand.step()
        wait()

    return step, step_by_hand


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch")
    parser.add_argument("--device", default="cpu", help="where PyTorch computes, such as cuda")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(f"{'':<20}{'':<16}{'torch.optim':<14}{'ours':>10}{'theirs':>12}{'ratio':>8}")
    for network, shapes in networks().items():
        for name in OPTIMIZERS:
            for label, options in (("foreach", {"foreach": True}), ("one by one", {"foreach": False})):
                ours, theirs = turns(*steps(name, shapes, arguments.device, **options))
                row = f"{ours * 1e3:>7.2f} ms{theirs * 1e3:>9.2f} ms{ours / theirs:>8.2f}"
                print(f"{network:<20}{name:<16}{label:<14}{row}")


if __name__ == "__main__":
    main()
