"""Pooling and resizing."""

from __future__ import annotations

from typing import Any

import numpy as np

from .convolution import batched, refuse_integers, sizes
from .movement import size_of
from .registry import Use, apply, cast, convert, reads, tensor


def each(value: Any, rank: int) -> tuple[Any, ...]:
    """Give a number for each spatial axis."""
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return values * rank if len(values) == 1 else values


def _within(use: Use, kernel: Any, padding: Any, dilation: Any = 1) -> Any:
    """Cut windows to the image where there is only one, which reaches beyond its end (``ceil_mode``)."""
    rank = len(kernel)
    kernel, padding, dilation = (each(v, rank) for v in (kernel, padding, dilation))
    before, after = use.operand(0).shape[-rank:], use.shape[-rank:]
    result = []
    for i, (size, windows) in enumerate(zip(before, after, strict=True)):
        is_single = isinstance(size, int) and isinstance(windows, int) and windows == 1
        cut = is_single and padding[i] == 0 and dilation[i] == 1
        result.append(min(kernel[i], size) if cut else kernel[i])
    return result


def _max_pool(use: Use, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Any:
    rank = len(kernel)
    inside = _within(use, kernel, padding, dilation)
    window = [sizes(inside, rank), sizes(stride, rank) if stride else None, sizes(padding, rank)]
    pool = (f"max_pool{rank}d", *window, sizes(dilation, rank), ceil)
    return batched(use, rank, x, lambda x: apply(pool[0], x, *pool[1:]))


@convert("max_pool1d.default", "max_pool2d.default", "max_pool3d.default")
def _maxima(
    use: Use, x: Any, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    return _max_pool(use, x, kernel, stride, padding, dilation, ceil_mode)


@convert(
    *("max_pool1d_with_indices.default", "max_pool2d_with_indices.default", "max_pool3d_with_indices.default"),
)
def _maxima_and_places(
    use: Use, x: Any, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    if reads(use) <= {0}:
        return [_max_pool(use, x, kernel, stride, padding, dilation, ceil_mode), None]
    rank = len(kernel)
    kernel, padding, dilation = (each(v, rank) for v in (kernel, padding, dilation))
    stride = each(stride, rank) if stride else kernel
    before, after = _spatial(use, rank)
    places = [
        np.arange(after[i])[:, None] * stride[i] - padding[i] + np.arange(kernel[i]) * dilation[i] for i in range(rank)
    ]
    outside = [(p < 0) | (p >= n) for p, n in zip(places, before, strict=True)]
    return batched(use, rank, x, lambda x: _largest(use, x, places, outside))


def _spatial(use: Use, rank: int) -> tuple[Any, Any]:
    """Sizes of images before and after, which must be known."""
    before, after = use.operand(0).shape[-rank:], use.shape[-rank:]
    if not all(isinstance(n, int) for n in (*before, *after)):
        raise use.refuse("places of the maxima in images whose sizes are not known when converting")
    return before, after


def _largest(use: Use, x: Any, places: Any, outside: Any) -> list[Any]:
    """Take the largest element of each window, and its place in the image.

    ``places`` holds, for each axis, the positions ``[windows, size]`` that windows read, and ``outside`` which of them
    do not count.
    """
    rank, shape = len(places), use.operand(0).shape
    before, batched = shape[-rank:], len(shape) == rank + 2
    number = size_of(use, x, 0, 0) if batched else 1
    channels = int(shape[-rank - 1])
    for axis, p in enumerate(places):
        flat = np.clip(p, 0, before[axis] - 1).ravel()
        x = apply("take", x, tensor(flat), axis + 2)
    windows, lengths = [p.shape[0] for p in places], [p.shape[1] for p in places]
    x = apply("reshape", x, (number, channels, *(n for pair in zip(windows, lengths, strict=True) for n in pair)))
    last = (0, 1, *(2 + 2 * i for i in range(rank)), *(3 + 2 * i for i in range(rank)))
    x = apply("reshape", apply("transpose", x, last), (number, channels, *windows, -1))
    excluded = np.zeros((1,) * (2 * rank), bool)
    position = np.zeros((1,) * (2 * rank), np.int64)
    for axis, (p, out) in enumerate(zip(places, outside, strict=True)):
        like = [1] * (2 * rank)
        like[axis], like[rank + axis] = p.shape
        excluded = excluded | out.reshape(like)
        position = position * before[axis] + p.reshape(like)
    if excluded.any():
        x = apply("where", tensor(excluded.reshape(1, 1, *windows, -1)), lowest(use.dtype), x)
    chosen = apply("argmax", x, -1, True)
    table = tensor(np.ascontiguousarray(position).reshape(1, 1, *windows, -1))
    return [apply("squeeze", apply("take_along_axis", y, chosen, -1), (-1,)) for y in (x, table)]


def lowest(dtype: str) -> Any:
    """Give what is no more than any number of a dtype."""
    return float("-inf") if "float" in dtype else int(np.iinfo(dtype).min)


@convert("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def _means(
    use: Use,
    x: Any,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: Any = None,
) -> Any:
    refuse_integers(use)
    rank = len(kernel)
    inside = _within(use, kernel, padding)
    window = [sizes(inside, rank), sizes(stride, rank) if stride else None, sizes(padding, rank)]
    if divisor is not None:
        return batched(use, rank, x, lambda x: _sums(use, x, kernel, stride, padding, ceil_mode, divisor))
    return batched(use, rank, x, lambda x: apply(f"avg_pool{rank}d", x, *window, ceil_mode, count_include_pad))


def _sums(use: Use, x: Any, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, divisor: int) -> Any:
    """Divide the sums of windows by a number: what is outside of the image counts as 0."""
    rank = len(kernel)
    kernel, padding = each(kernel, rank), each(padding, rank)
    stride = each(stride, rank) if stride else kernel
    pads = [(n, n) for n in padding]
    if ceil_mode:
        before, after = _spatial(use, rank)
        reach = [(after[i] - 1) * stride[i] + kernel[i] - padding[i] - before[i] for i in range(rank)]
        pads = [(n, max(m, n)) for n, m in zip(padding, reach, strict=True)]
    if any(map(any, pads)):
        x = apply("pad", x, ((0, 0), (0, 0), *pads), "constant", 0.0)
    means = apply(f"avg_pool{rank}d", x, sizes(kernel, rank), sizes(stride, rank), 0)
    factor = float(np.prod(kernel)) / divisor
    return means if factor == 1 else apply("multiply", means, factor)


@convert(
    *("adaptive_avg_pool1d.default", "_adaptive_avg_pool2d.default", "adaptive_avg_pool2d.default"),
    *("_adaptive_avg_pool3d.default", "adaptive_avg_pool3d.default"),
)
def _adaptive_means(use: Use, x: Any, size: Any) -> Any:
    rank = len(size)
    return batched(use, rank, x, lambda x: apply(f"adaptive_avg_pool{rank}d", x, sizes(size, rank)))


@convert("adaptive_max_pool1d.default", "adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def _adaptive_maxima(use: Use, x: Any, size: Any) -> Any:
    rank = len(size)
    if reads(use) <= {0}:
        return batched(use, rank, x, lambda x: [apply(f"adaptive_max_pool{rank}d", x, sizes(size, rank)), None])
    places, outside = [], []
    for n, count in zip(*_spatial(use, rank), strict=True):
        starts = np.arange(count) * n // count
        lengths = -(-(np.arange(1, count + 1) * n) // count) - starts
        steps = np.arange(lengths.max(initial=1))
        places.append(starts[:, None] + steps)
        outside.append(steps >= lengths[:, None])
    return batched(use, rank, x, lambda x: _largest(use, x, places, outside))


@convert("fractional_max_pool2d.default", "fractional_max_pool3d.default")
def _fractional_maxima(use: Use, x: Any, kernel: Any, size: Any, samples: Any) -> Any:
    rank = len(kernel)
    return batched(use, rank, x, lambda x: _fractional(use, x, each(kernel, rank), samples))


def _fractional(use: Use, x: Any, kernel: Any, samples: Any) -> list[Any]:
    """Take the largest elements of windows whose places depend on random numbers."""
    rank, shape = len(kernel), use.operand(0).shape
    before, after = _spatial(use, rank)
    number = size_of(use, x, 0, 0) if len(shape) == rank + 2 else 1
    channels = int(shape[-rank - 1])
    samples = samples if len(shape) == rank + 2 else samples[:1]
    positions: Any = 0
    for axis in range(rank):
        # Of images PyTorch has the number of the last axis first.
        sample = samples[..., rank - 1 - axis if rank == 2 else axis]
        own = [1] * (2 * rank)
        own[2 * axis], own[2 * axis + 1] = after[axis], kernel[axis]
        starts: Any = apply("full", (number, channels, 1), before[axis] - kernel[axis], "int64")
        if after[axis] > 1:
            step = (before[axis] - kernel[axis]) / (after[axis] - 1)
            sample = apply("expand_dims", sample, 2)
            steps = apply("add", sample, tensor(np.arange(after[axis] - 1, dtype=np.dtype(use.dtype))))
            first = cast(apply("multiply", sample, step), "int64")
            moved = apply("subtract", cast(apply("multiply", steps, step), "int64"), first)
            starts = apply("concat", 2, moved, starts)
        place = apply("add", apply("expand_dims", starts, 3), tensor(np.arange(kernel[axis])))
        place = apply("reshape", place, (number, channels, -1))
        like = [1] * rank
        like[axis] = after[axis] * kernel[axis]
        x = apply("take_along_axis", x, apply("reshape", place, (number, channels, *like)), axis + 2)
        scaled = apply("multiply", place, int(np.prod(before[axis + 1 :], dtype=np.int64)))
        positions = apply("add", apply("reshape", scaled, (number, channels, *own)), positions)
    whole = (number, channels, *(n for pair in zip(after, kernel, strict=True) for n in pair))
    last = (0, 1, *(2 + 2 * i for i in range(rank)), *(3 + 2 * i for i in range(rank)))
    x, positions = (
        apply("reshape", apply("transpose", apply("reshape", y, whole), last), (number, channels, *after, -1))
        for y in (x, positions)
    )
    chosen = apply("argmax", x, -1, True)
    return [apply("squeeze", apply("take_along_axis", y, chosen, -1), (-1,)) for y in (x, positions)]


@convert("max_unpool2d.default", "max_unpool3d.default")
def _unpooled(use: Use, x: Any, places: Any, size: Any, *ignored: Any) -> Any:
    lead = use.rank - len(size)
    like = tuple(size_of(use, x, 0, i) for i in range(lead))
    count = int(np.prod([int(n) for n in size]))
    zeros = apply("full", (*like, count), 0, use.dtype)
    flat = [apply("reshape", y, (*like, -1)) for y in (places, x)]
    return apply("reshape", apply("scatter", zeros, lead, *flat), (*like, *map(int, size)))


@convert("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
def _nearest(use: Use, x: Any, size: Any, factors: Any) -> Any:
    return _resized(use, x, size, factors, "nearest", False)


@convert("upsample_linear1d.vec")
def _linear(use: Use, x: Any, size: Any, align_corners: bool, factors: Any) -> Any:
    return _resized(use, x, size, factors, "linear", align_corners)


@convert("upsample_bilinear2d.vec")
def _bilinear(use: Use, x: Any, size: Any, align_corners: bool, factors: Any) -> Any:
    return _resized(use, x, size, factors, "bilinear", align_corners)


@convert("upsample_bicubic2d.vec")
def _bicubic(use: Use, x: Any, size: Any, align_corners: bool, factors: Any) -> Any:
    return _resized(use, x, size, factors, "bicubic", align_corners)


def _resized(use: Use, x: Any, size: Any, factors: Any, mode: str, align_corners: bool) -> Any:
    if factors is not None and not all(float(factor).is_integer() for factor in factors):
        # Positions follow from the factor rather than from the sizes.
        return apply("interpolate", x, None, tuple(factors), mode, align_corners)
    resized = use.sizes[2:]
    return apply("interpolate", x, resized, None, mode, align_corners)


@convert("_upsample_bilinear2d_aa.default", "_upsample_bicubic2d_aa.default")
def _antialiased(
    use: Use, x: Any, size: Any, align_corners: bool, rows_factor: Any = None, columns_factor: Any = None
) -> Any:
    """Multiply by the matrix of each axis: what PyTorch makes of the unit vectors."""
    import torch

    before, after = use.operand(0).shape[2:], use.shape[2:]
    if not all(isinstance(n, int) for n in (*before, *after)):
        raise use.refuse("resizing with antialiasing of sizes that are not known when converting")
    # Of `aten._upsample_bilinear2d_aa.vec`, the form that takes sizes.
    resize = getattr(torch.ops.aten, str(use.node.target).split(".")[1]).default

    def matrix(axis: int, factor: Any) -> Any:
        unit = torch.eye(before[axis], dtype=torch.float64)[None, None]
        rows = resize(unit, [after[axis], before[axis]], align_corners, factor, None)[0, 0]
        # Half precisions have no arrays in NumPy.
        values = tensor(rows.to(torch.float64 if use.dtype == "float64" else torch.float32).numpy())
        return values if use.dtype in ("float32", "float64") else apply("cast", values, use.dtype)

    x = apply("matmul", matrix(0, rows_factor), x)
    return apply("matmul", x, apply("transpose", matrix(1, columns_factor), (1, 0)))


@convert("_upsample_bilinear2d_aa.vec", "_upsample_bicubic2d_aa.vec")
def _antialiased_by(use: Use, x: Any, size: Any, align_corners: bool, factors: Any) -> Any:
    return _antialiased(use, x, size, align_corners, *(factors or ()))


@convert("pixel_shuffle.default")
def _pixel_shuffle(use: Use, x: Any, factor: int) -> Any:
    return apply("pixel_shuffle", x, factor)


@convert("grid_sampler.default", "grid_sampler_2d.default", "grid_sampler_3d.default")
def _grid_sample(use: Use, x: Any, grid: Any, mode: int, padding: int, align_corners: bool) -> Any:
    modes, paddings = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
    return apply("grid_sample", x, grid, modes[mode], paddings[padding], align_corners)


@convert("im2col.default")
def _unfold(use: Use, x: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    return apply("unfold", x, *(sizes(v, 2) for v in (kernel, dilation, padding, stride)))


@convert("col2im.default")
def _fold(use: Use, x: Any, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    return apply("fold", x, tuple(size), *(sizes(v, 2) for v in (kernel, dilation, padding, stride)))
