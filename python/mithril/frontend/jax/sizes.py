"""Sizes with names, from `jax.export.symbolic_shape`: the model reads them from its inputs."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..rows import apply
from .missing import error

__all__ = ["Sizes", "declared", "is_open", "reading", "with_sizes"]

_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
}
#: Functions in the texts of sizes.
_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": lambda a, b: apply("maximum", a, b),
    "min": lambda a, b: apply("minimum", a, b),
}


class Sizes:
    """The sizes that have names, and the axes that have these sizes."""

    def __init__(self) -> None:
        self._axes: dict[str, tuple[Any, int]] = {}
        self._values: dict[str, Any] = {}

    def add(self, tensor: Any, shape: Sequence[Any]) -> None:
        """Read the sizes of an input; the first axis of a name is the one that is read."""
        for axis, n in enumerate(shape):
            if is_open(n):
                self._axes.setdefault(str(n), (tensor, axis))

    def read(self, n: Any) -> Any:
        """Return a size: a number, or a connection that is one when the model runs."""
        if not is_open(n):
            return n
        text = str(n)
        if text not in self._values:
            self._values[text] = self._computed(ast.parse(text.replace("^", "**"), mode="eval").body, text)
        return self._values[text]

    def _computed(self, node: ast.expr, text: str) -> Any:
        match node:
            case ast.Constant(value=int()):
                return node.value
            case ast.Name(id=name) if name in self._axes:
                tensor, axis = self._axes[name]
                return tensor.shape[axis]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._computed(operand, text) * -1
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](self._computed(left, text), self._computed(right, text))
            case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in _FUNCTIONS:
                return _FUNCTIONS[name](self._computed(left, text), self._computed(right, text))
        raise error(f"the size `{text}` cannot be computed", [], "use fixed sizes")


_CURRENT: ContextVar[Sizes | None] = ContextVar("sizes", default=None)


@contextmanager
def reading(sizes: Sizes) -> Iterator[None]:
    """Read sizes from these inputs within a block."""
    token = _CURRENT.set(sizes)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def is_open(n: Any) -> bool:
    """Whether a size has a name instead of a number, or is computed from such."""
    return type(n).__name__ == "_DimExpr"


def declared(name: str, shape: Sequence[Any]) -> list[int | str]:
    """Return the sizes of an input, numbers and names."""
    for n in shape:
        if is_open(n) and not str(n).isidentifier():
            raise error(
                f"the size `{n}` of the input `{name}` is computed", [], "give each axis a number or a name of its own"
            )
    return [str(n) if is_open(n) else int(n) for n in shape]


def with_sizes(x: Any) -> Any:
    """Put connections for the sizes that have names into an argument of an op."""
    sizes = _CURRENT.get()
    if sizes is None:
        return x
    if isinstance(x, (tuple, list)):
        return type(x)(map(with_sizes, x)) if any(map(_has_open, x)) else x
    return sizes.read(x)


def _has_open(x: Any) -> bool:
    return any(map(_has_open, x)) if isinstance(x, (tuple, list)) else is_open(x)
