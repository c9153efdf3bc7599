"""Sorting for MLX."""

import mlx.core as mx


def _argsort(x, axis, descending):
    """Positions in order of size; equal elements keep their order."""
    x = mx.moveaxis(x, axis, -1)
    if descending:
        order = x.shape[-1] - 1 - mx.argsort(x[..., ::-1], axis=-1).astype(mx.int64)[..., ::-1]
    else:
        order = mx.argsort(x, axis=-1).astype(mx.int64)
    return mx.moveaxis(order, -1, axis)
