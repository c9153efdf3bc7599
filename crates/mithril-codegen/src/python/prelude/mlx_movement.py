"""Slices, look-up and random numbers for MLX."""

import math

import mlx.core as mx


def _slice_update(x, update, slices):
    """A copy of x with a part replaced by update."""
    out = mx.array(x)
    out[tuple(slice(*s) for s in slices)] = update
    return out


def _index_copy(x, indices, source, axis):
    """A copy of x with the slices at indices along an axis replaced by those of source; the last one stays."""
    if x.size == 0 or source.size == 0:
        return x
    axis, count = axis % x.ndim, indices.shape[0]
    if count > 1:
        # MLX may keep any of several slices for a position: all become the last one, which alone gets a gradient.
        own, at = mx.arange(count), indices.astype(mx.int64) % x.shape[axis]
        last = mx.zeros(x.shape[axis], own.dtype).at[at].maximum(own)[at]
        is_kept = (last == own).reshape((count,) + (1,) * (x.ndim - axis - 1))
        source = mx.where(is_kept, source, mx.stop_gradient(mx.take(source, last, axis)))
    out = mx.array(x)
    out[(slice(None),) * axis + (indices,)] = source
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
    places = [mx.arange(n).reshape([-1 if i == k else 1 for k in range(rank)]) for i, n in enumerate(indices.shape)]
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


def _places(indices, axis):
    """For each index the place of its element: its own coordinates, and along the axis the index."""
    rank = indices.ndim
    places = [mx.arange(n).reshape([-1 if i == k else 1 for k in range(rank)]) for i, n in enumerate(indices.shape)]
    places[axis] = indices
    return tuple(places)


def _extreme_shares(inputs, g, y):
    """Elements that are the extreme share its gradient."""
    x, source, *places = inputs
    places = tuple(places)
    is_x, is_source = (x == y).astype(g.dtype), (source == y[places]).astype(g.dtype)
    g = g / mx.maximum(is_x.at[places].add(is_source), 1)
    return (is_x * g, is_source * g[places], *(mx.zeros_like(p) for p in places))


def _product_shares(inputs, g, y):
    """Each element counts with the product of the others, also where one is 0."""
    x, source, *places = inputs
    places = tuple(places)
    is_zero, ones = source == 0, mx.ones_like(x)
    filled = mx.where(is_zero, 1, source)
    rest = ones.at[places].multiply(filled)[places]
    zeros = mx.zeros_like(x).at[places].add(is_zero.astype(x.dtype))[places]
    others = mx.where(zeros == is_zero.astype(x.dtype), rest / filled, 0)
    by_x = g * ones.at[places].multiply(source)
    return (by_x, (g * x)[places] * others, *(mx.zeros_like(p) for p in places))


def _larger_at(x, source, *places):
    return x.at[places].maximum(source)


def _smaller_at(x, source, *places):
    return x.at[places].minimum(source)


def _product_at(x, source, *places):
    return x.at[places].multiply(source)


_MERGED = {
    "maximum": _with_gradient(_larger_at, _extreme_shares),
    "minimum": _with_gradient(_smaller_at, _extreme_shares),
    "multiply": _with_gradient(_product_at, _product_shares),
}


def _scatter_merged(name, x, indices, source, axis):
    """x with each element of source brought together with that at its own position along an axis."""
    if x.size == 0 or source.size == 0:
        return x
    places = _places(indices, axis)
    if not mx.issubdtype(x.dtype, mx.floating):
        return getattr(mx.stop_gradient(x).at[places], name)(mx.stop_gradient(source))
    y = _MERGED[name](x, source, *places)
    # The comparisons of MLX forget NaN.
    lost = (x != x).astype(mx.int32).at[places].add((source != source).astype(mx.int32)) > 0
    return mx.where(lost, mx.nan, y)
