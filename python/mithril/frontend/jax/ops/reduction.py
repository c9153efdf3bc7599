"""Reductions, scans, sorting and windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...special import logcumsumexp
from .registry import OPS, Use, apply, cast, convert, tensor

REDUCTIONS = {"sum": "sum", "max": "max", "min": "min", "prod": "prod", "and": "all", "or": "any"}


def _reduction(op: str) -> Any:
    def function(use: Use, x: Any, *, axes: Any, **ignored: Any) -> Any:
        if not axes:
            return x
        if op in ("all", "any") and use.dtype != "bool":
            raise use.refuse("bits of integers over an axis")
        y = apply(op, x, tuple(axes), False)
        # Sums of small integers are wider here.
        return cast(y, use.dtype) if op in ("sum", "prod") and "int" in use.dtype else y

    return function


OPS.update({f"reduce_{name}": _reduction(op) for name, op in REDUCTIONS.items()})


@convert("argmax", "argmin")
def _arg(use: Use, x: Any, *, axes: Any, index_dtype: Any, **ignored: Any) -> Any:
    return cast(apply(use.eqn.primitive.name, x, int(axes[0])), use.dtype)


@convert("cumsum", "cumprod", "cummax", "cummin")
def _scan(use: Use, x: Any, *, axis: int, reverse: bool, **ignored: Any) -> Any:
    name = use.eqn.primitive.name
    if name in ("cummax", "cummin"):
        return apply(f"cumulative_{name[3:]}", x, axis, reverse)
    y = apply(name, x, axis, False, reverse)
    return cast(y, use.dtype) if "int" in use.dtype else y


@convert("cumlogsumexp")
def _cumlogsumexp(use: Use, x: Any, *, axis: int, reverse: bool, **ignored: Any) -> Any:
    y = logcumsumexp(apply("flip", x, (axis,)) if reverse else x, axis, use.shape[axis])
    return apply("flip", y, (axis,)) if reverse else y


@convert("top_k")
def _top_k(use: Use, x: Any, *, k: int, axis: int = -1, **ignored: Any) -> Any:
    values, places = apply("topk", x, k, axis % use.rank, True, True)
    return [values, cast(places, "int32")]


@convert("sort")
def _sort(use: Use, *xs: Any, dimension: int, num_keys: int, **ignored: Any) -> Any:
    places = apply("argsort", tensor(xs[num_keys - 1]), dimension)
    # By the last key first: sorting is stable.
    for key in reversed(xs[: num_keys - 1]):
        order = apply("argsort", apply("take_along_axis", tensor(key), places, dimension), dimension)
        places = apply("take_along_axis", places, order, dimension)
    return [apply("take_along_axis", tensor(x), places, dimension) for x in xs]


@convert("reduce_window_max", "reduce_window_sum")
def _window(use: Use, x: Any, *, window_dimensions: Any, window_strides: Any, padding: Any, **params: Any) -> Any:
    if any(n != 1 for n in params["base_dilation"]):
        raise use.refuse("windows over a dilated tensor")
    dilation, shape = params["window_dilation"], use.shape_of(0)
    sliding = [i for i in range(use.rank) if window_dimensions[i] != 1 or window_strides[i] != 1 or any(padding[i])]
    fixed = [i for i in range(use.rank) if i not in sliding]
    is_max = use.eqn.primitive.name.endswith("max")
    if "int" in use.dtype or not 1 <= len(sliding) <= 3 or (not is_max and any(dilation[i] != 1 for i in sliding)):
        raise use.refuse("windows of integers, over more than three axes, or sums of dilated ones")
    window, stride, gaps = (
        tuple(int(part[i]) for i in sliding) for part in (window_dimensions, window_strides, dilation)
    )
    y = x
    if any(any(padding[i]) for i in sliding):
        whole = tuple((0, 0) if i in fixed else tuple(map(int, padding[i])) for i in range(use.rank))
        y = apply("pad", y, whole, "constant", float("-inf") if is_max else 0.0)
    order = (*fixed, *sliding)
    y = y if order == tuple(range(use.rank)) else apply("transpose", y, order)
    sizes = [int(shape[i] + sum(padding[i])) for i in sliding]
    y = apply("reshape", y, (-1, 1, *sizes))
    kind = f"pool{len(sliding)}d"
    if is_max:
        y = apply(f"max_{kind}", y, window, stride, 0, gaps)
    else:
        y = apply("multiply", apply(f"avg_{kind}", y, window, stride, 0), float(np.prod(window)))
    y = apply("reshape", y, tuple(use.shape[i] for i in order))
    back = tuple(int(i) for i in np.argsort(order))
    return y if back == tuple(range(use.rank)) else apply("transpose", y, back)
