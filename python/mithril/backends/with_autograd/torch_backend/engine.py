"""How PyTorch runs and differentiates generated code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from .... import dtypes
from ....compiled.compile_stats import observed
from ....errors import ConflictingOptionError
from ....parallel.channel import Packed
from ....parallel.divided_array import DividedArray, layout_of
from ....parallel.layout import ArrayLayout, Layout, Mesh
from ....parallel.pieces import Piece, pieces
from ....parallel.pipeline import Pipeline
from ....parallel.pipeline_processes import ProcessPipelineEngine
from ....parallel.pipeline_workers import WorkerPipelineEngine
from ....parallel.stage_array import StageArray
from ....parallel.worker_engine import WorkerEngine
from ..framework_engine import FrameworkEngine
from .kernels import explained, with_settings
from .mesh import TorchMesh, TorchMeshEngine, is_launched, join_processes, local_devices, process_count, torch_mesh

if TYPE_CHECKING:
    from .... import _core
    from ....compiled.program import Program
    from ....parallel.mesh_engine import MeshEngine
    from ....parallel.processes import Communicator, Processes
    from ....parallel.stored import StoredArray

__all__ = ["TorchEngine", "materialized"]


class TorchEngine(FrameworkEngine):
    """The engine of the PyTorch backend."""

    has_strides = True
    writes_in_place = True

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.torch = backend._torch

    @property
    def array_type(self) -> Any:
        return self.torch.Tensor

    def native_dtype(self, dtype: str) -> Any:
        return getattr(self.torch, str(dtypes.normalize(dtype)))

    def is_own(self, arg: Any) -> bool:
        return isinstance(arg, (self.torch.Tensor, DividedArray))

    def is_here(self, array: Any) -> bool:
        return bool(array.device == self.backend._device)

    def memory_span(self, array: Any) -> tuple[int, int]:
        if array.is_contiguous():
            start = array.data_ptr()
            return start, start + array.nbytes
        memory = array.untyped_storage()
        return memory.data_ptr(), memory.data_ptr() + memory.nbytes()

    def is_writable(self, array: Any) -> bool:
        return bool(array.is_contiguous())

    def copy(self, array: Any) -> Any:
        return array.clone(memory_format=self.torch.contiguous_format)

    def from_host(self, host: np.ndarray[Any, Any], dtype: dtypes.DType) -> Any:
        if host.dtype.name == "bfloat16":
            host = host.astype(np.float32)
        # PyTorch takes neither negative strides nor the other byte order, and warns about read-only memory.
        copied = self.torch.from_numpy(np.array(host, dtype=host.dtype.newbyteorder("="), order="C"))
        # Where a GPU says what went wrong in a call before, as it does when it is waited for.
        with explained():
            return copied.to(self.backend._device, self.native_dtype(dtype))

    def share(self, host: np.ndarray[Any, Any]) -> Any:
        if host.dtype.name == "bfloat16":
            return self.torch.from_numpy(host.view(np.int16)).view(self.torch.bfloat16).to(self.backend._device)
        return self.torch.from_numpy(host).to(self.backend._device)

    def convert(self, array: Any, dtype: dtypes.DType) -> Any:
        return array.detach().to(self.backend._device, self.native_dtype(dtype), copy=True)

    def full(self, shape: tuple[int, ...], value: float, dtype: dtypes.DType) -> Any:
        return self.torch.full(shape, value, dtype=self.native_dtype(dtype), device=self.backend._device)

    def layout_of(self, arrays: Mapping[str, Any]) -> ArrayLayout | None:
        divided = layout_of(arrays)
        distributed = {name: array for name, array in arrays.items() if _is_distributed(array)}
        if divided is not None or not distributed:
            return divided
        grid = next(iter(distributed.values())).device_mesh
        names = grid.mesh_dim_names
        tensors: dict[str, Any] = {}
        for name, array in distributed.items():
            axes: list[list[str]] = [[] for _ in array.shape]
            for axis, placement in zip(names, array.placements, strict=True):
                if placement.is_shard():
                    axes[placement.dim].append(axis)
            tensors[name] = tuple(axes)
        return ArrayLayout(Mesh(**dict(zip(names, grid.shape, strict=True))), tensors)

    def beside(self, array: Any, other: Any) -> Any:
        if isinstance(other, DividedArray):
            is_alike = array.shape == other.shape and not isinstance(array, DividedArray)
            return other.like(array) if is_alike else array
        if not _is_distributed(other) or _is_distributed(array) or array.shape != other.shape:
            return array
        layout = self.layout_of({"other": other})
        assert layout is not None
        [(_, spec)] = layout.patterns
        return self.on_mesh(layout).distribute(array, tuple(map(tuple, spec)))

    def zeros_like(self, array: Any, dtype: str) -> Any:
        is_kept = isinstance(array, DividedArray)
        return array.zeros(dtype) if is_kept else super().zeros_like(array, dtype)

    def whole(self, array: Any) -> Any:
        return array.full_tensor() if isinstance(array, DividedArray) or _is_distributed(array) else array

    def pieces(self, array: Any) -> list[Piece] | None:
        if isinstance(array, DividedArray):
            return array.pieces()
        layout = self.layout_of({"array": array})
        if layout is None:
            return None
        [(_, spec)] = layout.patterns
        return pieces(array.shape, layout.mesh, tuple(map(tuple, spec)))

    def piece(self, array: Any, piece: Piece) -> Any:
        if isinstance(array, StageArray):
            return array.block(piece)
        return array.to_local() if _is_distributed(array) else self.whole(array)

    def restored(self, array: StoredArray, like: Any = None) -> Any:
        if isinstance(like, DividedArray) and tuple(like.shape) == array.shape:
            return like.read(array)
        layout = self.layout_of({"array": like}) if tuple(getattr(like, "shape", ())) == array.shape else None
        if layout is None:
            return super().restored(array, like)
        [(_, spec)] = layout.patterns
        return self.on_mesh(layout).distribute(array, tuple(map(tuple, spec)))

    def communicator(self, layout: Layout) -> Processes | None:
        if isinstance(layout, Pipeline):
            return self._link(layout) if is_launched(self.torch) else None
        if local_devices(self.backend, layout) is not None:
            return None
        return torch_mesh(self.torch, layout.mesh, self.backend._device)

    def _link(self, pipeline: Pipeline) -> TorchMesh:
        """Return what connects this process with the others of a pipeline."""
        return torch_mesh(self.torch, ProcessPipelineEngine.mesh_of(pipeline), self.backend._device)

    def device_count(self) -> int:
        return process_count(self.torch, self.backend._device.type)

    def on_mesh(self, layout: Layout) -> MeshEngine:
        devices = local_devices(self.backend, layout)
        return TorchMeshEngine(self.backend, layout) if devices is None else WorkerEngine(self.backend, layout, devices)

    def on_pipeline(self, pipeline: Pipeline) -> MeshEngine:
        if is_launched(self.torch):
            return ProcessPipelineEngine(self.backend, pipeline, self._link(pipeline))
        return WorkerPipelineEngine.start(self.backend, pipeline)

    # --- workers ----------------------------------------------------------------------------------------------

    def packed(self, array: Any) -> Packed:
        dtype, own = str(self.backend.dtype(array)), array.detach().cpu().contiguous()
        return Packed(dtype, tuple(array.shape), own.reshape(-1).view(self.torch.uint8).numpy())

    def unpacked(self, array: Packed) -> Any:
        dtype = self.native_dtype(array.dtype)
        if not len(array.content):
            return self.torch.empty(array.shape, dtype=dtype, device=self.backend._device)
        tensor = self.torch.frombuffer(array.content, dtype=dtype).reshape(array.shape)
        return tensor.to(self.backend._device)

    def joined(self, parts: list[Any], axis: int) -> Any:
        return self.torch.cat(parts, axis)

    def join_workers(self, rank: int, count: int, folder: str) -> None:
        join_processes(self.torch, self.backend._device, rank, count, folder)

    def worker_mesh(self, mesh: Mesh, rank: int, peers: dict[int, Any]) -> Communicator:
        return torch_mesh(self.torch, mesh, self.backend._device)

    def without_gradients(self) -> AbstractContextManager[Any]:
        return self.torch.no_grad()  # type: ignore[no-any-return]

    def evaluator(self, program: Program) -> Callable[..., Any]:
        settings = program.settings
        is_inductor = settings.jit and settings.jit_options.get("backend", "inductor") == "inductor"
        if settings.checkpoint and settings.autodiff == "graph" and is_inductor:
            raise ConflictingOptionError(
                'gradient_checkpointing has no effect with jit=True and autodiff="graph": torch.compile merges what is '
                "computed again with what was computed first",
                hint='leave out autodiff="graph": PyTorch\'s own gradients keep the checkpoints',
            )
        function: Callable[..., Any] = program.module.function("evaluate")
        if program.settings.jit:
            function = self._compile(program, "evaluate", function)
        return function

    def load_source(self, source: _core.Source, name: str) -> Any:
        module: Any = super().load_source(source, name)
        module.around = self._with_settings
        return module

    def _with_settings(self, function: Callable[..., Any]) -> Callable[..., Any]:
        backend, is_cuda = self.backend, self.backend._device.type == "cuda"
        if not (is_cuda and (backend.cudnn_benchmark or backend.is_exact)):
            return function
        return with_settings(self.torch, function, benchmark=backend.cudnn_benchmark, exact=backend.is_exact)

    def framework_differentiator(
        self, program: Program, outputs: tuple[str, ...], names: tuple[str, ...]
    ) -> Callable[..., Any]:
        torch, evaluate, updates = self.torch, self._differentiable(program), bool(program.updates)

        def evaluate_gradients(params: Any, data: Any, state: Any, cotangents: Any) -> Any:
            leaves = {name: params[name].detach().requires_grad_() for name in names}
            with torch.enable_grad():
                result = evaluate({**params, **leaves}, data, state)
            primal = result[0] if updates else result
            kept = [name for name in outputs if primal[name].requires_grad]
            gradients = torch.autograd.grad(
                [primal[name] for name in kept],
                list(leaves.values()),
                [cotangents[name] for name in kept],
                allow_unused=True,
                materialize_grads=True,
            )
            values = {name: value.detach() for name, value in primal.items()}
            by_name = {name: materialized(g) for name, g in zip(names, gradients, strict=True)}
            if not updates:
                return values, by_name
            return values, by_name, {name: value.detach() for name, value in result[1].items()}

        return self._with_settings(evaluate_gradients)

    def _differentiable(self, program: Program) -> Callable[..., Any]:
        if not program.settings.checkpoint:
            return program.evaluate
        function: Callable[..., Any] = program.differentiable.function("evaluate")
        if program.settings.jit:
            function = self._compile(program, "gradients", function)
        return function

    def _compile(self, program: Program, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        from torch._dynamo.utils import counters

        compiled = self._with_settings(self.torch.compile(function, fullgraph=True, **program.settings.jit_options))
        return observed(program.stats, what, compiled, lambda: counters["stats"]["unique_graphs"])

    def compile_graph_gradients(self, program: Program, module: Any) -> Callable[..., Any]:
        function = module.function("evaluate_gradients")
        return self._compile(program, "gradients", function) if program.settings.jit else function


def materialized(gradient: Any) -> Any:
    """Return a gradient with memory: zeros that autograd knows of have none, and not all functions take them."""
    return gradient.clone() if gradient._is_zerotensor() else gradient


def _is_distributed(array: Any) -> bool:
    """Whether an array is a `DTensor`; asking one of devices for an attribute would gather it."""
    return not isinstance(array, DividedArray) and hasattr(array, "placements")
