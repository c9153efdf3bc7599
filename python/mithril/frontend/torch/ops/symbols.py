"""Sizes that PyTorch writes with symbols, as numbers that are read from the shapes of arguments."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...rows import is_connection

__all__ = ["are_equal", "known_sizes", "number_of", "symbolic"]


def symbolic(size: Any) -> Any:
    """Give the expression of a size that PyTorch does not know as a number; None for one that it knows."""
    return None if isinstance(size, (int, float)) else size.node.expr


def are_equal(x: Any, y: Any) -> bool:
    """Whether two sizes of PyTorch are equal, whatever the symbols stand for."""
    difference = symbolic(x - y)
    return bool(x == y if difference is None else difference == 0)


def known_sizes(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Map expressions of sizes to where they can be read.

    Parameters
    ----------
    pairs : iterable
        What PyTorch says an argument is, and what it is here.
    """
    known: dict[Any, Any] = {}
    for value, converted in pairs:
        if hasattr(value, "shape"):
            # A complex tensor is two real ones.
            part = converted[0] if isinstance(converted, list) else converted
            sizes = [(size, part, axis) for axis, size in enumerate(value.shape) if not isinstance(size, int)]
            for size, tensor, axis in sizes:
                if is_connection(tensor) and size.node.expr not in known:
                    known[size.node.expr] = tensor.shape[axis]
        elif hasattr(value, "node") and is_connection(converted):
            known.setdefault(value.node.expr, converted)
    return known


def number_of(expression: Any, known: Mapping[Any, Any]) -> Any:
    """Compute an expression of sizes from those that are known.

    Returns
    -------
    int, Connection or None
        None if it has no counterpart.
    """
    if expression in known:
        return known[expression]
    if expression.is_Integer:
        return int(expression)
    numerator, denominator = expression.as_numer_denom()
    if denominator != 1:
        parts = number_of(numerator, known), number_of(denominator, known)
        return None if any(part is None for part in parts) else parts[0] // parts[1]
    compute = _FUNCTIONS.get(type(expression).__name__)
    args = [number_of(arg, known) for arg in expression.args]
    if compute is None or not args or any(arg is None for arg in args):
        return None
    return compute(*args)


def _power(base: Any, exponent: Any) -> Any:
    is_number = isinstance(exponent, int) and exponent > 0
    return functools.reduce(operator.mul, [base] * exponent) if is_number else None


#: Functions of PyTorch's expressions, by the names of their classes.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda *args: functools.reduce(operator.add, args),
    "Mul": lambda *args: functools.reduce(operator.mul, args),
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": lambda x, y: -(-x // y),
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Identity": lambda x: x,
}
