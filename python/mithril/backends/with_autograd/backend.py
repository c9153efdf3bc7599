"""Base class of backends that bring their own automatic differentiation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ... import _core
from ...errors import InvalidValueError, UnsupportedOpError
from .. import custom
from ..backend import Backend

if TYPE_CHECKING:
    from ...compiled.program import Program

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
        if cls._own_gradients:
            cls._differentiator = AutogradBackend._differentiator  # type: ignore[method-assign]
        elif cls._differentiator is AutogradBackend._differentiator:
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

    # --- gradients of compiled models -------------------------------------------------------------------------

    def _differentiator(self, program: Program, outputs: tuple[str, ...], names: tuple[str, ...]) -> Callable[..., Any]:
        """Return ``evaluate_gradients(params, data, state, cotangents)`` by the user's `value_and_grad`."""
        self._demand_ops(program)
        evaluate = program.module.function("evaluate")

        def evaluate_gradients(params: Any, data: Any, state: Any, cotangents: Any) -> Any:
            def total(leaves: Any) -> Any:
                result = evaluate({**params, **leaves}, data, state)
                found = result[0] if program.updates else result
                parts = [self._product(found[name], cotangents[name]) for name in outputs]
                number = parts[0]
                for part in parts[1:]:
                    number = self.add(number, part)
                return number

            result = evaluate(params, data, state)
            gradients = self._differentiate(total, {name: params[name] for name in names})
            for name in names:
                custom.check_gradient(self, name, gradients[name], params[name])
            return (result[0], gradients, result[1]) if program.updates else (result, gradients)

        return evaluate_gradients

    def _differentiate(self, total: Callable[..., Any], leaves: dict[str, Any]) -> dict[str, Any]:
        """Gradients of a number by arrays, by the user's method as its parameters ask for."""
        names, values = list(leaves), list(leaves.values())
        if not names:
            return {}
        if self.takes_trees:
            return dict(self._gradient(total, leaves))
        method = self.value_and_grad if "value_and_grad" in self._own_gradients else self.grad
        taken = inspect.signature(method).parameters
        if "argnums" in taken or any(p.kind is p.VAR_KEYWORD for p in taken.values()):
            places = tuple(range(len(names)))
            found = self._gradient(lambda *given: total(dict(zip(names, given, strict=True))), *values, argnums=places)
            if not isinstance(found, (tuple, list)) or len(found) != len(names):
                raise InvalidValueError(
                    f"{type(self).__name__} returns no gradient for each of {len(names)} places in argnums",
                    hint="return a tuple with one gradient per place",
                )
            return dict(zip(names, found, strict=True))
        return {
            name: self._gradient(lambda value, name=name: total({**leaves, name: value}), leaves[name])
            for name in names
        }

    def _gradient(self, function: Callable[..., Any], *values: Any, **options: Any) -> Any:
        if "value_and_grad" not in self._own_gradients:
            return self.grad(function, **options)(*values)
        found = self.value_and_grad(function, **options)(*values)
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            raise InvalidValueError(
                f"{type(self).__name__}.value_and_grad returns no pair", hint="return (value, gradient)"
            )
        return found[1]

    def _product(self, output: Any, cotangent: Any) -> Any:
        """Sum of the products of two arrays, by ops that the framework differentiates."""
        if not custom.is_plain(self) or {"sum", "multiply"} <= self._overrides.keys():
            return self.sum(self.multiply(output, cotangent))
        return (output * cotangent).sum()

    def _demand_ops(self, program: Program) -> None:
        """Refuse programs with parts on the host: the framework would take those for constants."""
        referred = getattr(program.module.source, "referred", [])
        absent = [op for op in referred if custom.reads_tensors(op)]
        if absent:
            raise UnsupportedOpError(
                f"{type(self).__name__} cannot differentiate a model with {', '.join(absent)}, "
                "which it lacks and which run on the host",
                hint=f'define these methods in {type(self).__name__}, or compile with autodiff="graph"',
            )
