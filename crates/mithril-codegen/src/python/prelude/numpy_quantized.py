"""Products in integers of 8 bits for NumPy."""

import numpy as np


def _dynamic_quantize(x):
    """Rows as int8, each with a scale and a zero of its own; the scale of a row that is not finite is NaN."""
    low = np.minimum(x.min(axis=-1, keepdims=True), 0)
    span = np.maximum(x.max(axis=-1, keepdims=True), 0) - low
    inverse = np.where((span > 1e-30) & (span < np.inf), np.float32(255) / np.where(span > 1e-30, span, 1), 0)
    zero = np.floor(0.5 - np.where(span < np.inf, low, 0) * inverse)
    numbers = x * inverse + (zero + np.float32(0.5))
    numbers = np.floor(np.where(numbers > 0, np.minimum(numbers, 255), 0)) - 128
    scale = np.where(span < np.inf, span / np.float32(255), np.float32(np.nan))
    return numbers.astype(np.int8), scale, (zero - 128).astype(np.int32)


def _matmul_integer(left, right):
    """Product with a matrix of int8 as int32, by products of float32 that are short enough to be exact."""
    total = np.zeros((*left.shape[:-1], right.shape[-1]), np.int32)
    for start in range(0, right.shape[0], 1024):
        part = slice(start, start + 1024)
        total += (left[..., part].astype(np.float32) @ right[part].astype(np.float32)).astype(np.int32)
    return total
