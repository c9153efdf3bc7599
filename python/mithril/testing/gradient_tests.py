"""Gradients of ops on a backend against those of the interpreter in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _core
from ..backends.backend import Backend
from ..backends.with_manualgrad.interpreter_backend import InterpreterBackend
from ..compiled.compile import compile
from ..errors import MithrilError
from .cases import Case

__all__ = ["gradient_problems"]

#: Units of the dtype's epsilon that a gradient may be off by, of the largest element; see docs/tolerances.md.
UNITS = 64


def gradient_problems(backend: Backend, case: Case, autodiff: str, epsilon: float) -> Callable[[], str | None] | None:
    """Make the test of the gradients of a use of an op by its float tensors; None if it has none."""
    wide = [a.astype(np.float64) if _is_float(a) else a for a in case.args]
    try:
        reference = InterpreterBackend(dtype="float64")
        expected = _gradients(reference, case.op, wide, "graph")
    except (MithrilError, _NoGradientError):
        # An op without gradients, or one that takes no float64.
        return None

    def test() -> str | None:
        actual = _gradients(backend, case.op, list(case.args), autodiff)
        for name, exact in expected.items():
            problem = _compare(np.asarray(backend.to_numpy(actual[name])), exact, epsilon)
            if problem:
                return f"by {name}: {problem}"
        return None

    return test


class _NoGradientError(Exception):
    """The op has no float result, or none that depends on a float."""


def _is_float(arg: Any) -> bool:
    return isinstance(arg, np.ndarray) and "float" in arg.dtype.name


def _gradients(backend: Backend, op: str, args: list[Any], autodiff: str) -> dict[str, Any]:
    """Gradients of an op by its float tensors, for cotangents that do not depend on the backend."""
    inputs: list[Any] = []
    arrays: dict[str, Any] = {}
    for i, arg in enumerate(args):
        if not isinstance(arg, np.ndarray):
            inputs.append(arg)
            continue
        name = f"x{i}"
        inputs.append(_core.Connection.input(name, list(arg.shape), arg.dtype.name))
        arrays[name] = arg
    result = _core.apply_op(op, inputs)
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    model = _core.Model.create(**{f"y{i}": output for i, output in enumerate(outputs)})
    floats = [name for name, arg in arrays.items() if _is_float(arg)]
    compiled = compile(model, backend, trainable_keys=floats, autodiff=autodiff, strict=True)
    params = {name: backend.tensor(arrays[name], arrays[name].dtype.name) for name in floats}
    data = {name: backend.tensor(arg, arg.dtype.name) for name, arg in arrays.items() if name not in floats}
    values = compiled.evaluate(params, data)
    cotangents = {}
    for i, name in enumerate(sorted(values)):
        value = np.asarray(backend.to_numpy(values[name]))
        if "float" in value.dtype.name:
            # Exactly representable in every float dtype.
            random = np.random.default_rng(i).integers(-8, 9, value.shape) / 8
            cotangents[name] = backend.tensor(random.astype(value.dtype), value.dtype.name)
    if not cotangents:
        raise _NoGradientError
    gradients: dict[str, Any] = compiled.evaluate(params, data, cotangents)[1]
    return gradients


def _compare(result: Any, exact: Any, epsilon: float) -> str | None:
    if result.shape != exact.shape:
        return f"shape {list(result.shape)}, not {list(exact.shape)}"
    a, b = result.astype(np.float64), np.asarray(exact, np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return "other infinite or NaN elements"
    finite = np.isfinite(b)
    if not finite.any():
        return None
    error = np.abs(a[finite] - b[finite]).max() / max(np.abs(b[finite]).max(), 1.0) / epsilon
    return None if error <= UNITS else f"{error:.0f} epsilon off, {UNITS} are allowed"
