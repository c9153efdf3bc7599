"""Shapes as users write them: read, checked, and refused where they could mean something else."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import InvalidValueError, ShapeError

__all__ = ["check_range", "read_integer", "read_shape", "read_shape_and_dtype", "read_size", "refuse_sizes_last"]

#: Most dimensions of an array.
_MAX_RANK = 64


def read_shape(shape: Sequence[Any]) -> tuple[int, ...]:
    """Shape from ``(3, 4)``, ``((3, 4),)`` or ``(n,)``."""
    if len(shape) == 1 and not isinstance(shape[0], str) and isinstance(shape[0], Iterable):
        shape = list(shape[0])
    sizes = tuple(read_size(n) for n in shape)
    if len(sizes) > _MAX_RANK:
        raise ShapeError(f"an array has {len(sizes)} dimensions", code="M0303", hint=f"the maximum is {_MAX_RANK}")
    if math.prod(n for n in sizes if n) >= 2**60:
        raise ShapeError(f"an array of shape {list(sizes)} is too large", code="M0303", hint="check the sizes")
    return sizes


def read_size(n: Any) -> int:
    """Read a size: an integer that is not negative."""
    size = read_integer(n)
    if size < 0:
        raise ShapeError(f"a size is {size}", code="M0303", hint="sizes are not negative")
    return size


def read_integer(n: Any) -> int:
    """Read an integer, of Python or of any framework."""
    if isinstance(n, (bool, type)) or not hasattr(n, "__index__"):
        raise InvalidValueError(f"{n!r} is not an integer", hint="a shape is made of integers, e.g. (3, 4)")
    return operator.index(n)


def refuse_sizes_last(name: str, args: tuple[Any, ...], rest: str) -> tuple[Any, ...]:
    """Refuse a number where the shape stands and further numbers: NumPy and PyTorch put the shape last."""
    if len(args) > 1 and isinstance(args[0], (int, float, np.number)):
        written = ", ".join(map(repr, args))
        raise InvalidValueError(
            f"{name}({written}) is a range and a shape in NumPy, and a shape first in Mithril",
            hint=f"write the shape as a tuple and the rest by name: {name}((2, 3), {rest})",
        )
    return args


def read_shape_and_dtype(shape: tuple[Any, ...], dtype: Any) -> tuple[tuple[int, ...], Any]:
    """Read ``zeros((3, 4), "float32")``: a second place that is a dtype."""
    if dtype is None and len(shape) == 2 and (not hasattr(shape[0], "__index__") or not _is_size(shape[1])):
        first, dtype = shape
        return read_shape((first,)), dtype
    return read_shape(shape), dtype


def _is_size(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, type)


def check_range(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> None:
    """Refuse integers that do not fit into a dtype."""
    limits = np.iinfo(dtype)
    if array.size and not limits.min <= int(array.min()) <= int(array.max()) <= limits.max:
        raise InvalidValueError(
            f"the data holds integers that do not fit into {dtype}",
            hint=f"{dtype} goes from {limits.min} to {limits.max}; `cast` wraps around",
        )
