"""Convolution for NumPy: windows as views, then one matrix product per group."""

import numpy as np


def _per_axis(value, n):
    """One value per axis."""
    return (value,) * n if np.ndim(value) == 0 else tuple(value)


def _pad_spatial(x, pads, value, dilation):
    """x [n, c, *s] with dilation - 1 fillers between neighbors, then padded; negative pads cut off."""
    if all(d == 1 for d in dilation) and all(p <= 0 for pair in pads for p in pair):
        keep = tuple(slice(-lo, size + hi) for (lo, hi), size in zip(pads, x.shape[2:]))
        return x[(slice(None), slice(None)) + keep]
    sizes, to, source = list(x.shape[:2]), [], []
    for size, (lo, hi), d in zip(x.shape[2:], pads, dilation):
        sizes.append(max((size - 1) * d + 1 if size else 0, 0) + lo + hi)
        # Elements from the first to the last that end up inside.
        first = max(0, -(lo // d))
        last = max(first, min(size, -((lo - sizes[-1]) // d)))
        source.append(slice(first, last))
        to.append(slice(lo + first * d, max(lo + (last - 1) * d + 1, 0), d) if last > first else slice(0, 0))
    out = np.full(sizes, value, x.dtype) if value else np.zeros(sizes, x.dtype)
    every = (slice(None), slice(None))
    out[every + tuple(to)] = x[every + tuple(source)]
    return out


def _window_view(x, window, stride, dilation):
    """Read-only view [n, c, *positions, *window] of x [n, c, *s]."""
    sizes = [max((size - (k - 1) * d - 1) // s + 1, 0) for size, k, s, d in zip(x.shape[2:], window, stride, dilation)]
    strides = x.strides[:2] + tuple(a * s for a, s in zip(x.strides[2:], stride))
    strides += tuple(a * d for a, d in zip(x.strides[2:], dilation))
    shape = x.shape[:2] + tuple(sizes) + tuple(window)
    return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False)


def _conv_general(x, w, stride, pads, dilation, input_dilation, groups):
    """Cross-correlation of x [n, c, *s] with w [o, c/groups, *k]."""
    n, dtype = x.ndim - 2, x.dtype
    stride, dilation = _per_axis(stride, n), _per_axis(dilation, n)
    input_dilation = _per_axis(input_dilation, n)
    pads = ((pads, pads),) * n if np.ndim(pads) == 0 else pads
    kernel = w.shape[2:]
    out = [x.shape[0], w.shape[0]]
    for size, k, s, (lo, hi), d, di in zip(x.shape[2:], kernel, stride, pads, dilation, input_dilation):
        size, extent = (size - 1) * di + 1 if size else 0, (k - 1) * d + 1 if k else 0
        out.append(max((size + lo + hi - extent) // s + 1, 0))
    if 0 in out or x.size == 0 or w.size == 0:
        return np.zeros(out, dtype)
    if dtype.itemsize < 4:
        x, w = x.astype(np.float32), w.astype(np.float32)
    if all(s == 1 for s in stride) and any(d > 1 for d in input_dilation):
        y = _conv_scatter(x, w, pads, dilation, input_dilation, groups, out)
    else:
        x = _pad_spatial(x, pads, 0, input_dilation)
        y = _conv_gather(x, w, stride, dilation, groups, out)
    return y.astype(dtype, copy=False)


def _conv_gather(x, w, stride, dilation, groups, out):
    """Convolution of padded x: the elements under each window as columns of one matrix, times the weight."""
    batch, filters, places = out[0], out[1] // groups, out[2:]
    kernel, taps = w.shape[2:], w[0].size
    view = _window_view(x, kernel, stride, dilation)
    view = view[(slice(None), slice(None)) + tuple(slice(p) for p in places)]
    if w.shape[1] == 1 and filters == 1:
        # Every channel for itself: no sums over channels that a matrix product could do.
        y = np.zeros(out, x.dtype)
        for at in np.ndindex(*kernel):
            y += w[(slice(None), 0) + at].reshape((-1,) + (1,) * len(places)) * view[(...,) + at]
        return y
    n, count = len(kernel), int(np.prod(places))
    view = view.reshape((batch, groups, -1) + view.shape[2:]) if groups > 1 else view[:, None]
    w = np.ascontiguousarray(w.reshape(groups, filters, taps))
    if all(k == 1 for k in kernel):
        return (w @ view.reshape(batch, groups, taps, count)).reshape(out)
    spatial, inner = tuple(range(3, 3 + n)), tuple(range(3 + n, 3 + 2 * n))
    if count < np.prod(kernel):
        # Few positions of a large kernel, as in the gradient of a weight: one product per position.
        y = np.empty((groups, batch, filters, count), x.dtype)
        w = w.swapaxes(1, 2)
        for i, at in enumerate(np.ndindex(*places)):
            rows = view[(slice(None),) * 3 + at].swapaxes(0, 1).reshape(groups, batch, taps)
            y[..., i] = rows @ w
        return np.ascontiguousarray(y.swapaxes(0, 1)).reshape(out)
    if count >= 64:
        # Large images: one product per image, which leaves the result in its final order.
        y = np.empty((batch, groups, filters, count), x.dtype)
        columns = np.empty((groups, taps // int(np.prod(kernel))) + kernel + tuple(places), x.dtype)
        order = tuple(a - 1 for a in (1, 2) + inner + spatial)
        for i in range(batch):
            columns[...] = view[i].transpose(order)
            np.matmul(w, columns.reshape(groups, taps, count), out=y[i])
        return y.reshape(out)
    columns = view.transpose((1, 2) + inner + (0,) + spatial).reshape(groups, taps, batch * count)
    y = (w @ columns).reshape([groups, filters, batch] + list(places))
    return np.ascontiguousarray(np.moveaxis(y, 2, 0)).reshape(out)


def _conv_scatter(x, w, pads, dilation, input_dilation, groups, out):
    """Convolution of x with gaps, without multiplying by the zeros: each product goes where it belongs."""
    filters, kernel = out[1] // groups, w.shape[2:]
    images = x.reshape(x.shape[0], groups, x.shape[1] // groups, -1)
    w = np.ascontiguousarray(np.moveaxis(w.reshape((groups, filters, w.shape[1], -1)), 3, 0))
    y = np.zeros(out, x.dtype)
    for i, at in enumerate(np.ndindex(*kernel)):
        source, to = [], []
        for size, p, k, (lo, _), d, di in zip(x.shape[2:], out[2:], at, pads, dilation, input_dilation):
            first = max(0, -((lo - k * d) // di))
            last = min(size, (p - 1 + k * d - lo) // di + 1)
            source.append(slice(first, max(first, last)))
            start = first * di + lo - k * d
            to.append(slice(start, start + max(last - first, 0) * di, di))
        if any(s.start >= s.stop for s in source):
            continue
        product = (w[i] @ images).reshape([out[0], out[1]] + list(x.shape[2:]))
        every = (slice(None), slice(None))
        y[every + tuple(to)] += product[every + tuple(source)]
    return y
