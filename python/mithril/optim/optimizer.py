"""The common part of the optimizers: steps, learning rates, and what is remembered of each parameter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from ..compiled.parameter_patterns import fits, matching
from ..compiled.parameters import like, untrained
from ..suggestions import nearest
from .accumulation import Accumulator
from .checks import between, check_arrays, check_mapping, check_switch, positive, whole
from .groups import Groups
from .placement import check_backend
from .rule import Donated, Program, Rule, Slots
from .state import flat, unflat

if TYPE_CHECKING:
    from ..backends.backend import Backend

__all__ = ["Common", "Optimizer"]

LearningRate = float | Callable[[int], float]


class Common(TypedDict, total=False):
    """Options that all optimizers take; see `Optimizer`."""

    clip_norm: float | None
    clip_value: float | None
    accumulate: int
    groups: Mapping[str, Mapping[str, Any]] | None
    freeze: Iterable[str]
    master_weights: bool
    backend: Backend | None
    jit: bool | None


class Optimizer:
    """Common part of the optimizers.

    A step of all parameters is one compiled program, on the backend of the arrays. Parameters of float16 and
    bfloat16 are updated in float32, and what is remembered of them is float32.

    Parameters
    ----------
    learning_rate : float or callable
        Size of a step; a callable is given the number of the step, from 1 on (see `schedules`).
    options : dict
        Arguments of the rule.
    clip_norm : float, optional
        The largest norm of all gradients together; larger ones are scaled to it.
    clip_value : float, optional
        The largest magnitude of an element of a gradient; with both bounds this one comes first.
    accumulate : int, optional
        Gradients of so many calls of `update` are averaged, and the last of them takes the step (default 1).
    groups : mapping, optional
        Pattern of parameter names to options that differ for those, and ``learning_rate_factor``; the first that
        fits counts: ``{"*.bias": {"weight_decay": 0.0}}``.
    freeze : iterable of str, optional
        Patterns of names of parameters that stay as they are, whatever their gradients: ``["encoder.*"]``.
    master_weights : bool, optional
        Remember parameters of float16 and bfloat16 in float32 too, so that small steps add up (default False).
    backend : Backend, optional
        Where steps are computed; default: where the parameters are.
    jit : bool, optional
        Whether the framework compiles the step further; default: on JAX and MLX.

    Attributes
    ----------
    learning_rate : float or callable
        May be changed at any time.
    steps : int
        Steps taken so far.
    state : dict
        Parameter name to what is remembered of it: a dict of arrays by the name of the slot.
    """

    #: Name of the row.
    _rule_name: str = ""

    def __init__(
        self,
        learning_rate: LearningRate,
        options: Mapping[str, Any],
        *,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        accumulate: int = 1,
        groups: Mapping[str, Mapping[str, Any]] | None = None,
        freeze: Iterable[str] = (),
        master_weights: bool = False,
        backend: Backend | None = None,
        jit: bool | None = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            raise self._unknown(next(iter(unknown)))
        if not callable(learning_rate):
            between("learning_rate", learning_rate, 0.0)
        for name, bound in (("clip_norm", clip_norm), ("clip_value", clip_value)):
            if bound is not None:
                positive(name, bound)
        for name, switch in (("master_weights", master_weights), ("jit", jit)):
            check_switch(name, switch)
        check_backend(backend)
        self.learning_rate = learning_rate
        self.options = dict(options)
        self.steps = 0
        self.state: Slots = {}
        #: Parameter name -> its own steps: it may have got no gradient in some.
        self._own_steps: dict[str, int] = {}
        self._groups = Groups(self._rule_name, self.options, groups)
        self._rule = Rule(self._rule_name, backend, jit, bool(master_weights), clip_value, clip_norm)
        self._accumulator = Accumulator(whole("accumulate", accumulate, 1), backend, jit)
        matching("freeze", freeze, None)
        self._freeze = tuple(freeze)
        #: The program whose slots `state` is known to hold.
        self._fits: Program | None = None
        #: Parameters whose slots somebody else may have, so that they are not written into.
        self._shared: set[str] = set()

    def _unknown(self, name: str) -> TypeError:
        known = [n for n in (*inspect.signature(type(self)).parameters, *Common.__annotations__) if n != "common"]
        near = {"lr": "learning_rate"}.get(name) or nearest(name, known)
        guess = f"; did you mean `{near}`?" if near else "."
        return TypeError(f"{type(self).__name__} has no option `{name}`{guess} It takes: {', '.join(known)}")

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"{type(self).__name__}({self.learning_rate!r}{options})"

    def init(self, params: Mapping[str, Any]) -> None:
        """Start anew, for these parameters.

        Calling it is not needed: `update` starts by itself. After it, `state_dict` is complete.

        Parameters
        ----------
        params : mapping
            Parameter name to array.
        """
        check_mapping("params", params)
        self._check_patterns(params)
        fixed = untrained(params)
        params = {name: params[name] for name in self._trained(params) if name not in fixed}
        self.steps = 0
        self._own_steps = dict.fromkeys(params, 0)
        self._accumulator.clear()
        self.state, self._fits = {}, None
        self._shared.clear()
        if params:
            program = self._program(params, params, dict.fromkeys(params, 1))[0]
            self.state = {name: program.start(name, params[name]) for name in params}

    def update(
        self, params: Mapping[str, Any], gradients: Mapping[str, Any], *, donate: bool = False
    ) -> dict[str, Any]:
        """Take a step.

        Parameters
        ----------
        params : mapping
            Parameter name to array; not changed, unless they are donated.
        gradients : mapping
            Parameter name to the gradient of what is minimized; parameters without one stay as they are.
        donate : bool, optional
            Whether the memory of ``params`` may be taken for the new parameters, as PyTorch does: that saves memory and
            time. Give it away only where nothing else reads these arrays, or their memory, afterwards.

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
        if self.steps == 0:
            self._check_patterns(params)
        fixed = untrained(params, gradients)
        if fixed or self._freeze:
            gradients = {name: gradients[name] for name in self._trained(gradients) if name not in fixed}
        check_arrays(params, gradients)
        rate = self._rate()
        averaged = self._accumulator.add(gradients)
        if averaged is None:
            return like(params, dict(params))
        own = {name: self._own_steps.get(name, 0) + 1 for name in params if name in averaged}
        new: dict[str, Any] = {}
        if own:
            donated = Donated.ALL if donate else Donated.SLOTS
            program, counters = self._program(params, averaged, own, donated)
            state = self._adopt(program, params, program.writes_slots)
            # All of the new state first: an error before anything is computed leaves the optimizer as it was.
            new, slots = program(params, averaged, state, self._groups.rates(rate), counters)
            self.state.update(slots)
            self._own_steps.update(own)
            self._fits = program
            self._shared.difference_update(own)
        self._accumulator.clear()
        self.steps += 1
        return like(params, {name: new.get(name, value) for name, value in params.items()})

    def _trained(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names that this optimizer does not freeze."""
        return tuple(name for name in names if not any(fits(name, pattern) for pattern in self._freeze))

    def _check_patterns(self, params: Mapping[str, Any]) -> None:
        """Refuse patterns that fit no parameter: they are misspelled."""
        check_mapping("params", params)
        self._groups.check(params)
        matching("freeze", self._freeze, params)

    def apply_gradients(self, gradients: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        """As `update`, with the arguments in the order of ``mlx.optimizers``."""
        return self.update(params, gradients)

    def state_dict(self) -> dict[str, Any]:
        """Return all that a later run needs to go on exactly: arrays and plain numbers by name.

        Returns
        -------
        dict
            ``"steps"``; ``"step/<parameter>"``, the steps that a parameter itself has taken;
            ``"slot/<slot>/<parameter>"``; ``"accumulated/<parameter>"`` between the calls of a step; and
            ``"schedule/<name>"`` of a learning rate that remembers something.

        Examples
        --------
        >>> import mithril as ml
        >>> import numpy as np
        >>> optimizer = ml.optim.SGD(learning_rate=0.5, momentum=0.9)
        >>> _ = optimizer.update({"w": np.array([1.0, 2.0])}, {"w": np.array([1.0, -1.0])})
        >>> optimizer.state_dict()
        {'steps': 1, 'step/w': 1, 'slot/momentum/w': array([ 1., -1.])}
        """
        self._shared = set(self.state)
        state: dict[str, Any] = {"steps": self.steps}
        state |= {f"step/{name}": steps for name, steps in self._own_steps.items()}
        state |= flat("slot", self.state)
        state |= self._accumulator.state_dict()
        if hasattr(self.learning_rate, "state_dict"):
            state |= {f"schedule/{name}": value for name, value in self.learning_rate.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned, in place of what there is.

        Parameters
        ----------
        state : mapping
            Its arrays may be of any backend, or of NumPy; the next `update` moves them to the parameters.
        """
        read = unflat(state)
        if read.schedule and not hasattr(self.learning_rate, "load_state_dict"):
            read.refuse("schedule", "the learning rate of this optimizer remembers nothing")
        self._accumulator.check(read)
        if hasattr(self.learning_rate, "load_state_dict"):
            self.learning_rate.load_state_dict(read.schedule)
        self._accumulator.load(read)
        self.steps, self._own_steps, self.state, self._fits = read.steps, read.own_steps, read.slots, None
        self._shared = set(self.state)

    def _rate(self) -> float:
        if not callable(self.learning_rate):
            return float(self.learning_rate)
        rate = float(self.learning_rate(self.steps + 1))
        between(f"the learning rate of step {self.steps + 1}", rate, 0.0)
        return rate

    def _program(
        self,
        params: Mapping[str, Any],
        gradients: Mapping[str, Any],
        own_steps: Mapping[str, int],
        donated: Donated = Donated.SLOTS,
    ) -> tuple[Program, list[int]]:
        members, counters = self._groups.members(own_steps)
        return self._rule.program(params, gradients, members, donated), counters

    def _adopt(self, program: Program, params: Mapping[str, Any], is_written: bool) -> Slots:
        """Return the slots that a program wants: those there are, moved to its backend, or fresh ones.

        Those that are written into are nobody else's.
        """
        shared = self._shared.intersection(program.names) if is_written and self._shared else frozenset()
        if program is self._fits and not shared:
            return self.state
        state: Slots = {}
        for name in program.names:
            if name not in self.state:
                state[name] = program.start(name, params[name])
                continue
            state[name] = program.fit(name, self.state[name], params[name])
            if name in shared:
                state[name] = program.copies(state[name])
        return state

    def __getstate__(self) -> Any:
        # A shallow copy has the same arrays, and goes on by itself.
        self._shared = set(self.state)
        own = {"state": dict(self.state), "_own_steps": dict(self._own_steps), "_shared": set(self.state)}
        return {**self.__dict__, **own, "_fits": None}

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
