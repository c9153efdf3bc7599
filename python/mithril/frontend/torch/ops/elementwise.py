"""Arithmetic, comparisons and activations, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...complexes import Complex
from ...special import FUNCTIONS
from .movement import along
from .registry import OPS, Use, apply, cast, convert, dtype_name, is_connection, promoted, tensors

#: Functions of one tensor: the name of ATen and ours.
UNARY = {
    **{name: name for name in ("exp", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "abs", "sign", "expm1")},
    **{name: name for name in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "erf", "erfc")},
    **{name: name for name in ("floor", "ceil", "round", "trunc", "reciprocal", "sigmoid", "relu", "relu6", "silu")},
    **{name: name for name in ("mish", "softsign", "isnan", "isfinite", "isinf", "logical_not", "bitwise_not")},
    **{name: name for name in ("asinh", "acosh", "atanh", "erfinv", "square")},
    "neg": "negative",
    "hardswish": "hard_swish",
    "hardsigmoid": "hard_sigmoid",
    "log_sigmoid": "log_sigmoid",
    "selu": "selu",
}

#: Functions of two tensors.
BINARY = {
    "mul": "multiply",
    "maximum": "maximum",
    "minimum": "minimum",
    "atan2": "atan2",
    "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or",
    "bitwise_xor": "bitwise_xor",
    "__and__": "bitwise_and",
    "__or__": "bitwise_or",
    "remainder": "remainder",
    "fmod": "fmod",
    "pow": "power",
    "floor_divide": "floor_divide",
    "logaddexp": "logaddexp",
}

#: Functions whose results are truth values.
COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}

OVERLOADS = ("default", "Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")


def _unary(op: str) -> Any:
    def function(use: Use, x: Any) -> Any:
        # Functions with fractions promote integers.
        is_float = use.value.dtype.is_floating_point
        return apply(op, promoted(use, x)[0] if is_float else x)

    return function


def _binary(op: str) -> Any:
    def function(use: Use, x: Any, y: Any) -> Any:
        x, y = promoted(use, x, y)
        if use.dtype == "bool" and op == "multiply":
            return apply("logical_and", x, y)
        return apply(op, x, y)

    return function


def _comparison(op: str) -> Any:
    def function(use: Use, x: Any, y: Any) -> Any:
        return apply(op, *_common(use, x, y))

    return function


def _common(use: Use, x: Any, y: Any) -> list[Any]:
    """Two tensors in the dtype that PyTorch compares them in."""
    a, b = (use.operand(i) for i in range(2))
    if not (hasattr(a, "dtype") and hasattr(b, "dtype")) or a.dtype == b.dtype:
        return [x, y]
    import torch

    return tensors(use, dtype_name(torch.result_type(a, b)), x, y)


for _name, _op in UNARY.items():
    OPS[f"aten.{_name}.default"] = _unary(_op)


def _special(function: Callable[[Any, str], Any]) -> Any:
    return lambda use, x: function(promoted(use, x)[0], use.dtype)


for _name, _function in FUNCTIONS.items():
    OPS.update({f"aten.{_prefix}{_name}.default": _special(_function) for _prefix in ("", "special_")})
    if _name in ("i0", "i1"):
        OPS[f"aten.special_modified_bessel_{_name}.default"] = _special(_function)
for _name, _op in BINARY.items():
    OPS.update({f"aten.{_name}.{overload}": _binary(_op) for overload in OVERLOADS})
for _name, _op in COMPARISONS.items():
    OPS.update({f"aten.{_name}.{overload}": _comparison(_op) for overload in OVERLOADS})


@convert("exp2.default")
def _exp2(use: Use, x: Any) -> Any:
    return apply("power", 2.0, promoted(use, x)[0])


@convert("frac.default")
def _fraction(use: Use, x: Any) -> Any:
    return apply("subtract", x, apply("trunc", x))


@convert("fmax.default", "fmin.default")
def _extreme(use: Use, x: Any, y: Any) -> Any:
    x, y = promoted(use, x, y)
    compare = "greater_equal" if "fmax" in str(use.node.target) else "less_equal"
    return apply("where", apply("logical_or", apply(compare, x, y), apply("isnan", y)), x, y)


def _scaled(y: Any, alpha: Any) -> Any:
    return y if alpha == 1 else apply("multiply", y, alpha)


@convert("add.Tensor", "add.Scalar")
def _add(use: Use, x: Any, y: Any, alpha: Any = 1) -> Any:
    x, y = promoted(use, x, y)
    if use.dtype == "bool":
        return apply("logical_or", x, y)
    return apply("add", x, _scaled(y, alpha))


@convert("sub.Tensor", "sub.Scalar")
def _subtract(use: Use, x: Any, y: Any, alpha: Any = 1) -> Any:
    x, y = promoted(use, x, y)
    return apply("subtract", x, _scaled(y, alpha))


@convert("rsub.Scalar", "rsub.Tensor")
def _subtract_from(use: Use, x: Any, y: Any, alpha: Any = 1) -> Any:
    x, y = promoted(use, x, y)
    return apply("subtract", y, _scaled(x, alpha))


@convert("div.Tensor", "div.Scalar")
def _divide(use: Use, x: Any, y: Any) -> Any:
    return apply("divide", *promoted(use, x, y))


@convert("div.Tensor_mode", "div.Scalar_mode")
def _divide_rounded(use: Use, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    x, y = promoted(use, x, y)
    if rounding_mode == "floor":
        return apply("floor_divide", x, y)
    if rounding_mode == "trunc" and use.value.dtype.is_floating_point:
        return apply("trunc", apply("divide", x, y))
    if rounding_mode is None:
        return apply("divide", x, y)
    # Without the remainder the quotient is exact.
    return apply("floor_divide", apply("subtract", x, apply("fmod", x, y)), y)


@convert("logical_and.default", "logical_or.default", "logical_xor.default")
def _logical(use: Use, x: Any, y: Any) -> Any:
    return apply(str(use.node.target).split(".")[1], *tensors(use, "bool", x, y))


@convert("gelu.default")
def _gelu(use: Use, x: Any, approximate: str = "none") -> Any:
    return apply("gelu", x, approximate)


@convert("leaky_relu.default")
def _leaky_relu(use: Use, x: Any, slope: float = 0.01) -> Any:
    return apply("leaky_relu", x, slope)


@convert("elu.default")
def _elu(use: Use, x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    if input_scale != 1:
        raise use.refuse("elu with an input scale")
    y = apply("elu", x, alpha)
    return y if scale == 1 else apply("multiply", y, scale)


@convert("celu.default")
def _celu(use: Use, x: Any, alpha: float = 1.0) -> Any:
    return apply("celu", x, alpha)


@convert("prelu.default", "_prelu_kernel.default")
def _prelu(use: Use, x: Any, weight: Any) -> Any:
    operand = use.operand(1)
    if use.node.target.__name__.startswith("_prelu") and operand.numel() > 1:
        weight = apply("reshape", weight, (int(operand.numel()),))
    return apply("prelu", x, weight)


@convert("softplus.default")
def _softplus(use: Use, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    scaled = x if beta == 1 else apply("multiply", x, beta)
    y = apply("softplus", scaled)
    y = y if beta == 1 else apply("divide", y, beta)
    # From 20 on, where PyTorch changes over by default, both are the same in every dtype but float64.
    return y if threshold == 20 else apply("where", apply("greater", scaled, threshold), x, y)


@convert("hardtanh.default")
def _hard_tanh(use: Use, x: Any, low: float = -1.0, high: float = 1.0) -> Any:
    if "int" in use.dtype:
        low, high = int(low), int(high)
    return apply("relu6", x) if (low, high) == (0.0, 6.0) else apply("hard_tanh", x, low, high)


@convert("clamp.default", "clamp.Tensor", "clamp_min.default", "clamp_max.default")
def _clip(use: Use, x: Any, low: Any = None, high: Any = None) -> Any:
    name = str(use.node.target).split(".")[1]
    if name == "clamp_max":
        low, high = None, low
    (x,) = promoted(use, x)
    if is_connection(low) or is_connection(high):
        x = x if low is None else apply("maximum", x, low)
        return x if high is None else apply("minimum", x, high)
    return apply("clip", x, low, high)


@convert("where.self", "where.ScalarOther", "where.ScalarSelf")
def _where(use: Use, condition: Any, x: Any, y: Any) -> Any:
    _, x, y = tensors(use, use.dtype, None, x, y)
    return apply("where", condition, x, y)


@convert("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(use: Use, x: Any, mask: Any, value: Any) -> Any:
    return apply("where", mask, cast(value, use.dtype) if is_connection(value) else value, x)


@convert("addcmul.default")
def _addcmul(use: Use, x: Any, a: Any, b: Any, value: Any = 1) -> Any:
    x, a, b = promoted(use, x, a, b)
    return apply("add", x, _scaled(apply("multiply", a, b), value))


@convert("addcdiv.default")
def _addcdiv(use: Use, x: Any, a: Any, b: Any, value: Any = 1) -> Any:
    x, a, b = promoted(use, x, a, b)
    return apply("add", x, _scaled(apply("divide", a, b), value))


@convert("lerp.Scalar", "lerp.Tensor")
def _lerp(use: Use, x: Any, end: Any, weight: Any) -> Any:
    return apply("add", x, apply("multiply", apply("subtract", end, x), weight))


@convert("glu.default")
def _glu(use: Use, x: Any, dim: int = -1) -> Any:
    rank = use.rank
    half = use.size(use.operand(0).shape[dim]) // 2
    if isinstance(half, int):
        a, b = apply("split", x, (half, half), dim % rank)
    else:
        a, b = (along(x, dim % rank, slice(*ends)) for ends in ((0, half), (half, None)))
    return apply("multiply", a, apply("sigmoid", b))


@convert("_to_copy.default", "to.dtype", "to.device", "to.dtype_layout", "to.other", "type_as.default", "float.default")
def _to(use: Use, x: Any, *args: Any, **named: Any) -> Any:
    (x,) = promoted(use, x)
    return Complex((x, apply("zeros_like", x))) if use.value.is_complex() else x


@convert(
    *("clone.default", "alias.default", "contiguous.default", "lift_fresh_copy.default"),
    *("lift_fresh.default", "dropout.default", "feature_dropout.default", "_conj.default", "resolve_conj.default"),
)
def _same(use: Use, x: Any, *args: Any, **named: Any) -> Any:
    name = str(use.node.target).split(".")[1]
    if not name.endswith("dropout") or not args[1]:
        return x
    return drop_channels(x, args[0]) if name == "feature_dropout" else drop(x, args[0])


@convert("conj_physical.default", "resolve_neg.default", "conj.default")
def _same_number(use: Use, x: Any) -> Any:
    return x


@convert("fill.Scalar", "fill.Tensor", "zero.default")
def _fill(use: Use, x: Any, value: Any = 0) -> Any:
    if is_connection(value):
        return apply("broadcast_to", cast(value, use.dtype), use.sizes)
    return apply("full", use.sizes, value, use.dtype)


@convert("replace_gradient.default", prefix="mithril")
def _replace_gradient(use: Use, x: Any, surrogate: Any) -> Any:
    return apply("replace_gradient", x, surrogate)


@convert("cotangent.default", prefix="mithril")
def _cotangent(use: Use, x: Any, rule: Any) -> Any:
    return apply("zeros_like", x)


@convert("detach.default")
def _detach(use: Use, x: Any) -> Any:
    return apply("stop_gradient", x)


@convert("native_dropout.default")
def _native_dropout(use: Use, x: Any, p: float, train: bool | None = True) -> Any:
    return [drop(x, p) if train else x, None]


def drop(x: Any, p: float) -> Any:
    """Dropout, which compiling for inference takes away."""
    from ....models import Dropout

    return Dropout(p)(x) if p > 0 else x


def drop_channels(x: Any, p: float) -> Any:
    """Dropout of whole channels, which compiling for inference takes away."""
    from ....models import FeatureDropout

    return FeatureDropout(p)(x) if p > 0 else x


@convert("copy.default")
def _copy(use: Use, x: Any, source: Any, non_blocking: bool = False) -> Any:
    operand = use.operand(1)
    y = cast(source, use.dtype) if dtype_name(operand.dtype) != use.dtype else source
    if tuple(operand.shape) == use.shape:
        return y
    return apply("broadcast_to", y, use.sizes)


@convert("nan_to_num.default")
def _nan_to_num(use: Use, x: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    return apply("nan_to_num", x, 0.0 if nan is None else nan, posinf, neginf)
