"""Functions of one number that JAX computes less exactly than others: up to 70000 epsilon off in float64."""

import jax
import jax.numpy as jnp


def _differentiated(function, *slopes):
    """A function with its derivatives by each argument, which take the result and the arguments."""
    made = jax.custom_jvp(function)
    made.defjvps(*(lambda tangent, y, *args, slope=slope: tangent * slope(y, *args) for slope in slopes))
    return made


def _log1p_value(x):
    # Here JAX's series is off by 120 epsilon, and the sum loses nothing that counts.
    return jnp.where((x > -0.5) & (x < -0.25), jnp.log(1 + x), jnp.log1p(x))


_log1p = _differentiated(_log1p_value, lambda y, x: 1 / (1 + x))


def _atanh(x):
    return 0.5 * (_log1p(x) - _log1p(-x))


def _erfc_value(x):
    """JAX's, which takes exp(-x²) of a rounded square, corrected for that."""
    high = jax.lax.reduce_precision(x, *((11, 23) if x.dtype == jnp.float64 else (8, 11)))
    low = x - high
    rest = (high * high - x * x) + 2 * high * low + low * low
    return jnp.where((x > 1) & (x < 30), jax.lax.erfc(x) * (1 - rest), jax.lax.erfc(x))


_erfc = _differentiated(_erfc_value, lambda y, x: jnp.exp(-x * x) * -1.1283791670955126)


def _erfinv_value(x):
    """A step of Newton from JAX's estimate; in the tail from the other end, where nothing cancels."""
    y, goal = jax.lax.erf_inv(x), jnp.abs(x)
    size = jnp.abs(y)
    lack = jnp.where(goal < 0.5, goal - jax.lax.erf(size), jax.lax.erfc(size) - (1 - goal))
    step = lack / (jnp.exp(-size * size) * 1.1283791670955126)
    return jnp.where(goal < 1, y + jnp.sign(x) * step, y)


_erfinv = _differentiated(_erfinv_value, lambda y, x: jnp.exp(y * y) * 0.886226925452758)


def _sinh_value(x):
    size = jnp.abs(x)
    # The exponential in two factors, neither of which overflows before the result does.
    root, less = jnp.exp(size / 2), jnp.expm1(jnp.minimum(size, 1))
    result = jnp.where(size < 1, (less + less / (less + 1)) / 2, (0.5 * root) * root - 0.5 / root / root)
    return jnp.sign(x) * result


_sinh = _differentiated(_sinh_value, lambda y, x: _cosh(x))


def _cosh_value(x):
    root = jnp.exp(jnp.abs(x) / 2)
    return (0.5 * root) * root + 0.5 / root / root


_cosh = _differentiated(_cosh_value, lambda y, x: _sinh(x))
