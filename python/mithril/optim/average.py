"""Exponential moving averages of parameters, which often are better than the last ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..compiled.parameters import untrained
from ..errors import ParameterError
from .checks import between, check_arrays, check_mapping, check_switch
from .placement import check_backend
from .rule import Member, Rule, Slots
from .state import flat, unflat

if TYPE_CHECKING:
    from ..backends.backend import Backend

__all__ = ["EMA"]


class EMA:
    """Exponential moving average of parameters: ``decay * average + (1 - decay) * parameter``.

    Averages of float16 and bfloat16 are remembered in float32.

    Parameters
    ----------
    decay : float, optional
        Share of the average that is kept.
    warm_up : bool, optional
        Use ``(1 + n) / (10 + n)`` at the n-th update while that is smaller, so that the start is soon forgotten.
    backend, jit
        As for `Optimizer`.

    Attributes
    ----------
    params : dict
        The averages by parameter name; those of the first update at first.
    steps : int
        Number of updates so far.

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> average = ml.optim.EMA(decay=0.5)
    >>> average.update({"w": np.array([1.0])})
    {'w': array([1.])}
    >>> average.update({"w": np.array([2.0])})
    {'w': array([1.5])}
    """

    def __init__(
        self, decay: float = 0.999, warm_up: bool = False, *, backend: Backend | None = None, jit: bool | None = None
    ) -> None:
        between("decay", decay, 0.0, 1.0)
        check_switch("warm_up", warm_up)
        check_switch("jit", jit)
        check_backend(backend)
        self.decay = decay
        self.warm_up = warm_up
        self.params: dict[str, Any] = {}
        self.steps = 0
        self._slots: Slots = {}
        self._rule = Rule("Average", backend, jit, master=True)

    def update(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Take parameters into the average.

        Parameters
        ----------
        params : mapping
            Parameter name to array: the same names, shapes and dtypes at every call.

        Returns
        -------
        dict
            The averages.
        """
        check_mapping("params", params)
        # Statistics are averages already, and what is frozen does not change.
        fixed = untrained(params)
        others = {name: value for name, value in params.items() if name in fixed}
        order, params = tuple(params), {name: value for name, value in params.items() if name not in fixed}
        averages = self._average(params, {name: value for name, value in self.params.items() if name not in fixed})
        self.params = {name: others[name] if name in others else averages[name] for name in order}
        return dict(self.params)

    def _average(self, params: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
        if not params:
            return {}
        members = dict.fromkeys(params, Member())
        if before and before.keys() != params.keys():
            changed = sorted(map(str, before.keys() ^ params.keys()))
            raise ParameterError(
                f"the average and the parameters differ in {', '.join(changed[:5])}", hint="create one EMA per model"
            )
        old: Mapping[str, Any] = before or params
        check_arrays(params, params)
        program = self._rule.program(params, params, members)
        if not before:
            slots = {name: program.start(name, value) for name, value in params.items()}
        else:
            slots = {name: program.fit(name, self._slots.get(name, {}), params[name]) for name in params}
        # What was loaded may be of another backend.
        old = {name: program.like(value, params[name]) for name, value in old.items()}
        check_arrays(old, params)
        n = self.steps
        kept = min(self.decay, (1 + n) / (10 + n)) if self.warm_up else self.decay
        averaged, self._slots = program(old, params, slots, [1.0 - kept if before else 1.0], [1])
        self.steps += 1
        return averaged

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on exactly: arrays and plain numbers by name."""
        averages = {name: {"average": value} for name, value in self.params.items()}
        return {"steps": self.steps, **flat("slot", averages), **flat("slot", self._slots)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned, in place of what there is; see `Optimizer.load_state_dict`."""
        read = unflat(state)
        absent = [name for name, slots in read.slots.items() if "average" not in slots]
        if absent or read.own_steps or read.accumulated or read.schedule:
            raise ParameterError("the state is not that of an EMA", hint="pass what its state_dict() returned")
        self.steps = read.steps
        self.params = {name: slots.pop("average") for name, slots in read.slots.items()}
        self._slots = read.slots
