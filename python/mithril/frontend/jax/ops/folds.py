"""Reductions by functions that are traced, of one tensor or several: neighbors are joined until one element is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .movement import along
from .registry import Use, apply, tensor

__all__ = ["Fold"]


class Fold:
    """A function that joins two elements of each of several tensors.

    Parameters
    ----------
    use : Use
        The reduction.
    jaxpr, consts : Jaxpr, sequence
        The function: the elements before, then the elements behind.

    Raises
    ------
    UnsupportedOpError
        If the order in which elements are joined matters, since JAX does not say what it is.
    """

    def __init__(self, use: Use, jaxpr: Any, consts: Sequence[Any]) -> None:
        self.use, self.jaxpr, self.consts = use, jaxpr, consts
        self.count = len(jaxpr.invars) // 2
        if not self._is_associative():
            raise use.refuse("by a function that is not associative, so that the result depends on the order")

    def _is_associative(self) -> bool:
        """Try it with numbers."""
        rng = np.random.default_rng(0)
        a, b, c = (self._elements(rng) for _ in range(3))
        left, right = self(self(a, b, (64,)), c, (64,)), self(a, self(b, c, (64,)), (64,))
        return all(np.allclose(x, y, rtol=0.02, atol=0.02) for x, y in zip(left, right, strict=True))

    def _elements(self, rng: np.random.Generator) -> list[Any]:
        """Draw elements of each tensor, of both signs where its dtype has them."""
        dtypes = [np.dtype(v.aval.dtype) for v in self.jaxpr.invars[: self.count]]
        return [rng.integers(0 if dtype.kind in "ub" else -4, 5, 64).astype(dtype) for dtype in dtypes]

    def check(self, initial: Sequence[Any]) -> None:
        """Refuse initial values that may not be joined several times: JAX does not say how often they are."""
        elements = self._elements(np.random.default_rng(1))
        values = [np.full(64, x, e.dtype) for x, e in zip(initial, elements, strict=True)]
        once = self(values, elements, (64,))
        if not all(np.allclose(x, y) for x, y in zip(self(values, once, (64,)), once, strict=True)):
            raise self.use.refuse("from an initial value that changes the result when it is joined more than once")

    def __call__(self, before: Sequence[Any], behind: Sequence[Any], shape: Sequence[int]) -> list[Any]:
        """Join tensors of one shape, element by element."""
        import jax

        def joined(*xs: Any) -> Any:
            return jax.core.eval_jaxpr(self.jaxpr, self.consts, *xs)

        function: Any = joined
        for _ in shape:
            function = jax.vmap(function)
        struct: Any = jax.ShapeDtypeStruct
        examples = [struct(tuple(shape), v.aval.dtype) for v in self.jaxpr.invars]
        traced = jax.make_jaxpr(function)(*examples)
        return self.use.run(traced.jaxpr, traced.consts, [*before, *behind])

    def along(self, xs: Sequence[Any], axis: int, shape: Sequence[int]) -> list[Any]:
        """Reduce an axis, which has at least one element."""
        size, sizes = shape[axis], list(shape)
        while size > 1:
            # What follows each other is joined, since the order of arguments may matter.
            first, second = ([x[along(axis, slice(start, size - size % 2, 2))] for x in xs] for start in (0, 1))
            rest = [x[along(axis, slice(size - 1, size))] for x in xs] if size % 2 else None
            sizes[axis] = size // 2
            xs = self(first, second, sizes)
            if rest is not None:
                xs = [apply("concat", axis, tensor(x), y) for x, y in zip(xs, rest, strict=True)]
            size = (size + 1) // 2
        return [apply("squeeze", tensor(x), (axis,)) for x in xs]

    def started(self, initial: Sequence[Any], xs: Sequence[Any], shape: Sequence[int]) -> list[Any]:
        """Join initial values and results."""
        return self([apply("broadcast_to", tensor(x), tuple(shape)) if shape else x for x in initial], xs, shape)
