"""Pooling for MLX: windows as views or slices, then a reduction."""

import functools
import itertools

import mlx.core as mx


def _filling(dtype, value):
    """The padding value of a dtype: infinity is the end of the range of integers."""
    if value in (float("inf"), float("-inf")) and mx.issubdtype(dtype, mx.integer):
        value = mx.iinfo(dtype).min if value < 0 else mx.iinfo(dtype).max
    return mx.array(value, dtype)


def _positions(sizes, window, stride, dilation):
    """Number of windows along each axis."""
    axes = zip(sizes, window, stride, dilation)
    return [max((size - (k - 1) * d - 1) // s + 1, 0) for size, k, s, d in axes]


def _windows(x, window, stride, pads, dilation, value):
    """Windows [n, c, *positions, *window] of x [n, c, *s]."""
    n = x.ndim - 2
    window, stride, dilation = (_per_axis(v, n) for v in (window, stride, dilation))
    x = _pad_spatial(x, ((pads, pads),) * n if isinstance(pads, int) else pads, _filling(x.dtype, value))
    steps = [1]
    for size in x.shape[:0:-1]:
        steps.insert(0, steps[0] * size)
    shape = (*x.shape[:2], *_positions(x.shape[2:], window, stride, dilation), *window)
    if 0 in shape:
        return mx.zeros(shape, x.dtype)
    strides = (
        *steps[:2],
        *(a * s for a, s in zip(steps[2:], stride)),
        *(a * d for a, d in zip(steps[2:], dilation)),
    )
    return mx.as_strided(x, shape, strides)


def _fold_windows(g, sizes, stride, pads, dilation):
    """Adds windows [n, c, *positions, *window] up where they were taken from."""
    n = g.ndim // 2 - 1
    sizes, stride, dilation = (_per_axis(v, n) for v in (sizes, stride, dilation))
    pads = ((pads, pads),) * n if isinstance(pads, int) else pads
    positions, window = g.shape[2 : 2 + n], g.shape[2 + n :]
    is_half = mx.issubdtype(g.dtype, mx.floating) and g.dtype.size < 4
    out = mx.zeros((*g.shape[:2], *sizes), mx.float32 if is_half else g.dtype)
    for at in itertools.product(*map(range, window)):
        source, to = [], []
        for size, p, k, s, d, (lo, _) in zip(sizes, positions, at, stride, dilation, pads):
            offset = k * d - lo
            first = max(0, -(offset // s))
            last = max(first, min(p, (size - 1 - offset) // s + 1))
            source.append(slice(first, last))
            to.append(slice(first * s + offset, (last - 1) * s + offset + 1, s))
        if all(part.start < part.stop for part in source):
            out = out.at[(..., *to)].add(g[(slice(None), slice(None), *source, *at)].astype(out.dtype))
    return out.astype(g.dtype)


def _max_pool(x, window, stride, pads, dilation):
    """Largest element of each window of x [n, c, *s]; the gradient goes to the first of equal ones."""
    padded = _pad_spatial(x, pads, _filling(x.dtype, float("-inf")))
    places = list(itertools.product(*map(range, window)))
    positions = _positions(padded.shape[2:], window, stride, dilation)

    def part(at):
        axes = zip(at, positions, stride, dilation)
        return (..., *(slice(k * d, k * d + (p - 1) * s + 1, s) for k, p, s, d in axes))

    @mx.custom_function
    def pool(x):
        return functools.reduce(mx.maximum, (x[part(at)] for at in places))

    @pool.vjp
    def gradient(x, g, best):
        found, is_open = mx.zeros_like(x), mx.ones_like(best, dtype=mx.bool_)
        for at in map(part, places):
            is_best = is_open & ((x[at] == best) | ((x[at] != x[at]) & (best != best)))
            found, is_open = found.at[at].add(mx.where(is_best, g, 0)), is_open & ~is_best
        return found

    return pool(padded)
