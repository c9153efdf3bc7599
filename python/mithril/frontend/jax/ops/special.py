"""Functions of statistics, and the bits of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...special import polygamma, zeta
from .registry import Use, apply, cast, convert, is_connection, tensor


def _whole(x: Any) -> int | None:
    """Find the integer that all elements of a known array are."""
    if is_connection(x):
        return None
    array = np.asarray(x)
    first = float(array.flat[0]) if array.size else 0.0
    return int(first) if first.is_integer() and (array == first).all() else None


def _wide(use: Use, compute: Any, *args: Any) -> Any:
    """Compute half precisions in float32."""
    if use.dtype not in ("float16", "bfloat16"):
        return compute(*args)
    return cast(compute(*(cast(x, "float32") for x in args)), use.dtype)


@convert("polygamma")
def _polygamma(use: Use, n: Any, x: Any, **ignored: Any) -> Any:
    order = _whole(n)
    if order is None or not 0 <= order <= 20:
        raise use.refuse("of an order that is not known when converting, or not an integer up to 20")
    return polygamma(order, tensor(x), use.dtype)


@convert("zeta")
def _zeta(use: Use, s: Any, q: Any, **ignored: Any) -> Any:
    return _wide(use, zeta, tensor(s), tensor(q))


def _width(dtype: str) -> int:
    return int(dtype.removeprefix("u").removeprefix("int"))


def _unsigned(x: Any, dtype: str) -> Any:
    return x if dtype.startswith("u") else cast(x, f"u{dtype}")


def _shifted(x: Any, by: int, dtype: str) -> Any:
    return apply("right_shift", x, apply("full", (), by, dtype))


def _count(x: Any, width: int) -> Any:
    """Count the bits of unsigned integers: in pairs, fours, and so on."""
    dtype = f"uint{width}"

    def constant(pattern: int) -> Any:
        return apply("full", (), sum(pattern << i for i in range(0, width, 8)) & (2**width - 1), dtype)

    x = x - apply("bitwise_and", _shifted(x, 1, dtype), constant(0x55))
    x = apply("bitwise_and", x, constant(0x33)) + apply("bitwise_and", _shifted(x, 2, dtype), constant(0x33))
    x = apply("bitwise_and", x + _shifted(x, 4, dtype), constant(0x0F))
    step = 8
    while step < width:
        x, step = x + _shifted(x, step, dtype), 2 * step
    return apply("bitwise_and", x, apply("full", (), 0x7F if width > 8 else 0x0F, dtype))


@convert("population_count")
def _population_count(use: Use, x: Any, **ignored: Any) -> Any:
    return cast(_count(_unsigned(tensor(x), use.dtype), _width(use.dtype)), use.dtype)


@convert("clz")
def _leading_zeros(use: Use, x: Any, **ignored: Any) -> Any:
    width = _width(use.dtype)
    dtype = f"uint{width}"
    x, step = _unsigned(tensor(x), use.dtype), 1
    while step < width:
        # Bits behind the first one are set.
        x, step = apply("bitwise_or", x, _shifted(x, step, dtype)), 2 * step
    return cast(apply("full", (), width, dtype) - _count(x, width), use.dtype)


@convert("reduce_precision")
def _reduce_precision(use: Use, x: Any, *, exponent_bits: int, mantissa_bits: int, **ignored: Any) -> Any:
    own = _PRECISIONS[use.dtype]
    if exponent_bits >= own[0] and mantissa_bits >= own[1]:
        return x
    # The other part is not larger than that of the tensor.
    bits = min(exponent_bits, own[0]), min(mantissa_bits, own[1])
    fits = [name for name, other in _PRECISIONS.items() if (min(other[0], own[0]), min(other[1], own[1])) == bits]
    if not fits:
        raise use.refuse("to another precision than that of float16, bfloat16 or float32")
    y = cast(cast(x, fits[0]), use.dtype)
    if bits[0] == own[0]:
        return y
    # Below the normal numbers of the format there is only 0.
    smallest = 2.0 ** (2 - 2 ** (bits[0] - 1))
    is_small = apply("less", apply("abs", x), smallest * (1 - 2.0 ** (-bits[1] - 2)))
    return apply("where", is_small, apply("multiply", x, 0.0), y)


#: Bits of the exponent and of the mantissa.
_PRECISIONS = {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23), "float64": (11, 52)}
