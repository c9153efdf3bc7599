"""The bits of floats, read as integers and back: by arithmetic, which is exact for all numbers."""

from __future__ import annotations

from typing import Any

from .registry import Use, apply, cast, convert, tensor

#: Of floats: bits of the fraction, bits of the exponent.
_FORMATS = {"float32": (23, 8), "float64": (52, 11)}


@convert("bitcast_convert_type")
def _bitcast(use: Use, x: Any, **ignored: Any) -> Any:
    source, target = use.dtype_of(0), use.dtype
    x, width = tensor(x), "".join(filter(str.isdigit, source))
    if source == target:
        return x
    if target.endswith("int" + width) and source.endswith("int" + width):
        return cast(x, target)
    if target in _FORMATS and source.endswith("int" + width) and target == f"float{width}":
        return _float_of_bits(cast(x, f"u{source}") if source.startswith("int") else x, target)
    if source in _FORMATS and target.endswith("int" + width):
        y = _bits_of_float(x, source)
        return cast(y, target) if target.startswith("int") else y
    raise use.refuse(f"from {source} to {target}")


def _float_of_bits(x: Any, target: str) -> Any:
    """Read the bits of unsigned integers as floats."""
    fraction, exponent = _FORMATS[target]
    bias = 2 ** (exponent - 1) - 1

    def constant(n: int) -> Any:
        return apply("full", (), n, f"uint{target[5:]}")

    part = cast(apply("bitwise_and", x, constant(2**fraction - 1)), target) * 2.0**-fraction
    scale = apply("bitwise_and", apply("right_shift", x, constant(fraction)), constant(2**exponent - 1))
    scale = cast(scale, target)
    is_negative = apply("greater_equal", x, constant(1 << (fraction + exponent)))
    # The smallest ones have no leading 1, the largest exponent is that of infinities and NaN.
    is_small, is_last = apply("equal", scale, 0.0), apply("equal", scale, float(2**exponent - 1))
    power = apply("power", 2.0, apply("where", is_small | is_last, 1.0, scale) - float(bias))
    size = apply("where", is_small, part, part + 1.0) * power
    last = apply("where", apply("equal", part, 0.0), float("inf"), float("nan"))
    size = apply("where", is_last, last, size)
    return apply("where", is_negative, -size, size)


def _bits_of_float(x: Any, source: str) -> Any:
    """Read the bits of floats as unsigned integers; all NaN are the same one."""
    fraction, exponent = _FORMATS[source]
    bias, dtype = 2 ** (exponent - 1) - 1, f"uint{source[5:]}"

    def constant(n: int) -> Any:
        return apply("full", (), n, dtype)

    x = apply("stop_gradient", x)
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
