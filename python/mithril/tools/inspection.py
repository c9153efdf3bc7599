"""Looking inside compiled models: their nodes, all their values, and compiling without generating anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _core
from ..backends.backend import Backend
from ..backends.numpy_engine import NumpyEngine
from ..backends.with_manualgrad.numpy_backend import NumpyBackend
from ..compiled import internals
from ..compiled.compile import compile
from ..compiled.compile_stats import CompileStats
from ..compiled.program import Program, Settings
from ..compiled.trainable import check_trainable
from ..errors import InvalidValueError, KeyNotFoundError, UnresolvedShapeError
from ..optim import internals as optimizers
from ..optim.optimizer import Optimizer

__all__ = ["Node", "Value", "compiled", "data_names", "gradient_names", "make_program", "minimized", "nodes", "run"]


@dataclass(frozen=True)
class Value:
    """A tensor that goes into a node or comes out of it.

    Attributes
    ----------
    position : int
        Which value of the graph it is.
    name : str or None
        Name or path in the model.
    role : str
        ``"value"``, computed by a node, or what an input is for: ``"param"``, ``"data"``, ``"state"``.
    dtype : str
        Known of results only.
    port : int
        Which input or output of the node it is.
    """

    position: int
    name: str | None
    role: str
    dtype: str
    port: int


@dataclass(frozen=True)
class Node:
    """A use of an op.

    Attributes
    ----------
    number : int
        Position in the order of evaluation.
    op : str
        Name of the op.
    dtype : str or None
        Dtype of its first tensor.
    path : str or None
        Path in the model.
    where : str or None
        The user's line.
    tolerance : str
        Class of its errors, see docs/tolerances.md.
    primitive : bool
        Whether it is not made of other ops.
    inputs : tuple of Value
        Its tensors; literals are in ``literals``.
    literals : dict
        Its other arguments by name.
    outputs : tuple of Value
        Its results.
    """

    number: int
    op: str
    dtype: str | None
    path: str | None
    where: str | None
    tolerance: str
    primitive: bool
    inputs: tuple[Value, ...]
    literals: dict[str, Any]
    outputs: tuple[Value, ...]

    @property
    def place(self) -> str:
        """Path in the model and the user's line, as far as known."""
        path = f"in `{self.path}`" if self.path else ""
        return " ".join(part for part in (path, f"at {self.where}" if self.where else "") if part)


def nodes(core: _core.Compiled) -> list[Node]:
    """All nodes in the order of evaluation."""
    result = []
    for number, row in enumerate(_core.nodes(core)):
        inputs = tuple(Value(position, name, role, "", port) for port, position, name, role in row["inputs"])
        outputs = tuple(
            Value(position, name, "value", dtype, port)
            for port, (position, name, dtype, _) in enumerate(row["outputs"])
        )
        facts = {key: row[key] for key in ("op", "dtype", "path", "where", "tolerance", "primitive", "literals")}
        result.append(Node(number=number, inputs=inputs, outputs=outputs, **facts))
    return result


def make_program(core: _core.Compiled, backend: Backend) -> Program:
    """Load a program on a backend, not compiled further, with the backend's own gradients."""
    return Program(core, backend, Settings(autodiff=backend.engine.autodiff[0]), CompileStats())


def run(
    core: _core.Compiled, backend: Backend, params: Mapping[str, Any], data: Mapping[str, Any], state: Mapping[str, Any]
) -> dict[int, np.ndarray[Any, Any]]:
    """Evaluate a program on a backend and keep every value, inputs too, as NumPy arrays by position."""
    program = make_program(_core.exposed(core), backend)
    result = program.run(program.module, program.evaluate, params, data, state)
    outputs = result[0] if program.updates else result
    arrays = {int(name): np.asarray(backend.to_numpy(value)) for name, value in outputs.items()}
    groups = {"param": params, "data": data, "state": state}
    for node in nodes(core):
        for value in node.inputs:
            if value.role in groups and value.position not in arrays:
                arrays[value.position] = np.asarray(backend.to_numpy(groups[value.role][value.name or ""]))
    return arrays


class _UnwrittenEngine(NumpyEngine):
    """The engine of such a backend."""

    autodiff: Any = ()

    def __init__(self, backend: Backend, autodiff: tuple[str, ...]) -> None:
        super().__init__(backend)
        self.autodiff = autodiff

    def load(self, core: _core.Compiled) -> Any:
        return None

    def evaluator(self, program: Program) -> Any:
        return None

    def report_fallbacks(self, module: Any, told: set[str], strict: bool) -> None:
        """Report nothing: there is no module."""


class _Unwritten(NumpyBackend):
    """A backend for which a model is compiled up to where source would be written."""

    def __init__(self, like: Backend) -> None:
        self.__dict__.update(like.__getstate__())
        vars(self)["target"] = like.target
        vars(self)["engine"] = _UnwrittenEngine(self, like.engine.autodiff)


def compiled(model: _core.Model, backend: Backend, **options: Any) -> _core.Compiled:
    """Compile a model for a backend as far as no source is needed."""
    physical = compile(model, _Unwritten(backend), **options)
    program = internals.current_program(physical)
    if program is None:
        names = ", ".join(f"{name!r}: [...]" for name in physical.input_keys)
        raise UnresolvedShapeError("the shapes of the inputs are not known", hint=f"pass shapes={{{names}}}")
    return program.core


def data_names(model: _core.Model, backend: Backend, **options: Any) -> tuple[str, ...]:
    """Return the names of the data inputs, whose shapes need not be known."""
    return compile(model, _Unwritten(backend), **options).input_keys


def gradient_names(core: _core.Compiled) -> tuple[list[str], list[str]]:
    """Float outputs, and the float parameters that they are differentiated by."""
    outputs = [name for name in core.output_names if "float" in core.output_type(name)[0]]
    return outputs, list(core.trained)


def minimized(core: _core.Compiled, optimizer: Optimizer, loss: str | None) -> tuple[str, list[str]]:
    """Return the output that an exported training step minimizes, and the parameters that it changes."""
    outputs, names = gradient_names(core)
    if not outputs:
        raise InvalidValueError(
            f"the model has no output of floats to minimize: its outputs are {', '.join(core.output_names)}",
            hint="add a loss to the model",
        )
    if loss is None and len(outputs) != 1:
        raise InvalidValueError(f"the model has {len(outputs)} outputs", hint="say which is minimized: loss='...'")
    name = outputs[0] if loss is None else loss
    if name not in outputs:
        raise KeyNotFoundError(f"there is no output {name!r}", hint=f"available: {', '.join(outputs)}")
    trained = list(optimizers.trained_names(optimizer, names))
    check_trainable([name for name, _, _ in core.inputs("param")], trained)
    return name, trained
