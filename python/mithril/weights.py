"""Weights from elsewhere: arrays moved between backends, and dicts of arrays checked against a compiled model."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .backends.backend import Backend
from .errors import InvalidValueError, MithrilError, ParameterError

if TYPE_CHECKING:
    from .physical import PhysicalModel

__all__ = ["read", "transfer"]


def transfer(params: Any, to: Backend) -> Any:
    """Copy arrays to another backend.

    Parameters
    ----------
    params : mapping or array
        Name to array, of any backend or of NumPy; or one array.
    to : Backend
        Where they go. Floats become its dtype, as with `Backend.array`.

    Returns
    -------
    dict or array
        The same, as arrays of that backend.

    Examples
    --------
    >>> import mithril as ml
    >>> params = {"weight": ml.NumpyBackend().ones(2)}
    >>> ml.transfer(params, to=ml.NumpyBackend(dtype="float64"))
    {'weight': array([1., 1.])}
    """
    if not isinstance(to, Backend):
        raise InvalidValueError(f"parameters go to a backend, not a {_kind(to)}", hint="pass e.g. to=ml.NumpyBackend()")
    if isinstance(params, Mapping):
        return {name: _copy(f"parameter {name!r}", value, to, None) for name, value in params.items()}
    return _copy("the array", params, to, None)


def read(model: PhysicalModel, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check a dict of weights against a compiled model and copy them to its backend.

    Parameters
    ----------
    model : PhysicalModel
        Says which names, shapes and dtypes are wanted.
    given : mapping
        Name to array of any kind: every parameter, and as much of the state as is known.

    Returns
    -------
    (dict, dict)
        Parameters and state.
    """
    if not isinstance(given, Mapping):
        raise ParameterError(f"params is a {_kind(given)}", hint="pass a dict of arrays by name")
    groups = {role: model._names[role] for role in ("param", "state")}
    known = {name for names in groups.values() for name in names}
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "leave it out"
            raise ParameterError(f"params holds {name!r}, which is not in the model", hint=hint)
    absent = [name for name in groups["param"] if name not in given]
    if absent:
        more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        raise ParameterError(f"params lacks {', '.join(map(repr, absent[:5]))}{more}", hint="add it to params")
    program = model._current
    types = {} if program is None else {n: (d, s) for n, d, s in (*program.params, *program.state)}

    def take(name: str) -> Any:
        dtype, shape = types.get(name, (None, None))
        found = _copy(f"parameter {name!r}", given[name], model.backend, dtype)
        if shape is not None and tuple(found.shape) != tuple(shape):
            raise ParameterError(
                f"parameter {name!r} has shape {list(found.shape)}, but has to be {list(shape)}",
                hint="check which model it comes from",
            )
        return found

    params, state = ({name: take(name) for name in names if name in given} for names in groups.values())
    return params, state


def _copy(label: str, value: Any, to: Backend, dtype: str | None) -> Any:
    try:
        return to.array(value, dtype)
    except (TypeError, ValueError) as error:
        reason = error.message if isinstance(error, MithrilError) else error
        raise ParameterError(f"{label} is no array: {reason}", hint="pass an array of numbers") from error


def _kind(value: object) -> str:
    return value.__name__ if isinstance(value, type) else type(value).__name__
