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
