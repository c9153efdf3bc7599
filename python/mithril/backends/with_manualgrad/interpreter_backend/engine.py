"""How models run on the reference interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .... import _core
from ....compiled.loading import Runner
from ....errors import BackendUnavailableError
from ....parallel.mesh_engine import MeshEngine
from ...numpy_engine import NumpyEngine

if TYPE_CHECKING:
    from ....parallel.layout import Layout

__all__ = ["InterpreterEngine"]

#: Devices of a virtual mesh: each holds its own arrays in this process.
_MOST = 1024


class InterpreterEngine(NumpyEngine):
    """The engine of the interpreter backend."""

    def on_mesh(self, layout: Layout) -> MeshEngine:
        return _VirtualMesh(self.backend, layout)

    def load(self, core: _core.Compiled) -> Runner:
        return Runner(core.runner())

    def load_gradients(self, core: _core.Compiled, outputs: list[str], inputs: list[str]) -> Runner:
        return Runner(core.gradient_runner(outputs, inputs))

    def load_op(self, name: str, signature: list[Any]) -> Runner:
        return Runner(_core.eager_runner(name, signature, str(self.backend.default_dtype)))


class _VirtualMesh(MeshEngine):
    """A virtual mesh: the programs of all devices, run in step in this process."""

    def __init__(self, backend: Any, layout: Layout) -> None:
        super().__init__(backend, layout)
        if layout.mesh.devices > _MOST:
            raise BackendUnavailableError(
                f"{layout.mesh!r} has {layout.mesh.devices} devices, and a virtual mesh at most {_MOST}",
                hint="ml.plan takes any mesh, and runs nothing",
            )

    def evaluator(self, core: _core.Compiled) -> tuple[Any, Callable[..., Any]]:
        runner = Runner(core.runner())
        return runner, runner.function("evaluate")

    def differentiator(
        self, core: _core.Compiled, outputs: list[str], inputs: list[str]
    ) -> tuple[Any, Callable[..., Any]]:
        runner = Runner(core.gradient_runner(outputs, inputs))
        return runner, runner.function("evaluate_gradients")
