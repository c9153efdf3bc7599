"""Parameters from elsewhere, checked against a compiled model and taken over by it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import MithrilError, ParameterError, UnusedKeyWarning
from ..quantization.parameters import QuantizedArray
from ..suggestions import did_you_mean
from .parameters import Parameters

if TYPE_CHECKING:
    from ..backends.backend import Backend
    from .physical_model import PhysicalModel

__all__ = ["read", "store"]


def read(model: PhysicalModel, arrays: Mapping[str, Any], strict: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check a dict of weights against a compiled model and copy them to its backend.

    Parameters
    ----------
    model : PhysicalModel
        Says which names, shapes and dtypes are wanted.
    arrays : mapping
        Name to array of any kind: every parameter, and the running statistics.
    strict : bool, optional
        Whether everything must be there, and nothing else.

    Returns
    -------
    (dict, dict)
        Parameters and state.
    """
    if not isinstance(arrays, Mapping):
        raise ParameterError(f"params is a {type(arrays).__name__}", hint="pass a dict of arrays by name")
    groups = {role: model._names[role] for role in ("param", "state")}
    known = {name for names in groups.values() for name in names}
    unknown = [name for name in arrays if name not in known and name not in model._names["unneeded"]]
    if unknown and (strict or not known & arrays.keys()):
        hint = did_you_mean(unknown[0], known, "leave it out")
        raise ParameterError(f"params holds {unknown[0]!r}, which is not in the model", hint=hint)
    if unknown:
        shown = ", ".join(map(repr, unknown[:5])) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        warnings.warn(f"params holds {shown}, which the model does not have", UnusedKeyWarning, stacklevel=4)
    # Statistics that were measured or loaded before may stay.
    lacking = model._lacks_statistics()
    absent = [name for name in (*groups["param"], *lacking) if name not in arrays]
    if absent and strict:
        more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        raise ParameterError(
            f"params lacks {', '.join(map(repr, absent[:5]))}{more}",
            hint="add it to params; with strict=False, what is missing stays as it is",
        )
    program = model._current
    types = {} if program is None else {n: (d, s) for n, d, s in (*program.params, *program.state)}

    keeps_blocks = not model._options["training"] and model.backend.engine.reads_blocks

    def take(name: str) -> Any:
        dtype, shape = types.get(name, (None, None))
        is_kept = keeps_blocks and isinstance(arrays[name], QuantizedArray)
        array = arrays[name] if is_kept else converted(f"parameter {name!r}", arrays[name], model.backend, dtype)
        if shape is not None and tuple(array.shape) != tuple(shape):
            raise ParameterError(
                f"parameter {name!r} has shape {list(array.shape)}, but must be {list(shape)}",
                hint="check which model it comes from",
            )
        return array

    params, state = ({name: take(name) for name in names if name in arrays} for names in groups.values())
    return params, state


def store(model: PhysicalModel, params: Mapping[str, Any], state: Mapping[str, Any]) -> Parameters:
    """Make arrays of its backend the parameters and the state of a model; what is missing stays, or is drawn."""
    with model._lock:
        parameters = model._store if model._store is not None else model._parameters(None, model)
        parameters._link(model)
        parameters.update(params)
        program = model._current
        absent = [name for name in model._names["param"] if not dict.__contains__(parameters, name)]
        if not absent:
            parameters._resolve({})
        elif program is not None and not parameters._resolved:
            fresh = program.core.initial(absent, model.backend.engine.seed)
            types = {name: dtype for name, dtype, _ in program.params}
            parameters._resolve({name: model.backend.tensor(fresh[name], types[name]) for name in absent})
        model._store = parameters
        model._update_state(state)
        return parameters


def converted(label: str, value: Any, to: Backend, dtype: str | None) -> Any:
    try:
        return to.array(value, dtype)
    except (TypeError, ValueError) as error:
        reason = error.message if isinstance(error, MithrilError) else error
        raise ParameterError(f"{label} is not an array: {reason}", hint="pass an array of numbers") from error
