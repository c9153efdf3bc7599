"""Look-up and random numbers for JAX."""

import math

import jax
import jax.numpy as jnp


def _embedding(weight, indices, padding):
    """Rows of weight; that of padding gets no gradient."""
    rows = weight[indices]
    is_padding = (indices == padding) | (indices == padding - weight.shape[0])
    return jnp.where(is_padding[..., None], jax.lax.stop_gradient(rows), rows)


def _index_copy(x, indices, source, axis):
    """x with the slices at indices along an axis replaced by those of source; the last one stays."""
    count = indices.shape[0]
    if count > 1:
        # JAX may keep any of several slices for a position: all become the last one, which alone gets a gradient.
        own, at = jnp.arange(count), indices.astype(jnp.int32) % max(x.shape[axis], 1)
        last = jnp.zeros(max(x.shape[axis], 1), own.dtype).at[at].max(own)[at]
        is_kept = (last == own).reshape((count,) + (1,) * (x.ndim - axis - 1))
        source = jnp.where(is_kept, source, jax.lax.stop_gradient(jnp.take(source, last, axis)))
    return x.at[(slice(None),) * axis + (indices,)].set(source)


def _scatter_add(x, indices, source, axis):
    """x with each element of source added at its own position along an axis; repeated positions add up."""
    places = list(jnp.indices(indices.shape, sparse=True))
    places[axis] = indices
    return x.at[tuple(places)].add(source)


def _random_bits(key, shape):
    """Words of Philox4x32-10: word i is word i % 4 of block i // 4 of the stream key = (seed, stream)."""
    count = math.prod(shape)
    low, half = jnp.uint64(0xFFFFFFFF), jnp.uint64(32)
    seed, stream = key.astype(jnp.uint64)
    block = jnp.arange((count + 3) // 4, dtype=jnp.uint64)
    a, b = block & low, block >> half
    c, d = jnp.broadcast_to(stream & low, block.shape), jnp.broadcast_to(stream >> half, block.shape)
    k, m = seed & low, seed >> half
    for _ in range(10):
        x, y = a * jnp.uint64(0xD2511F53), c * jnp.uint64(0xCD9E8D57)
        a, b, c, d = (y >> half) ^ b ^ k, y & low, (x >> half) ^ d ^ m, x & low
        k, m = (k + jnp.uint64(0x9E3779B9)) & low, (m + jnp.uint64(0xBB67AE85)) & low
    return jnp.stack([a, b, c, d], axis=1).reshape(-1)[:count].reshape(shape).astype(jnp.int64)


def _with_tangent(function, tangent):
    """A function whose tangent `tangent(primals, tangents)` gives, behind the value."""
    custom = jax.custom_jvp(function)
    custom.defjvp(tangent)
    return custom


def _places(indices, axis):
    """For each index the place of its element: its own coordinates, and along the axis the index."""
    places = list(jnp.indices(indices.shape, sparse=True))
    places[axis] = indices
    return tuple(places)


def _extreme_tangent(y, primals, tangents):
    """Elements that are the extreme share its tangent; JAX knows none."""
    (x, places, source), (dx, _, ds) = primals, tangents
    is_x, is_source = (x == y).astype(y.dtype), (source == y[places]).astype(y.dtype)
    total = (is_x * dx).at[places].add(is_source * ds)
    return y, total / jnp.maximum(is_x.at[places].add(is_source), 1)


def _larger_at(x, places, source):
    return x.at[places].max(source)


def _smaller_at(x, places, source):
    return x.at[places].min(source)


def _product_at(x, places, source):
    return x.at[places].multiply(source)


def _product_tangent(primals, tangents):
    """Each element counts with the product of the others, also where one is 0."""
    (x, places, source), (dx, _, ds) = primals, tangents
    is_zero = source == 0
    ones = jnp.ones_like(x)
    rest = ones.at[places].multiply(jnp.where(is_zero, 1, source))[places]
    zeros = jnp.zeros_like(x).at[places].add(is_zero.astype(x.dtype))[places]
    others = jnp.where(zeros == is_zero, rest / jnp.where(is_zero, 1, source), 0)
    along = dx * ones.at[places].multiply(source)
    return _product_at(x, places, source), along.at[places].add(x[places] * others * ds)


_MERGED = {
    "max": _with_tangent(_larger_at, lambda p, t: _extreme_tangent(_larger_at(*p), p, t)),
    "min": _with_tangent(_smaller_at, lambda p, t: _extreme_tangent(_smaller_at(*p), p, t)),
    "multiply": _with_tangent(_product_at, _product_tangent),
}


def _scatter_merged(name, x, indices, source, axis):
    """x with each element of source brought together with that at its own position along an axis."""
    places = _places(indices, axis)
    if jnp.issubdtype(x.dtype, jnp.floating):
        return _MERGED[name](x, places, source)
    return getattr(x.at[places], name)(source)
