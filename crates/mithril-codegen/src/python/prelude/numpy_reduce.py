"""Reductions, running sums and sorting for NumPy."""

import numpy as np


def _wide(function, x, **options):
    """A reduction of half-precision elements, computed in float32."""
    return function(x.astype(np.float32), **options).astype(x.dtype)


def _scan(function, start, x, axis, exclusive, reverse, dtype):
    """A running sum or product; exclusive leaves the element itself out, reverse runs from the end."""
    x = np.moveaxis(x.astype(dtype or x.dtype), axis, -1)
    if reverse:
        x = x[..., ::-1]
    if exclusive:
        x = np.concatenate([np.full_like(x[..., :1], start), x[..., :-1]], axis=-1)
    y = function(x, axis=-1)
    if reverse:
        y = y[..., ::-1]
    return np.moveaxis(y, -1, axis)


def _cumsum(x, axis, exclusive=False, reverse=False, dtype=None):
    return _scan(np.cumsum, 0, x, axis, exclusive, reverse, dtype)


def _cumprod(x, axis, exclusive=False, reverse=False, dtype=None):
    return _scan(np.cumprod, 1, x, axis, exclusive, reverse, dtype)


def _argsort_descending(x, axis=-1):
    """Positions from largest to smallest; equal elements keep their order, NaN is first."""
    order = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(order, axis)


def _sort_descending(x, axis=-1):
    """From largest to smallest; equal elements keep their order, NaN is first."""
    return np.flip(np.sort(np.flip(x, axis), axis=axis, kind="stable"), axis)


def _topk(x, k, axis=-1, largest=True):
    """The k largest or smallest elements and their positions, in order; of equal ones the first."""
    order = _argsort_descending(x, axis) if largest else np.argsort(x, axis=axis, kind="stable")
    indices = np.moveaxis(np.moveaxis(order, axis, -1)[..., :k], -1, axis)
    return np.take_along_axis(x, indices, axis=axis), indices


def _cumulative_max(x, axis, reverse):
    """Largest element so far, from the end."""
    return np.flip(np.maximum.accumulate(np.flip(x, axis), axis=axis), axis)


def _cumulative_min(x, axis, reverse):
    """Smallest element so far, from the end."""
    return np.flip(np.minimum.accumulate(np.flip(x, axis), axis=axis), axis)
