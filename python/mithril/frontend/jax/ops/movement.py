"""Shapes, order and parts of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....errors import UnsupportedOpError
from ..sizes import is_open, with_sizes
from .registry import Use, apply, cast, convert, is_connection, tensor

__all__ = ["along", "spread"]


def along(axis: int, key: Any) -> tuple[Any, ...]:
    """Write a key of one axis as one of the tensor."""
    return (*(slice(None),) * axis, key)


@convert("reshape")
def _reshape(use: Use, x: Any, *, dimensions: Any = None, **ignored: Any) -> Any:
    x = x if dimensions is None else apply("transpose", x, tuple(dimensions))
    return apply("reshape", x, _with_one_unknown(use.shape))


def _with_one_unknown(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """Leave the size that has a name to the op, if there is one."""
    is_one = sum(map(is_open, shape)) == 1 and 0 not in shape
    return tuple(-1 if is_open(n) else n for n in shape) if is_one else shape


@convert("broadcast_in_dim")
def _broadcast(use: Use, x: Any, *rest: Any, broadcast_dimensions: Any, **ignored: Any) -> Any:
    own = use.shape_of(0)
    if not own and not is_connection(x):
        return apply("full", use.shape, np.asarray(x).item(), use.dtype)
    x, spread = tensor(x), [1] * use.rank
    for size, axis in zip(own, broadcast_dimensions, strict=True):
        spread[axis] = size
    if use.is_open:
        y = apply("expand_dims", x, new) if (new := _added(use.rank, broadcast_dimensions)) else x
    else:
        y = x if tuple(spread) == own else apply("reshape", x, tuple(spread))
    return y if tuple(spread) == use.shape else apply("broadcast_to", y, use.shape)


def _added(rank: int, kept: Any) -> tuple[int, ...]:
    return tuple(axis for axis in range(rank) if axis not in kept)


@convert("iota")
def _iota(use: Use, *, dimension: int, **ignored: Any) -> Any:
    x = apply("arange", 0, use.shape[dimension], 1, use.dtype)
    x = apply("expand_dims", x, new) if (new := _added(use.rank, (dimension,))) else x
    return apply("broadcast_to", x, use.shape) if use.rank > 1 else x


@convert("dim_as_value")
def _size(use: Use, *, dim: Any) -> Any:
    return cast(with_sizes(dim), use.dtype)


@convert("squeeze")
def _squeeze(use: Use, x: Any, *, dimensions: Any, **ignored: Any) -> Any:
    return apply("squeeze", x, tuple(dimensions)) if dimensions else x


@convert("expand_dims")
def _expand_dims(use: Use, x: Any, *, dimensions: Any, **ignored: Any) -> Any:
    return apply("expand_dims", x, tuple(dimensions))


@convert("transpose")
def _transpose(use: Use, x: Any, *, permutation: Any, **ignored: Any) -> Any:
    return apply("transpose", x, tuple(int(axis) for axis in permutation))


@convert("rev")
def _flip(use: Use, x: Any, *, dimensions: Any, **ignored: Any) -> Any:
    return apply("flip", x, tuple(dimensions))


@convert("slice")
def _slice(use: Use, x: Any, *, start_indices: Any, limit_indices: Any, strides: Any, **ignored: Any) -> Any:
    steps = strides or [1] * len(start_indices)
    if any(map(is_open, (*start_indices, *limit_indices))):
        shape = use.shape_of(0)
        stops = tuple(None if n == size else n for n, size in zip(limit_indices, shape, strict=True))
        return apply("slice", x, tuple(start_indices), stops, tuple(map(int, steps)))
    return x[tuple(slice(*map(int, key)) for key in zip(start_indices, limit_indices, steps, strict=True))]


@convert("concatenate")
def _concatenate(use: Use, *xs: Any, dimension: int, **ignored: Any) -> Any:
    return apply("concat", dimension, *map(tensor, xs)) if len(xs) > 1 else xs[0]


@convert("stack")
def _stack(use: Use, *xs: Any, axis: int, **ignored: Any) -> Any:
    return apply("stack", axis, *map(tensor, xs))


@convert("tile")
def _tile(use: Use, x: Any, *, reps: Any, **ignored: Any) -> Any:
    return apply("tile", x, tuple(map(int, reps)))


@convert("unstack")
def _unstack(use: Use, x: Any, *, axis: int, **ignored: Any) -> Any:
    axis %= len(use.shape_of(0))
    return [x[along(axis, i)] for i in range(len(use.eqn.outvars))]


@convert("split")
def _split(use: Use, x: Any, *, sizes: Any, axis: int, **ignored: Any) -> Any:
    return apply("split", x, tuple(map(int, sizes)), axis) if len(sizes) > 1 else [x]


def spread(x: Any, axis: int, inner: int, shape: tuple[int, ...], value: Any) -> Any:
    """Pad between the elements along an axis; later axes have their sizes still."""
    if not inner or shape[axis] < 2:
        return x
    y = apply("expand_dims", x, (axis + 1,))
    pads = [(0, 0)] * (len(shape) + 1)
    pads[axis + 1] = (0, inner)
    y = apply("flatten", apply("pad", y, tuple(pads), "constant", value), axis, axis + 1)
    return y[(slice(None),) * axis + (slice(None, (shape[axis] - 1) * (inner + 1) + 1),)]


@convert("pad")
def _pad(use: Use, x: Any, value: Any, *, padding_config: Any, **ignored: Any) -> Any:
    if is_connection(value):
        fill = False if use.dtype == "bool" else 0 if "int" in use.dtype else 0.0
        is_own = _padded(apply("full", use.shape_of(0), True, "bool"), use.shape_of(0), False, padding_config)
        return apply("where", is_own, _padded(tensor(x), use.shape_of(0), fill, padding_config), value)
    return _padded(tensor(x), use.shape_of(0), np.asarray(value).item(), padding_config)


def _padded(x: Any, shape: tuple[Any, ...], value: Any, padding_config: Any) -> Any:
    """Pad by a number, between elements too, or cut off where padding is negative."""
    for axis, (_, _, inner) in enumerate(padding_config):
        x = spread(x, axis, int(inner), shape, value)
    return padded(x, [(a, b) for a, b, _ in padding_config], value)


def padded(x: Any, pads: Sequence[Sequence[Any]], value: Any) -> Any:
    """Pad, or cut off where padding is negative; numbers that follow from sizes with names must not be negative."""
    if any(is_open(n) and not n >= 0 for pair in pads for n in pair):
        raise UnsupportedOpError("by numbers that may be negative, of sizes that have names")
    known = [tuple(0 if is_open(n) else int(n) for n in pair) for pair in pads]
    key = tuple(slice(max(-a, 0) or None, min(b, 0) or None) for a, b in known)
    x = x[key] if any(part != slice(None) for part in key) else x
    # In one flat tuple, which may hold sizes with names.
    added = tuple(n if is_open(n) else max(int(n), 0) for pair in pads for n in pair)
    return apply("pad", x, added, "constant", value) if any(is_open(n) or n for n in added) else x
