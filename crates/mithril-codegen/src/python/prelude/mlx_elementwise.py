"""Elementwise helpers for MLX: conversions and integer arithmetic as Mithril defines them."""

import mlx.core as mx


def _widened(x):
    """Two-byte floats as float32, so that a formula rounds once."""
    return x.astype(mx.float32) if x.dtype.size < 4 else x


def _float_to_integer(x, dtype):
    """Cut towards zero and held inside the range; NaN becomes 0. No gradient flows back."""
    limits = mx.iinfo(dtype)
    # As a float, the largest integer may be one too large: what reaches a limit is set to it, not converted.
    low, high = float(limits.min), float(limits.max)
    x = mx.stop_gradient(_widened(x))
    result = mx.where((x > low) & (x < high), x, 0).astype(dtype)
    result = mx.where(x <= low, mx.array(limits.min, dtype=dtype), result)
    # MLX takes no Python integer beyond int64.
    most = mx.array(limits.max if limits.max < 2**63 else -1, dtype=mx.int64).astype(dtype)
    return mx.where(x >= high, most, result)


def _round_once(x, dtype):
    """To a two-byte float without rounding to float32 first, as `astype` does."""

    def rounded(x):
        single = x.astype(mx.float32)
        back = single.astype(x.dtype)
        bits = mx.view(single, mx.int32)
        # An inexact float32 is made odd: a tie of the result can then only come from a tie.
        step = mx.where(mx.abs(x) > mx.abs(back), 1, -1)
        bits = mx.where((back != x) & (bits % 2 == 0), bits + step, bits)
        return mx.view(bits, mx.float32).astype(dtype)

    return _with_gradient(rounded, lambda x, g, _: g.astype(x.dtype))(x)


def _floor_divide(left, right):
    """Floor of the exact quotient; by 0 what `/` gives. No gradient flows back."""
    dtype = mx.result_type(left, right)
    left, right = _widened(mx.stop_gradient(left)), _widened(mx.stop_gradient(right))
    quotient = mx.round((left - left % right) / right)
    # Beside an infinite divisor the remainder may be infinite too.
    is_below = (left != 0) & ((left < 0) != (right < 0))
    small = mx.where(is_below, mx.array(-1, left.dtype), left / right)
    quotient = mx.where(mx.isinf(right) & mx.isfinite(left), small, quotient)
    return mx.where(right == 0, left / right, quotient).astype(dtype)


def _divisor(right):
    """A divisor that traps nowhere, where it was 0, and where it was -1."""
    is_zero, is_minus_one = right == 0, (right < 0) & (right + 1 == 0)
    return mx.where(is_zero | is_minus_one, 1, right), is_zero, is_minus_one


def _integer_floor_divide(left, right):
    """Rounded towards minus infinity; 0 where the divisor is 0."""
    divisor, is_zero, is_minus_one = _divisor(right)
    return mx.where(is_zero, 0, mx.where(is_minus_one, -left, left // divisor))


def _integer_remainder(left, right):
    """With the sign of the divisor; 0 where that is 0."""
    divisor, is_zero, is_minus_one = _divisor(right)
    return mx.where(is_zero | is_minus_one, 0, left % divisor)


def _integer_power(base, exponent):
    """Wraps around; a negative exponent gives 0, except for the bases 1 and -1."""
    power = base ** mx.maximum(exponent, 0)
    inverse = mx.where(exponent % 2 == 0, base * base, base)
    inverse = mx.where((base == 1) | (base + 1 == 0), inverse, 0)
    return mx.where(exponent < 0, inverse, power)


def _left_shift(left, right):
    """0 where the number of places is negative or reaches the width."""
    fits = (right >= 0) & (right < 8 * left.dtype.size)
    return mx.where(fits, left << mx.where(fits, right, 0), 0)


def _right_shift(left, right):
    """0, or -1 for a negative integer, where the number of places is negative or reaches the width."""
    fits = (right >= 0) & (right < 8 * left.dtype.size)
    return mx.where(fits, left >> mx.where(fits, right, 0), 0 - (left < 0).astype(left.dtype))


def _shares(primals, cotangent, chosen):
    """Cotangents of the larger or smaller of two: half for each where they are equal."""
    left, right = primals
    half = mx.where(left == right, cotangent * 0.5, cotangent)
    is_right, is_left = (left < right, left > right) if chosen is mx.maximum else (left > right, left < right)
    return mx.where(is_right, 0, half), mx.where(is_left, 0, half)


_larger = _with_gradient(mx.maximum, lambda primals, cotangent, _: _shares(primals, cotangent, mx.maximum))
_smaller = _with_gradient(mx.minimum, lambda primals, cotangent, _: _shares(primals, cotangent, mx.minimum))


def _maximum(left, right):
    """The larger element; where both are equal, each gets half of the gradient."""
    return _larger(*mx.broadcast_arrays(left, right))


def _minimum(left, right):
    """The smaller element; where both are equal, each gets half of the gradient."""
    return _smaller(*mx.broadcast_arrays(left, right))


def _clip(x, low, high):
    """Held between low and high, with the gradient of x also on the bounds."""
    if low is not None:
        x = mx.where(x < low, low, x)
    return x if high is None else mx.where(x > high, high, x)
