"""Products and convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np

from .registry import Use, apply, cast, convert, tensor


@convert("dot_general")
def _dot(use: Use, x: Any, y: Any, *, dimension_numbers: Any, **ignored: Any) -> Any:
    if use.dtype == "bool":
        # Whether any product is true: how many are is counted.
        counted = _product(use, cast(tensor(x), "int32"), cast(tensor(y), "int32"), dimension_numbers)
        return apply("greater", counted, 0)
    x, y = tensor(x), tensor(y)
    x, y = (v if use.dtype_of(i) == use.dtype else cast(v, use.dtype) for i, v in enumerate((x, y)))
    return _product(use, x, y, dimension_numbers)


def _product(use: Use, x: Any, y: Any, dimension_numbers: Any) -> Any:
    (left, right), (left_batch, right_batch) = dimension_numbers
    ranks = len(use.shape_of(0)), len(use.shape_of(1))
    if not left_batch and tuple(left) == (ranks[0] - 1,) and tuple(right) == (0,) and ranks[1] == 2:
        return apply("matmul", x, y)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    names: list[list[str]] = [[""] * ranks[0], [""] * ranks[1]]
    for a, b in [*zip(left_batch, right_batch, strict=True), *zip(left, right, strict=True)]:
        names[0][a] = names[1][b] = next(letters)
    names = [[name or next(letters) for name in group] for group in names]
    batch = [names[0][i] for i in left_batch]
    free = [n for i, n in enumerate(names[0]) if i not in (*left, *left_batch)]
    free += [n for i, n in enumerate(names[1]) if i not in (*right, *right_batch)]
    return apply("einsum", f"{''.join(names[0])},{''.join(names[1])}->{''.join(batch + free)}", x, y)


@convert("ragged_dot_general")
def _ragged_dot(
    use: Use, x: Any, y: Any, sizes: Any, *, ragged_dot_dimension_numbers: Any, group_offset: Any = None, **ignored: Any
) -> Any:
    numbers = ragged_dot_dimension_numbers
    (left, right), batch = numbers.dot_dimension_numbers
    is_plain = (tuple(left), tuple(right), tuple(map(len, batch))) == ((1,), (1,), (0, 0))
    ragged = (tuple(numbers.lhs_ragged_dimensions), tuple(numbers.rhs_group_dimensions))
    if not is_plain or ragged != ((0,), (0,)) or group_offset is not None:
        raise use.refuse("of other than rows and a matrix for each group")
    x, y, sizes = map(tensor, (x, y, sizes))
    x, y = (v if use.dtype_of(i) == use.dtype else cast(v, use.dtype) for i, v in enumerate((x, y)))
    rows, groups = use.shape_of(0)[0], use.shape_of(1)[0]
    # Row i belongs to the first group that ends behind it; those behind all groups are 0.
    ends = apply("cumsum", cast(sizes, "int64"), 0)
    group = apply("searchsorted", ends, tensor(np.arange(rows)), True)
    own = apply("take", y, apply("minimum", group, groups - 1), 0)
    result = apply("squeeze", apply("matmul", apply("expand_dims", x, 1), own), (1,))
    return apply("where", apply("expand_dims", apply("less", group, groups), 1), result, 0.0)


@convert("conv_general_dilated")
def _convolution(use: Use, x: Any, weight: Any, *, dimension_numbers: Any, **params: Any) -> Any:
    numbers = dimension_numbers
    x, weight = _ordered(tensor(x), numbers.lhs_spec), _ordered(tensor(weight), numbers.rhs_spec)
    x, weight = (v if use.dtype_of(i) == use.dtype else cast(v, use.dtype) for i, v in enumerate((x, weight)))
    stride, dilation = tuple(params["window_strides"]), tuple(params["rhs_dilation"])
    pads, spread = [tuple(map(int, p)) for p in params["padding"]], tuple(params["lhs_dilation"])
    groups, rank = params["feature_group_count"], len(stride)
    if rank > 3:
        raise use.refuse("a convolution over more than three axes")
    if 0 in use.shape:
        # A kernel that is larger than what it slides over has no place.
        return apply("full", use.shape, 0 if "int" in use.dtype else 0.0, use.dtype)
    if not rank:
        x, weight = apply("expand_dims", x, 2), apply("expand_dims", weight, 2)
        stride, dilation, pads, spread = (1,), (1,), [(0, 0)], (1,)
    if "int" in use.dtype:
        # Sums are exact up to 2^53.
        x, weight = cast(x, "float64"), cast(weight, "float64")
    if (batches := params["batch_group_count"]) != 1:
        # Groups of the batch become groups of channels.
        n, *rest = (use.shape_of(0)[i] for i in numbers.lhs_spec)
        x = apply("moveaxis", apply("reshape", x, (batches, n // batches, *rest)), 0, 1)
        x, groups = apply("flatten", x, 1, 2), batches
    is_plain = all(n == 1 for n in spread) and all(a == b >= 0 for a, b in pads)
    if is_plain and rank:
        padding = tuple(a for a, _ in pads)
        result = apply(f"conv{rank}d", x, weight, None, stride, padding, dilation, groups)
    else:
        result = apply("conv_general", x, weight, stride, tuple(pads), dilation, spread, groups)
    result = result if rank else apply("squeeze", result, (2,))
    # Sums that a dtype does not hold wrap, as those of integers do.
    result = cast(cast(result, "int64"), use.dtype) if "int" in use.dtype else result
    return _ordered(result, np.argsort(numbers.out_spec))


def _ordered(x: Any, axes: Any) -> Any:
    axes = tuple(int(a) for a in axes)
    return x if axes == tuple(range(len(axes))) else apply("transpose", x, axes)
