"""Activation functions that neither overflow nor lose their small values."""

import numpy as np


def _widened(x):
    """Two-byte floats as float32, so that a formula rounds once."""
    return x.astype(np.float32) if x.dtype.itemsize < 4 else x


def _sigmoid(x):
    """1 / (1 + exp(-x)), by an exponential that cannot overflow."""
    wide = _widened(x)
    small = np.exp(-np.abs(wide))
    return (np.where(wide >= 0, 1.0, small) / (1.0 + small)).astype(x.dtype)


def _silu(x):
    """x * sigmoid(x)"""
    wide = _widened(x)
    small = np.exp(-np.abs(wide))
    return (np.where(wide >= 0, wide, wide * small) / (1.0 + small)).astype(x.dtype)


def _softplus(x, beta, threshold):
    """log(1 + exp(beta * x)) / beta, and x where beta * x is above the threshold."""
    wide = _widened(x)
    scaled = wide * beta
    soft = np.maximum(scaled, 0) + np.log1p(np.exp(-np.abs(scaled)))
    return np.where(scaled > threshold, wide, soft / beta).astype(x.dtype)


def _log_sigmoid(x):
    """-log(1 + exp(-x))"""
    wide = _widened(x)
    return (np.minimum(wide, 0) - np.log1p(np.exp(-np.abs(wide)))).astype(x.dtype)


def _mish(x):
    """x * tanh(softplus(x))"""
    wide = _widened(x)
    return (wide * np.tanh(_softplus(wide, 1.0, 20.0))).astype(x.dtype)


def _gelu(x):
    """x times the normal distribution function, in double precision, whose tail needs it."""
    wide = x.astype(np.float64)
    return (0.5 * wide * _erf_and_erfc(wide * -0.70710678118654752440, np.exp)[1]).astype(x.dtype)


def _gelu_tanh(x):
    """x * (1 + tanh(u)) / 2 as x * sigmoid(2 * u), in double precision, whose tail needs it."""
    wide = x.astype(np.float64)
    inner = 1.5957691216057307117 * (wide + 0.044715 * wide**3)
    return (wide * _sigmoid(inner)).astype(x.dtype)


def _softmax(x, axis):
    """exp(x) / sum(exp(x)) along an axis."""
    wide = _widened(x)
    power = np.exp(wide - np.max(wide, axis=axis, keepdims=True, initial=-np.inf))
    return (power / np.sum(power, axis=axis, keepdims=True)).astype(x.dtype)


def _log_softmax(x, axis):
    """x - log(sum(exp(x))) along an axis."""
    wide = _widened(x)
    rest = wide - np.max(wide, axis=axis, keepdims=True, initial=-np.inf)
    return (rest - np.log(np.sum(np.exp(rest), axis=axis, keepdims=True))).astype(x.dtype)
