"""Functions of single elements that are not among the usual ones: of statistics, of signs and of powers of two."""

from __future__ import annotations

import math
from typing import Any

from ...special import polygamma, zeta
from .registry import OPS, Use, apply, as_vectors, cast, convert, dtype_name, is_connection, promoted, tensors, wide


@convert("polygamma.default")
def _polygamma(use: Use, n: int, x: Any) -> Any:
    return polygamma(n, promoted(use, n, x)[1], use.dtype)


@convert("special_zeta.default", "special_zeta.self_scalar", "special_zeta.other_scalar")
def _zeta(use: Use, s: Any, q: Any) -> Any:
    s, q = promoted(use, s, q)
    if not is_connection(q):
        q = apply("full", (), float(q), use.dtype)
    return wide(use, zeta, s if is_connection(s) else float(s), q)


@convert("special_xlog1py.default", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar")
def _xlog1py(use: Use, x: Any, y: Any) -> Any:
    return _product(use, x, y, "log1p")


@convert("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other")
def _xlogy(use: Use, x: Any, y: Any) -> Any:
    return _product(use, x, y, "log")


def _product(use: Use, x: Any, y: Any, function: str) -> Any:
    """Multiply by a logarithm, where 0 times whatever is a number is 0."""
    x, y = (v if is_connection(v) else apply("full", (), float(v), use.dtype) for v in promoted(use, x, y))
    # Where the logarithm is infinite or none, 0 is one of 1, whose derivative is finite.
    end, neutral = (0.0, 1.0) if function == "log" else (-1.0, 0.0)
    is_infinite = (y <= end) | apply("equal", y, math.inf)
    return x * apply(function, apply("where", apply("equal", x, 0.0) & is_infinite, neutral, y))


@convert("sinc.default", "special_sinc.default")
def _sinc(use: Use, x: Any) -> Any:
    # The quotient that is not taken at 0 has a finite derivative there.
    is_zero = apply("equal", x, 0.0)
    angle = apply("where", is_zero, 1.0, x) * math.pi
    return apply("where", is_zero, 1.0, apply("sin", angle) / angle)


@convert("hypot.default")
def _hypot(use: Use, x: Any, y: Any) -> Any:
    return apply("hypot", *promoted(use, x, y))


def _is_negative(x: Any, is_float: bool) -> Any:
    """Whether the sign is negative, also that of a zero."""
    negative = apply("less", x, 0.0 if is_float else 0)
    return negative | apply("less", apply("divide", 1.0, x), 0.0) if is_float else negative


@convert("signbit.default")
def _signbit(use: Use, x: Any) -> Any:
    operand = use.operand(0)
    if dtype_name(operand.dtype) == "bool":
        return apply("less", cast(x, "int32"), 0)
    return _is_negative(x, operand.dtype.is_floating_point)


@convert("copysign.Tensor", "copysign.Scalar")
def _copysign(use: Use, x: Any, y: Any) -> Any:
    x, y = promoted(use, x, y)
    size = apply("abs", x)
    if not is_connection(y):
        return -size if math.copysign(1.0, y) < 0 else size
    return apply("where", _is_negative(y, True), -size, size)


@convert("ldexp.Tensor")
def _ldexp(use: Use, x: Any, power: Any) -> Any:
    x, power = promoted(use, x, power)
    return apply("multiply", x, apply("power", 2.0, power))


@convert("frexp.Tensor")
def _frexp(use: Use, x: Any) -> Any:
    size = apply("abs", apply("stop_gradient", x))
    is_number = apply("isfinite", size) & (size > 0.0)
    size = apply("where", is_number, size, 0.5)
    exponent = apply("floor", apply("log2", size)) + 1.0

    def scaled(x: Any, by: Any) -> Any:
        # In two steps: the power alone may be no number.
        half = apply("floor", by * 0.5)
        return x * apply("power", 2.0, half) * apply("power", 2.0, by - half)

    # The logarithm is rounded.
    rest = scaled(size, -exponent)
    exponent = exponent + apply("where", rest >= 1.0, 1.0, apply("where", rest < 0.5, -1.0, 0.0))
    exponent = apply("where", is_number, exponent, 0.0)
    return [scaled(x, -exponent), cast(exponent, "int32")]


@convert("round.decimals")
def _rounded(use: Use, x: Any, *, decimals: int) -> Any:
    factor = 10.0 ** abs(decimals)
    if decimals >= 0:
        return apply("divide", apply("round", x * factor), factor)
    return apply("round", x / factor) * factor


@convert("dist.default")
def _dist(use: Use, x: Any, y: Any, p: float = 2.0) -> Any:
    x, y = promoted(use, x, y)
    return apply("norm", apply("subtract", x, y), float(p), None, False)


def _shift(op: str) -> Any:
    def function(use: Use, x: Any, y: Any) -> Any:
        x, y = tensors(use, use.dtype, x, y)
        return apply(op, *(v if is_connection(v) else apply("full", (), v, use.dtype) for v in (x, y)))

    return function


for _side in ("left", "right"):
    for _overload in ("Tensor", "Tensor_Scalar", "Scalar_Tensor"):
        OPS[f"aten.bitwise_{_side}_shift.{_overload}"] = _shift(f"{_side}_shift")
    for _overload in ("Tensor", "Scalar"):
        OPS[f"aten.__{_side[0]}shift__.{_overload}"] = _shift(f"{_side}_shift")


@convert("rrelu_with_noise_functional.default", "rrelu.default")
def _rrelu(use: Use, x: Any, *args: Any, **named: Any) -> Any:
    is_whole = "functional" not in str(use.node.target)
    low, high, training = (*args, *(1 / 8, 1 / 3, False)[len(args) :])[:3] if is_whole else (*args[1:], False)[:3]
    if not training:
        return apply("leaky_relu", x, (float(low) + float(high)) / 2)
    slope = apply("random_uniform", None, use.sizes, float(low), float(high), use.dtype)
    y = apply("where", x > 0.0, x, x * slope)
    return y if is_whole else [y, None]


@convert("multilabel_margin_loss.default")
@as_vectors
def _multilabel_margin(use: Use, x: Any, target: Any, reduction: int = 1) -> Any:
    classes = use.operand(0).shape[-1]
    # Targets end at the first negative one.
    is_valid = apply("cumprod", cast(apply("greater_equal", target, 0), "int64"), -1)
    is_valid = apply("greater", is_valid, 0)
    places = apply("where", is_valid, target, 0)
    each = apply("equal", apply("expand_dims", target, -1), apply("arange", 0, classes, 1, "int64"))
    is_target = apply("any", each & apply("expand_dims", is_valid, -1), -2)
    own = apply("take_along_axis", x, places, -1)
    margins = apply("relu", 1.0 - apply("expand_dims", own, -1) + apply("expand_dims", x, -2))
    counts = apply("expand_dims", is_valid, -1) & ~apply("expand_dims", is_target, -2)
    loss = apply("sum", apply("where", counts, margins, 0.0), (-2, -1), False) / float(classes)
    return loss if reduction == 0 else apply("mean" if reduction == 1 else "sum", loss, None, False)
