"""What is true: every op of a program evaluated in double precision, and how far a result may be from that.

The error of a result is measured in units of the epsilon of its dtype, relative to its largest element. What an op
may be off by is its class of docs/tolerances.md. Where the result is small because its inputs cancel, the op is
evaluated again on inputs that are moved by their own rounding: an error like the change that follows is rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _core
from ..backends.backend import Backend
from ..backends.with_manualgrad.interpreter_backend import InterpreterBackend
from ..backends.with_manualgrad.numpy_backend import NumpyBackend
from ..compiled.program import Program
from ..errors import UnsupportedOpError
from ..testing.backend_tests import EPSILON, UNITS
from .inspection import Node, make_program

__all__ = ["GRADIENT_UNITS", "OPAQUE", "Error", "Oracle", "off"]

#: Ops that call functions of the host program: nobody knows what they compute.
OPAQUE = ("host_call",)

#: Units that gradients may be off by.
GRADIENT_UNITS = 64.0
#: Units that a composite may be off by beside its class: it is rounded once per op that it expands to.
_COMPOSITE = 4.0
#: How often rounding of the inputs may show in the result.
_AMPLIFIED = 8.0
#: Smallest normal numbers; results may be flushed to zero below, but for float16.
_SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-119, "float32": 2.0**-103, "float64": 2.0**-970}

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Error:
    """How far something is from the truth, and how far it may be, in units of epsilon."""

    units: float
    allowed: float

    @property
    def is_rounding(self) -> bool:
        """Whether it is within its bound."""
        return self.units <= self.allowed


def off(actual: Array, truth: Array, dtype: str) -> float:
    """Error of an array in units of the epsilon of ``dtype``; infinite where NaN, infinities or integers differ.

    Examples
    --------
    >>> import numpy as np
    >>> off(np.array([1.0, 2.0 + 2.0**-22]), np.array([1.0, 2.0]), "float32")
    1.0
    """
    if actual.shape != truth.shape:
        return np.inf
    if dtype not in EPSILON:
        return 0.0 if np.array_equal(actual, truth) else np.inf
    a = actual.astype(np.float64)
    b = _round_range(truth.astype(np.float64), dtype)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return np.inf
    if not finite.any():
        return 0.0
    scale = max(float(np.abs(b[finite]).max()), _SMALLEST[dtype])
    return float(np.abs(a[finite] - b[finite]).max()) / scale / EPSILON[dtype]


def _round_range(truth: Array, dtype: str) -> Array:
    """Infinities in the place of what the dtype cannot hold."""
    largest = {"float16": 65520.0, "bfloat16": 3.39615e38, "float32": 3.4028235677973366e38}.get(dtype)
    if largest is None:
        return truth
    return np.where(np.abs(truth) >= largest, np.copysign(np.inf, truth), truth)


class Oracle:
    """Evaluates the ops of a program in double precision.

    Parameters
    ----------
    core : Compiled
        The program.
    cache : dict
        Programs of ops by their text, shared between oracles.
    """

    def __init__(self, core: _core.Compiled, cache: dict[Any, Program]) -> None:
        self._core = core
        self._cache = cache

    def truth(self, node: Node, inputs: Sequence[Array]) -> list[Array]:
        """Results of a node on inputs."""
        # Numbers drawn in one precision are not those of another.
        is_wide = node.tolerance != "Random" or any("float" in x.dtype.name for x in inputs)
        program = self._single(node, is_wide)
        params, data = _arguments(program, node, inputs)
        results = program.evaluate(params, data, {})
        return [np.asarray(results[f"y{i}"]) for i in range(len(node.outputs))]

    def local(self, node: Node, values: Mapping[int, Array], position: int) -> Error:
        """Error of a value against the node that makes it, applied to the node's own inputs."""
        if node.op in OPAQUE:
            return Error(0.0, np.inf)
        output = next(value for value in node.outputs if value.position == position)
        inputs = [values[value.position] for value in node.inputs]
        actual = values[position]
        allowed = UNITS[node.tolerance] + (0.0 if node.primitive or node.tolerance == "Exact" else _COMPOSITE)
        # What drawing is made of may be one unit off in the oracle, too.
        truth = self.truth(node, inputs)[output.port]
        units = off(actual, truth, output.dtype)
        if units <= allowed or actual.shape != truth.shape:
            return Error(units, allowed)
        moved = (self.truth(node, _moved(inputs, seed))[output.port] for seed in range(2))
        return _judge(actual, truth, moved, output.dtype, allowed)

    def chain(self, nodes: Sequence[Node], known: Mapping[int, Array], noise: int | None = None) -> dict[int, Array]:
        """All values of the program in double precision; with ``noise``, rounded at random after each op.

        Inputs, and what nobody knows how to compute, are taken from what was found.
        """
        computed = {value.position for node in nodes for value in node.outputs if node.op not in OPAQUE}
        values = {position: _widened(array) for position, array in known.items() if position not in computed}
        for node in nodes:
            if node.op in OPAQUE:
                continue
            results = self.truth(node, [values[value.position] for value in node.inputs])
            for value, result in zip(node.outputs, results, strict=True):
                if noise is not None and value.dtype in EPSILON:
                    units = max(UNITS[node.tolerance], 1.0) / 2
                    [result] = _moved([result], noise + value.position, units * EPSILON[value.dtype])
                values[value.position] = result
        return values

    def gradients(self, node: Node, backend: Backend, values: Mapping[int, Array]) -> dict[int, Error]:
        """Errors of a backend's own gradients of a node, by the position of the input; cotangents are random."""
        inputs = [values[value.position] for value in node.inputs]
        floats = [i for i, x in enumerate(inputs) if "float" in x.dtype.name]
        outputs = {f"y{value.port}": value for value in node.outputs if "float" in value.dtype}
        if not floats or not outputs or node.op in OPAQUE:
            return {}
        core = _core.single(self._core, node.number, False)
        program = make_program(core, backend)
        results = self.truth(node, inputs)
        random = np.random.default_rng(node.number)
        cotangents = {
            name: _rounded(np.asarray(random.standard_normal(results[value.port].shape)), value.dtype)
            for name, value in outputs.items()
        }

        def differentiate(program: Program, inputs: Sequence[Array]) -> list[Array]:
            own = program.backend
            params, data = _arguments(program, node, inputs)
            seeds = {name: own.tensor(array, core_dtype(program, name)) for name, array in cotangents.items()}
            _, by_name = program.gradient(tuple(outputs))[1](params, data, {}, seeds)[:2]
            return [np.asarray(own.to_numpy(by_name[f"x{node.inputs[i].port}"])) for i in floats]

        wide = self._single(node, True)
        actual = differentiate(program, inputs)
        truths = differentiate(wide, inputs)
        moved = [differentiate(wide, _moved(inputs, seed)) for seed in range(2)]
        errors = {}
        for at, i in enumerate(floats):
            dtype = inputs[i].dtype.name
            error = _judge(actual[at], truths[at], (m[at] for m in moved), dtype, GRADIENT_UNITS)
            errors[node.inputs[i].position] = error
        return errors

    def _single(self, node: Node, is_wide: bool) -> Program:
        core = _core.single(self._core, node.number, is_wide)
        key = _core.graph_text(core)
        if key not in self._cache:
            dtype = "float64" if is_wide else "float32"
            try:
                self._cache[key] = make_program(core, NumpyBackend(dtype=dtype))
            except UnsupportedOpError:
                self._cache[key] = make_program(core, InterpreterBackend(dtype=dtype))
        return self._cache[key]


