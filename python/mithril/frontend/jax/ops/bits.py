"""The bits of floats, read as integers and back: by arithmetic, which is exact for all numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from .registry import Use, apply, cast, convert, tensor

#: Of floats: bits of the fraction, bits of the exponent.
_FORMATS = {"float16": (10, 5), "bfloat16": (7, 8), "float32": (23, 8), "float64": (52, 11)}
#: Where the arithmetic of others is computed.
_WIDE = {"float16": "float32", "bfloat16": "float32"}


@convert("bitcast_convert_type")
def _bitcast(use: Use, x: Any, **ignored: Any) -> Any:
    source, target = use.dtype_of(0), use.dtype
    if source == target:
        return x
    if "bool" in (source, target):
        raise use.refuse(f"from {source} to {target}")
    x = _of_width(bits_of(tensor(x), source), _width(source), _width(target))
    return from_bits(x, target)


def _width(dtype: str) -> int:
    return int("".join(filter(str.isdigit, dtype.removeprefix("b"))))


def _of_width(x: Any, own: int, width: int) -> Any:
    """Read unsigned integers as several narrower ones, along a new last axis, or those along the last axis as one."""
    if own == width:
        return x
    wide = f"uint{max(own, width)}"
    steps = np.arange(max(own, width) // min(own, width)) * min(own, width)
    by = tensor(steps.astype(wide))
    if own > width:
        x = apply("right_shift", apply("expand_dims", x, -1), by)
        return cast(apply("bitwise_and", x, apply("full", (), 2**width - 1, wide)), f"uint{width}")
    return cast(apply("sum", apply("left_shift", cast(x, wide), by), -1, False), wide)


def bits_of(x: Any, dtype: str) -> Any:
    """Read the bits of a tensor as unsigned integers of the same width."""
    if dtype in _FORMATS:
        return _bits_of_float(x, dtype)
    return x if dtype.startswith("u") else cast(x, f"u{dtype}")


def from_bits(x: Any, dtype: str) -> Any:
    """Read the bits of unsigned integers as another dtype of the same width."""
    if dtype in _FORMATS:
        return _float_of_bits(x, dtype)
    return x if dtype.startswith("u") else cast(x, dtype)


@convert("nextafter")
def _nextafter(use: Use, x: Any, y: Any, **ignored: Any) -> Any:
    """Step by one in the order of floats, which is that of their bits read as sign and magnitude."""
    x, y, dtype = tensor(x), tensor(y), use.dtype
    fraction, exponent = _FORMATS[dtype]
    bits = bits_of(x, dtype)

    def constant(n: int) -> Any:
        return apply("full", (), n, f"uint{fraction + exponent + 1}")

    is_away = apply("logical_xor", apply("less", x, y), apply("less", x, 0.0))
    step = apply("where", is_away, bits + constant(1), bits - constant(1))
    smallest = apply("where", apply("less", y, 0.0), constant((1 << (fraction + exponent)) + 1), constant(1))
    moved = from_bits(apply("where", apply("equal", x, 0.0), smallest, step), dtype)
    is_number = apply("logical_not", apply("logical_or", apply("isnan", x), apply("isnan", y)))
    moved = apply("where", is_number, moved, float("nan"))
    return apply("where", apply("equal", x, y), y, moved)


def _float_of_bits(x: Any, target: str) -> Any:
    """Read the bits of unsigned integers as floats."""
    fraction, exponent = _FORMATS[target]
    bias, wide = 2 ** (exponent - 1) - 1, _WIDE.get(target, target)

    def constant(n: int) -> Any:
        return apply("full", (), n, f"uint{fraction + exponent + 1}")

    part = cast(apply("bitwise_and", x, constant(2**fraction - 1)), wide) * 2.0**-fraction
    scale = apply("bitwise_and", apply("right_shift", x, constant(fraction)), constant(2**exponent - 1))
    scale = cast(scale, wide)
    is_negative = apply("greater_equal", x, constant(1 << (fraction + exponent)))
    # The smallest ones have no leading 1, the largest exponent is that of infinities and NaN.
    is_small, is_last = apply("equal", scale, 0.0), apply("equal", scale, float(2**exponent - 1))
    power = apply("power", 2.0, apply("where", is_small | is_last, 1.0, scale) - float(bias))
    size = apply("where", is_small, part, part + 1.0) * power
    last = apply("where", apply("equal", part, 0.0), float("inf"), float("nan"))
    size = apply("where", is_last, last, size)
    return cast(apply("where", is_negative, -size, size), target)


def _bits_of_float(x: Any, source: str) -> Any:
    """Read the bits of floats as unsigned integers; all NaN are the same one."""
    fraction, exponent = _FORMATS[source]
    bias, dtype = 2 ** (exponent - 1) - 1, f"uint{fraction + exponent + 1}"

    def constant(n: int) -> Any:
        return apply("full", (), n, dtype)

    x = apply("stop_gradient", cast(x, _WIDE[source]) if source in _WIDE else x)
    size = apply("abs", x)
    is_negative = (x < 0.0) | apply("less", 1.0 / x, 0.0)
    is_normal = apply("isfinite", size) & (size >= 2.0 ** (1 - bias))
    normal = apply("where", is_normal, size, 1.0)
    power = apply("minimum", apply("maximum", apply("floor", apply("log2", normal)), 1.0 - bias), float(bias))
    # In two steps, which are both normal numbers; and the logarithm is rounded.
    half = apply("floor", power * 0.5)
    rest = normal * apply("power", 2.0, -half) * apply("power", 2.0, half - power)
    power = power + apply("where", rest >= 2.0, 1.0, apply("where", rest < 1.0, -1.0, 0.0))
    rest = apply("where", rest >= 2.0, rest * 0.5, apply("where", rest < 1.0, rest * 2.0, rest))
    bits = apply("left_shift", cast(power + float(bias), dtype), constant(fraction))
    bits = apply("bitwise_or", bits, cast((rest - 1.0) * 2.0**fraction, dtype))
    small = apply("where", size < 2.0 ** (1 - bias), size, 0.0)
    small = cast(small * 2.0**bias * 2.0 ** (fraction - 1), dtype)
    infinite = (2**exponent - 1) << fraction
    special = apply("where", apply("isnan", x), constant(infinite | 1 << (fraction - 1)), constant(infinite))
    special = apply("where", apply("isfinite", size), small, special)
    bits = apply("where", is_normal, bits, special)
    signed = apply("bitwise_or", bits, constant(1 << (fraction + exponent)))
    return apply("where", is_negative, signed, bits)
