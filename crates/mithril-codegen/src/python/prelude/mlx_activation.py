"""Activation functions for MLX; two-byte floats are computed in float32."""

import math

import mlx.core as mx


def _gelu(x):
    """x times the normal distribution function."""
    wide = _widened(x)
    return (wide * ((1 + mx.erf(wide / math.sqrt(2))) / 2)).astype(x.dtype)


def _gelu_tanh(x):
    """x * (1 + tanh(u)) / 2 as x * sigmoid(2 * u)."""
    wide = _widened(x)
    return (wide * mx.sigmoid(1.5957691216057308 * (wide + 0.044715 * wide * wide * wide))).astype(x.dtype)


def _log_softmax(x, axis):
    """x - log(sum(exp(x))) along an axis."""
    wide = _widened(x)
    rest = wide - mx.stop_gradient(mx.max(wide, axis=axis, keepdims=True))
    return (rest - mx.logsumexp(rest, axis=axis, keepdims=True)).astype(x.dtype)


def _softmax(x, axis):
    """exp(x) / sum(exp(x)) along an axis, of doubles."""
    power = _exp(x - mx.stop_gradient(mx.max(x, axis=axis, keepdims=True)))
    return power / _reduced(mx.sum, 0, power, axis=axis, keepdims=True)


def _precise_sigmoid(x):
    small = _precise_exp(-mx.abs(x))
    return mx.where(x >= 0, 1, small) / (1 + small)


# Of doubles, for which `mx.sigmoid` is that of float32.
_sigmoid = _with_gradient(_precise_sigmoid, lambda x, cotangent, y: cotangent * y * (1 - y))


def _elu(x, alpha):
    """x above 0, alpha * (exp(x) - 1) below."""
    # This way round `mx.minimum` gives the gradient at 0 to x.
    return mx.where(x > 0, x, alpha * mx.expm1(mx.minimum(0, x)))


def _celu(x, alpha):
    """x above 0, alpha * (exp(x / alpha) - 1) below."""
    return mx.where(x > 0, x, alpha * mx.expm1(mx.minimum(0, x) / alpha))
