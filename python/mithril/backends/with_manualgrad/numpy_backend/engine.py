"""How models run on NumPy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .... import dtypes
from ....errors import BackendUnavailableError
from ....parallel.channel import Packed
from ....parallel.divided_array import DividedArray, layout_of
from ....parallel.layout import ArrayLayout, Layout, Mesh
from ....parallel.pieces import Piece
from ....parallel.pipeline import Pipeline
from ....parallel.pipeline_workers import WorkerPipelineEngine
from ....parallel.socket_mesh import SocketMesh
from ....parallel.worker_engine import WorkerEngine
from ...numpy_engine import NumpyEngine
from .mesh import MpiMesh, MpiMeshEngine

if TYPE_CHECKING:
    from ....parallel.mesh_engine import MeshEngine
    from ....parallel.processes import Communicator, Processes
    from ....parallel.stored import StoredArray

__all__ = ["NumpyProgramEngine"]

#: Variables of the environment by which MPI tells a process which one it is.
_MPI = {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"}


class NumpyProgramEngine(NumpyEngine):
    """The engine of the NumPy backend."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        #: Meshes of processes that this one is in.
        self.meshes: dict[Mesh, MpiMesh] = {}

    def is_own(self, arg: Any) -> bool:
        return super().is_own(arg) or isinstance(arg, DividedArray)

    def layout_of(self, arrays: Mapping[str, Any]) -> ArrayLayout | None:
        return layout_of(arrays)

    def beside(self, array: Any, other: Any) -> Any:
        is_alike = (
            isinstance(other, DividedArray) and not isinstance(array, DividedArray) and array.shape == other.shape
        )
        return other.like(array) if is_alike else array

    def zeros_like(self, array: Any, dtype: str) -> Any:
        is_kept = isinstance(array, DividedArray)
        return array.zeros(dtype) if is_kept else super().zeros_like(array, dtype)

    def whole(self, array: Any) -> Any:
        return array.full_tensor() if isinstance(array, DividedArray) else array

    def pieces(self, array: Any) -> list[Piece] | None:
        return array.pieces() if isinstance(array, DividedArray) else None

    def piece(self, array: Any, piece: Piece) -> Any:
        return self.whole(array)

    def restored(self, array: StoredArray, like: Any = None) -> Any:
        if isinstance(like, DividedArray) and like.shape == array.shape:
            return like.read(array)
        return super().restored(array, like)

    def as_array(self, data: Any, dtype: dtypes.DType) -> Any:
        if isinstance(data, DividedArray) and data.dtype == self.native_dtype(dtype):
            return data
        return super().as_array(data, dtype)

    def communicator(self, layout: Layout) -> Processes | None:
        return self.meshes.get(layout.mesh)

    def on_mesh(self, layout: Layout) -> MeshEngine:
        devices = self._local_devices(layout)
        return MpiMeshEngine(self.backend, layout) if devices is None else WorkerEngine(self.backend, layout, devices)

    def _local_devices(self, layout: Layout) -> list[str] | None:
        """Return the devices of the workers that this process starts; None if MPI has started it beside others."""
        if _MPI & os.environ.keys() or self.backend.layout is None:
            return None
        return [str(name) for name in self.backend.listed_devices] or ["cpu"] * layout.mesh.devices

    def on_pipeline(self, pipeline: Pipeline) -> MeshEngine:
        if _MPI & os.environ.keys():
            raise BackendUnavailableError(
                "NumpyBackend runs pipelines on workers of one process, and this one is one of several",
                hint="start the script as any other: python script.py; or use TorchBackend: mithril launch, torchrun",
            )
        return WorkerPipelineEngine.start(self.backend, pipeline)

    # --- workers ----------------------------------------------------------------------------------------------

    def packed(self, array: Any) -> Packed:
        own = np.ascontiguousarray(array)
        return Packed(own.dtype.name, tuple(np.shape(array)), own.reshape(-1).view(np.uint8))

    def unpacked(self, array: Packed) -> Any:
        return np.frombuffer(array.content, self.native_dtype(array.dtype)).reshape(array.shape)

    def joined(self, parts: list[Any], axis: int) -> Any:
        return np.concatenate(parts, axis)

    def worker_mesh(self, mesh: Mesh, rank: int, peers: dict[int, Any]) -> Communicator:
        return SocketMesh(mesh, rank, peers)
