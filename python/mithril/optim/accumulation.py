"""Gradient accumulation: the mean of the gradients of several calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .placement import adopted
from .rule import Member, Rule, floating

if TYPE_CHECKING:
    from ..backends.backend import Backend
    from .state import State

__all__ = ["Accumulator"]


class Accumulator:
    """The sum of gradients so far, each divided by the number of calls; in float32 at least.

    Parameters
    ----------
    calls : int
        How many calls make a step.
    backend, jit
        As for `Rule`.
    """

    def __init__(self, calls: int, backend: Backend | None, jit: bool | None) -> None:
        self.calls = calls
        self._taken = 0
        self._sums: dict[str, Any] = {}
        # A step of gradient descent by -1/calls adds the share of a gradient.
        self._rule = Rule("SGD", backend, jit)

    def add(self, gradients: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Take the gradients of a call; return the mean if it is the last of a step, which `clear` then ends."""
        if self.calls == 1:
            return gradients
        sums = {**self._sums, **self._added(gradients)} if gradients else self._sums
        if self._taken + 1 >= self.calls:
            return sums
        self._sums, self._taken = sums, self._taken + 1
        return None

    def _added(self, gradients: Mapping[str, Any]) -> dict[str, Any]:
        backend = self._rule.backend_for(gradients)
        sums = {}
        for name, gradient in gradients.items():
            wide = "float64" if floating(name, gradient) == "float64" else "float32"
            old = self._sums.get(name)
            sums[name] = (
                backend.engine.zeros_like(gradient, wide) if old is None else adopted(backend, old, wide, gradient)
            )
        program = self._rule.program(sums, gradients, dict.fromkeys(gradients, Member()))
        return program(sums, gradients, {name: {} for name in gradients}, [-1.0 / self.calls], [1])[0]

    def clear(self) -> None:
        """Start the next step."""
        self._taken, self._sums = 0, {}

    def state_dict(self) -> dict[str, Any]:
        """Return the sums so far; nothing between steps."""
        if not self._taken:
            return {}
        return {"accumulated_calls": self._taken} | {f"accumulated/{name}": s for name, s in self._sums.items()}

    def check(self, state: State) -> None:
        """Refuse a state with more calls than a step has."""
        if state.accumulated_calls and state.accumulated_calls >= self.calls:
            state.refuse("accumulated_calls", f"a step of this optimizer has {self.calls} calls")

    def load(self, state: State) -> None:
        """Take over the sums of a state."""
        self._taken, self._sums = state.accumulated_calls, dict(state.accumulated)
