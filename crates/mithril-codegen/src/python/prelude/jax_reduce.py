"""Running sums and products for JAX."""

import jax.numpy as jnp


def _scan(function, start, x, axis, exclusive, reverse, dtype):
    """A running sum or product; exclusive leaves the element itself out, reverse runs from the end."""
    x = jnp.moveaxis(x, axis, -1)
    if reverse:
        x = jnp.flip(x, -1)
    if exclusive:
        x = jnp.concatenate([jnp.full_like(x[..., :1], start), x[..., :-1]], axis=-1)
    y = function(x, axis=-1, dtype=dtype)
    if reverse:
        y = jnp.flip(y, -1)
    return jnp.moveaxis(y, -1, axis)


def _cumsum(x, axis, exclusive=False, reverse=False, dtype=None):
    return _scan(jnp.cumsum, 0, x, axis, exclusive, reverse, dtype)


def _cumprod(x, axis, exclusive=False, reverse=False, dtype=None):
    return _scan(jnp.cumprod, 1, x, axis, exclusive, reverse, dtype)


def _root(x):
    """Square root whose gradient at 0 is 0."""
    is_zero = x == 0
    return jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, x)))


def _norm(x, axis=None, keepdims=False):
    """Euclidean norm, whose gradient at 0 is 0; of halves in float32."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return _root(jnp.sum(jnp.square(wide), axis=axis, keepdims=keepdims)).astype(x.dtype)


def _std(x, axis=None, keepdims=False, ddof=0):
    """Standard deviation, whose gradient is 0 where all elements are equal; of halves in float32."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return _root(jnp.var(wide, axis=axis, keepdims=keepdims, ddof=ddof)).astype(x.dtype)