def core_dtype(program: Program, output: str) -> str:
    """Dtype of an output of a program."""
    return str(program.core.output_type(output)[0])


def _arguments(program: Program, node: Node, inputs: Sequence[Array]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give the inputs of a program of one node as arrays of its backend."""
    by_name = {f"x{value.port}": array for value, array in zip(node.inputs, inputs, strict=True)}
    backend = program.backend
    params = {name: backend.tensor(by_name[name], dtype) for name, dtype, _ in program.params}
    data = {name: backend.tensor(by_name[name], dtype) for name, dtype, _ in program.data}
    return params, data


def _judge(actual: Array, truth: Array, moved: Any, dtype: str, allowed: float) -> Error:
    """Error, with what rounding of the inputs may amount to added to what is allowed."""
    units = off(actual, truth, dtype)
    if units <= allowed:
        return Error(units, allowed)
    if dtype in EPSILON and np.isfinite(units):
        change = max(off(other, truth, dtype) for other in moved)
        return Error(units, allowed + _AMPLIFIED * change if np.isfinite(change) else np.inf)
    # Where integers change with the rounding of the inputs, so they may here.
    changed: Array = np.any([_differ(other, truth) for other in moved], axis=0)
    many = int(_differ(actual, truth).sum())
    return Error(units, np.inf if many <= _AMPLIFIED * int(changed.sum()) else allowed)


def _differ(a: Array, b: Array) -> Array:
    same: Array = (a == b) | ((a != a) & (b != b))
    return ~same


def _moved(arrays: Sequence[Array], seed: int, size: float | None = None) -> list[Array]:
    """Arrays whose floats are changed by a rounding each, up or down at random."""
    random = np.random.default_rng(seed)
    results = []
    for array in arrays:
        if array.dtype.name in EPSILON:
            step = EPSILON[array.dtype.name] if size is None else size
            wide = array.astype(np.float64)
            array = wide * (1 + step * random.choice([-1.0, 1.0], array.shape))
        results.append(array)
    return results


def _rounded(array: Array, dtype: str) -> Array:
    """Values that the dtype can hold."""
    if dtype == "bfloat16":
        bits: Array = array.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        return bits.view(np.float32)
    return array.astype(dtype)


def _widened(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.name in EPSILON else array
