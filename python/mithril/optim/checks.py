"""What users give to optimizers is checked here, before anything is changed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import InvalidValueError, ParameterError

__all__ = ["between", "check_arrays", "check_mapping"]


def between(name: str, value: Any, low: float, high: float | None = None) -> None:
    """Refuse what is no finite number from ``low`` on, and below ``high``."""
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not number or not np.isfinite(value) or value < low or (high is not None and value >= high):
        span = f"from {low:g} on" if high is None else f"from {low:g} to below {high:g}"
        raise InvalidValueError(f"{name} is {value!r}", hint=f"give a number {span}")


def check_mapping(label: str, given: Any) -> None:
    """Refuse what is no dict of arrays."""
    if not isinstance(given, Mapping):
        raise ParameterError(f"{label} is a {type(given).__name__}", hint="pass a dict of arrays by name")


def check_arrays(params: Mapping[str, Any], gradients: Mapping[str, Any]) -> None:
    """Refuse gradients that do not fit the parameters."""
    check_mapping("params", params)
    check_mapping("gradients", gradients)
    for name, gradient in gradients.items():
        if name not in params:
            near = difflib.get_close_matches(str(name), params, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "the order is update(params, gradients)"
            raise ParameterError(f"there is a gradient of {name!r}, which is no parameter", hint=hint)
        param = params[name]
        shapes = [list(getattr(array, "shape", ())) for array in (param, gradient)]
        # Broadcasting would make the parameter larger, without a word.
        if shapes[0] != shapes[1]:
            raise ParameterError(f"parameter {name!r} has shape {shapes[0]}, its gradient {shapes[1]}")
        kinds = [isinstance(array, (np.ndarray, np.generic)) for array in (param, gradient)]
        if kinds[0] != kinds[1]:
            raise ParameterError(
                f"parameter {name!r} is a {type(param).__name__}, its gradient a {type(gradient).__name__}",
                hint="both come from one backend; see ml.transfer",
            )
