"""Running sums, products and extremes for JAX."""

import jax
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


def _extreme_so_far(function, x, axis, reverse):
    """Values from where a running extreme last was new; JAX shares the gradient of equal ones."""
    axis = axis % x.ndim
    y = function(jax.lax.stop_gradient(x), axis, reverse=reverse)
    places = jnp.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    is_it = (x == y) | (x != x)
    if reverse:
        places = jax.lax.cummin(jnp.where(is_it, places, x.shape[axis] - 1), axis, reverse=True)
    else:
        places = jax.lax.cummax(jnp.where(is_it, places, 0), axis)
    return jnp.take_along_axis(x, places, axis=axis)


def _cumulative_max(x, axis, reverse):
    """Largest element so far; reverse runs from the end."""
    return _extreme_so_far(jax.lax.cummax, x, axis, reverse)


def _cumulative_min(x, axis, reverse):
    """Smallest element so far; reverse runs from the end."""
    return _extreme_so_far(jax.lax.cummin, x, axis, reverse)
