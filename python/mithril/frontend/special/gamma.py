"""The logarithm of the gamma function, its derivatives, and the zeta function of Hurwitz."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..rows import apply, cast, is_connection

__all__ = ["digamma", "lgamma", "polygamma", "zeta"]

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


#: Numbers of Bernoulli over factorials, for the terms of the formula of Euler and Maclaurin.
_BERNOULLI = (
    *(1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600),
    *(-3617 / 10670622842880000, 43867 / 5109094217170944000, -174611 / 802857662698291200000),
)
#: So many terms are added one by one.
_ADDED = 12


def zeta(s: Any, q: Any) -> Any:
    """Compute Hurwitz's zeta function, the sum of `(q + k)^-s`, for positive `q`.

    Infinite where a term is, at `q = 0, -1, ...`; NaN for other negative `q` and for `s < 1`.

    Parameters
    ----------
    s, q : connection or float
        The exponent, above 1, and where the sum starts.
    """
    inside = q if is_connection(q) else apply("full", (), q, "float64")
    is_positive = inside > 0
    inside = apply("where", is_positive, inside, 1.0)
    terms: Any = 0.0
    for k in range(_ADDED):
        terms = apply("power", inside + float(k), -s) + terms
    end = inside + float(_ADDED)
    power = apply("power", end, -s)
    terms = terms + end * power / (s - 1.0) + power * 0.5
    factor = s * power / end
    for j, number in enumerate(_BERNOULLI):
        terms = terms + factor * number
        factor = factor * (s + (2.0 * j + 1)) * (s + (2.0 * j + 2)) / (end * end)
    terms = apply("where", is_positive, terms, apply("where", apply("equal", q, apply("floor", q)), math.inf, math.nan))
    if is_connection(s):
        terms = apply("where", s > 1.0, terms, apply("where", apply("equal", s, 1.0), math.inf, math.nan))
    return terms


def polygamma(n: int, x: Any, dtype: str) -> Any:
    """Differentiate the digamma function `n` times."""
    return digamma(x, dtype) if n == 0 else _wide(lambda x, dtype: _polygamma(n, x))(x, dtype)


def _polygamma(n: int, x: Any) -> Any:
    sign, factorial = (-1.0) ** (n + 1), float(math.factorial(n))
    is_left = x < 0.5
    right = zeta(float(n + 1), apply("where", is_left, 1.0 - x, x)) * (sign * factorial)
    # Reflection: with the derivatives of the cotangent, which are polynomials in it.
    polynomial = [0.0, 1.0]
    for _ in range(n):
        slopes = [i * c for i, c in enumerate(polynomial)][1:]
        polynomial = [-(a + b) for a, b in zip([*slopes, 0.0, 0.0], [0.0, 0.0, *slopes], strict=True)]
    is_pole = is_left & apply("equal", x, apply("floor", x))
    turn = apply("where", is_left & ~is_pole, x - apply("floor", x), 0.25)
    cotangent = 1.0 / apply("tan", turn * math.pi)
    value: Any = polynomial[-1]
    for coefficient in reversed(polynomial[:-1]):
        value = cotangent * value + coefficient
    left = right * (-1.0) ** n - value * math.pi ** (n + 1)
    return apply("where", is_pole, math.inf if n % 2 else math.nan, apply("where", is_left, left, right))
