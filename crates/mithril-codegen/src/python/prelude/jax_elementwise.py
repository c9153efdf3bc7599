"""Elementwise helpers: conversions and integer arithmetic as Mithril defines them."""

import jax
import jax.numpy as jnp


def _float_to_integer(x, dtype):
    """Cut towards zero and held inside the range; NaN becomes 0."""
    limits = jnp.iinfo(dtype)
    # As a float, the largest integer may be one too large: what reaches a limit is set to it, not converted.
    low, high = float(limits.min), float(limits.max)
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    result = jnp.where((x > low) & (x < high), x, 0).astype(dtype)
    result = jnp.where(x <= low, dtype(limits.min), result)
    return jnp.where(x >= high, dtype(limits.max), result)


def _round_once(x, dtype):
    """To a two-byte float, rounded once, where plain `astype` rounds to float32 first."""
    single = x.astype(jnp.float32)
    x, fixed = jax.lax.stop_gradient(x), jax.lax.stop_gradient(single)
    back = fixed.astype(x.dtype)
    # An inexact float32 is made odd: a tie of the result can then only come from a tie.
    bits = jax.lax.bitcast_convert_type(fixed, jnp.int32)
    odd = bits + jnp.where(jnp.abs(x) > jnp.abs(back), 1, -1).astype(jnp.int32)
    step = jax.lax.bitcast_convert_type(odd, jnp.float32) - fixed
    moves = (back != x) & (bits % 2 == 0) & jnp.isfinite(step)
    return jnp.where(moves, single + step, single).astype(dtype)


def _integer_power(base, exponent, dtype):
    """Wraps around; a negative exponent gives 0, except for the bases 1 and -1."""
    base, exponent = jnp.asarray(base, dtype), jnp.asarray(exponent, dtype)
    # Not `**`, which looks at the lowest six bits of the exponent only.
    power, square, rest = dtype(1), base, exponent
    for _ in range(jnp.iinfo(dtype).bits):
        power = jnp.where(rest & 1 == 1, power * square, power)
        square, rest = square * square, rest >> 1
    inverse = jnp.where(exponent % 2 == 0, base * base, base)
    inverse = jnp.where((base == 1) | (base == -1), inverse, 0)
    return jnp.where(exponent < 0, inverse, power).astype(dtype)


def _floor_divide(left, right):
    """Rounded towards minus infinity; by 0 it is the quotient of floats, and 0 of integers."""
    dtype = jnp.result_type(left, right)
    is_float = jnp.issubdtype(dtype, jnp.floating)
    if is_float and dtype.itemsize < 4:
        # In halves the quotient would be rounded before its floor is taken.
        left, right = (jnp.asarray(x, dtype).astype(jnp.float32) for x in (left, right))
    by_zero = left / right if is_float else 0
    return jnp.where(right == 0, by_zero, left // jnp.where(right == 0, 1, right)).astype(dtype)


def _integer_remainder(left, right):
    """With the sign of the divisor; 0 where that is 0."""
    return jnp.where(right == 0, 0, left % jnp.where(right == 0, 1, right))


def _abs(x):
    """Absolute value; JAX's own has the slope 1 at 0."""
    return x * jnp.sign(x)


def _clip(x, low=None, high=None):
    """x held between bounds; on a bound the gradient flows to x, of which JAX's own gives it half."""
    if low is not None:
        x = jnp.where((x >= low) | jnp.isnan(x), x, low)
    if high is not None:
        x = jnp.where((x <= high) | jnp.isnan(x), x, high)
    return x


def _held(x, low, high):
    """x held between two numbers; the gradient on them is 0."""
    x = jnp.where(x <= low, low, x)
    return jnp.where(x >= high, high, x)
