"""How models run on the reference interpreter."""

from __future__ import annotations

from typing import Any

from .... import _core
from ....compiled.loading import Runner
from ...numpy_engine import NumpyEngine

__all__ = ["InterpreterEngine"]


class InterpreterEngine(NumpyEngine):
    """The engine of the interpreter backend."""

    def load(self, core: _core.Compiled) -> Runner:
        return Runner(core.runner())

    def load_gradients(self, core: _core.Compiled, outputs: list[str], inputs: list[str]) -> Runner:
        return Runner(core.gradient_runner(outputs, inputs))

    def load_op(self, name: str, signature: list[Any]) -> Runner:
        return Runner(_core.eager_runner(name, signature, str(self.backend.default_dtype)))
