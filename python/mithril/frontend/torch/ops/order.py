"""Sorting, and what depends on the order of elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...special import logcumsumexp
from .movement import along, size_of
from .registry import Use, apply, as_vectors, cast, convert


@convert("topk.default")
@as_vectors
def _topk(use: Use, x: Any, k: int, dim: int = -1, largest: bool = True, ordered: bool = True) -> Any:
    return apply("topk", x, k, dim, largest, ordered)


@convert("sort.default", "sort.stable")
@as_vectors
def _sort(use: Use, x: Any, *args: Any, **named: Any) -> Any:
    words = ("stable", "dim", "descending") if "stable" in str(use.node.target) else ("dim", "descending")
    named = dict(zip(words, args, strict=False)) | named
    dim, descending = named.get("dim", -1), named.get("descending", False)
    places = apply("argsort", x, dim, descending)
    return [apply("take_along_axis", x, places, dim), places]


@convert("argsort.default", "argsort.stable")
@as_vectors
def _argsort(use: Use, x: Any, *args: Any, **named: Any) -> Any:
    words = ("stable", "dim", "descending") if "stable" in str(use.node.target) else ("dim", "descending")
    named = dict(zip(words, args, strict=False)) | named
    return apply("argsort", x, named.get("dim", -1), named.get("descending", False))


@convert("kthvalue.default")
@as_vectors
def _kth(use: Use, x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    dim %= use.rank_of(0)
    return _at(x, along(apply("argsort", x, dim, False), dim, slice(k - 1, k)), dim, keepdim)


def _at(x: Any, places: Any, dim: int, keepdim: bool) -> list[Any]:
    """Take the element at one place of each line, and the place."""
    values = [apply("take_along_axis", x, places, dim), places]
    return values if keepdim else [apply("squeeze", part, (dim,)) for part in values]


@convert("mode.default")
@as_vectors
def _mode(use: Use, x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    # Of the elements that occur most often the smallest, where it stands last.
    x = apply("moveaxis", x, dim, -1)
    is_same = apply("equal", apply("expand_dims", x, -1), apply("expand_dims", x, -2))
    counts = apply("sum", cast(is_same, "int64"), -1, False)
    is_most = apply("equal", counts, apply("max", counts, -1, True))
    largest = float("inf") if use.value.dtype.is_floating_point else int(np.iinfo(use.dtype).max)
    value = apply("min", apply("where", is_most, x, largest), -1, True)
    is_mode = apply("logical_and", is_most, apply("equal", x, value))
    places = apply("argmax", apply("cumsum", cast(is_mode, "int64"), -1), -1, True)
    results = _at(x, places, -1, True)
    return [apply("moveaxis", y, -1, dim) if keepdim else apply("squeeze", y, (-1,)) for y in results]


@convert("median.dim", "nanmedian.dim")
@as_vectors
def _median(use: Use, x: Any, dim: int, keepdim: bool = False) -> Any:
    dim %= use.rank_of(0)
    order, count = apply("argsort", x, dim, False), size_of(use, x, 0, dim)
    if not use.value.dtype.is_floating_point:
        middle = (count - 1) // 2 if isinstance(count, int) else apply("floor_divide", count - 1, 2)
        return _at(x, along(order, dim, slice(middle, middle + 1)), dim, keepdim)
    # NaN comes last in order. It is the median if there is one, or none at all.
    is_nan = apply("isnan", x)
    numbers = apply("sum", cast(apply("logical_not", is_nan), "int64"), dim, True)
    middle = apply("floor_divide", apply("maximum", apply("subtract", numbers, 1), 0), 2)
    place = apply("take_along_axis", order, middle, dim)
    if "nanmedian" not in str(use.node.target):
        first = apply("argmax", cast(is_nan, "int64"), dim, True)
        place = apply("where", apply("less", numbers, count), first, place)
    return _at(x, place, dim, keepdim)


@convert("median.default", "nanmedian.default")
def _median_of_all(use: Use, x: Any) -> Any:
    name = str(use.node.target).split(".")[1].replace("median", "quantile")
    if use.value.dtype.is_floating_point:
        return apply(name, x, 0.5, None, False, "lower")
    order = apply("argsort", apply("reshape", x, (-1,)), 0, False)
    middle = (int(use.operand(0).numel()) - 1) // 2
    return apply("take", apply("reshape", x, (-1,)), along(order, 0, middle), 0)


@convert("cummax.default", "cummin.default")
@as_vectors
def _extremes_so_far(use: Use, x: Any, dim: int) -> Any:
    return apply(str(use.node.target).split(".")[1], x, dim)


@convert("logcumsumexp.default")
def _logcumsumexp(use: Use, x: Any, dim: int) -> Any:
    if use.rank == 0:
        return cast(x, use.dtype)
    dim %= use.rank
    size = use.shape[dim]
    if not isinstance(size, int):
        raise use.refuse("of a size that is not known when converting")
    return logcumsumexp(x, dim, size)


@convert("searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(
    use: Use,
    sequence: Any,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: Any = None,
    sorter: Any = None,
) -> Any:
    if sorter is not None:
        sequence = apply("take_along_axis", sequence, sorter, -1)
    right = right or side == "right"
    places = apply("searchsorted", sequence, values, right)
    return cast(places, "int32") if out_int32 else places
