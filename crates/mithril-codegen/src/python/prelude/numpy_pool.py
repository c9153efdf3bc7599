"""Pooling for NumPy: windows as views, then a reduction."""

import numpy as np


def _filling(dtype, value):
    """The padding value of a dtype: infinity is the end of the range of integers."""
    if dtype.kind in "iu" and np.isinf(value):
        return np.iinfo(dtype).min if value < 0 else np.iinfo(dtype).max
    return value


def _spatial_pads(pads, n):
    """One pair per axis."""
    return ((pads, pads),) * n if np.ndim(pads) == 0 else pads


def _windows(x, window, stride, pads, dilation, value):
    """Windows [n, c, *positions, *window] of x [n, c, *s]."""
    n = x.ndim - 2
    x = _pad_spatial(x, _spatial_pads(pads, n), _filling(x.dtype, value), (1,) * n)
    return _window_view(x, _per_axis(window, n), _per_axis(stride, n), _per_axis(dilation, n))


def _fold_windows(g, sizes, stride, pads, dilation):
    """Adds windows [n, c, *positions, *window] up where they were taken from."""
    n = g.ndim // 2 - 1
    sizes, stride, dilation = _per_axis(sizes, n), _per_axis(stride, n), _per_axis(dilation, n)
    positions, window = g.shape[2 : 2 + n], g.shape[2 + n :]
    dtype = np.float32 if g.dtype.kind not in "iub" and g.dtype.itemsize < 4 else g.dtype
    out = np.zeros(g.shape[:2] + tuple(sizes), dtype)
    pads = _spatial_pads(pads, n)
    for at in np.ndindex(*window):
        source, to = [], []
        for size, p, k, s, d, (lo, _) in zip(sizes, positions, at, stride, dilation, pads):
            offset = k * d - lo
            first = max(0, -(offset // s))
            last = max(first, min(p, (size - 1 - offset) // s + 1))
            source.append(slice(first, last))
            to.append(slice(first * s + offset, (last - 1) * s + offset + 1, s) if last > first else slice(0, 0))
        out[(..., *to)] += g[(slice(None), slice(None), *source, *at)]
    return out.astype(g.dtype, copy=False)


def _max_pool(x, window, stride, pads, dilation):
    """Largest element of each window of x [n, c, *s]."""
    x = _pad_spatial(x, pads, _filling(x.dtype, -np.inf), (1,) * len(window))
    view = _window_view(x, window, stride, dilation)
    out = None
    for at in np.ndindex(*window):
        part = view[(..., *at)]
        out = part.copy() if out is None else np.maximum(out, part, out=out)
    return out
