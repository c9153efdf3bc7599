"""The table of conversions, and what they are written with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .... import dtypes
from ...._core import IOKey
from ....errors import UnsupportedOpError
from ... import rows
from ...rows import cast, is_connection
from ..sizes import is_open, with_sizes

__all__ = [
    "OPS",
    "Run",
    "Use",
    "apply",
    "cast",
    "constant",
    "convert",
    "dtype_name",
    "has_open_sizes",
    "is_connection",
    "is_key",
    "operands",
    "scalars",
    "tensor",
]

#: Walks through a jaxpr: itself, its constants, its inputs.
Run = Callable[[Any, Sequence[Any], Sequence[Any]], list[Any]]

#: Name of a primitive, and what it becomes.
OPS: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True)
class Use:
    """A use of a primitive: an equation of a jaxpr, and what walks through the functions that it holds."""

    eqn: Any
    run: Run

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first result."""
        return tuple(self.eqn.outvars[0].aval.shape)

    @property
    def rank(self) -> int:
        """Number of dimensions of the first result."""
        return len(self.shape)

    @property
    def dtype(self) -> str:
        """Dtype of the first result."""
        return _part_dtype(self.eqn.outvars[0].aval)

    def shape_of(self, i: int) -> tuple[int, ...]:
        """Shape of argument ``i``."""
        return tuple(self.eqn.invars[i].aval.shape)

    def dtype_of(self, i: int) -> str:
        """Dtype of argument ``i``."""
        return _part_dtype(self.eqn.invars[i].aval)

    @property
    def is_open(self) -> bool:
        """Whether sizes of arguments or results have names."""
        return has_open_sizes(self.eqn)

    def refuse(self, reason: str) -> UnsupportedOpError:
        """Make the error for a use that has no counterpart."""
        return UnsupportedOpError(reason)


def has_open_sizes(eqn: Any) -> bool:
    """Whether an equation has arguments or results with sizes that have names."""
    return any(is_open(n) for v in (*eqn.invars, *eqn.outvars) for n in getattr(v.aval, "shape", ()))


def apply(op: str, *args: Any, **named: Any) -> Any:
    """Use one of Mithril's ops; sizes that have names are read when the model runs."""
    return rows.apply(op, *map(with_sizes, args), **{name: with_sizes(x) for name, x in named.items()})


def dtype_name(aval: Any) -> str:
    """Name of the dtype of an abstract value here."""
    name = str(aval.dtype)
    if name not in dtypes.ALL:
        raise UnsupportedOpError(f"there are no tensors of dtype {name}", hint="use another dtype, such as int32")
    return name


def is_key(aval: Any) -> bool:
    """Whether an abstract value is an array of keys of random numbers."""
    return str(getattr(aval, "dtype", "")).startswith("key<")


def _part_dtype(aval: Any) -> str:
    """Name of a dtype; of complex numbers that of their parts, of keys that of their words."""
    if is_key(aval):
        return "uint32"
    return {"complex64": "float32", "complex128": "float64"}.get(str(aval.dtype)) or dtype_name(aval)


def convert(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function for these primitives."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        OPS.update(dict.fromkeys(names, function))
        return function

    return enter


def constant(value: Any) -> Any:
    """Make a tensor of an array that is known."""
    array = np.asarray(value)
    # A single integer by itself is a size, which has no dtype of its own.
    if (array.ndim == 0 and array.dtype.kind in "iu") or (array.size > 16 and (array == array.flat[0]).all()):
        return apply("full", tuple(array.shape), array.flat[0].item(), str(array.dtype))
    return IOKey(value=array)


def tensor(x: Any) -> Any:
    """Make a tensor of what is a connection or known."""
    return x if is_connection(x) else constant(x)


def scalars(args: Sequence[Any]) -> list[Any]:
    """Write known arguments, of which all elements are one number, as this number: others are tensors."""
    values = []
    for x in args:
        if is_connection(x):
            values.append(x)
            continue
        array = np.asarray(x)
        is_one = array.size and (array.size == 1 or (array == array.flat[0]).all())
        values.append(array.flat[0].item() if is_one else constant(array))
    return values


def operands(use: Use, args: Sequence[Any]) -> list[Any]:
    """Write all arguments of an op so, unless the result then has fewer elements."""
    values = scalars(args)
    sizes = [use.shape_of(i) for i, x in enumerate(values) if is_connection(x)]
    ranks_alike = [(1,) * (use.rank - len(shape)) + shape for shape in sizes]
    covered = [any(shape[axis] == n for shape in ranks_alike) or n == 1 for axis, n in enumerate(use.shape)]
    return values if all(covered) else list(map(tensor, args))
