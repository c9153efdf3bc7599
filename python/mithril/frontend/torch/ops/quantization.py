"""Fake quantization, which rounds to the numbers of an integer dtype while a network is trained for it.

The gradient passes where nothing is clipped, as if nothing were rounded (the straight-through estimator). Steps that
are learned have the gradient of LSQ (Esser et al. 2020).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .registry import Use, apply, cast, convert, dtype_name, is_connection, wide


def _quantized(x: Any, scale: Any, zero: Any, low: int, high: int) -> tuple[Any, Any, Any]:
    """Return the rounded numbers; those of the steps, before they are clipped; and where nothing is clipped."""
    if is_connection(scale):
        inverse = apply("reciprocal", scale)
    else:
        scale = float(np.float32(scale))
        inverse = float(np.float32(1) / np.float32(scale))
    steps = apply("round", x * inverse) + zero
    inside = apply("logical_and", apply("greater_equal", steps, float(low)), apply("less_equal", steps, float(high)))
    return (apply("clip", steps, float(low), float(high)) - zero) * scale, steps, inside


def _straight(use: Use, x: Any, scale: Any, zero: Any, low: int, high: int) -> Any:
    def rounded(x: Any) -> Any:
        value, _, inside = _quantized(x, scale, zero, low, high)
        return apply("replace_gradient", value, apply("where", inside, x, 0.0))

    return wide(use, rounded, x)


def _number(x: Any) -> Any:
    """Write a zero point as a float."""
    return cast(x, "float32") if is_connection(x) else float(x)


@convert("fake_quantize_per_tensor_affine.default", "fake_quantize_per_tensor_affine.tensor_qparams")
def _per_tensor(use: Use, x: Any, scale: Any, zero: Any, low: int, high: int) -> Any:
    return _straight(use, x, scale, _number(zero), low, high)


@convert("fake_quantize_per_channel_affine.default")
def _per_channel(use: Use, x: Any, scale: Any, zero: Any, axis: int, low: int, high: int) -> Any:
    shape = _along(use, axis)
    return _straight(use, x, apply("reshape", scale, shape), apply("reshape", _number(zero), shape), low, high)


def _along(use: Use, axis: int) -> tuple[int, ...]:
    return tuple(-1 if i == axis % use.rank else 1 for i in range(use.rank))


@convert("_fake_quantize_learnable_per_channel_affine.default")
def _learnable_per_channel(
    use: Use, x: Any, scale: Any, zero: Any, axis: int, low: int, high: int, factor: float = 1.0
) -> Any:
    shape = _along(use, axis)
    return _learned(use, x, apply("reshape", scale, shape), apply("reshape", zero, shape), low, high, factor)


#: Steps that are smaller are made as large as this.
_SMALLEST_STEP = float(np.float32(6.1e-5))


def _steps(least: Any, most: Any, low: int, high: int, symmetric: bool) -> tuple[Any, Any]:
    """Return the step and the zero point with which the integers from `low` to `high` cover a range, as PyTorch."""
    least, most = apply("minimum", least, 0.0), apply("maximum", most, 0.0)
    if symmetric:
        # The middle integer is zero, but in ranges that end there.
        half = (high - low) // 2
        has_both = apply("logical_and", apply("less", least, 0.0), apply("greater", most, 0.0))
        step = apply("maximum", least / float(-half - 1), most / float(half))
        least = apply("where", has_both, step * float(-half - 1), least)
        most = apply("where", has_both, step * float(half), most)
    else:
        has_both = None
    steps = float(high - low)
    step = (most - least) / steps
    step = apply("where", apply("isinf", 1.0 / step), 0.1, step)
    is_small = apply("less", step, _SMALLEST_STEP)
    larger = apply("where", is_small, _SMALLEST_STEP / step, 1.0)
    step = apply("maximum", step, _SMALLEST_STEP)
    below, above = least * larger / step, most * larger / step
    from_most = apply("less_equal", abs(high) - apply("abs", above), abs(low) - apply("abs", below))
    zero = apply("where", from_most, float(high) - above, float(low) - below)
    if has_both is not None:
        zero = apply("where", has_both, (low + high) / 2, zero)
    return step, apply("round", apply("clip", zero, float(low), float(high)))


@convert("_fused_moving_avg_obs_fq_helper_functional.default")
def _observed(
    use: Use,
    x: Any,
    observes: Any,
    quantizes: Any,
    least: Any,
    most: Any,
    scale: Any,
    zero: Any,
    rate: float,
    low: int,
    high: int,
    axis: int,
    per_row: bool = False,
    symmetric: bool = False,
) -> Any:
    """Quantize by the range of what was seen, which follows that of `x`; the range and the grid are state."""
    if use.operand(3).numel() == 0:
        raise use.refuse("it has seen no data yet, so its range has no shape; call the module once before")
    others = tuple(i for i in range(use.rank_of(0)) if not per_row or i != axis % use.rank_of(0))
    observes, quantizes = apply("not_equal", observes, 0), apply("not_equal", quantizes, 0)
    fixed = apply("stop_gradient", cast(x, "float32"))

    def seen(old: Any, op: str) -> Any:
        new = apply(op, fixed, others, False)
        followed = apply("where", apply("isinf", old), new, old + rate * (new - old))
        return apply("where", observes, followed, old)

    least, most = seen(least, "min"), seen(most, "max")
    step, middle = _steps(least, most, low, high, symmetric)
    scale, middle = apply("where", quantizes, step, scale), apply("where", quantizes, middle, _number(zero))
    shape = _along(use, axis) if per_row else (1,) * use.rank_of(0)
    step, at = apply("reshape", scale, shape), apply("reshape", middle, shape)
    _, _, inside = _quantized(fixed, step, at, low, high)
    results = [
        apply("where", quantizes, _straight(use, x, step, at, low, high), x),
        apply("logical_or", inside, apply("logical_not", quantizes)),
        least,
        most,
        scale,
        cast(middle, dtype_name(use.operand(6).dtype)),
    ]
    # `where` by a flag of shape [1] makes vectors of 0-d ranges.
    return results[:2] + [apply("reshape", each, tuple(use.operand(i).shape)) for i, each in enumerate(results[2:], 3)]


@convert("_fake_quantize_learnable_per_tensor_affine.default")
def _learned(use: Use, x: Any, scale: Any, zero: Any, low: int, high: int, factor: float = 1.0) -> Any:
    """Quantize with a step and a zero point that are learned."""
    fixed, step = apply("stop_gradient", x), apply("stop_gradient", scale)
    at = apply("clip", apply("round", apply("stop_gradient", zero)), float(low), float(high))
    value, steps, inside = _quantized(fixed, step, at, low, high)
    ends = apply("where", apply("less", steps, float(low)), float(low) - at, float(high) - at)
    of_scale = apply("where", inside, (value - fixed) / step, ends) * factor
    of_zero = apply("where", inside, 0.0, -step) * factor
    surrogate = apply("where", inside, x, 0.0) + of_scale * scale + of_zero * zero
    return apply("replace_gradient", value, surrogate)
