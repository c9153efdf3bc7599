"""Reductions and sorting for MLX."""

import mlx.core as mx


def _argsort(x, axis, descending):
    """Positions in order of size; equal elements keep their order. No gradient flows back."""
    x = mx.moveaxis(mx.stop_gradient(x), axis, -1)
    if descending:
        order = x.shape[-1] - 1 - mx.argsort(x[..., ::-1], axis=-1).astype(mx.int64)[..., ::-1]
    else:
        order = mx.argsort(x, axis=-1).astype(mx.int64)
    return mx.moveaxis(order, -1, axis)


def _std(x, axis=None, keepdims=False, ddof=0):
    """Standard deviation, whose gradient is 0 where all elements are equal."""
    variance = mx.var(_widened(x), axis=axis, keepdims=keepdims, ddof=ddof)
    is_zero = variance == 0
    return mx.where(is_zero, 0, mx.sqrt(mx.where(is_zero, 1, variance))).astype(x.dtype)
