"""Functions without an op, in terms of ops: the gamma function's logarithm, its derivative, and running sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .rows import apply, cast

__all__ = ["FUNCTIONS", "digamma", "lgamma", "logcumsumexp"]

#: Lanczos's approximation with g = 7 and 9 terms, which is exact to 15 digits (Godfrey 2001).
_G = 7.0
_FIRST = 0.99999999999980993
_TERMS = (
    *(676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059),
    *(12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7),
)


def _lanczos(x: Any) -> tuple[Any, Any, Any]:
    """Reflect to the right half, `z + 1`; returns whether it was on the left, `z`, and `z + g + 1/2`."""
    is_left = apply("less", x, 0.5)
    z = apply("subtract", apply("where", is_left, apply("subtract", 1.0, x), x), 1.0)
    return is_left, z, apply("add", z, _G + 0.5)


def _wide(function: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    def computed(x: Any, dtype: str) -> Any:
        if dtype in ("float16", "bfloat16"):
            return cast(function(cast(x, "float32"), "float32"), dtype)
        return function(x, dtype)

    return computed


@_wide
def lgamma(x: Any, dtype: str) -> Any:
    """Compute the logarithm of the absolute value of the gamma function."""
    is_infinite = apply("isinf", x)
    x = apply("where", is_infinite, 1.0, x)
    is_left, z, t = _lanczos(x)
    series: Any = _FIRST
    for i, term in enumerate(_TERMS):
        series = apply("add", apply("divide", term, apply("add", z, i + 1.0)), series)
    log_t = apply("add", apply("log1p", apply("divide", z, _G + 0.5)), math.log(_G + 0.5))
    # As a product, for (z + 1/2) log t - t would cancel.
    power = apply("subtract", apply("add", z, 0.5), apply("divide", t, log_t))
    right = apply("add", apply("multiply", power, log_t), apply("add", apply("log", series), math.log(2 * math.pi) / 2))
    # Reflection. Where it is not used, its argument is one with a finite derivative.
    turn = apply("where", is_left, apply("subtract", x, apply("floor", x)), 0.5)
    sine = apply("sin", apply("multiply", math.pi, apply("minimum", turn, apply("subtract", 1.0, turn))))
    left = apply("subtract", math.log(math.pi), apply("add", apply("log", sine), right))
    return apply("where", is_infinite, math.inf, apply("where", is_left, left, right))


@_wide
def digamma(x: Any, dtype: str) -> Any:
    """Differentiate the logarithm of the gamma function; NaN at negative integers."""
    is_left, z, t = _lanczos(x)
    numerator: Any = 0.0
    denominator: Any = _FIRST
    for i, term in enumerate(_TERMS):
        y = apply("add", z, i + 1.0)
        numerator = apply("subtract", numerator, apply("divide", term, apply("square", y)))
        denominator = apply("add", apply("divide", term, y), denominator)
    log_t = apply("add", apply("log1p", apply("divide", z, _G + 0.5)), math.log(_G + 0.5))
    right = apply("subtract", apply("add", log_t, apply("divide", numerator, denominator)), apply("divide", _G, t))
    is_pole = apply("logical_and", is_left, apply("equal", x, apply("floor", x)))
    turn = apply("where", apply("logical_and", is_left, apply("logical_not", is_pole)), x, 0.25)
    turn = apply("subtract", turn, apply("floor", apply("add", turn, 0.5)))
    left = apply("subtract", right, apply("divide", math.pi, apply("tan", apply("multiply", math.pi, turn))))
    return apply("where", is_pole, math.nan, apply("where", is_left, left, right))


def logcumsumexp(x: Any, axis: int, size: int) -> Any:
    """Compute the logarithms of running sums of exponentials."""

    def along(x: Any, key: slice) -> Any:
        return x[(slice(None),) * axis + (key,)]

    # The sums would overflow or vanish: sums of logarithms, over twice as many places at each step.
    step = 1
    while step < size:
        both = apply("logaddexp", along(x, slice(step, None)), along(x, slice(None, -step)))
        x, step = apply("concat", axis, along(x, slice(None, step)), both), 2 * step
    return x


#: By the name that PyTorch and JAX have for them.
FUNCTIONS = {"lgamma": lgamma, "digamma": digamma}
