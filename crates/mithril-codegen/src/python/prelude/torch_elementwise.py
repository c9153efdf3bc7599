"""Elementwise helpers: conversions and integer arithmetic as Mithril defines them."""

import torch


def _float_to_integer(x, dtype):
    """Cut towards zero and held inside the range; NaN becomes 0."""
    limits = torch.iinfo(dtype)
    # As a double, the largest int64 is one too large: what reaches a limit is set to it, not converted.
    low, high = float(limits.min), float(limits.max)
    x = x.double()
    # PyTorch stores wider unsigned integers, but has few functions of them.
    wide = torch.int64 if dtype in (torch.uint16, torch.uint32) else dtype
    result = torch.where((x > low) & (x < high), x, 0.0).to(wide)
    return result.masked_fill(x <= low, limits.min).masked_fill(x >= high, limits.max).to(dtype)


def _round_once(x, dtype):
    """To a two-byte float, rounded once, where plain `to` rounds to float32 first."""
    x = x.double()
    single = x.float()
    with torch.no_grad():
        # An inexact float32 is made odd: a tie of the result can then only come from a tie.
        is_even = single.view(torch.int32) % 2 == 0
        towards = torch.where(x > single, torch.inf, -torch.inf).float()
        step = torch.where((single != x) & is_even, torch.nextafter(single, towards) - single, 0.0)
        moves = (step != 0) & torch.isfinite(step)
    return torch.where(moves, single + step, single).to(dtype)


def _clip(x, low, high):
    """Held between bounds; on a bound the gradient is that of x."""
    if low is not None:
        x = torch.where(x < low, low, x)
    return x if high is None else torch.where(x > high, high, x)


def _floor_divide(left, right):
    """Floor of the exact quotient, which PyTorch rounds to halves on the way. No gradient flows back."""
    with torch.no_grad():
        dtype = torch.result_type(left, right)
        if dtype not in (torch.float16, torch.bfloat16):
            return left // right
        left, right = (torch.as_tensor(x, dtype=dtype).float() for x in (left, right))
        return (left // right).to(dtype)


def _integer_floor_divide(left, right):
    """Rounded towards minus infinity; 0 where the divisor is 0."""
    left, right = torch.broadcast_tensors(left, right)
    # The smallest integer divided by -1 traps on some processors: there a sign changes instead.
    is_minus_one = (right < 0) & (right + 1 == 0)
    divisor = torch.where((right == 0) | is_minus_one, 1, right)
    result = torch.where(is_minus_one, -left, torch.div(left, divisor, rounding_mode="floor"))
    return result.masked_fill(right == 0, 0)


def _integer_remainder(left, right):
    """With the sign of the divisor; 0 where that is 0."""
    return (left - _integer_floor_divide(left, right) * right).masked_fill(right == 0, 0)
