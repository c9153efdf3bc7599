"""How MLX runs and differentiates generated code."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .... import dtypes
from ....compiled.compile_stats import observed
from ....compiled.loading import Module
from ....errors import UnsupportedOpError
from ..framework_engine import FrameworkEngine
from .mesh import MlxMesh, MlxMeshEngine

if TYPE_CHECKING:
    from ....compiled.program import Program
    from ....parallel.layout import Layout, Mesh
    from ....parallel.mesh_engine import MeshEngine
    from ....parallel.processes import Processes

__all__ = ["MlxEngine"]


class MlxEngine(FrameworkEngine):
    """The engine of the MLX backend."""

    accepts_any_position = True

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.mx = backend._mx
        #: Meshes of processes that this one is in.
        self.meshes: dict[Mesh, MlxMesh] = {}

    def scoped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Run a function on the device of the backend, whatever the user's default is."""
        stream, device = self.mx.stream, self.backend._device

        def call(*args: Any) -> Any:
            with stream(device):
                return function(*args)

        return call

    @property
    def array_type(self) -> Any:
        return self.mx.array

    def native_dtype(self, dtype: str) -> Any:
        if dtype == "float64" and self.backend._device.type != self.mx.cpu:
            raise UnsupportedOpError("MLX has no float64 on the GPU", hint='use dtype="float32", or device="cpu"')
        return getattr(self.mx, "bool_" if dtype == "bool" else str(dtypes.normalize(dtype)))

    def is_own(self, arg: Any) -> bool:
        return isinstance(arg, self.mx.array)

    def is_here(self, array: Any) -> bool:
        return True

    def from_host(self, host: np.ndarray[Any, Any], dtype: dtypes.DType) -> Any:
        if host.dtype.name == "bfloat16":
            host = host.astype(np.float32)
        if host.dtype == np.float64 and dtype != "float64":
            # MLX makes float32 of a double on its own; the rounding to halves has to happen once.
            host = host.astype(np.float16 if dtype == "float16" else np.float32)
        plain = np.array(host, dtype=host.dtype.newbyteorder("="), order="C")
        native = self.native_dtype(dtype)
        with self.mx.stream(self.backend._device):
            array = self.mx.array(plain, dtype=native)
            if plain.dtype.name != dtype:
                # A conversion that is still to be done could be done by this thread alone.
                self.mx.eval(array)
        return array

    def share(self, host: np.ndarray[Any, Any]) -> Any:
        # MLX copies what comes from NumPy.
        if host.dtype.name == "bfloat16":
            return self.from_host(host, dtypes.bfloat16)
        with self.mx.stream(self.backend._device):
            return self.mx.array(host, dtype=self.native_dtype(host.dtype.name))

    def convert(self, array: Any, dtype: dtypes.DType) -> Any:
        with self.mx.stream(self.backend._device):
            return self.mx.array(array, dtype=self.native_dtype(dtype))

    def full(self, shape: tuple[int, ...], value: float, dtype: dtypes.DType) -> Any:
        native = self.native_dtype(dtype)
        with self.mx.stream(self.backend._device):
            return self.mx.full(shape, self.mx.array(value, native))

    def device_count(self) -> int:
        return int(self.mx.distributed.init().size())

    def communicator(self, layout: Layout) -> Processes | None:
        return self.meshes.get(layout.mesh)

    def on_mesh(self, layout: Layout) -> MeshEngine:
        return MlxMeshEngine(self.backend, layout)

    def load_source(self, source: Any, name: str) -> Module:
        module: Module = super().load_source(source, name)
        module.around = self.scoped
        return module

    def evaluator(self, program: Program) -> Callable[..., Any]:
        return self._finish(program, "evaluate", program.module.function("evaluate"))

    def framework_differentiator(
        self, program: Program, outputs: tuple[str, ...], names: tuple[str, ...]
    ) -> Callable[..., Any]:
        mx, evaluate, updates = self.mx, program.differentiable.function("evaluate"), bool(program.updates)

        def evaluate_gradients(params: Any, data: Any, state: Any, cotangents: Any) -> Any:
            def weighted(leaves: Any) -> Any:
                result = evaluate({**params, **leaves}, data, state)
                values = result[0] if updates else result
                # The derivative of this sum is what the cotangents pull back.
                total = sum((values[name] * cotangents[name]).sum() for name in outputs)
                return total, (result if updates else (values,))

            leaves = {name: params[name] for name in names}
            (_, result), gradients = mx.value_and_grad(weighted)(leaves)
            if program.settings.jit:
                # Of two results that are computed alike, MLX's compiler would lose one. What is contiguous is not
                # copied here.
                result = tuple({name: mx.contiguous(array) for name, array in part.items()} for part in result)
            return (result[0], gradients, result[1]) if updates else (result[0], gradients)

        return self._finish(program, "gradients", self.scoped(evaluate_gradients))

    def compile_graph_gradients(self, program: Program, module: Any) -> Callable[..., Any]:
        return self._finish(program, "gradients", module.function("evaluate_gradients"))

    def _finish(self, program: Program, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compile a function if the program asks for it."""
        updates = bool(program.updates)
        if not program.settings.jit:
            return self._settled(function, updates)
        traces = 0

        def traced(*args: Any) -> Any:
            # MLX runs this once for each compilation.
            nonlocal traces
            traces += 1
            return function(*args)

        compiled = self.mx.compile(traced, **program.settings.jit_options)
        return self._settled(observed(program.stats, what, compiled, lambda: traces), updates)

    def _settled(self, function: Callable[..., Any], updates: bool) -> Callable[..., Any]:
        """Start to compute what other threads may read: a thread cannot compute what another one has recorded.

        That is the state, which all calls share, and whatever another thread than the main one returns.
        """
        main = threading.main_thread()

        def call(*args: Any) -> Any:
            result = function(*args)
            if threading.current_thread() is not main:
                self._start(result)
            elif updates:
                self._start(result[-1])
            return result

        return call

    def _start(self, arrays: Any) -> None:
        try:
            self.mx.async_eval(arrays)
        except ValueError as error:
            # Inside `mlx.core.grad` or `compile` of the user's nothing can be computed, and nothing has to be.
            if "transformation" not in str(error):
                raise
