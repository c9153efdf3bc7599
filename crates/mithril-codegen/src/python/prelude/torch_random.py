"""The common random numbers for PyTorch: Philox 4x32-10 on vectors of 64-bit integers."""

import math

import torch


def _random_bits(key, shape):
    """Words of Philox4x32-10: word i is word i % 4 of block i // 4 of the stream key = (seed, stream)."""
    count = math.prod(shape)
    low, half = 0xFFFFFFFF, 32
    seed, stream = key[0], key[1]
    block = torch.arange((count + 3) // 4, device=key.device)
    a, b = block & low, (block >> half) & low
    c, d = (stream & low).expand_as(block), ((stream >> half) & low).expand_as(block)
    k, m = seed & low, (seed >> half) & low
    for _ in range(10):
        x, y = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = ((y >> half) & low) ^ b ^ k, y & low, ((x >> half) & low) ^ d ^ m, x & low
        k, m = (k + 0x9E3779B9) & low, (m + 0xBB67AE85) & low
    return torch.stack([a, b, c, d], dim=1).reshape(-1)[:count].reshape(shape)


def _random_unit(key, shape, dtype):
    """Numbers in [0, 1): float64 from 53 bits, everything else as float32 from 24 bits."""
    if dtype == torch.float64:
        high, low = _random_bits(key, (*shape, 2)).unbind(-1)
        return ((high >> 5).double() * 67108864.0 + (low >> 6)) * 2.0**-53
    return (_random_bits(key, shape) >> 8).float() * 2.0**-24


def _random_uniform(key, shape, low, high, dtype):
    """Numbers evenly distributed between low and high."""
    u = _random_unit(key, shape, dtype)
    if (low, high) != (0.0, 1.0):
        u = u * (high - low) + low
    return u.to(dtype)


def _random_normal(key, shape, mean, stddev, dtype):
    """Normally distributed numbers: the cosines of Box and Muller's pairs, then the sines."""
    count = math.prod(shape)
    u, v = _random_unit(key, (2, (count + 1) // 2), dtype)
    radius, angle = torch.sqrt(torch.log(1.0 - u) * -2.0), v * (2 * math.pi)
    z = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)])[:count].reshape(shape)
    if (mean, stddev) != (0.0, 1.0):
        z = z * stddev + mean
    return z.to(dtype)


def _dropout(x, key, p):
    """Zeros with probability p; the others are divided by 1 - p."""
    keep = _random_unit(key, x.shape, torch.float32) < 1.0 - p
    return torch.where(keep, x * (1.0 / (1.0 - p)), 0.0)
