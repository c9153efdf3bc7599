"""Products and convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np

from .registry import Use, apply, cast, convert, tensor


@convert("dot_general")
def _dot(use: Use, x: Any, y: Any, *, dimension_numbers: Any, **ignored: Any) -> Any:
    (left, right), (left_batch, right_batch) = dimension_numbers
    x, y = tensor(x), tensor(y)
    ranks = len(use.shape_of(0)), len(use.shape_of(1))
    x, y = (v if use.dtype_of(i) == use.dtype else cast(v, use.dtype) for i, v in enumerate((x, y)))
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


@convert("conv_general_dilated")
def _convolution(use: Use, x: Any, weight: Any, *, dimension_numbers: Any, **params: Any) -> Any:
    if params["batch_group_count"] != 1:
        raise use.refuse("a convolution with groups of the batch")
    numbers = dimension_numbers
    x, weight = _ordered(tensor(x), numbers.lhs_spec), _ordered(tensor(weight), numbers.rhs_spec)
    x, weight = (v if use.dtype_of(i) == use.dtype else cast(v, use.dtype) for i, v in enumerate((x, weight)))
    stride, dilation = tuple(params["window_strides"]), tuple(params["rhs_dilation"])
    pads, spread = [tuple(map(int, p)) for p in params["padding"]], tuple(params["lhs_dilation"])
    groups, rank = params["feature_group_count"], len(stride)
    is_plain = all(n == 1 for n in spread) and all(a == b >= 0 for a, b in pads)
    if is_plain and 1 <= rank <= 3:
        padding = tuple(a for a, _ in pads)
        result = apply(f"conv{rank}d", x, weight, None, stride, padding, dilation, groups)
    else:
        result = apply("conv_general", x, weight, stride, tuple(pads), dilation, spread, groups)
    return _ordered(result, np.argsort(numbers.out_spec))


def _ordered(x: Any, axes: Any) -> Any:
    axes = tuple(int(a) for a in axes)
    return x if axes == tuple(range(len(axes))) else apply("transpose", x, axes)
