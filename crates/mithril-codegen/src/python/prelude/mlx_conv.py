"""Convolution for MLX, which has channels last; what MLX lacks by windows and matrix products."""

import math

import mlx.core as mx


def _per_axis(value, n):
    """One value per axis."""
    return (value,) * n if isinstance(value, int) else tuple(value)


def _spread(x, dilation):
    """x [n, c, *s] with dilation - 1 zeros between neighbors."""
    for axis, d in enumerate(dilation, 2):
        size = x.shape[axis]
        if d > 1 and size > 0:
            x = mx.pad(
                mx.expand_dims(x, axis + 1),
                [(0, d - 1) if i == axis + 1 else (0, 0) for i in range(x.ndim + 1)],
            )
            x = mx.flatten(x, axis, axis + 1)
            x = x[(*[slice(None)] * axis, slice((size - 1) * d + 1))]
    return x


def _pad_spatial(x, pads, value):
    """x [n, c, *s] padded; negative pads cut off."""
    if any(p < 0 for pair in pads for p in pair):
        x = x[(..., *(slice(max(-lo, 0), size - max(-hi, 0)) for size, (lo, hi) in zip(x.shape[2:], pads)))]
    if any(p > 0 for pair in pads for p in pair):
        x = mx.pad(x, [(0, 0), (0, 0), *((max(lo, 0), max(hi, 0)) for lo, hi in pads)], constant_values=value)
    return x


def _conv_general(x, w, stride, pads, dilation, input_dilation, groups):
    """Cross-correlation of x [n, c, *s] with w [o, c/groups, *k]."""
    n = x.ndim - 2
    stride, dilation, input_dilation = (_per_axis(v, n) for v in (stride, dilation, input_dilation))
    pads = ((pads, pads),) * n if isinstance(pads, int) else pads
    extents = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation)]
    # With padding beyond the kernel, MLX differentiates a dilated input wrongly.
    if any(not 0 <= p < extent for pair, extent in zip(pads, extents) for p in pair):
        x, input_dilation = _spread(x, input_dilation), (1,) * n
        x, pads = (
            _pad_spatial(x, [(min(lo, 0), min(hi, 0)) for lo, hi in pads], 0),
            [(max(lo, 0), max(hi, 0)) for lo, hi in pads],
        )
    if x.dtype == mx.float64 or (groups > 1 and n == 3) or x.size == 0 or w.size == 0:
        return _conv_by_windows(_spread(x, input_dilation), w, stride, pads, dilation, groups)
    padding = ([lo for lo, _ in pads], [hi for _, hi in pads])
    x, w = mx.moveaxis(x, 1, -1), mx.moveaxis(w, 1, -1)
    return mx.moveaxis(mx.conv_general(x, w, stride, padding, dilation, input_dilation, groups), -1, 1)


def _conv_by_windows(x, w, stride, pads, dilation, groups):
    """The elements under each window as columns of a matrix, times the weight."""
    kernel = w.shape[2:]
    windows = _windows(x, kernel, stride, pads, dilation, 0)
    batch, places = x.shape[0], windows.shape[2 : x.ndim]
    channels, filters, taps = x.shape[1] // groups, w.shape[0] // groups, math.prod(kernel)
    if 0 in (batch, filters, channels, taps, *places):
        return mx.zeros((batch, w.shape[0], *places), x.dtype)
    columns = windows.reshape(batch, groups, channels, math.prod(places), taps)
    columns = mx.swapaxes(columns, 2, 3).reshape(batch, groups, math.prod(places), channels * taps)
    y = columns @ mx.swapaxes(w.reshape(groups, filters, channels * taps), 1, 2)
    return mx.swapaxes(y, 2, 3).reshape(batch, w.shape[0], *places)
