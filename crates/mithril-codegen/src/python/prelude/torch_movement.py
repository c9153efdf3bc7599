"""Slices, look-up and random numbers for PyTorch."""

import math

import torch


def _slice_update(x, update, slices):
    """A copy of x with a part replaced by update."""
    out = x.clone()
    out[tuple(slice(*s) for s in slices)] = update
    return out


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
