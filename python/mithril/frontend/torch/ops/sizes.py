"""Sizes as values: those of tensors, and arithmetic with them.

Integers stay sizes, which are exact whatever the symbols stand for. What may be a fraction becomes a `SizeNumber`: a
tensor without axes, of the dtype of what it is computed with, and a size again where it is rounded.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..schemas import schema_of
from .registry import OPS, Use, apply, cast, convert, dtype_name, is_connection
from .symbols import symbolic

#: Ops whose results are numbers: they are computed where they are read.
SIZES = frozenset(
    (
        "aten.sym_size.int",
        "aten.sym_numel.default",
        *(f"operator.{n}" for n in ("add", "sub", "mul", "floordiv", "neg", "mod", "truediv", "pow", "abs")),
        *(f"torch.{n}" for n in ("sym_float", "sym_max", "sym_min", "_sym_sqrt", "sym_sum")),
        *(f"math.{n}" for n in ("floor", "ceil", "trunc")),
    )
)


@dataclass(frozen=True)
class SizeNumber:
    """A number that is computed from sizes and is none itself: a fraction, a root, the larger one of two.

    Attributes
    ----------
    tensor : callable
        Makes it a tensor without axes, of a dtype.
    ratio : tuple, optional
        Numerator and denominator, if both are sizes or integers.
    """

    tensor: Callable[[str], Any]
    ratio: tuple[Any, Any] | None = None


def materialized(use: Use, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Make numbers among arguments that are computed from sizes tensors, of the dtype of what an op computes with."""
    schema = schema_of(use.node)
    types = {} if schema is None else {argument.name: str(argument.type) for argument in schema.arguments}
    names = [*types][: len(args)]

    def made(value: Any, kind: str) -> Any:
        is_number = isinstance(value, SizeNumber)
        if is_number and "int" not in kind.lower():
            return value.tensor(_dtype(use))
        if is_number or (isinstance(value, (list, tuple)) and any(isinstance(item, SizeNumber) for item in value)):
            raise use.refuse("a size that is a fraction, or the larger or smaller one of two")
        return value

    return (
        [made(value, types.get(name, "")) for value, name in itertools.zip_longest(args, names)],
        {name: made(value, types.get(name, "")) for name, value in kwargs.items()},
    )


def _dtype(use: Use) -> str:
    values = [use.value, *(use.operand(i) for i in range(len(use.node.args)))]
    dtypes = [value.dtype for value in values if hasattr(value, "dtype")]
    return next((dtype_name(dtype) for dtype in dtypes if dtype.is_floating_point), use.dtype)


def _ratio(x: Any) -> tuple[Any, Any] | None:
    """Write a number as a quotient of sizes or integers, if it is one exactly."""
    if isinstance(x, SizeNumber):
        return x.ratio
    if isinstance(x, float):
        return Fraction(x).as_integer_ratio() if Fraction(x).denominator < 2**20 else None
    return x, 1


def _tensor(x: Any, dtype: str) -> Any:
    if isinstance(x, SizeNumber):
        return x.tensor(dtype)
    return cast(x, dtype) if is_connection(x) else x


def _number(op: str, *args: Any, ratio: Any = None) -> SizeNumber:
    return SizeNumber(lambda dtype: apply(op, *(_tensor(x, dtype) for x in args)), ratio)


def _is_size(x: Any) -> bool:
    return is_connection(x) or (isinstance(x, int) and not isinstance(x, bool))


@convert("sym_size.int")
def _size(use: Use, x: Any, dim: int) -> Any:
    return x.shape[dim]


@convert("sym_numel.default")
def _numel(use: Use, x: Any) -> Any:
    shape = x.shape
    total = shape[0]
    for i in range(1, use.rank_of(0)):
        total = total * shape[i]
    return total


