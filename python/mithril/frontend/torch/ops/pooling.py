"""Pooling and resizing."""

from __future__ import annotations

from typing import Any

from .convolution import check_batch, sizes
from .registry import Use, apply, convert, tensor


def _max_pool(use: Use, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Any:
    rank = len(kernel)
    check_batch(use, rank)
    window = [sizes(kernel, rank), sizes(stride, rank) if stride else None, sizes(padding, rank)]
    return apply(f"max_pool{rank}d", x, *window, sizes(dilation, rank), ceil)


@convert("max_pool1d.default", "max_pool2d.default", "max_pool3d.default")
def _maxima(
    use: Use, x: Any, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    return _max_pool(use, x, kernel, stride, padding, dilation, ceil_mode)


@convert("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def _maxima_and_places(
    use: Use, x: Any, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    return [_max_pool(use, x, kernel, stride, padding, dilation, ceil_mode), None]


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
    rank = len(kernel)
    check_batch(use, rank)
    if divisor is not None:
        raise use.refuse("average pooling with a divisor of its own")
    window = [sizes(kernel, rank), sizes(stride, rank) if stride else None, sizes(padding, rank)]
    return apply(f"avg_pool{rank}d", x, *window, ceil_mode, count_include_pad)


@convert("adaptive_avg_pool1d.default", "_adaptive_avg_pool2d.default", "adaptive_avg_pool2d.default")
def _adaptive_means(use: Use, x: Any, size: Any) -> Any:
    return apply(f"adaptive_avg_pool{len(size)}d", x, _output_size(use, size))


@convert("adaptive_max_pool1d.default", "adaptive_max_pool2d.default")
def _adaptive_maxima(use: Use, x: Any, size: Any) -> Any:
    return [apply(f"adaptive_max_pool{len(size)}d", x, _output_size(use, size)), None]


def _output_size(use: Use, size: Any) -> Any:
    check_batch(use, len(size))
    return sizes(size, len(size))


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
    resized = tuple(use.shape[2:])
    if not all(isinstance(n, int) for n in resized):
        raise use.refuse("resizing to a size that is not known when converting")
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


@convert("grid_sampler.default", "grid_sampler_2d.default")
def _grid_sample(use: Use, x: Any, grid: Any, mode: int, padding: int, align_corners: bool) -> Any:
    modes, paddings = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
    return apply("grid_sample", x, grid, modes[mode], paddings[padding], align_corners)


@convert("im2col.default")
def _unfold(use: Use, x: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    return apply("unfold", x, *(sizes(v, 2) for v in (kernel, dilation, padding, stride)))


@convert("col2im.default")
def _fold(use: Use, x: Any, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    return apply("fold", x, tuple(size), *(sizes(v, 2) for v in (kernel, dilation, padding, stride)))
