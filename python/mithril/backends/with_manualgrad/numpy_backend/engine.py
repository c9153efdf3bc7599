"""How models run on NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...numpy_engine import NumpyEngine
from .mesh import MpiMesh, MpiMeshEngine

if TYPE_CHECKING:
    from ....parallel.layout import Layout, Mesh
    from ....parallel.mesh_engine import MeshEngine
    from ....parallel.processes import Processes

__all__ = ["NumpyProgramEngine"]


class NumpyProgramEngine(NumpyEngine):
    """The engine of the NumPy backend."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        #: Meshes of processes that this one is in.
        self.meshes: dict[Mesh, MpiMesh] = {}

    def communicator(self, layout: Layout) -> Processes | None:
        return self.meshes.get(layout.mesh)

    def on_mesh(self, layout: Layout) -> MeshEngine:
        return MpiMeshEngine(self.backend, layout)
