"""Fake quantization, which rounds to the numbers of an integer dtype while a network is trained for it.

The gradient passes where nothing is clipped, as if nothing were rounded (the straight-through estimator). Steps that
are learned have the gradient of LSQ (Esser et al. 2020).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .registry import Use, apply, cast, convert, is_connection, wide


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


@convert("_fused_moving_avg_obs_fq_helper_functional.default")
def _observed(use: Use, *ignored: Any) -> Any:
    raise use.refuse(
        "it observes ranges; when they are known, call torch.fake_quantize_per_tensor_affine with the scale"
    )


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
