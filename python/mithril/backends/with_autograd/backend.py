"""Base class of backends that bring their own automatic differentiation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ... import _core
from ..backend import Backend

__all__ = ["AutogradBackend"]


class AutogradBackend(Backend):
    """A backend that differentiates by itself: override `grad` and `value_and_grad`."""

    is_manualgrad = False
    _autodiff = ("native", "graph")

    def value_and_grad(self, function: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
        """As `grad`, returning the pair of value and gradient; differentiated by the framework."""
        traced = super().value_and_grad(function, argnums)
        native = self._native_value_and_grad(function, argnums)
        if native is None:
            return traced

        def with_gradient(*args: Any) -> Any:
            # Inside a function that becomes a part of a model, the gradient becomes one too.
            nested = any(isinstance(a, _core.Connection) for a in args)
            return (traced if nested else native)(*args)

        return with_gradient

    def _native_value_and_grad(
        self, function: Callable[..., Any], argnums: int | Sequence[int]
    ) -> Callable[..., Any] | None:
        """Return the framework's own transformation of a function; None if it has none."""
        return None
