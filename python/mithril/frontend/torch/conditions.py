"""Conditions on sizes that stay open, under which what was traced is what the module computes.

PyTorch refuses a condition that it cannot prove, also one that always holds, such as ``t // 2 <= t``. It can write such
conditions down instead; here they are evaluated for many sizes within the bounds that the user gave.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .modules import op_name

__all__ = ["Conditions", "described"]

#: For how many sizes of one symbol, and combinations of several, a condition is evaluated.
_SIZES, _COMBINATIONS = 256, 512
#: The largest size that is tried where no bound was given.
_LARGEST = 1 << 16


class Conditions:
    """What PyTorch assumes of the sizes of a program.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        A program, which may have sizes that stay open.
    """

    def __init__(self, program: Any) -> None:
        self._sizes = {
            symbol: _samples(bounds)
            for symbol, bounds in program.range_constraints.items()
            if getattr(symbol, "is_Symbol", False)
        }
        values = (node.meta.get("val") for node in program.graph.nodes)
        modes = (getattr(value, "fake_mode", None) for value in values)
        self._environment = next((mode.shape_env for mode in modes if mode is not None), None)
        self._asserted = [condition for node in program.graph.nodes for condition in _assertions(node)]
        self._known = {*self._all()}

    def counterexample(self, kind: str = "all") -> tuple[Any, dict[Any, int]] | None:
        """Find a condition that does not hold, and sizes for which it does not.

        Parameters
        ----------
        kind : {"all", "new", "asserted"}, optional
            Which conditions to look at: all, those that PyTorch assumed since this was made, those that the program
            asserts when it runs.
        """
        if kind == "new" and (fixed := self._fixed()) is not None:
            return fixed
        for condition in self._asserted if kind == "asserted" else self._all():
            if (kind == "new" and condition in self._known) or any(
                s not in self._sizes for s in condition.free_symbols
            ):
                # Sizes that depend on data have no bounds.
                continue
            for chosen in _combinations({symbol: self._sizes[symbol] for symbol in condition.free_symbols}):
                if not _holds(condition, chosen):
                    return condition, chosen
        return None

    def _fixed(self) -> tuple[Any, dict[Any, int]] | None:
        """Find a size that PyTorch takes for a number."""
        for symbol, value in self._environment.replacements.items() if self._environment is not None else ():
            if symbol in self._sizes and value.is_Integer:
                return f"{symbol} == {value}", {symbol: next((n for n in self._sizes[symbol] if n != value), value + 1)}
        return None

    def _all(self) -> list[Any]:
        """List what was assumed, and what the program asserts."""
        if self._environment is None:
            return self._asserted
        asserted = itertools.chain.from_iterable(self._environment.deferred_runtime_asserts.values())
        conditions = [guard.expr for guard in itertools.chain(self._environment.guards, asserted)] + self._asserted
        return [condition for condition in dict.fromkeys(conditions) if hasattr(condition, "free_symbols")]


def _assertions(node: Any) -> Iterator[Any]:
    """Yield the condition on sizes that a node asserts, if it asserts one."""
    if op_name(node) == "aten._assert_scalar.default" and node.args and hasattr(node.args[0], "meta"):
        expression = getattr(getattr(node.args[0].meta.get("val"), "node", None), "expr", None)
        if hasattr(expression, "free_symbols"):
            yield expression


def described(found: tuple[Any, Mapping[Any, int]], names: Mapping[str, str]) -> str:
    """Say which condition does not hold for which sizes, with the names that the user gave to symbols."""
    condition, sizes = found
    is_relation = hasattr(condition, "rel_op")
    text = f"{condition.lhs} {condition.rel_op} {condition.rhs}" if is_relation else str(condition)
    text = re.sub(r"\b[su]\d+\b", lambda match: names.get(match[0], match[0]), text)
    example = " and ".join(f"{names.get(str(symbol), symbol)} = {size}" for symbol, size in sizes.items())
    return f"`{text}`, which is false for {example}"


def _samples(bounds: Any) -> list[int]:
    """Choose sizes of a symbol: the smallest ones, the largest one, and others between them."""
    # PyTorch traces with 2 or more, as if there were no axes of size 1.
    low = max(int(bounds.lower), 2) if bounds.lower.is_Integer else 2
    high = min(int(bounds.upper), _LARGEST) if bounds.upper.is_Integer else _LARGEST
    high = max(low, high)
    near = range(low, min(low + _SIZES, high + 1))
    chooser = random.Random(0)
    far = (chooser.randint(near.stop, high) for _ in range(_SIZES // 4)) if near.stop <= high else ()
    return sorted({*near, *far, high})


def _combinations(sizes: Mapping[Any, list[int]]) -> Iterator[dict[Any, int]]:
    symbols = sorted(sizes, key=str)
    if len(symbols) <= 1:
        yield from ({symbol: size} for symbol in symbols for size in sizes[symbol])
        return
    chooser = random.Random(0)
    # Small sizes are where conditions differ.
    yield from (dict(zip(symbols, c, strict=True)) for c in itertools.product(*(sizes[s][:4] for s in symbols)))
    for _ in range(_COMBINATIONS):
        yield {symbol: chooser.choice(sizes[symbol]) for symbol in symbols}


def _holds(condition: Any, sizes: Mapping[Any, int]) -> bool:
    # True of SymPy is equal to that of Python; what stays an expression is neither.
    return bool(condition.subs(dict(sizes)) == True)  # noqa: E712
