"""What a physical model keeps: running statistics, which go with parameters, and counters; and how they start."""

from __future__ import annotations

import threading
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..backends.exchange import to_host
from ..backends.quantized import ByteParameters
from ..errors import ParameterError
from .parameters import Parameters

if TYPE_CHECKING:
    from ..backends.backend import Backend
    from .program import Program

__all__ = ["Stateful"]

#: Parameters that were packed with the state that the model had then.
_PACKED = (_core.Packed, ByteParameters)


class Stateful:
    """What a physical model keeps from call to call.

    Statistics belong to the parameters that they were measured with. A call uses those among its parameters; where
    there are none, it uses those in `state`. A call for training writes the new ones to both. The parameters that
    belong to the model have no statistics of their own: they show those in `state`, as long as nothing else is trained.

    A state that the user has set is used instead of initial statistics among the parameters; beside statistics that
    were trained it is an error. What Mithril itself writes to `state` goes through `_update_state`, so that the two are
    known apart.
    """

    backend: Backend
    _state: dict[str, Any]
    #: What Mithril has written to the state: an entry that is another object was set by the user.
    _written: dict[str, Any]
    _names: dict[str, tuple[str, ...]]
    _options: dict[str, Any]
    _store: Parameters | None
    _lock: threading.RLock
    _draws: tuple[Any, int]
    _current: Program | None
    #: Statistics as they were drawn: whoever computes with them has lost those that were measured.
    _drawn: dict[str, Any]

    @property
    def state(self) -> dict[str, Any]:
        """What is kept from call to call: running statistics, the counter of the random numbers."""
        return self._state

    @state.setter
    def state(self, values: dict[str, Any]) -> None:
        self._state, self._written = values, {}

    def _update_state(self, values: Mapping[str, Any]) -> None:
        """Write entries of the state, as Mithril does."""
        self._state, self._written = {**self._state, **values}, {**self._written, **values}

    def _saved_state(self) -> tuple[dict[str, Any], ...]:
        """Return the state, and what is known about it, for `_restore_state`."""
        return dict(self._state), dict(self._written), dict(self._drawn)

    def _restore_state(self, saved: tuple[dict[str, Any], ...]) -> None:
        self._state, self._written, self._drawn = map(dict, saved)

    def _set_by_user(self) -> tuple[str, ...]:
        """Names of the statistics in `state` that the user has set."""
        state, written = self._state, self._written
        return tuple(n for n in self._names["state"] if n in state and (n not in written or state[n] is not written[n]))

    def _initialize_state(self, program: Program) -> None:
        missing = [entry for entry in program.state if entry[0] not in self.state]
        if missing:
            fresh = program.core.initial([name for name, _, _ in missing], self.backend.engine.seed)
            state = {name: self.backend.tensor(fresh[name], dtype) for name, dtype, _ in missing}
            self._drawn |= {name: value for name, value in state.items() if name in self._names["state"]}
            self._update_state(state)

    def _share_statistics(self, program: Program, params: Parameters) -> None:
        """Give initial statistics to another model whose parameters have got their shapes here."""
        owner = params._model
        if owner is None or owner is self:
            return
        absent = [entry for entry in program.statistics if entry[0] not in owner.state]
        if absent:
            fresh = program.core.initial([name for name, _, _ in absent], owner.backend.engine.seed)
            drawn = {name: owner.backend.tensor(fresh[name], dtype) for name, dtype, _ in absent}
            owner._drawn |= drawn
            owner._update_state(drawn)

    def _lacks_statistics(self) -> tuple[str, ...]:
        """Names of the statistics in `state` that are still as they were drawn."""
        state, drawn = self.state, self._drawn
        lost = [n for n in self._names["state"] if n not in state or (n in drawn and state[n] is drawn[n])]
        return tuple(lost) if not lost else tuple(n for n in lost if n not in self._set_by_user())

    def _set_statistics(self, values: Mapping[str, Any]) -> None:
        """Put statistics into the state, after a look at them."""
        program = self._current
        types = {} if program is None else {name: (dtype, shape) for name, dtype, shape in program.state}
        statistics = {}
        for name, value in values.items():
            dtype, shape = types.get(name, (None, None))
            is_kept = dtype is None and self.backend.engine.is_own(value)
            statistics[name] = value if is_kept else self.backend.array(value, dtype)
            if shape is not None and tuple(statistics[name].shape) != tuple(shape):
                raise ParameterError(
                    f"the running statistic {name!r} has shape {list(statistics[name].shape)}, "
                    f"but must be {list(shape)}",
                    hint="check which model it comes from",
                )
        with self._lock:
            self._update_state(statistics)

    def _held(self, params: Any) -> bool:
        """Whether parameters bring statistics along that are not simply those in `state`."""
        names = self._names["state"]
        if not names or isinstance(params, _PACKED) or (type(params) is Parameters and params._model is self):
            return False
        held = [name for name in names if name in params]
        if held and len(held) < len(names):
            absent = [name for name in names if name not in params]
            more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
            raise ParameterError(
                f"params lacks the running statistics {', '.join(map(repr, absent[:5]))}{more}",
                hint="copy all entries of get_parameters(), or none of the statistics",
            )
        return bool(held)

    def _state_for(self, params: Any) -> dict[str, Any]:
        """Return the state that goes with parameters.

        Raises
        ------
        ParameterError
            If they have lost their statistics, and the model, which is for inference, has never seen any; or if they
            have trained ones, and the user has set others.
        """
        if self._held(params):
            kept = self._overriding(params)
            return {**self.state, **{name: params[name] for name in self._names["state"] if name not in kept}}
        is_own = type(params) is Parameters and params._model is self
        if self._names["state"] and not self._options["training"] and not is_own and not isinstance(params, _PACKED):
            drawn = self._lacks_statistics()
            if drawn:
                more = f" and {len(drawn) - 5} more" if len(drawn) > 5 else ""
                raise ParameterError(
                    f"params lacks the running statistics {', '.join(map(repr, drawn[:5]))}{more}, and this model has "
                    "only the initial ones",
                    hint="copy all entries of get_parameters() of the model that was trained, or pass its state: "
                    "model.state.update(trained.state)",
                )
        return self.state

    def _overriding(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        """Names of the statistics set by the user, which are used instead of initial ones among the parameters."""
        names = tuple(n for n in self._set_by_user() if params[n] is not self.state[n])
        if not names:
            return ()
        program = self._current
        initial = {} if program is None else program.core.initial(list(names), self.backend.engine.seed)
        wrong = [n for n in names if not self._is_one_of(params[n], (initial.get(n), self.state[n]))]
        if wrong:
            more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            raise ParameterError(
                f"params holds the running statistics {', '.join(map(repr, wrong[:5]))}{more}, and the state of the "
                "model was set to others",
                hint="to use those of the state: params.update(model.state); to use those of params: "
                "model.load_params(params)",
            )
        return names

    def _is_one_of(self, array: Any, others: tuple[Any, ...]) -> bool:
        try:
            host, *values = (np.asarray(to_host(value)) for value in (array, *others) if value is not None)
        except (TypeError, ValueError, RuntimeError):
            return False  # A framework is tracing: there are no values yet.
        return any(np.array_equal(host, value.astype(host.dtype), equal_nan=True) for value in values)

    def _next_state(self, program: Program, params: Any) -> dict[str, Any]:
        """Return the state of a call, and let the random numbers of the next one be others."""
        state = self._state_for(params)
        if "key" in state and "key" not in program.updates:
            with self._lock:
                state = {**state, "key": self.state["key"]}
                self._update_state({"key": state["key"] + self._key_step})  # type: ignore[attr-defined]
        return state

    def _keep(self, program: Program, params: Any, result: Any) -> Any:
        """Keep what a call has left, and return the rest of its result."""
        if not program.updates:
            return result
        *results, updated = result
        if self._held(params):
            if not isinstance(params, MutableMapping):
                raise ParameterError(
                    f"params holds running statistics, and training cannot change a {type(params).__name__}",
                    hint="pass a dict",
                )
            store = self._store
            if store is not None and store._model is self:
                # These are statistics of other parameters.
                store._unlink()
            fits = getattr(params, "_fits", None)
            params.update({name: updated[name] for name in self._names["state"] if name in updated})
            if type(params) is Parameters:
                # Of the same shapes and dtypes as before.
                params._fits = fits
        with self._lock:
            self._update_state(updated)
        return results[0] if len(results) == 1 else tuple(results)

    # --- drawing ---------------------------------------------------------------------------------------------

    def _parameters(self, seed: int | None, model: Any = None) -> Parameters:
        return Parameters(self._names["param"], seed, self._names["state"], self._names["frozen"], model)

    def _fresh_seed(self) -> int:
        """Return the seed of the backend at first, and then another one at each call."""
        with self._lock:
            seeding, count = self._draws
            count = count + 1 if seeding is self.backend.engine.seeding else 0
            self._draws = (self.backend.engine.seeding, count)
        seed = self.backend.engine.seed
        return int(np.random.SeedSequence([seed % 2**64, count]).generate_state(1)[0]) if count else seed

    def _draw(self, program: Program, params: Parameters) -> dict[str, Any]:
        """Draw the values of parameters, and of statistics where they have their own."""
        entries = [*program.params, *(program.statistics if params._model is None else ())]
        seed = self.backend.engine.seed if params._seed is None else params._seed
        fresh = program.core.initial([name for name, _, _ in entries], seed)
        return {name: self.backend.tensor(fresh[name], dtype) for name, dtype, _ in entries}

    def _zeros(self, program: Program, name: str) -> Any:
        dtype, shape = next((d, s) for n, d, s in (*program.params, *program.state) if n == name)
        return self.backend.zeros(shape, dtype=dtype)
