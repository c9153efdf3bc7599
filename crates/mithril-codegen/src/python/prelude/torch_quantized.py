"""Products in integers of 8 bits for PyTorch."""

import torch
import torch.nn.functional as F


def _dynamic_quantize(x):
    """Rows as int8, each with a scale and a zero of its own; the scale of a row that is not finite is NaN."""
    low = torch.amin(x, dim=-1, keepdim=True).clamp(max=0)
    span = torch.amax(x, dim=-1, keepdim=True).clamp(min=0) - low
    inverse = torch.where((span > 1e-30) & (span < torch.inf), 255 / torch.where(span > 1e-30, span, 1.0), 0.0)
    zero = torch.floor(0.5 - torch.where(span < torch.inf, low, 0.0) * inverse)
    numbers = x * inverse + (zero + 0.5)
    numbers = torch.floor(torch.where(numbers > 0, numbers.clamp(max=255), 0.0)) - 128
    scale = torch.where(span < torch.inf, span / 255, torch.nan)
    return numbers.to(torch.int8), scale, (zero - 128).to(torch.int32)


def _matmul_integer(left, right):
    """Product with a matrix of int8 as int32."""
    rows, (terms, columns) = left.reshape(-1, left.shape[-1]), right.shape
    if left.device.type == "cpu":
        total = torch._int_mm(rows, right)
    elif left.device.type == "cuda":
        # CUDA multiplies more than 16 rows, and terms and columns in eights.
        rows = F.pad(rows, (0, -terms % 8, 0, max(17 - rows.shape[0], 0)))
        total = torch._int_mm(rows, F.pad(right, (0, -columns % 8, 0, -terms % 8)))
        total = total[: left[..., 0].numel(), :columns]
    else:
        # Products of float32 that are short enough to be exact.
        pairs = zip(rows.split(1024, 1), right.split(1024, 0))
        total = sum((a.float() @ b.float()).to(torch.int32) for a, b in pairs)
    return total.reshape(*left.shape[:-1], columns)
