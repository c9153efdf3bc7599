"""The common random numbers for NumPy: Philox 4x32-10 on vectors of 64-bit integers."""

import numpy as np


def _random_bits(key, shape):
    """Words of Philox4x32-10: word i is word i % 4 of block i // 4 of the stream key = (seed, stream)."""
    count = int(np.prod(shape, dtype=np.int64))
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    seed, stream = np.asarray(key, np.int64).view(np.uint64)
    block = np.arange((count + 3) // 4, dtype=np.uint64)
    a, b, c, d = block & low, block >> half, stream & low, stream >> half
    k, m = seed & low, seed >> half
    for _ in range(10):
        x, y = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (y >> half) ^ b ^ k, y & low, (x >> half) ^ d ^ m, x & low
        k, m = (k + np.uint64(0x9E3779B9)) & low, (m + np.uint64(0xBB67AE85)) & low
    return np.stack([a, b, c, d], axis=1).reshape(-1)[:count].reshape(shape).astype(np.int64)


def _random_unit(key, shape, dtype):
    """Numbers in [0, 1): float64 from 53 bits, everything else as float32 from 24 bits."""
    if np.dtype(dtype) == np.float64:
        bits = _random_bits(key, tuple(shape) + (2,))
        return ((bits[..., 0] >> 5) * 67108864.0 + (bits[..., 1] >> 6)) * 2.0**-53
    return (_random_bits(key, shape) >> 8).astype(np.float32) * np.float32(2.0**-24)


def _random_uniform(key, shape, low, high, dtype):
    """Numbers evenly distributed between low and high."""
    u = _random_unit(key, shape, dtype)
    if (low, high) != (0.0, 1.0):
        u = u * u.dtype.type(high - low) + u.dtype.type(low)
    return u.astype(dtype, copy=False)


def _random_normal(key, shape, mean, stddev, dtype):
    """Normally distributed numbers: the cosines of Box and Muller's pairs, then the sines."""
    count = int(np.prod(shape, dtype=np.int64))
    u, v = _random_unit(key, (2, (count + 1) // 2), dtype)
    one = u.dtype.type
    radius, angle = np.sqrt(np.log(one(1) - u) * one(-2)), v * one(2 * np.pi)
    z = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count].reshape(shape)
    if (mean, stddev) != (0.0, 1.0):
        z = z * one(stddev) + one(mean)
    return z.astype(dtype, copy=False)
