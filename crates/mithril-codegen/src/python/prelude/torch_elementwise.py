"""Elementwise helpers: conversions and integer arithmetic as Mithril defines them."""

import torch
import torch.nn.functional as F


def _float_to_integer(x, dtype):
    """Cut towards zero and held inside the range; NaN becomes 0."""
    limits = torch.iinfo(dtype)
    # As a double, the largest int64 is one too large: what reaches a limit is set to it, not converted.
    low, high = float(limits.min), float(limits.max)
    x = x.double()
    # PyTorch stores wider unsigned integers, but has few functions of them.
    if dtype == torch.uint64:
        x = torch.where(x > 0, x, 0.0)
        is_high, is_out = x >= 2.0**63, x >= 2.0**64
        result = torch.where(is_out, 0.0, torch.where(is_high, x - 2.0**63, x)).to(torch.int64)
        result = torch.where(is_high, result ^ torch.iinfo(torch.int64).min, result)
        return result.masked_fill(is_out, -1).to(dtype)
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


def _hard_swish(x):
    return x * F.relu6(x + 3) / 6


def _integer_matmul(left, right):
    """Matrix product of integers; where PyTorch has none, on CUDA, products are added up in slices."""
    if left.device.type == "cpu":
        return left @ right
    a, b = left if left.ndim > 1 else left[None], right if right.ndim > 1 else right[:, None]
    step = max(1, 2**24 // max(1, a[..., 0].numel() * b.shape[-1]))
    slices = zip(a.split(step, -1), b.split(step, -2))
    product = sum((x.unsqueeze(-1) * y.unsqueeze(-3)).sum(-2, dtype=left.dtype) for x, y in slices)
    product = product if right.ndim > 1 else product.squeeze(-1)
    return product if left.ndim > 1 else product.squeeze(-1 if right.ndim == 1 else -2)


def _flipped(*operands):
    """Bits of uint64 in int64, in the same order."""
    return [x ^ torch.iinfo(torch.int64).min for x in operands]


def _unsigned_floor_divide(left, right):
    """Quotient of uint64; 0 where the divisor is 0."""
    a, b = torch.broadcast_tensors(left.to(torch.int64), right.to(torch.int64))
    # Half of the dividend has no sign; twice its quotient is at most one too small.
    half = (a >> 1) & torch.iinfo(torch.int64).max
    quotient = torch.div(half, b.masked_fill(b <= 0, 1), rounding_mode="floor") << 1
    rest, dividend, divisor = _flipped(a - quotient * b, a, b)
    quotient = quotient + (rest >= divisor).to(torch.int64)
    quotient = torch.where(b < 0, (dividend >= divisor).to(torch.int64), quotient)
    return quotient.masked_fill(b == 0, 0).to(torch.uint64)


def _unsigned_remainder(left, right):
    """Remainder of uint64; 0 where the divisor is 0."""
    a, b = left.to(torch.int64), right.to(torch.int64)
    rest = a - _unsigned_floor_divide(left, right).to(torch.int64) * b
    return torch.where(b == 0, 0, rest).to(torch.uint64)


def _unsigned_right_shift(left, right):
    """Shift of uint64; 0 where the number of places reaches the width."""
    x, by = torch.broadcast_tensors(left.to(torch.int64), right.to(torch.int64))
    # The first place is where the sign would come in.
    first = (x >> 1) & torch.iinfo(torch.int64).max
    shifted = torch.where(by == 0, x, first >> (by - 1).clamp(0, 62))
    return torch.where((by >= 0) & (by < 64), shifted, 0).to(torch.uint64)


def _unsigned_power(left, right):
    """Power of uint64, which wraps around."""
    square, rest = torch.broadcast_tensors(left.to(torch.int64), right.to(torch.int64))
    power = torch.ones_like(square)
    for _ in range(64):
        power = torch.where(rest & 1 == 1, power * square, power)
        square, rest = square * square, rest >> 1
    return power.to(torch.uint64)


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
