"""Arithmetic, comparisons and functions, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...special import FUNCTIONS
from .registry import OPS, Use, apply, cast, convert, is_connection, operands, scalars, tensor

#: Functions of one tensor: the name of JAX and ours.
UNARY = {
    **{
        n: n
        for n in ("exp", "log", "log2", "log1p", "expm1", "sqrt", "rsqrt", "abs", "sign", "floor", "ceil", "square")
    },
    **{n: n for n in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh")},
    **{n: n for n in ("erf", "erfc")},
    "neg": "negative",
    "logistic": "sigmoid",
    "erf_inv": "erfinv",
    "is_finite": "isfinite",
}

#: Functions of two tensors.
BINARY = {
    **{"add": "add", "add_any": "add", "sub": "subtract", "mul": "multiply", "max": "maximum", "min": "minimum"},
    **{"pow": "power", "atan2": "atan2", "rem": "fmod"},
    **{"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"},
}


def _unary(op: str) -> Any:
    return lambda use, x, **ignored: apply(op, x)


def _binary(op: str) -> Any:
    def function(use: Use, x: Any, y: Any, **ignored: Any) -> Any:
        if use.dtype_of(0) == "bool" and op in ("maximum", "multiply", "add"):
            return apply("logical_and" if op == "multiply" else "logical_or", *map(tensor, (x, y)))
        if use.dtype_of(0) == "bool" and op == "minimum":
            return apply("logical_and", *map(tensor, (x, y)))
        return apply(op, *((tensor(x), tensor(y)) if use.dtype_of(0) == "bool" else operands(use, [x, y])))

    return function


#: Of functions that are called otherwise.
_NAMES = {"i0e": "bessel_i0e", "i1e": "bessel_i1e"}


def _special(function: Callable[[Any, str], Any]) -> Any:
    return lambda use, x, **ignored: function(x, use.dtype)


OPS.update({name: _unary(op) for name, op in UNARY.items()})
OPS.update({_NAMES.get(name, name): _special(function) for name, function in FUNCTIONS.items()})
OPS.update({name: _binary(op) for name, op in BINARY.items()})


@convert("exp2")
def _exp2(use: Use, x: Any, **ignored: Any) -> Any:
    return apply("power", 2.0, x)


@convert("one_minus_square")
def _one_minus_square(use: Use, x: Any, **ignored: Any) -> Any:
    # Each form is exact where the other cancels: the product near 1, the gradient of the square near 0.
    is_small = apply("less", apply("abs", x), 0.5)
    return apply("where", is_small, 1.0 - apply("square", x), (1.0 + x) * (1.0 - x))


@convert("polynomial")
def _polynomial(use: Use, x: Any, *coefficients: Any, **ignored: Any) -> Any:
    # From the lowest degree to the highest, by the rule of Horner.
    x, *terms = operands(use, [x, *coefficients])
    value = terms.pop()
    for coefficient in reversed(terms):
        value = apply("add", apply("multiply", value, x), coefficient)
    return value


@convert("le_to", "lt_to")
def _in_order(use: Use, x: Any, y: Any, **ignored: Any) -> Any:
    # In the order of sorting, NaN comes last. JAX has made zeros and NaN equal before, whatever their signs.
    name, x, y = use.eqn.primitive.name, tensor(x), tensor(y)
    is_less = apply("less_equal" if name == "le_to" else "less", x, y)
    if "float" not in use.dtype_of(0):
        return is_less
    is_last = apply("isnan", y)
    if name == "lt_to":
        is_last = apply("logical_and", is_last, apply("logical_not", apply("isnan", x)))
    return apply("logical_or", is_less, is_last)


@convert("div")
def _divide(use: Use, x: Any, y: Any, **ignored: Any) -> Any:
    if "int" not in use.dtype:
        return apply("divide", *operands(use, [x, y]))
    # Quotients of integers round toward zero; without the remainder they are exact.
    x, y = tensor(x), tensor(y)
    return apply("floor_divide", apply("subtract", x, apply("fmod", x, y)), y)


@convert("and", "or", "xor")
def _bits(use: Use, x: Any, y: Any, **ignored: Any) -> Any:
    kind = "logical" if use.dtype == "bool" else "bitwise"
    return apply(f"{kind}_{use.eqn.primitive.name}", tensor(x), tensor(y))


@convert("shift_left", "shift_right_arithmetic", "shift_right_logical")
def _shift(use: Use, x: Any, y: Any, **ignored: Any) -> Any:
    name = use.eqn.primitive.name
    if name == "shift_right_logical" and not use.dtype.startswith("u"):
        x, y = (cast(tensor(v), f"u{use.dtype}") for v in (x, y))
        return cast(apply("right_shift", x, y), use.dtype)
    return apply("left_shift" if name == "shift_left" else "right_shift", tensor(x), tensor(y))


@convert("not")
def _not(use: Use, x: Any, **ignored: Any) -> Any:
    return apply("logical_not" if use.dtype == "bool" else "bitwise_not", x)


@convert("integer_pow")
def _integer_power(use: Use, x: Any, *, y: int, **ignored: Any) -> Any:
    if y == 2:
        return apply("square", x)
    return apply("reciprocal", x) if y == -1 else apply("power", x, y if "int" in use.dtype else float(y))


@convert("cbrt")
def _cube_root(use: Use, x: Any, **ignored: Any) -> Any:
    return apply("multiply", apply("sign", x), apply("power", apply("abs", x), 1 / 3))


@convert("round")
def _round(use: Use, x: Any, *, rounding_method: Any, **ignored: Any) -> Any:
    if int(rounding_method) == 1:
        return apply("round", x)
    # Halves go away from zero. Adding a half before would round up what is just below one.
    whole = apply("trunc", x)
    is_far = apply("greater_equal", apply("abs", apply("subtract", x, whole)), 0.5)
    return apply("where", is_far, apply("add", whole, apply("sign", x)), whole)


@convert("clamp")
def _clip(use: Use, low: Any, x: Any, high: Any, **ignored: Any) -> Any:
    low, high = scalars([low, high])
    return apply("minimum", apply("maximum", tensor(x), low), high)


@convert("select_n")
def _select(use: Use, which: Any, *cases: Any, **ignored: Any) -> Any:
    if not is_connection(which):
        chosen = np.broadcast_to(np.asarray(which).astype(int), use.shape)
        if chosen.size and (chosen == chosen.flat[0]).all():
            return cases[chosen.flat[0]]
    which = tensor(which)
    if use.dtype_of(0) == "bool":
        other, first = scalars(cases)
        if not is_connection(other) and not is_connection(first):
            first = apply("full", use.shape, first, use.dtype)
        return apply("where", which, first, other)
    result = tensor(cases[-1])
    for i in range(len(cases) - 2, -1, -1):
        result = apply("where", apply("equal", which, i), tensor(cases[i]), result)
    return result


@convert("convert_element_type")
def _cast(use: Use, x: Any, **ignored: Any) -> Any:
    return x if use.dtype == use.dtype_of(0) else cast(x, use.dtype)


@convert("copy", "copy_p", "sharding_constraint", "pvary")
def _same(use: Use, x: Any, **ignored: Any) -> Any:
    return x


@convert("optimization_barrier", "device_put")
def _same_each(use: Use, *xs: Any, **ignored: Any) -> Any:
    return list(xs)


@convert("stop_gradient")
def _stop_gradient(use: Use, x: Any, **ignored: Any) -> Any:
    return apply("stop_gradient", x)
