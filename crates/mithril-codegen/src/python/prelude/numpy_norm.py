"""Normalization for NumPy."""

import numpy as np


def _layer_norm(x, weight, bias, dims, eps):
    """Normalizes over the last `dims` axes with mean and biased variance."""
    axes = tuple(range(-dims, 0))
    y = x.astype(np.float32) if x.dtype.itemsize < 4 else x
    y = y - y.mean(axes, keepdims=True)
    y = y / np.sqrt(np.square(y).mean(axes, keepdims=True) + y.dtype.type(eps))
    return _scale_and_shift(y, weight, bias, x.dtype)


def _rms_norm(x, weight, dims, eps):
    """Divides by the root mean square over the last `dims` axes."""
    y = x.astype(np.float32) if x.dtype.itemsize < 4 else x
    square = np.square(y).mean(tuple(range(-dims, 0)), keepdims=True)
    return _scale_and_shift(y / np.sqrt(square + y.dtype.type(eps)), weight, None, x.dtype)


def _group_norm(x, weight, bias, groups, eps):
    """Normalizes groups of channels of x [n, c, ...] with mean and biased variance."""
    y = x.astype(np.float32) if x.dtype.itemsize < 4 else x
    y = y.reshape(x.shape[0], groups, -1) if x.size else y.reshape(x.shape[0], groups, 0)
    y = y - y.mean(-1, keepdims=True)
    y = y / np.sqrt(np.square(y).mean(-1, keepdims=True) + y.dtype.type(eps))
    channels = (-1,) + (1,) * (x.ndim - 2)
    weight = None if weight is None else weight.reshape(channels)
    bias = None if bias is None else bias.reshape(channels)
    return _scale_and_shift(y.reshape(x.shape), weight, bias, x.dtype)


def _scale_and_shift(y, weight, bias, dtype):
    """y * weight + bias, computed in the dtype of y and returned in `dtype`."""
    if weight is not None:
        y = y * weight.astype(y.dtype, copy=False)
    if bias is not None:
        y = y + bias.astype(y.dtype, copy=False)
    return y.astype(dtype, copy=False)
