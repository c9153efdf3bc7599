"""Slices, look-up and random numbers for MLX."""

import math

import mlx.core as mx


def _slice_update(x, update, slices):
    """A copy of x with a part replaced by update."""
    out = mx.array(x)
    out[tuple(slice(*s) for s in slices)] = update
    return out


def _index_copy(x, indices, source, axis):
    """A copy of x with the slices at indices along an axis replaced by those of source."""
    if x.size == 0 or source.size == 0:
        return x
    out = mx.array(x)
    out[(slice(None),) * (axis % x.ndim) + (indices,)] = source
    return out


def _looked_up(x, y):
    """y, found in x. MLX cannot differentiate a look-up in what has no elements."""
    return y if x.size else mx.zeros_like(y)


def _embedding(weight, indices, padding):
    """Rows of weight, of which the padding row gets no gradient."""
    y = weight[indices]
    is_padding = (indices == padding) | (indices == padding - weight.shape[0])
    return mx.where(mx.expand_dims(is_padding, -1), mx.stop_gradient(y), y)


def _scatter_add(x, indices, source, axis):
    """x with each element of source added at its own position along an axis; repeated positions add up."""
    if x.size == 0 or source.size == 0:
        return x
    rank = indices.ndim
    places = [
        mx.arange(n).reshape([-1 if i == k else 1 for k in range(rank)]) for i, n in enumerate(indices.shape)
    ]
    places[axis] = indices
    return x.at[tuple(places)].add(source)


def _random_bits(key, shape):
    """Words of Philox4x32-10: word i is word i % 4 of block i // 4 of the stream key = (seed, stream)."""
    count = math.prod(shape)

    def word(value):
        return mx.array(value, dtype=mx.uint64)

    low, half = word(0xFFFFFFFF), word(32)
    seed, stream = key.astype(mx.uint64)
    block = mx.arange((count + 3) // 4).astype(mx.uint64)
    a, b = block & low, block >> half
    c, d = mx.broadcast_to(stream & low, block.shape), mx.broadcast_to(stream >> half, block.shape)
    k, m = seed & low, seed >> half
    for _ in range(10):
        x, y = a * word(0xD2511F53), c * word(0xCD9E8D57)
        a, b, c, d = (y >> half) ^ b ^ k, y & low, (x >> half) ^ d ^ m, x & low
        k, m = (k + word(0x9E3779B9)) & low, (m + word(0xBB67AE85)) & low
    return mx.stack([a, b, c, d], axis=1).reshape(-1)[:count].reshape(shape).astype(mx.int64)
