"""Update rules, compiled once for each set of parameters: one program takes a whole training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from .. import _core, dtypes
from ..backends.backend import Backend
from ..compiled import internals
from ..compiled.compile import compile
from ..errors import ParameterError
from ..parallel.divided_array import DividedArray
from ..parallel.layout import ArrayLayout
from .placement import adopted, backend_of

__all__ = ["Donated", "Member", "Program", "Rule", "Slots", "floating"]

#: Parameter name -> slot -> array.
Slots = dict[str, dict[str, Any]]


class Member(NamedTuple):
    """What a parameter brings to a step.

    Attributes
    ----------
    args : tuple of pairs
        Arguments of the rule.
    rate, counter : int
        Which of the learning rates it takes, and which of the counters of steps.
    """

    args: tuple[tuple[str, Any], ...] = ()
    rate: int = 0
    counter: int = 0


class Donated(Enum):
    """What a step may write into, where that saves memory and time."""

    NOTHING = 0
    SLOTS = 1
    #: Slots and parameters.
    ALL = 2


class Slot(NamedTuple):
    """A slot as the compiler describes it."""

    name: str
    shape: list[int]
    dtype: str
    is_copy: bool


@dataclass(frozen=True)
class Rule:
    """How parameters are updated; the compiled programs are kept.

    Attributes
    ----------
    optimizer : str
        Name of the row.
    backend : Backend or None
        Where it runs; None: where the parameters are.
    jit : bool or None
        Whether the framework compiles the step further; None: where that takes no time to speak of.
    master : bool
        Whether parameters of low precision are also kept in float32.
    clip_value, clip_norm : float or None
        Bounds of the gradients.
    """

    optimizer: str
    backend: Backend | None = None
    jit: bool | None = None
    master: bool = False
    clip_value: float | None = None
    clip_norm: float | None = None
    _programs: dict[Any, Program] = field(default_factory=dict, repr=False, compare=False)

    def program(
        self,
        params: Mapping[str, Any],
        gradients: Mapping[str, Any],
        members: Mapping[str, Member],
        donated: Donated = Donated.NOTHING,
    ) -> Program:
        """Return the program for these arrays, which may write into what is donated; made at the first call."""
        backend = self.backend_for(params)
        divided = backend.engine.layout_of(gradients)
        key: Any = tuple(
            (name, tuple(params[name].shape), params[name].dtype, gradients[name].dtype, member)
            for name, member in members.items()
        )
        key = (*key, donated)
        if divided is not None:
            key = (*key, repr(divided))
        programs = self._programs
        cached = programs.get((backend, key))
        if cached is None:
            # A training loop needs few; what changes at every step would fill the memory.
            if len(programs) >= 64:
                programs.clear()
            cached = programs[backend, key] = Program(self, backend, params, gradients, members, donated)
        return cached

    def backend_for(self, arrays: Mapping[str, Any]) -> Backend:
        """Return where these arrays are updated."""
        if self.backend is not None:
            return self.backend
        # Statistics of a model are whole arrays also where its parameters lie in parts.
        divided = (entry for entry in arrays.items() if isinstance(entry[1], DividedArray))
        name, array = next(divided, next(iter(arrays.items())))
        return backend_of(name, array)

    def __getstate__(self) -> Any:
        # Programs hold code: a copy compiles again.
        return {**self.__dict__, "_programs": {}}

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)


class Program:
    """A step of certain parameters, compiled."""

    def __init__(
        self,
        rule: Rule,
        backend: Backend,
        params: Mapping[str, Any],
        gradients: Mapping[str, Any],
        members: Mapping[str, Member],
        donated: Donated = Donated.NOTHING,
    ) -> None:
        self.backend = backend
        self.names = tuple(members)
        parts = [
            (
                list(params[name].shape),
                floating(name, params[name]),
                floating(name, gradients[name]),
                dict(member.args),
                member.rate,
                member.counter,
            )
            for name, member in members.items()
        ]
        model, slots, self._scalar = _core.optimizer_step(
            rule.optimizer, parts, clip_value=rule.clip_value, clip_norm=rule.clip_norm, master=rule.master
        )
        self.slots = {name: [Slot(*slot) for slot in kept] for name, kept in zip(members, slots, strict=True)}
        #: For each parameter the names under which its arrays go in and come out.
        self._keys = [
            (
                f"param_{i}",
                f"gradient_{i}",
                [(slot.name, f"{slot.name}_{i}", f"new_{slot.name}_{i}") for slot in self.slots[name]],
                f"new_param_{i}",
            )
            for i, name in enumerate(self.names)
        ]
        jit = backend.name in ("jax", "mlx") if rule.jit is None else rule.jit
        layout = self._layout(gradients, set(model.input_keys))
        #: Whether arrays may lie on other devices than that of the backend.
        self._is_divided = layout is not None or not backend.engine.is_single_device
        written = () if self._is_divided or jit or backend.name != "torch" else self._written(donated)
        #: Whether slots are written into.
        self.writes_slots = bool(written)
        self._writes_params = bool(written) and donated is Donated.ALL
        inputs = set(model.input_keys)
        donate = [key for key in written if key in inputs]
        physical = compile(model, backend, jit=jit, static_shapes=True, inference=True, layout=layout, donate=donate)
        program = internals.current_program(physical)
        assert program is not None
        self._program = program
        self._inputs = frozenset(physical.input_keys)
        self._scalars: dict[float, Any] = {}
        self._own_gradients = backend.name == "torch"

    def _written(self, donated: Donated) -> tuple[str, ...]:
        """Return the names under which what is donated goes in."""
        if donated is Donated.NOTHING:
            return ()
        slots = [key for _, _, slots, _ in self._keys for _, key, _ in slots]
        return (*slots, *(param for param, *_ in self._keys if donated is Donated.ALL))

    def _layout(self, gradients: Mapping[str, Any], inputs: set[str]) -> ArrayLayout | None:
        """Return how the step is divided: parameters and slots as their gradients are."""
        divided = self.backend.engine.layout_of(gradients)
        if divided is None:
            return None
        names: dict[str, str] = {}
        ordered: set[str] = set()
        for i, name in enumerate(self.names):
            alike = [slot.name for slot in self.slots[name] if list(slot.shape) == list(gradients[name].shape)]
            keys = [f"{kind}_{i}" for kind in ("param", "gradient", *alike)]
            own = {key: name for key in keys if key in inputs}
            names |= own
            if len(alike) < len(self.slots[name]):
                # Sums over rows or columns have a place for each.
                ordered |= own.keys()
        layout: ArrayLayout = divided.renamed(names, ordered)
        layout.results = {f"new_{name}": name for name in names}
        return layout

    def start(self, name: str, param: Any) -> dict[str, Any]:
        """Return the slots of a parameter before its first step."""
        return {slot.name: self._start(slot, param) for slot in self.slots[name]}

    def _start(self, slot: Slot, param: Any) -> Any:
        engine = self.backend.engine
        if slot.is_copy:
            array = engine.as_array(param, slot.dtype)
            return engine.copy(array) if self.writes_slots and array.dtype == param.dtype else array
        if list(slot.shape) == list(param.shape) and engine.is_own(param):
            return engine.zeros_like(param, slot.dtype)
        return self.backend.zeros(tuple(slot.shape), dtype=slot.dtype)

    def like(self, array: Any, param: Any) -> Any:
        """Return an array as one of this backend, of the dtype of a parameter."""
        return adopted(self.backend, array, self.backend.dtype(param), param)

    def fit(self, name: str, slots: Mapping[str, Any], param: Any) -> dict[str, Any]:
        """Return the slots of a parameter as arrays of this backend; refuse those of another parameter or rule."""
        expected = self.slots[name]
        if set(slots) != {slot.name for slot in expected}:
            present, names = (
                ", ".join(sorted(slots)) or "nothing",
                ", ".join(slot.name for slot in expected) or "nothing",
            )
            raise ParameterError(
                f"the state of {name!r} holds {present}, but the optimizer keeps {names}",
                hint="load the state of an optimizer of the same kind and options; or start again with init(params)",
            )
        arrays = {}
        for slot in expected:
            value = slots[slot.name]
            shape = list(np.shape(value))
            if shape != slot.shape:
                raise ParameterError(
                    f"the state {slot.name!r} of {name!r} has shape {shape}, but must be {slot.shape}",
                    hint="load the state that belongs to these parameters; or start again with init(params)",
                )
            arrays[slot.name] = adopted(self.backend, value, slot.dtype, param)
        return arrays

    def copies(self, slots: Mapping[str, Any]) -> dict[str, Any]:
        """Return slots of a parameter in memory of their own."""
        return {slot: self.backend.engine.copy(array) for slot, array in slots.items()}

    def __call__(
        self,
        params: Mapping[str, Any],
        gradients: Mapping[str, Any],
        state: Slots,
        rates: Sequence[float],
        counters: Sequence[int],
    ) -> tuple[dict[str, Any], Slots]:
        """Return the new parameters and their new slots."""
        data: dict[str, Any] = {}
        for k, rate in enumerate(rates):
            data[f"learning_rate_{k}"] = self._number(rate)
        for k, counter in enumerate(counters):
            data[f"step_{k}"] = self._number(counter)
        engine = self.backend.engine
        for name, (param, gradient, slots, _) in zip(self.names, self._keys, strict=True):
            data[param] = params[name]
            data[gradient] = gradients[name]
            own = state[name]
            for slot, key, _ in slots:
                data[key] = own[slot]
            if self._is_divided:
                for key in (param, *(key for _, key, _ in slots)):
                    data[key] = engine.beside(data[key], gradients[name])
        if len(data) != len(self._inputs):
            data = {name: data[name] for name in self._inputs}
        if not engine.is_single_device:
            data = {n: engine.beside(x, gradients[self.names[0]]) if x.shape == () else x for n, x in data.items()}
        if self.writes_slots:
            self._check_devices(params, gradients)
        if self._writes_params:
            self._check_apart(params)
        if self._own_gradients:
            data |= {name: value.detach() for name, value in data.items() if value.requires_grad}
        try:
            outputs = self._program.evaluate({}, data, {})
        except Exception as error:
            explained = self._program.module.explain(error)
            if explained is None:
                raise
            raise explained from error
        new, new_state = {}, {}
        for name, (_, _, slots, param) in zip(self.names, self._keys, strict=True):
            new[name] = outputs[param]
            new_state[name] = {slot: outputs[key] for slot, _, key in slots}
        return new, new_state

    def _check_devices(self, params: Mapping[str, Any], gradients: Mapping[str, Any]) -> None:
        """Refuse gradients on other devices before anything is written into."""
        for name in self.names:
            param, gradient = params[name], gradients[name]
            if param.device != gradient.device:
                raise ParameterError(
                    f"parameter {name!r} is on {param.device}, its gradient on {gradient.device}",
                    hint="move one to the device of the other: gradient.to(param.device)",
                )

    def _check_apart(self, params: Mapping[str, Any]) -> None:
        """Refuse parameters that are donated twice: one step would change what the other reads."""
        holders: dict[int, str] = {}
        for name in self.names:
            place = params[name].data_ptr()
            other = holders.setdefault(place, name) if place else name
            if other != name:
                raise ParameterError(
                    f"parameters {other!r} and {name!r} are donated, but share their memory",
                    hint="donate copies: {name: tensor.clone() for name, tensor in params.items()}",
                )

    def _number(self, value: float) -> Any:
        scalar = self._scalars.get(value)
        if scalar is None:
            if len(self._scalars) >= 16:
                self._scalars.clear()
            scalar = self._scalars[value] = self.backend.tensor(np.asarray(value, self._scalar), self._scalar)
        return scalar


def floating(name: str, array: Any) -> str:
    """Return the dtype of a parameter or gradient; refuse integers."""
    dtype = dtypes.normalize(str(array.dtype).rpartition(".")[2])
    if not dtype.is_floating:
        raise ParameterError(f"parameter {name!r} or its gradient is {dtype}", hint="only floats are trained")
    return str(dtype)
