"""Functions of complex numbers, element by element."""

from __future__ import annotations

from typing import Any

from ...complexes import Complex
from .complexes import converts, tensors
from .registry import Use, apply


def _size(x: Complex) -> Any:
    # The gradient of `norm` is 0 where both parts are.
    return apply("norm", apply("view_as_real", *x), 2.0, -1, False)


def _product(x: Complex, y: Complex) -> Complex:
    return Complex(apply("complex_multiply", *x, *y))


def _inverse(x: Complex) -> Complex:
    one = apply("ones_like", x.real)
    return Complex(apply("complex_divide", one, apply("zeros_like", one), *x))


@converts("abs")
def _abs(use: Use, x: Any, **ignored: Any) -> Any:
    return _size(x)


@converts("sign")
def _sign(use: Use, x: Any, **ignored: Any) -> Any:
    size = _size(x)
    size = apply("where", apply("equal", size, 0.0), 1.0, size)
    return Complex(apply("divide", part, size) for part in x)


@converts("polynomial")
def _polynomial(use: Use, x: Any, *coefficients: Any, **ignored: Any) -> Any:
    x, *terms = map(tensors, (x, *coefficients))
    value = terms.pop()
    for term in reversed(terms):
        value = Complex(apply("add", *both) for both in zip(_product(value, x), term, strict=True))
    return value


@converts("eq", "ne")
def _equal(use: Use, x: Any, y: Any, **ignored: Any) -> Any:
    is_equal = use.eqn.primitive.name == "eq"
    parts = (apply("equal" if is_equal else "not_equal", *both) for both in zip(tensors(x), tensors(y), strict=True))
    return apply("logical_and" if is_equal else "logical_or", *parts)


@converts("exp")
def _exp(use: Use, x: Any, **ignored: Any) -> Any:
    return Complex(apply("polar", apply("exp", x.real), x.imag))


@converts("expm1")
def _expm1(use: Use, x: Any, **ignored: Any) -> Any:
    # Without the difference that would cancel near 0.
    half = apply("sin", x.imag * 0.5)
    real = apply("expm1", x.real) * apply("cos", x.imag) - half * half * 2.0
    return Complex((real, apply("exp", x.real) * apply("sin", x.imag)))


def _logarithm(x: Complex) -> Complex:
    return Complex((apply("log", _size(x)), apply("atan2", x.imag, x.real)))


@converts("log")
def _log(use: Use, x: Any, **ignored: Any) -> Any:
    return _logarithm(x)


@converts("log1p")
def _log1p(use: Use, x: Any, **ignored: Any) -> Any:
    moved = Complex((x.real + 1.0, x.imag))
    # Near 0 the square of the size is 1 and a small number.
    small = apply("log1p", x.real * (x.real + 2.0) + x.imag * x.imag) * 0.5
    is_near = apply("less", _size(x), 0.5)
    real = apply("where", is_near, small, apply("log", _size(moved)))
    return Complex((real, apply("atan2", moved.imag, moved.real)))


def _root(x: Complex) -> Complex:
    is_right = apply("greater_equal", x.real, 0.0)
    is_zero = apply("logical_and", apply("equal", x.real, 0.0), apply("equal", x.imag, 0.0))
    size = apply("where", is_zero, 1.0, _size(x) + apply("abs", x.real))
    large = apply("sqrt", size * 0.5)
    small = apply("abs", x.imag) / (large * 2.0)
    real = apply("where", is_right, large, small)
    imag = apply("where", is_right, small, large)
    imag = apply("where", apply("less", x.imag, 0.0), -imag, imag)
    return Complex(apply("where", is_zero, 0.0, part) for part in (real, imag))


@converts("sqrt")
def _sqrt(use: Use, x: Any, **ignored: Any) -> Any:
    return _root(x)


@converts("rsqrt")
def _rsqrt(use: Use, x: Any, **ignored: Any) -> Any:
    return _inverse(_root(x))


@converts("pow")
def _power(use: Use, x: Any, y: Any, **ignored: Any) -> Any:
    x, y = tensors(x), tensors(y)
    real, imag = _product(y, _logarithm(x))
    return Complex(apply("polar", apply("exp", real), imag))


@converts("square", "integer_pow")
def _integer_power(use: Use, x: Any, *, y: int = 2, **ignored: Any) -> Any:
    if y == 0:
        return Complex((apply("ones_like", x.real), apply("zeros_like", x.real)))
    result, power, rest = x, x, abs(y) - 1
    while rest:
        result = _product(result, power) if rest % 2 else result
        rest //= 2
        power = _product(power, power) if rest else power
    return result if y > 0 else _inverse(result)


def _sines(x: Any) -> tuple[Any, Any]:
    return apply("sin", x), apply("cos", x)


def _hyperbolic(x: Any) -> tuple[Any, Any]:
    return apply("sinh", x), apply("cosh", x)


@converts("sin")
def _sin(use: Use, x: Any, **ignored: Any) -> Any:
    (sine, cosine), (sinh, cosh) = _sines(x.real), _hyperbolic(x.imag)
    return Complex((sine * cosh, cosine * sinh))


@converts("cos")
def _cos(use: Use, x: Any, **ignored: Any) -> Any:
    (sine, cosine), (sinh, cosh) = _sines(x.real), _hyperbolic(x.imag)
    return Complex((cosine * cosh, -(sine * sinh)))


@converts("sinh")
def _sinh(use: Use, x: Any, **ignored: Any) -> Any:
    (sine, cosine), (sinh, cosh) = _sines(x.imag), _hyperbolic(x.real)
    return Complex((sinh * cosine, cosh * sine))


@converts("cosh")
def _cosh(use: Use, x: Any, **ignored: Any) -> Any:
    (sine, cosine), (sinh, cosh) = _sines(x.imag), _hyperbolic(x.real)
    return Complex((cosh * cosine, sinh * sine))


def _hyperbolic_tangent(x: Complex) -> Complex:
    # By tanh and 1 / cosh, which do not overflow.
    (sine, cosine), tangent = _sines(x.imag), apply("tanh", x.real)
    inverse = 1.0 / apply("cosh", x.real)
    below = cosine * cosine + tangent * tangent * sine * sine
    return Complex((tangent / below, sine * cosine * inverse * inverse / below))


@converts("tanh")
def _tanh(use: Use, x: Any, **ignored: Any) -> Any:
    return _hyperbolic_tangent(x)


@converts("tan")
def _tan(use: Use, x: Any, **ignored: Any) -> Any:
    turned = _hyperbolic_tangent(Complex((-x.imag, x.real)))
    return Complex((turned.imag, -turned.real))


@converts("logistic")
def _logistic(use: Use, x: Any, **ignored: Any) -> Any:
    real, imag = _hyperbolic_tangent(Complex(part * 0.5 for part in x))
    return Complex((real * 0.5 + 0.5, imag * 0.5))
