"""What users give to optimizers is checked here, before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import InvalidValueError, ParameterError
from ..parallel.divided_array import DividedArray
from ..suggestions import did_you_mean

__all__ = ["between", "check_arrays", "check_mapping", "check_switch", "positive", "whole"]


def between(name: str, value: Any, low: float, high: float | None = None) -> None:
    """Refuse what is not a finite number from ``low`` on, and below ``high``."""
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not number or not np.isfinite(value) or value < low or (high is not None and value >= high):
        span = f"of at least {low:g}" if high is None else f"of at least {low:g} and less than {high:g}"
        raise InvalidValueError(f"{name} is {value!r}", hint=f"give a number {span}")


def positive(name: str, value: Any) -> None:
    """Refuse what is not a finite number above 0."""
    between(name, value, 0.0)
    if value == 0:
        raise InvalidValueError(f"{name} is {value!r}", hint="give a number above 0")


def whole(name: str, value: Any, low: int) -> int:
    """Return an integer; refuse what is none, or less than ``low``."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < low:
        raise InvalidValueError(f"{name} is {value!r}", hint=f"give an integer of at least {low}")
    return int(value)


def check_switch(name: str, value: Any) -> None:
    """Refuse what is neither a boolean nor None."""
    if value is not None and not isinstance(value, (bool, np.bool_)):
        raise InvalidValueError(f"{name} is {value!r}", hint="give True or False")


def check_mapping(label: str, value: Any) -> None:
    """Refuse what is not a dict of arrays."""
    if not isinstance(value, Mapping):
        raise ParameterError(f"{label} is a {type(value).__name__}", hint="pass a dict of arrays by name")


def check_arrays(params: Mapping[str, Any], gradients: Mapping[str, Any]) -> None:
    """Refuse gradients that do not fit the parameters."""
    check_mapping("params", params)
    check_mapping("gradients", gradients)
    for name, gradient in gradients.items():
        if name not in params:
            hint = did_you_mean(name, params, "the order is update(params, gradients)")
            raise ParameterError(f"there is a gradient of {name!r}, which is not a parameter", hint=hint)
        param = params[name]
        for label, array in (("", param), ("the gradient of ", gradient)):
            if not hasattr(array, "shape") or not hasattr(array, "dtype"):
                raise ParameterError(
                    f"{label}parameter {name!r} is a {type(array).__name__}", hint="pass arrays: backend.array(...)"
                )
        # Broadcasting would make the parameter larger, without a word.
        if tuple(param.shape) != tuple(gradient.shape):
            raise ParameterError(
                f"parameter {name!r} has shape {list(param.shape)}, its gradient {list(gradient.shape)}"
            )
        if type(param) is not type(gradient) and _package(param) != _package(gradient):
            raise ParameterError(
                f"parameter {name!r} is a {_kind(param)}, its gradient a {_kind(gradient)}",
                hint="both come from one backend; see ml.transfer",
            )


def _package(array: Any) -> str:
    kind = array.backend.engine.array_type if isinstance(array, DividedArray) else type(array)
    return str(kind.__module__.partition(".")[0].removesuffix("lib"))


def _kind(array: Any) -> str:
    return f"{_package(array)} {type(array).__name__}"
