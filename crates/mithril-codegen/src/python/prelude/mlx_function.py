"""Functions of doubles, which MLX computes in float32, and the error functions."""

import math

import mlx.core as mx


def _precise_exp(x):
    size = mx.expm1(mx.abs(x)) + 1
    return mx.where(x < 0, 1 / size, size)


# MLX computes exp, sin and cos of doubles in float32.
_exp = _with_gradient(_precise_exp, lambda x, cotangent, _: cotangent * _exp(x))


def _precise_sin(x):
    # The tangent of a quarter turn is about 1e16: its square does not overflow.
    t = mx.tan(x / 2)
    return 2 * t / (1 + t * t)


def _precise_cos(x):
    # All digits also near the zeros, where the tangent is large.
    t = mx.tan(x)
    return mx.where(t == 0, 1, _precise_sin(x) / t)


_sin = _with_gradient(_precise_sin, lambda x, cotangent, _: cotangent * _cos(x))
_cos = _with_gradient(_precise_cos, lambda x, cotangent, _: -cotangent * _sin(x))


# These have slopes of float32.
_tan = _with_gradient(mx.tan, lambda x, cotangent, y: cotangent * (1 + y * y))
_log2 = _with_gradient(mx.log2, lambda x, cotangent, _: cotangent / (x * math.log(2)))
_log10 = _with_gradient(mx.log10, lambda x, cotangent, _: cotangent / (x * math.log(10)))


_SLOPE_OF_ERF = 2 / math.sqrt(math.pi)


def _bell(x):
    """Derivative of the error function."""
    return _SLOPE_OF_ERF * _precise_exp(-x * x)


_wide_erf = _with_gradient(lambda x: _erf_and_erfc(x, _precise_exp)[0], lambda x, cotangent, _: cotangent * _bell(x))
_wide_erfc = _with_gradient(lambda x: _erf_and_erfc(x, _precise_exp)[1], lambda x, cotangent, _: -cotangent * _bell(x))


def _erf(x):
    """Error function, also near 0, where `mx.erf` has few digits on the CPU."""
    return _wide_erf(_widened(x)).astype(x.dtype)


def _erfc(x):
    """Complementary error function."""
    return _wide_erfc(_widened(x)).astype(x.dtype)


_erfinv = _with_gradient(_inverse_of_erf, lambda x, cotangent, y: cotangent / _bell(y))
