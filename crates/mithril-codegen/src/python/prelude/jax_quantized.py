"""Products in integers of 8 bits for JAX."""

import jax
import jax.numpy as jnp


def _dynamic_quantize(x):
    """Rows as int8, each with a scale and a zero of its own; the scale of a row that is not finite is NaN."""
    low = jnp.minimum(x.min(axis=-1, keepdims=True), 0)
    span = jnp.maximum(x.max(axis=-1, keepdims=True), 0) - low
    inverse = jnp.where((span > 1e-30) & (span < jnp.inf), 255 / jnp.where(span > 1e-30, span, 1), 0)
    zero = jnp.floor(0.5 - jnp.where(span < jnp.inf, low, 0) * inverse)
    numbers = x * inverse + (zero + 0.5)
    numbers = jnp.floor(jnp.where(numbers > 0, jnp.minimum(numbers, 255), 0)) - 128
    scale = jnp.where(span < jnp.inf, span / 255, jnp.nan)
    return numbers.astype(jnp.int8), scale, (zero - 128).astype(jnp.int32)


def _matmul_integer(left, right):
    """Product with a matrix of int8 as int32."""
    axes = (((left.ndim - 1,), (0,)), ((), ()))
    return jax.lax.dot_general(left, right, axes, preferred_element_type=jnp.int32)
