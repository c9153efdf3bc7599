"""Base class of backends that bring their own automatic differentiation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ... import _core
from .. import custom
from ..backend import Backend
from .engine import AutogradEngine

if TYPE_CHECKING:
    pass

__all__ = ["AutogradBackend"]


class AutogradBackend(Backend):
    """A backend that differentiates by itself: override `grad`, `value_and_grad`, or both.

    Gradients of compiled models come from these methods then, unless `mithril.compile` is given
    ``autodiff="graph"``. A method takes a function of arrays with one number as its result:

    - ``value_and_grad(self, function, argnums)`` returns a function of the same arguments that gives the number
      and a gradient for each place in ``argnums``. Compiled models call it once for all parameters.
    - ``value_and_grad(self, function)`` gives the gradient by the first argument. Compiled models call it once per
      parameter, or once in all if the class says ``takes_trees = True``: the argument is then a dict of arrays,
      and so is its gradient.

    Without an override, gradients come from Mithril's gradient graph.
    """

    is_manualgrad = False
    _engine_type = AutogradEngine
    #: Whether `value_and_grad` differentiates functions of a dict of arrays.
    takes_trees = False
    _autodiff: tuple[str, ...] = ("native", "graph")
    #: Methods of a user's class that differentiate: ``grad``, ``value_and_grad``.
    _own_gradients: frozenset[str] = frozenset()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if custom.is_own(cls):
            return
        users = [parent for parent in cls.__mro__ if issubclass(parent, Backend) and not custom.is_own(parent)]
        names = ("grad", "value_and_grad")
        cls._own_gradients = frozenset(name for name in names for parent in users if name in vars(parent))
        if not cls._own_gradients and cls._engine_type is AutogradEngine:
            cls._autodiff = ("graph",)

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
        if "grad" not in self._own_gradients or "value_and_grad" in self._own_gradients:
            return None
        gradient = self.grad(function) if argnums == 0 else self.grad(function, argnums)
        return lambda *args: (function(*args), gradient(*args))
