"""A program that is divided over a mesh, in the place of a loaded module."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidValueError, PartitionWarning, UnresolvedShapeError
from .mesh_engine import Division
from .pipeline_engine import PipelineEngine

if TYPE_CHECKING:
    from .. import _core
    from .mesh_engine import MeshEngine

__all__ = ["DividedProgram"]


class DividedProgram:
    """Functions of a program that run on all devices of a mesh.

    Each device has to know how large its part is: where sizes of the data are open, programs are made for those that
    come.
    """

    def __init__(self, core: _core.Compiled, engine: MeshEngine) -> None:
        self._core = core.with_layout(engine.layout_argument)
        self._engine = engine
        self._names = [name for name, _, _ in core.inputs("data")]
        self._is_open = not all(isinstance(size, int) for _, _, shape in core.inputs("data") for size in shape)
        self._loaded: dict[Any, tuple[Any, Callable[..., Any]]] = {}
        if not self._is_open:
            self._find({}, None)

    def _find(self, data: Mapping[str, Any], gradients: Any) -> Callable[..., Any]:
        return self._found(data, gradients)[1]

    def _found(self, data: Mapping[str, Any], gradients: Any) -> tuple[Any, Callable[..., Any]]:
        """Return the module of a program, and the function."""
        shapes = {name: tuple(data[name].shape) for name in self._names} if self._is_open else {}
        key = (*shapes.values(), gradients)
        program = self._loaded.get(key)
        if program is None:
            try:
                loaded = self._load(self._specialized(shapes), gradients)
            except InvalidValueError as error:
                if not self._engine.layout.data_axes:
                    raise
                # The rest of the data, after batches that divided.
                loaded = self._uneven(shapes, gradients, error)
            program = self._loaded[key] = loaded
        return program

    def _specialized(self, shapes: dict[str, tuple[int, ...]]) -> _core.Compiled:
        core: _core.Compiled = self._core.specialize(shapes) if shapes else self._core
        return core

    def _uneven(
        self, shapes: dict[str, tuple[int, ...]], gradients: Any, error: InvalidValueError
    ) -> tuple[Any, Callable[..., Any]]:
        """Load a program for a batch that does not divide: one for a larger batch, if that gives the same."""
        try:
            core, names, batch, examples = self._specialized(shapes).padded()
            module, function = self._load(core, gradients)
        except InvalidValueError as reason:
            if not shapes:
                raise error from reason
            message = f"{error.message}, and cannot be padded ({reason.message}): every device computes the whole batch"
            warnings.warn(message, PartitionWarning, stacklevel=3)
            return self._load(self._with_whole_batch(shapes), gradients)
        # The last example again: what a model computes of it is finite, as it is of the others.
        order = np.minimum(np.arange(examples), batch - 1)
        taken = self._engine.backend.engine.taken

        def call(params: Any, data: Any, *rest: Any) -> Any:
            return function(params, {**data, **{name: taken(data[name], order, 0) for name in names}}, *rest)

        return module, call

    def _with_whole_batch(self, shapes: dict[str, tuple[int, ...]]) -> _core.Compiled:
        layout = self._engine.layout.with_whole_batch()
        argument = layout.argument(sections=self._engine.divides_sections)
        core: _core.Compiled = self._specialized(shapes).with_layout(argument)
        return core

    def _load(self, core: _core.Compiled, gradients: Any) -> tuple[Any, Callable[..., Any]]:
        if gradients is None:
            return self._engine.evaluator(core)
        return self._engine.differentiator(core, *map(list, gradients))

    def function(self, name: str) -> Callable[..., Any]:
        """Return ``evaluate(params, data, state)``."""
        return lambda params, data, state: self._find(data, None)(params, data, state)

    def gradients(self, outputs: tuple[str, ...], inputs: tuple[str, ...]) -> Callable[..., Any]:
        """Return ``evaluate_gradients(params, data, state, cotangents)``."""

        def evaluate_gradients(params: Any, data: Any, state: Any, cotangents: Any) -> Any:
            return self._find(data, (outputs, inputs))(params, data, state, cotangents)

        return evaluate_gradients

    def distribute(
        self, params: Mapping[str, Any], data: Mapping[str, Any], gradients: tuple[tuple[str, ...], tuple[str, ...]]
    ) -> dict[str, Any]:
        """Return parameters of which each device keeps its part, as this program takes them.

        ``gradients`` are the names of outputs and of parameters: stages of a pipeline keep what they compute those of.
        """
        engine = self._engine
        if isinstance(engine, PipelineEngine):
            homes = self._found(data, gradients)[0].homes()
            return {
                name: engine.distribute_to(array, *homes[name]) if name in homes else array
                for name, array in params.items()
            }
        shapes = {name: tuple(data[name].shape) for name in self._names} if self._is_open else {}
        specs = Division(self._with_whole_batch(shapes).partition(None), engine.layout).arguments[0]
        return {name: engine.distribute(array, specs.get(name, ())) for name, array in params.items()}

    @property
    def source(self) -> Any:
        """Source of the program of each device."""
        for key, (module, _) in self._loaded.items():
            if key[-1] is None:
                return module.source
        raise UnresolvedShapeError(
            "the sizes of the data are not known yet, and so those of each device are not",
            hint="pass shapes={'input': [...]} with numbers to compile, or call evaluate once",
        )

    def explain(self, error: BaseException) -> Any:
        """Make an error of ours of one that generated code raised; None if it came from elsewhere."""
        explained = (module.explain(error) for module, _ in self._loaded.values())
        return next((mithril_error for mithril_error in explained if mithril_error is not None), None)
