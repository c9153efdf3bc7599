"""The table of conversions, and what they are written with."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from ...._core import IOKey
from ....errors import UnsupportedOpError
from ...rows import apply, cast, is_connection
from .symbols import known_sizes, number_of, symbolic

__all__ = ["OPS", "Use", "apply", "cast", "convert", "dtype_name", "is_connection"]
__all__ += ["as_vectors", "promoted", "reads", "tensor", "tensors"]

#: Name of an op of ATen with its overload, such as ``aten.add.Tensor``, and what it becomes.
OPS: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True)
class Use:
    """A use of an op: a node of PyTorch's graph, and what its arguments are here."""

    node: Any
    arguments: Sequence[Any] = ()

    @property
    def value(self) -> Any:
        """The tensor without data that PyTorch says the result is; the first one if there are several."""
        value = self.node.meta["val"]
        return value[0] if isinstance(value, (tuple, list)) else value

    @property
    def dtype(self) -> str:
        """Dtype of the result."""
        return dtype_name(self.value.dtype)

    @property
    def rank(self) -> int:
        """Number of dimensions of the result."""
        return int(self.value.dim())

    @property
    def shape(self) -> tuple[Any, ...]:
        """Sizes of the result: integers, or PyTorch's symbols."""
        return tuple(self.value.shape)

    @property
    def sizes(self) -> tuple[Any, ...]:
        """Sizes of the result: integers, or numbers that are read from the shapes of arguments."""
        return tuple(map(self.size, self.shape))

    def size(self, size: Any) -> Any:
        """Give a size that may be one of PyTorch's symbols as a number, or as one that is read from shapes."""
        expression = symbolic(size)
        if expression is None:
            return size
        pairs = [
            (argument.meta.get("val"), converted)
            for argument, converted in _flat(self.node.args, self.arguments)
            if hasattr(argument, "meta")
        ]
        number = number_of(expression, known_sizes(pairs))
        if number is None:
            raise self.refuse(f"a size that does not follow from those of its arguments: {expression}")
        return number

    def operand(self, i: int) -> Any:
        """Look up what PyTorch says argument ``i`` is: a tensor without data, or the argument itself."""
        argument = self.node.args[i]
        return argument.meta["val"] if hasattr(argument, "meta") else argument

    def operands(self, i: int) -> list[Any]:
        """Look up what PyTorch says the items of argument ``i`` are, which is a list."""
        return [item.meta["val"] if hasattr(item, "meta") else item for item in self.node.args[i]]

    def rank_of(self, i: int) -> int:
        """Count the dimensions of the tensor at argument ``i``."""
        return int(self.operand(i).dim())

    def refuse(self, reason: str) -> UnsupportedOpError:
        """Make the error for a use that has no counterpart."""
        return UnsupportedOpError(reason)


def _flat(nodes: Any, converted: Any) -> Iterator[tuple[Any, Any]]:
    """Walk through arguments and what they are here, also in lists."""
    for node, value in zip(nodes, converted, strict=False):
        if isinstance(node, (list, tuple)):
            yield from _flat(node, value)
        else:
            yield node, value


class VectorUse(Use):
    """A use whose 0-d tensors are vectors of one element."""

    @property
    def value(self) -> Any:
        """The result, of one axis."""
        return super().value.reshape(1)

    def operand(self, i: int) -> Any:
        """Look up argument ``i``, of one axis if it has none."""
        value = super().operand(i)
        return value.reshape(1) if hasattr(value, "dim") and value.dim() == 0 else value


def as_vectors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Convert an op along an axis so that 0-d tensors are vectors of one element, as in PyTorch."""

    @wraps(function)
    def converted(use: Use, x: Any, *args: Any, **named: Any) -> Any:
        if use.rank_of(0) > 0:
            return function(use, x, *args, **named)
        shape, use = use.sizes, VectorUse(use.node, use.arguments)
        args = tuple(
            apply("reshape", y, (1,)) if is_connection(y) and use.operand(i).numel() == 1 else y
            for i, y in enumerate(args, 1)
        )
        results = function(use, apply("reshape", x, (1,)), *args, **named)
        if isinstance(results, list):
            return [apply("reshape", y, shape) for y in results]
        return apply("reshape", results, shape)

    return converted


def dtype_name(dtype: Any) -> str:
    """Name of a dtype of PyTorch here; of complex numbers that of their parts."""
    name = str(dtype).removeprefix("torch.")
    return {"complex64": "float32", "complex128": "float64", "complex32": "float16"}.get(name, name)


def convert(*names: str, prefix: str = "aten") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function for these ops of ATen, or of another library."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        OPS.update({f"{prefix}.{name}": function for name in names})
        return function

    return enter


def tensor(values: Any) -> Any:
    """Make a constant of an array."""
    return IOKey(value=values)


def tensors(use: Use, dtype: str, *args: Any) -> list[Any]:
    """Cast arguments that are tensors of another dtype: PyTorch promotes by its own rules."""
    results = []
    for i, x in enumerate(args):
        operand: Any = use.operand(i) if i < len(use.node.args) else None
        differs = is_connection(x) and hasattr(operand, "dtype") and dtype_name(operand.dtype) != dtype
        results.append(cast(x, dtype) if differs else x)
    return results


def promoted(use: Use, *args: Any) -> list[Any]:
    """Cast arguments to the dtype of the result."""
    return tensors(use, use.dtype, *args)


def reads(use: Use) -> set[Any]:
    """Which results of an op are read; None stands for all of them."""
    return {user.args[1] if user.target is operator.getitem else None for user in use.node.users}


def wide(use: Use, compute: Any, *args: Any) -> Any:
    """Compute half precisions in float32."""
    if use.dtype not in ("float16", "bfloat16"):
        return compute(*args)
    return cast(compute(*(cast(x, "float32") if is_connection(x) else x for x in args)), use.dtype)
