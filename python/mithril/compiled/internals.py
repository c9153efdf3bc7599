"""What other packages of Mithril may ask of a compiled model beyond its public methods.

They call these functions rather than read underscore attributes, so that what `PhysicalModel` consists of can change
in one place.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .. import _core
    from ..backends.backend import Backend
    from ..parallel.processes import Processes
    from .loading import Module, Runner
    from .parameters import Parameters
    from .physical_model import PhysicalModel
    from .program import Program, Settings

__all__ = [
    "check_params",
    "communicator",
    "compile_options",
    "cotangents_of",
    "current_program",
    "distributed",
    "gradient_module",
    "has_own_statistics",
    "has_user_state",
    "known_program",
    "logical_model",
    "names_by_role",
    "next_state",
    "prepare_call",
    "program_settings",
    "recompiled",
    "restore_state",
    "saved_state",
    "share_parameters",
    "state_for",
    "state_lock",
    "stored_parameters",
    "update_state",
]


def logical_model(model: PhysicalModel) -> _core.Model:
    """Return the model that was compiled."""
    return model._model


def compile_options(model: PhysicalModel) -> dict[str, Any]:
    """Return the options of the core that a model was compiled with."""
    return model._options


def program_settings(model: PhysicalModel) -> Settings:
    """Return how the programs of a model are run."""
    return model._settings


def names_by_role(model: PhysicalModel) -> dict[str, tuple[str, ...]]:
    """Return the names of inputs and outputs by role: ``"param"``, ``"data"``, ``"state"``, ``"output"``."""
    return model._names


def current_program(model: PhysicalModel) -> Program | None:
    """Return the program that was used or made last; None while the shapes are not known."""
    return model._current


def known_program(model: PhysicalModel) -> Program:
    """Return the program that was used or made last; an error while the shapes are not known."""
    return model._known()


def gradient_module(model: PhysicalModel) -> Module | Runner:
    """Return the module that computes the gradients of all outputs; an error while the shapes are not known."""
    return model._gradient_of_outputs()


def prepare_call(model: PhysicalModel, params: Any, data: Mapping[str, Any]) -> tuple[Program, Mapping[str, Any]]:
    """Check the arguments of a call; return the program for their shapes, and the data converted."""
    return model._prepare(params, data)


def check_params(model: PhysicalModel, program: Program, params: Mapping[str, Any]) -> None:
    """Raise if parameters do not fit a program of the model."""
    model._arguments.check_params(program, params)


def cotangents_of(
    model: PhysicalModel, program: Program, params: Any, data: Mapping[str, Any], output_gradients: Any
) -> dict[str, Any]:
    """Return the gradients of outputs as arrays by name, of what `PhysicalModel.evaluate` takes."""
    cotangents = model._cotangents(program, params, data, output_gradients)
    return {name: model._cotangent(program, name, value, data) for name, value in cotangents.items()}


def communicator(model: PhysicalModel) -> Processes | None:
    """Return what connects this process with the others that run a model; None if there are none."""
    layout = model._settings.layout
    return None if layout is None else model.backend.engine.communicator(layout)


def distributed(model: PhysicalModel, params: Mapping[str, Any], data: Mapping[str, Any], loss: str) -> dict[str, Any]:
    """Return parameters of which each device keeps its part, where a layout divides them, to minimize an output."""
    if model._settings.layout is None:
        return dict(params)
    program, data = model._prepare(params, data)
    return program.module.distribute(params, data, ((loss,), program.float_params))  # type: ignore[no-any-return]


def state_for(model: PhysicalModel, params: Any) -> dict[str, Any]:
    """Return the state that goes with parameters."""
    return model._state_for(params)


def next_state(model: PhysicalModel, program: Program, params: Any) -> dict[str, Any]:
    """Return the state of the next call, with a fresh key of its random numbers."""
    return model._next_state(program, params)


def update_state(model: PhysicalModel, values: Mapping[str, Any]) -> None:
    """Write entries of the state, as Mithril does; what users assign to `PhysicalModel.state` is told apart."""
    model._update_state(values)


def saved_state(model: PhysicalModel) -> tuple[dict[str, Any], ...]:
    """Return the state, and what is known about it, for `restore_state`."""
    return model._saved_state()


def restore_state(model: PhysicalModel, saved: tuple[dict[str, Any], ...]) -> None:
    """Let a model have a state that `saved_state` returned, of it or of a model like it."""
    model._restore_state(saved)


def has_user_state(model: PhysicalModel) -> bool:
    """Whether the user has set statistics in the state."""
    return bool(model._set_by_user())


def state_lock(model: PhysicalModel) -> threading.RLock:
    """Return the lock that is held while the state or the parameters of a model are replaced."""
    return model._lock


def has_own_statistics(model: PhysicalModel, params: Any) -> bool:
    """Whether parameters bring running statistics along that differ from those of the model."""
    return model._held(params)


def stored_parameters(model: PhysicalModel) -> Parameters | None:
    """Return the parameters that belong to a model; None before they are drawn or loaded."""
    return model._store


def share_parameters(source: PhysicalModel, target: PhysicalModel) -> None:
    """Let a model have the parameters of another one, and a copy of its state."""
    target._store = source._store
    target._restore_state(source._saved_state())


def recompiled(
    model: PhysicalModel, backend: Backend | None = None, logical: _core.Model | None = None, **options: Any
) -> PhysicalModel:
    """Compile a model again, as it was, for another backend, with other options, or from a changed logical model."""
    known = {**model._options, "tolerated": tuple(model._tolerated), **options}
    backend = model.backend if backend is None else backend
    return type(model)(model._model if logical is None else logical, backend, known, model._settings)
