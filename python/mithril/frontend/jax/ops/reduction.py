"""Reductions, scans and sorting."""

from __future__ import annotations

from typing import Any

from ...special import logcumsumexp
from .registry import OPS, Use, apply, cast, convert, tensor

REDUCTIONS = {"sum": "sum", "max": "max", "min": "min", "prod": "prod", "and": "all", "or": "any"}


def _reduction(op: str) -> Any:
    def function(use: Use, x: Any, *, axes: Any, **ignored: Any) -> Any:
        if not axes:
            return x
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


@convert("approx_top_k")
def _approx_top_k(use: Use, x: Any, *, k: int, reduction_dimension: int, is_max_k: bool, **params: Any) -> Any:
    axis = reduction_dimension % use.rank
    if use.shape[axis] != k:
        raise use.refuse("with aggregate_to_topk=False")
    # The exact ones.
    values, places = apply("topk", x, k, axis, is_max_k, True)
    return [values, cast(places, "int32")]


@convert("sort")
def _sort(use: Use, *xs: Any, dimension: int, num_keys: int, **ignored: Any) -> Any:
    places = apply("argsort", tensor(xs[num_keys - 1]), dimension)
    # By the last key first: sorting is stable.
    for key in reversed(xs[: num_keys - 1]):
        order = apply("argsort", apply("take_along_axis", tensor(key), places, dimension), dimension)
        places = apply("take_along_axis", places, order, dimension)
    return [apply("take_along_axis", tensor(x), places, dimension) for x in xs]
