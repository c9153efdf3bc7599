"""Scans of recurrent networks for MLX."""

import mlx.core as mx


def _logistic(x):
    return _sigmoid(x) if x.dtype == mx.float64 else mx.sigmoid(x)
