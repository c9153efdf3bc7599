"""Convolution with gaps in the input, and windows, for PyTorch."""

import itertools

import torch
import torch.nn.functional as F


def _pad_spatial(x, pads, value=0):
    """x [n, c, *s] with padded axes; negative pads cut off."""
    return F.pad(x, [p for pair in reversed(pads) for p in pair], value=value)


def _conv_general(x, w, stride, pads, dilation, input_dilation, groups, shape):
    """Cross-correlation of x [n, c, *s], with gaps between its elements, with w [o, c/groups, *k]."""
    n = x.dim() - 2
    if 0 in shape or x.numel() == 0 or w.numel() == 0:
        return x.new_zeros(shape)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[n - 1]
    if all(s == 1 for s in stride):
        # Gaps in the input are strides of a transposed convolution, which computes no products with zeros.
        spread = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
        turned = w.flip(tuple(range(2, n + 2)))
        turned = turned.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
        edges = [(k - 1) * d for k, d in zip(w.shape[2:], dilation)]
        low = [max(e - max(pair), 0) for e, pair in zip(edges, pads)]
        y = spread(x, turned, None, input_dilation, low, 0, groups, dilation)
        more = [(lo - e + p, hi - e + p) for e, p, (lo, hi) in zip(edges, low, pads)]
        return _pad_spatial(y, more) if any(map(any, more)) else y
    for axis, d in enumerate(input_dilation, 2):
        if d > 1:
            size = (x.shape[axis] - 1) * d + 1
            x = F.pad(x.unsqueeze(axis + 1), (0, 0) * (n + 1 - axis) + (0, d - 1)).flatten(axis, axis + 1)
            x = x.narrow(axis, 0, size)
    return convolve(_pad_spatial(x, pads), w, None, stride, 0, dilation, groups)


def _windows(x, window, stride, pads, dilation, value):
    """Windows [n, c, *positions, *window] of x [n, c, *s]."""
    if any(map(any, pads)):
        x = _pad_spatial(x, pads, value)
    for axis, (k, s, d) in enumerate(zip(window, stride, dilation), 2):
        x = x.unfold(axis, (k - 1) * d + 1, s)[..., ::d]
    return x


def _fold_windows(g, sizes, stride, pads, dilation):
    """Adds windows [n, c, *positions, *window] up where they were taken from."""
    n = len(sizes)
    positions, window = g.shape[2 : 2 + n], g.shape[2 + n :]
    if g.numel() == 0:
        return g.new_zeros([*g.shape[:2], *sizes])
    half = g.dtype in (torch.float16, torch.bfloat16)
    padded = [
        max(size + lo + hi, (k - 1) * d + (p - 1) * s + 1)
        for size, (lo, hi), k, d, p, s in zip(sizes, pads, window, dilation, positions, stride)
    ]
    out = g.new_zeros([*g.shape[:2], *padded], dtype=torch.float32 if half else g.dtype)
    for at in itertools.product(*map(range, window)):
        to = [slice(k * d, k * d + (p - 1) * s + 1, s) for k, d, p, s in zip(at, dilation, positions, stride)]
        out[(..., *to)] += g[(slice(None), slice(None), *[slice(None)] * n, *at)]
    return _pad_spatial(out, [(-lo, size + lo - p) for size, (lo, _), p in zip(sizes, pads, padded)]).to(g.dtype)