def _arithmetic(compute: Callable[..., Any], op: str, exact: Callable[..., Any]) -> Callable[..., Any]:
    """Make a conversion: of sizes, and of fractions, of which ``exact`` gives the numerator and the denominator."""

    def function(use: Use, *args: Any) -> Any:
        if all(map(_is_size, args)):
            return compute(*args)
        ratios = [_ratio(x) for x in args]
        return _number(op, *args, ratio=None if None in ratios else exact(*ratios))

    return function


@convert("truediv", prefix="operator")
def _divide(use: Use, x: Any, y: Any) -> Any:
    a, b = _ratio(x), _ratio(y)
    ratio = None if a is None or b is None else (a[0] * b[1], a[1] * b[0])
    return _number("divide", x, y, ratio=ratio)


@convert("pow", prefix="operator")
def _power(use: Use, x: Any, y: Any) -> Any:
    if _is_size(x) and isinstance(y, int) and 0 < y < 8:
        power = x
        for _ in range(1, y):
            power = power * x
        return power
    return _number("power", x, y)


@convert("sym_float", prefix="torch")
def _float(use: Use, x: Any) -> Any:
    return x if isinstance(x, SizeNumber) else SizeNumber(lambda dtype: _tensor(x, dtype), (x, 1))


@convert("_sym_sqrt", prefix="torch")
def _root(use: Use, x: Any) -> Any:
    return _number("sqrt", x)


@convert("sym_max", prefix="torch")
def _maximum(use: Use, x: Any, y: Any) -> Any:
    return _number("maximum", x, y)


@convert("sym_min", prefix="torch")
def _minimum(use: Use, x: Any, y: Any) -> Any:
    return _number("minimum", x, y)


@convert("abs", prefix="operator")
def _absolute(use: Use, x: Any) -> Any:
    return _number("abs", x)


@convert("sym_sum", prefix="torch")
def _sum(use: Use, sizes: Any) -> Any:
    return sum(sizes[1:], sizes[0])


def _rounded(use: Use, x: Any, *, up: bool) -> Any:
    ratio = _ratio(x)
    if ratio is None:
        raise use.refuse("a size that is rounded, and no exact fraction of sizes: use //, or factors such as 0.5")
    return -(-ratio[0] // ratio[1]) if up else ratio[0] // ratio[1]


@convert("floor", prefix="math")
def _floor(use: Use, x: Any) -> Any:
    return _rounded(use, x, up=False)


@convert("ceil", prefix="math")
def _ceil(use: Use, x: Any) -> Any:
    return _rounded(use, x, up=True)


@convert("trunc", prefix="math")
def _truncated(use: Use, x: Any) -> Any:
    if not symbolic(use.value).is_nonnegative:
        raise use.refuse("a size that may be negative and is rounded towards zero: use //")
    return _rounded(use, x, up=False)


OPS.update(
    {
        "operator.add": _arithmetic(operator.add, "add", lambda a, b: (a[0] * b[1] + b[0] * a[1], a[1] * b[1])),
        "operator.sub": _arithmetic(operator.sub, "subtract", lambda a, b: (a[0] * b[1] - b[0] * a[1], a[1] * b[1])),
        "operator.mul": _arithmetic(operator.mul, "multiply", lambda a, b: (a[0] * b[0], a[1] * b[1])),
        "operator.neg": _arithmetic(operator.neg, "negative", lambda a: (-a[0], a[1])),
        "operator.floordiv": _arithmetic(operator.floordiv, "floor_divide", lambda a, b: None),
        "operator.mod": _arithmetic(operator.mod, "remainder", lambda a, b: None),
    }
)


def _condition(use: Use, *args: Any) -> None:
    # Conditions on sizes guard what was traced; nothing is computed from them.
    return None


for _name in ("ge", "gt", "le", "lt", "eq", "ne", "and_", "or_"):
    OPS[f"operator.{_name}"] = _condition
OPS["torch.sym_not"] = _condition


@convert("_assert_scalar.default", "_assert_tensor_metadata.default", "sym_constrain_range_for_size.default")
def _assertion(use: Use, *args: Any, **named: Any) -> None:
    return None
