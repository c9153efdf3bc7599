"""The common part of the optimizers: steps, learning rates, and what is remembered of each parameter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import ParameterError
from .checks import between, check_arrays, check_mapping

__all__ = ["Optimizer"]


class Optimizer(ABC):
    """Common part of the optimizers.

    Attributes
    ----------
    learning_rate : float or callable
        Size of a step; a callable is given the number of the step, from 1 on.
    steps : int
        Steps taken so far.
    state : dict
        Parameter name to what is remembered of it: a dict of arrays by the name of the slot.
    """

    def __init__(self, learning_rate: float | Callable[[int], float], weight_decay: float = 0.0) -> None:
        if not callable(learning_rate):
            between("learning_rate", learning_rate, 0.0)
        between("weight_decay", weight_decay, 0.0)
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.steps = 0
        self.state: dict[str, dict[str, Any]] = {}
        #: Parameter name -> its own steps: it may have got no gradient in some.
        self._own_steps: dict[str, int] = {}

    def init(self, params: Mapping[str, Any]) -> None:
        """Start anew, for these parameters.

        Calling it is not needed: `update` starts by itself. After it, `state_dict` is complete.

        Parameters
        ----------
        params : mapping
            Parameter name to array.
        """
        check_mapping("params", params)
        self.steps = 0
        self.state = {name: self._slots(value) for name, value in params.items()}
        self._own_steps = dict.fromkeys(params, 0)

    def update(self, params: Mapping[str, Any], gradients: Mapping[str, Any]) -> dict[str, Any]:
        """Take a step.

        Parameters
        ----------
        params : mapping
            Parameter name to array; not changed.
        gradients : mapping
            Parameter name to the gradient of what is minimised; parameters without one stay as they are.

        Returns
        -------
        dict
            The new parameters.

        Examples
        --------
        >>> import mithril as ml
        >>> import numpy as np
        >>> optimizer = ml.optim.SGD(learning_rate=0.5)
        >>> optimizer.update({"w": np.array([1.0, 2.0])}, {"w": np.array([1.0, -1.0])})
        {'w': array([0.5, 2.5])}
        """
        check_arrays(params, gradients)
        rate = self.learning_rate(self.steps + 1) if callable(self.learning_rate) else self.learning_rate
        # All of the new state first: an error leaves the optimizer as it was.
        found = {
            name: self._step(p, gradients[name], name, float(rate)) for name, p in params.items() if name in gradients
        }
        self.steps += 1
        for name, (_, slots) in found.items():
            self.state[name] = slots
            self._own_steps[name] = self._own_steps.get(name, 0) + 1
        return {name: found[name][0] if name in found else value for name, value in params.items()}

    def apply_gradients(self, gradients: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        """As `update`, with the arguments in the order of ``mlx.optimizers``."""
        return self.update(params, gradients)

    def state_dict(self) -> dict[str, Any]:
        """Return all that a later run needs to go on exactly: arrays and whole numbers by name.

        Returns
        -------
        dict
            ``"steps"``, ``"step/<parameter>"`` (the steps that a parameter itself has taken) and
            ``"slot/<slot>/<parameter>"``.

        Examples
        --------
        >>> import mithril as ml
        >>> import numpy as np
        >>> optimizer = ml.optim.SGD(learning_rate=0.5, momentum=0.9)
        >>> _ = optimizer.update({"w": np.array([1.0, 2.0])}, {"w": np.array([1.0, -1.0])})
        >>> optimizer.state_dict()
        {'steps': 1, 'step/w': 1, 'slot/momentum/w': array([ 1., -1.])}
        """
        found: dict[str, Any] = {"steps": self.steps}
        found |= {f"step/{name}": steps for name, steps in self._own_steps.items()}
        for name, slots in self.state.items():
            found |= {f"slot/{slot}/{name}": array for slot, array in slots.items()}
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned, in place of what there is.

        Parameters
        ----------
        state : mapping
            Its arrays are of the backend of the parameters.
        """
        check_mapping("state", state)
        if "steps" not in state:
            raise ParameterError("state lacks 'steps'", hint="pass what state_dict() of an optimizer returned")
        own: dict[str, int] = {}
        slots: dict[str, dict[str, Any]] = {}
        for key, value in state.items():
            kind, _, rest = key.partition("/")
            if kind == "step":
                own[rest] = _whole(key, value)
                slots.setdefault(rest, {})
            elif kind == "slot":
                slot, _, name = rest.partition("/")
                slots.setdefault(name, {})[slot] = value
            elif key != "steps":
                raise ParameterError(f"state holds {key!r}", hint="pass what state_dict() of an optimizer returned")
        self.steps, self._own_steps, self.state = _whole("steps", state["steps"]), own, slots

    def _step(self, param: Any, gradient: Any, name: str, rate: float) -> tuple[Any, dict[str, Any]]:
        slots = self.state.get(name)
        slots = self._slots(param) if slots is None else slots
        return self._new(param, gradient, slots, self._own_steps.get(name, 0) + 1, rate)

    @abstractmethod
    def _slots(self, param: Any) -> dict[str, Any]:
        """Return what is remembered of a parameter before the first step."""

    @abstractmethod
    def _new(
        self, param: Any, gradient: Any, slots: dict[str, Any], step: int, rate: float
    ) -> tuple[Any, dict[str, Any]]:
        """Return the new parameter, and what is to be remembered of it; ``step`` counts its own from 1."""


def _whole(key: str, value: Any) -> int:
    found = np.asarray(value)
    if found.shape != () or found.dtype.kind not in "iu" or found < 0:
        raise ParameterError(f"state holds {value!r} as {key!r}", hint="it is a number of steps")
    return int(found)
