"""How models run on NumPy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .... import dtypes
from ....parallel.channel import Packed
from ....parallel.layout import Layout, Mesh
from ....parallel.pieces import Piece, pieces
from ....parallel.pipeline import Pipeline
from ....parallel.pipeline_workers import WorkerPipelineEngine
from ....parallel.remote import RemoteArray, remote_layout
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
        return super().is_own(arg) or isinstance(arg, RemoteArray)

    def layout_of(self, arrays: Mapping[str, Any]) -> Layout | None:
        return remote_layout(arrays)

    def beside(self, array: Any, other: Any) -> Any:
        is_alike = isinstance(other, RemoteArray) and not isinstance(array, RemoteArray) and array.shape == other.shape
        return other.workers.keep(self.backend, array, other.mesh, other.spec) if is_alike else array

    def whole(self, array: Any) -> Any:
        return array.full_tensor() if isinstance(array, RemoteArray) else array

    def pieces(self, array: Any) -> list[Piece] | None:
        return pieces(array.shape, array.mesh, array.spec) if isinstance(array, RemoteArray) else None

    def piece(self, array: Any, piece: Piece) -> Any:
        return self.whole(array)

    def restored(self, array: StoredArray, like: Any = None) -> Any:
        if isinstance(like, RemoteArray) and like.shape == array.shape:
            return like.workers.read(self.backend, array, like.mesh, like.spec)
        return super().restored(array, like)

    def as_array(self, data: Any, dtype: dtypes.DType) -> Any:
        if isinstance(data, RemoteArray) and data.dtype == self.native_dtype(dtype):
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
        return WorkerPipelineEngine.start(self.backend, pipeline, is_one_of_several=bool(_MPI & os.environ.keys()))

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
