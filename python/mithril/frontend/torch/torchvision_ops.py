"""Ops of torchvision, written in functions of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["decompositions_of_torchvision"]


def decompositions_of_torchvision(torch: Any) -> dict[Any, Callable[..., Any]]:
    """Return what each op of torchvision computes, by overload; nothing where torchvision is not imported."""
    rules: dict[str, Callable[..., Any]] = {"deform_conv2d": _deform_conv2d, "roi_align": _roi_align}
    library = torch.ops.torchvision
    return {getattr(library, name).default: rule for name, rule in rules.items() if hasattr(library, name)}


def _deform_conv2d(
    x: Any,
    weight: Any,
    offset: Any,
    mask: Any,
    bias: Any,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> Any:
    """Convolve what is read at places that are moved by an offset (Dai et al. 2017, with a mask Zhu et al. 2018)."""
    import torch

    (n, c, h, w), (filters, _, kernel_h, kernel_w) = x.shape, weight.shape
    rows, columns = offset.shape[-2:]
    count = kernel_h * kernel_w

    def line(size: int) -> Any:
        return torch.arange(size, dtype=x.dtype, device=x.device)

    offset = offset.reshape(n, offset_groups, count, 2, rows, columns)
    inner_y = (line(kernel_h) * dilation_h).repeat_interleave(kernel_w)[:, None, None]
    inner_x = (line(kernel_w) * dilation_w).repeat(kernel_h)[:, None, None]
    y = offset[:, :, :, 0] + inner_y + (line(rows) * stride_h - pad_h)[:, None]
    z = offset[:, :, :, 1] + inner_x + (line(columns) * stride_w - pad_w)
    # Element i lies at (2i + 1) / size - 1.
    grid = torch.stack([(2 * z + 1) / w - 1, (2 * y + 1) / h - 1], -1)
    grid = grid.reshape(n * offset_groups, count * rows, columns, 2)
    images = x.reshape(n * offset_groups, c // offset_groups, h, w)
    read = torch.nn.functional.grid_sample(images, grid, align_corners=False)
    if use_mask:
        read = read * mask.reshape(n * offset_groups, 1, count * rows, columns)
    read = read.reshape(n, groups, c // groups * count, rows * columns)
    result = weight.reshape(groups, filters // groups, -1) @ read
    return result.reshape(n, filters, rows, columns) + bias[:, None, None]


def _roi_align(x: Any, rois: Any, scale: float, rows: int, columns: int, samples: int, aligned: bool) -> Any:
    """Pool regions of images to one size (He et al. 2017): a weighted sum along each axis."""
    import torch

    # Regions have no gradient.
    rois = rois.detach()
    images = x[rois[:, 0].to(torch.int64)]
    corners = rois[:, 1:] * scale - (0.5 if aligned else 0.0)

    def weights(size: int, start: Any, end: Any, bins: int) -> Any:
        """Return the weights of elements in bins: ``[regions, bins, elements]``."""
        length = end - start if aligned else (end - start).clamp(min=1.0)
        step = (length / bins)[:, None, None]
        if samples > 0:
            most, count = samples, torch.full_like(step, samples)
        else:
            # A sample for each element; of regions up to four times as large as the image, larger ones are NaN.
            most, count = -(-4 * size // bins) + 1, step.ceil()
        i = torch.arange(most, dtype=x.dtype, device=x.device)
        bin_ = torch.arange(bins, dtype=x.dtype, device=x.device)[:, None]
        place = start[:, None, None] + bin_ * step + (i + 0.5) * (step / count)
        is_inside = (place >= -1) & (place <= size) & (i < count)
        element = torch.arange(size, dtype=x.dtype, device=x.device)
        shares = (1 - (place.clamp(0, size - 1)[..., None] - element).abs()).clamp(min=0)
        total = torch.where(is_inside[..., None], shares, 0).sum(-2) / count.clamp(min=1)
        return torch.where(count > most, torch.nan, total)

    left, top, right, bottom = corners.unbind(1)
    of_rows, of_columns = weights(x.shape[2], top, bottom, rows), weights(x.shape[3], left, right, columns)
    return of_rows[:, None] @ images @ of_columns[:, None].mT
