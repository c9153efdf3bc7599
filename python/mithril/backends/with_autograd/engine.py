"""The engine of backends that bring their own automatic differentiation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import InvalidValueError, UnsupportedOpError
from .. import custom
from ..engine import Engine

if TYPE_CHECKING:
    from ...compiled.program import Program

__all__ = ["AutogradEngine"]


class AutogradEngine(Engine):
    """The engine of backends that differentiate by themselves."""

    def differentiator(self, program: Program, outputs: tuple[str, ...], names: tuple[str, ...]) -> Callable[..., Any]:
        """Return the gradients by what a user's class overrides, else by the framework."""
        if self.backend._own_gradients:
            return self._by_methods(program, outputs, names)
        return self.framework_differentiator(program, outputs, names)

    def framework_differentiator(
        self, program: Program, outputs: tuple[str, ...], names: tuple[str, ...]
    ) -> Callable[..., Any]:
        """Return ``evaluate_gradients(params, data, state, cotangents)`` by the framework's own gradients."""
        return super().differentiator(program, outputs, names)

    def _by_methods(self, program: Program, outputs: tuple[str, ...], names: tuple[str, ...]) -> Callable[..., Any]:
        """Return ``evaluate_gradients(params, data, state, cotangents)`` by the user's `value_and_grad`."""
        self._demand_ops(program)
        evaluate = program.module.function("evaluate")

        def evaluate_gradients(params: Any, data: Any, state: Any, cotangents: Any) -> Any:
            def total(leaves: Any) -> Any:
                result = evaluate({**params, **leaves}, data, state)
                values = result[0] if program.updates else result
                parts = [self._product(values[name], cotangents[name]) for name in outputs]
                number = parts[0]
                for part in parts[1:]:
                    number = self.backend.add(number, part)
                return number

            result = evaluate(params, data, state)
            gradients = self._differentiate(total, {name: params[name] for name in names})
            for name in names:
                custom.check_gradient(self.backend, name, gradients[name], params[name])
            return (result[0], gradients, result[1]) if program.updates else (result, gradients)

        return evaluate_gradients

    def _differentiate(self, total: Callable[..., Any], leaves: dict[str, Any]) -> dict[str, Any]:
        """Gradients of a number by arrays, by the user's method as its parameters ask for."""
        names, values = list(leaves), list(leaves.values())
        if not names:
            return {}
        if self.backend.takes_trees:
            return dict(self._gradient(total, leaves))
        method = self.backend.value_and_grad if "value_and_grad" in self.backend._own_gradients else self.backend.grad
        taken = inspect.signature(method).parameters
        if "argnums" in taken or any(p.kind is p.VAR_KEYWORD for p in taken.values()):
            places = tuple(range(len(names)))
            gradients = self._gradient(
                lambda *values: total(dict(zip(names, values, strict=True))), *values, argnums=places
            )
            if not isinstance(gradients, (tuple, list)) or len(gradients) != len(names):
                raise InvalidValueError(
                    f"{type(self.backend).__name__} returns no gradient for each of {len(names)} places in argnums",
                    hint="return a tuple with one gradient per place",
                )
            return dict(zip(names, gradients, strict=True))
        return {
            name: self._gradient(lambda value, name=name: total({**leaves, name: value}), leaves[name])
            for name in names
        }

    def _gradient(self, function: Callable[..., Any], *values: Any, **options: Any) -> Any:
        if "value_and_grad" not in self.backend._own_gradients:
            return self.backend.grad(function, **options)(*values)
        pair = self.backend.value_and_grad(function, **options)(*values)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidValueError(
                f"{type(self.backend).__name__}.value_and_grad returns no pair", hint="return (value, gradient)"
            )
        return pair[1]

    def _product(self, output: Any, cotangent: Any) -> Any:
        """Sum of the products of two arrays, by ops that the framework differentiates."""
        if not custom.is_plain(self.backend) or {"sum", "multiply"} <= self.backend._overrides.keys():
            return self.backend.sum(self.backend.multiply(output, cotangent))
        return (output * cotangent).sum()

    def _demand_ops(self, program: Program) -> None:
        """Refuse programs with parts on the host: the framework would take those for constants."""
        referred = getattr(program.module.source, "referred", [])
        absent = [op for op in referred if custom.reads_tensors(op)]
        if absent:
            raise UnsupportedOpError(
                f"{type(self.backend).__name__} cannot differentiate a model with {', '.join(absent)}, "
                "which it lacks and which run on the host",
                hint=f'define these methods in {type(self.backend).__name__}, or compile with autodiff="graph"',
            )
