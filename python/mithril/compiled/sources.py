"""What a compiled model shows of its generated code."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .loading import Module, Runner, save
from .stages import Stages

if TYPE_CHECKING:
    from ..backends.backend import Backend
    from .program import Program

__all__ = ["Sources"]


class Sources:
    """The part of a compiled model that shows and writes its sources."""

    if TYPE_CHECKING:
        backend: Backend
        _names: dict[str, tuple[str, ...]]

        def _known(self) -> Program: ...

    @property
    def source(self) -> str:
        """The generated source of `evaluate`."""
        return str(self._known().module.source.text)

    @property
    def gradient_source(self) -> str:
        """The generated source of the gradients of all outputs."""
        return str(self._gradient_of_outputs().source.text)

    def _differentiable_outputs(self) -> tuple[str, ...]:
        program = self._known()
        return tuple(sorted(n for n in self._names["output"] if "float" in program.core.output_type(n)[0]))

    def _gradient_of_outputs(self) -> Module | Runner:
        return self._known().gradient(self._differentiable_outputs())[0]

    def save_source(self, path: str | os.PathLike[str], *, gradients: bool = False) -> None:
        """Write the generated source to a file, which needs the framework only.

        Parameters
        ----------
        path : str or os.PathLike
            The file. Constants that are too large for a source, and follow from no formula, are written to a file
            beside it, whose name ends with ``.npz`` instead of ``.py``; the source reads it when it is imported.
        gradients : bool, default False
            Write `gradient_source` rather than `source`.

        Raises
        ------
        FileError
            If a file cannot be written.

        Examples
        --------
        >>> import mithril as ml
        >>> import tempfile, pathlib
        >>> model = ml.Model()
        >>> model |= ml.Linear(2)(input="input", output="output")
        >>> compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [4, 3]})
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "linear.py"
        >>> compiled.save_source(path)
        >>> path.read_text() == compiled.source
        True
        """
        save(path, (self._gradient_of_outputs() if gradients else self._known().module).source)

    @property
    def stages(self) -> Stages:
        """Text of the graph after each stage of compiling: ``infer``, ``fold_constants`` … ``cleanup``, ``emit``."""
        program = self._known()
        return Stages(self.backend.engine.stages(program.core, program.module))

    @property
    def gradient_stages(self) -> Stages:
        """Text of the graph of `gradient_source` after each stage: those of `stages`, and ``differentiate``.

        Where the framework differentiates (``autodiff="native"``), the stages are those of what it is given.

        Examples
        --------
        >>> import mithril as ml
        >>> model = ml.Model()
        >>> model |= ml.Linear(2)(input="input", output="output")
        >>> compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [4, 3]})
        >>> "gradient:linear.weight" in compiled.gradient_stages["differentiate"]
        True
        """
        program, module = self._known(), self._gradient_of_outputs()
        outputs, inputs = self._differentiable_outputs(), program.float_params
        if program.settings.autodiff == "native" or not (outputs and inputs):
            outputs, inputs = (), ()
        return Stages(self.backend.engine.stages(program.core, module, outputs, inputs))
