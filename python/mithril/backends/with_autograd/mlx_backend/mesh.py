"""Several devices of MLX: each process of `mlx.core.distributed` runs its part of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import BackendUnavailableError
from ....parallel.mesh_engine import Division
from ....parallel.processes import ProcessEngine, exchanging

if TYPE_CHECKING:
    from ....parallel.layout import Layout, Mesh

__all__ = ["MlxMesh", "MlxMeshEngine"]


class MlxMeshEngine(ProcessEngine):
    """Runs the programs of a mesh in the processes that `mlx.launch` starts."""

    def __init__(self, backend: Any, layout: Layout) -> None:
        super().__init__(backend, layout)
        meshes = backend.engine.meshes
        if layout.mesh not in meshes:
            meshes[layout.mesh] = MlxMesh(backend._mx, layout.mesh)
        self.mesh = meshes[layout.mesh]

    def module(self, source: Any, name: str) -> Any:
        """Load generated source."""
        module = super().module(source, name)
        module.around = self.backend.engine.scoped
        return module

    def divided(self, module: Any, name: str, division: Division) -> Callable[..., Any]:
        """Return a function of whole arrays that runs the function of that name on all devices."""
        call, mx = super().divided(module, name, division), self.backend._mx

        def computed(*groups: Any) -> Any:
            result = call(*groups)
            # All processes have to take part in every exchange, also for results that one of them never reads.
            with exchanging("an exchange", "the mesh"):
                mx.eval(result)
            return result

        return self.backend.engine.scoped(computed)  # type: ignore[no-any-return]


class MlxMesh:
    """The collectives of a process, over `mlx.core.distributed`."""

    def __init__(self, mx: Any, mesh: Mesh) -> None:
        self._mx = mx
        world = mx.distributed.init()
        if world.size() != mesh.devices:
            state = "this process is alone" if world.size() == 1 else f"{world.size()} processes were started"
            raise BackendUnavailableError(
                f"{mesh!r} has {mesh.devices} devices, and {state}",
                hint=f"start the script in {mesh.devices} processes: mithril launch -n {mesh.devices} script.py",
            )
        self._world = world
        self.rank: int = world.rank()
        self._groups = {name: self._group(world, mesh, name) for name in mesh.axes}

    def _group(self, world: Any, mesh: Mesh, name: str) -> Any:
        if mesh.axes[name] == mesh.devices:
            return world
        sizes = list(mesh.axes.values())
        grid = np.arange(mesh.devices).reshape(sizes)
        i = list(mesh.axes).index(name)
        place = [int(k[0]) for k in np.nonzero(grid == world.rank())]
        try:
            return world.split(int(np.take(grid, 0, axis=i)[tuple(place[:i] + place[i + 1 :])]), place[i])
        except RuntimeError as error:
            raise BackendUnavailableError(
                f"{mesh!r} has several axes, and MLX cannot divide its processes into groups: {error}",
                hint="give a mesh of one axis, or start MLX on a backend that can: mlx.launch --backend mpi",
            ) from error

    def gathered(self, number: int) -> list[int]:
        """Return the numbers that all processes give."""
        own = self._mx.array([number], dtype=self._mx.int64)
        sizes: list[int] = self._mx.distributed.all_gather(own, group=self._world).tolist()
        return sizes

    def all_reduce(self, x: Any, mesh_axis: str, reduction: str = "sum") -> Any:
        """Return the sum (``"max"``, ``"min"``) of the arrays along an axis of the mesh."""
        if reduction == "sum" or not self._mx.issubdtype(x.dtype, self._mx.floating):
            return getattr(self._mx.distributed, f"all_{reduction}")(x, group=self._groups[mesh_axis])
        return self._largest(x, mesh_axis) if reduction == "max" else -self._largest(-x, mesh_axis)

    def _largest(self, x: Any, mesh_axis: str) -> Any:
        """Return the largest floats, NaN where one is.

        MLX loses NaN among floats, so integers are compared that have the same order: the bits, of negative numbers all
        but the sign inverted.
        """
        mx = self._mx
        integer = {2: mx.int16, 4: mx.int32, 8: mx.int64}[x.itemsize]
        largest = mx.array(mx.iinfo(integer).max, integer)
        bits = mx.where(mx.isnan(x), mx.array(mx.nan, x.dtype), x).view(integer)
        order = mx.distributed.all_max(mx.where(bits < 0, bits ^ largest, bits), group=self._groups[mesh_axis])
        return mx.where(order < 0, order ^ largest, order).view(x.dtype)

    def start_all_reduce(self, x: Any, mesh_axis: str) -> Any:
        """Return the sum of the arrays along an axis of the mesh, which MLX computes when it is read."""
        return self.all_reduce(x, mesh_axis)

    def wait(self) -> None:
        """Do nothing: whoever reads a sum waits for it."""

    def all_gather(self, x: Any, mesh_axis: str, axis: int) -> Any:
        """Return the arrays along an axis of the mesh, joined along ``axis``."""
        gathered = self._mx.distributed.all_gather(x, group=self._groups[mesh_axis])
        count = self._groups[mesh_axis].size()
        return gathered if axis == 0 else self._mx.concatenate(self._mx.split(gathered, count), axis)

    def reduce_scatter(self, x: Any, mesh_axis: str, axis: int) -> Any:
        """Return the block of this process of the sum of the arrays along an axis of the mesh."""
        return self.shard(self.all_reduce(x, mesh_axis), mesh_axis, axis)

    def all_to_all(self, x: Any, mesh_axis: str, axis: int, joined: int) -> Any:
        """Send each process its block along ``axis``; return those of all, joined along ``joined``.

        MLX has no such exchange: all blocks are gathered.
        """
        mx, group = self._mx, self._groups[mesh_axis]
        parts = mx.split(mx.distributed.all_gather(x[None], group=group), group.size(), axis + 1)[group.rank()]
        return mx.concatenate([part[0] for part in mx.split(parts, group.size(), 0)], joined)

    def permute(self, x: Any, mesh_axis: str, pairs: Sequence[tuple[int, int]]) -> Any:
        """Send an array along each pair ``(from, to)`` of places on an axis; return the one received, or zeros."""
        mx, group = self._mx, self._groups[mesh_axis]
        source = next((source for source, to in pairs if to == group.rank()), None)
        # Sending and receiving are no functions of arrays alone, and run in an order of their own.
        parts = mx.distributed.all_gather(x[None], group=group)
        # All processes have to take part in all exchanges, and in one order, or one would get what is sent next. MLX
        # orders them by what is computed of them, which therefore is the same on all processes, also where it is zeros.
        return mx.where(mx.array(source is not None), parts[source or 0], mx.zeros_like(x))

    def index(self, mesh_axis: str) -> Any:
        """Return the place of this process along an axis of the mesh, as an array."""
        return self._mx.array(self._groups[mesh_axis].rank(), dtype=self._mx.int64)

    def shard(self, x: Any, mesh_axis: str, axis: int) -> Any:
        """Return the block of this process of an array that all have."""
        group = self._groups[mesh_axis]
        return self._mx.split(x, group.size(), axis)[group.rank()]
