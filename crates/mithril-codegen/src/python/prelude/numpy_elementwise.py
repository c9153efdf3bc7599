"""Elementwise helpers: conversions and powers as Mithril defines them, and the error function and its relatives."""

import numpy as np


def _float_to_integer(x, dtype):
    """Cut towards zero and held inside the range; NaN becomes 0."""
    limits = np.iinfo(dtype)
    # As a double, the largest int64 is one too large: what reaches a limit is set to it, not converted.
    low, high = float(limits.min), float(limits.max)
    x = np.asarray(x, np.float64)
    result = np.where((x > low) & (x < high), x, 0.0).astype(dtype)
    result = np.where(x <= low, dtype(limits.min), result)
    return np.where(x >= high, dtype(limits.max), result)


def _round_once(x, dtype):
    """To bfloat16, rounded once, where plain `astype` rounds to float32 first."""
    x = np.asarray(x, np.float64)
    single = x.astype(np.float32)
    # An inexact float32 is made odd: a tie of bfloat16 can then only come from a tie.
    is_even = single.view(np.uint32) % 2 == 0
    towards = np.where(x > single, np.float32(np.inf), np.float32(-np.inf))
    odd = np.where((single != x) & is_even, np.nextafter(single, towards), single)
    return odd.astype(dtype)


def _integer_power(base, exponent, dtype):
    """Wraps around; a negative exponent gives 0, except for the bases 1 and -1."""
    base, exponent = np.asarray(base).astype(dtype), np.asarray(exponent).astype(dtype)
    power = base ** np.maximum(exponent, 0)
    inverse = np.where(exponent % 2 == 0, base * base, base)
    inverse = np.where((base == 1) | (base == -1), inverse, 0)
    return np.where(exponent < 0, inverse, power).astype(dtype)


def _erf(x):
    """Error function, computed in double precision."""
    return _erf_and_erfc(x.astype(np.float64), np.exp)[0].astype(x.dtype)


def _erfc(x):
    """Complementary error function, computed in double precision."""
    return _erf_and_erfc(x.astype(np.float64), np.exp)[1].astype(x.dtype)


def _erfinv(x):
    """Inverse of the error function, computed in double precision."""
    return _inverse_of_erf(x.astype(np.float64)).astype(x.dtype)
