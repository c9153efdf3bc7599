"""Look-up and random numbers for JAX."""

import math

import jax
import jax.numpy as jnp


def _embedding(weight, indices, padding):
    """Rows of weight; that of padding gets no gradient."""
    rows = weight[indices]
    is_padding = (indices == padding) | (indices == padding - weight.shape[0])
    return jnp.where(is_padding[..., None], jax.lax.stop_gradient(rows), rows)


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
