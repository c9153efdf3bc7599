"""What is compared: a module with tensors for its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

#: Elements of all parameters at most.
MOST_PARAMETERS = 160e6


class NotCompared(Exception):
    """An architecture that PyTorch does not run as it is asked to here."""


class Network(NamedTuple):
    """A module in evaluation mode that returns one tensor, and the tensors that it takes."""

    module: Any
    args: tuple[Any, ...]


class FirstTensor(torch.nn.Module):  # type: ignore[misc]
    """A module called with tensors, by the names in `keys` where it has any; the first tensor of what it returns."""

    def __init__(self, model: Any, keys: Sequence[str] = ()) -> None:
        super().__init__()
        self.model, self.keys = model, tuple(keys)

    def forward(self, *args: Any) -> Any:
        """Return the first tensor of the model's outputs, in the order that it has them."""
        output = self.model(**dict(zip(self.keys, args, strict=True))) if self.keys else self.model(*args)
        output = output.to_tuple() if hasattr(output, "to_tuple") else output
        while not isinstance(output, torch.Tensor):
            output = next(iter(output.values())) if isinstance(output, dict) else output[0]
        return output


def check_size(build: Callable[[], Any]) -> int:
    """Return the number of elements of a module's parameters, built without them if it can be; refuse too many."""
    try:
        with torch.device("meta"):
            module = build()
    except NotImplementedError:
        # Some copy values while they are built.
        module = build()
    count: int = sum(parameter.numel() for parameter in module.parameters())
    if count > MOST_PARAMETERS:
        raise NotCompared(f"build: {count / 1e6:.0f} million parameters")
    return count


def smallest(builders: Mapping[str, Callable[[], Any]]) -> str:
    """Return which network has the fewest parameters, of those that can be built."""
    sizes, reason = {}, "there is no network"
    for name, build in builders.items():
        try:
            sizes[name] = check_size(build)
        except NotCompared as refusal:
            reason = str(refusal).removeprefix("build: ")
        except Exception as failure:
            reason = f"{type(failure).__name__}: {failure}"
    if not sizes:
        raise NotCompared(f"build: {reason}")
    return min(sizes, key=sizes.__getitem__)


def fill_zeros(module: Any) -> None:
    """Draw parameters that start at zero, which would hide mistakes and leave the choice of routers to rounding."""
    for parameter in module.parameters():
        if parameter.numel() > 1 and not parameter.any():
            parameter.data.normal_(0, 0.02)


def called(model: Any, args: tuple[Any, ...], keys: Sequence[str] = ()) -> Network:
    """Return a model with arguments that it was called with, by the names in `keys` where it has any."""
    module = FirstTensor(model, keys).eval()
    with torch.no_grad():
        module(*args)
    return Network(module, args)
