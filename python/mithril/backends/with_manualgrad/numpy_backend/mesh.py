"""Several processes of NumPy: each runs its part of a program, and MPI carries what they exchange."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import BackendUnavailableError
from ....optional_packages import require
from ....parallel.processes import ProcessEngine, exchanging, time_limit

if TYPE_CHECKING:
    from ....parallel.layout import Layout, Mesh

__all__ = ["MpiMesh", "MpiMeshEngine"]


class MpiMeshEngine(ProcessEngine):
    """Runs the programs of a mesh in the processes that `mpirun` starts."""

    def __init__(self, backend: Any, layout: Layout) -> None:
        super().__init__(backend, layout)
        meshes = backend.engine.meshes
        if layout.mesh not in meshes:
            meshes[layout.mesh] = MpiMesh(require("mpi4py.MPI", f"{layout.mesh!r} of NumpyBackend"), layout.mesh)
        self.mesh = meshes[layout.mesh]


def _combining(function: Callable[..., Any]) -> Callable[[Any, Any, Any], None]:
    """Return what MPI reduces with. Its own maximum and minimum may lose NaN."""
    dtlib = require("mpi4py.util.dtlib", "a mesh of NumpyBackend")

    def combine(own: Any, others: Any, datatype: Any) -> None:
        dtype = dtlib.to_numpy_dtype(datatype)
        into = np.frombuffer(others, dtype)
        function(np.frombuffer(own, dtype), into, out=into)

    return combine


class MpiMesh:
    """The collectives of a process, over MPI."""

    def __init__(self, mpi: Any, mesh: Mesh) -> None:
        self._mpi, self._world = mpi, mpi.COMM_WORLD
        count, rank = self._world.Get_size(), self._world.Get_rank()
        if count != mesh.devices:
            state = "this process is alone" if count == 1 else f"{count} processes were started"
            raise BackendUnavailableError(
                f"{mesh!r} has {mesh.devices} devices, and {state}",
                hint=f"name devices, for workers of this process: NumpyBackend(devices=['cpu'] * {mesh.devices}); "
                f"or start the script in as many: mithril launch -n {mesh.devices} --engine mpi script.py",
            )
        self.rank: int = rank
        self._limit = time_limit()
        extremes = {"max": np.maximum, "min": np.minimum}
        self._ops = {name: mpi.Op.Create(_combining(function), True) for name, function in extremes.items()}
        self._ops["sum"] = mpi.SUM
        #: Sums under way: request, axis of the mesh, and what is sent.
        self._started: list[tuple[Any, str, Any]] = []
        _end_together(self._world)
        grid = np.arange(count).reshape(tuple(mesh.axes.values()))
        place = tuple(int(i[0]) for i in np.nonzero(grid == rank))
        self._groups = {}
        for i, name in enumerate(mesh.axes):
            # The peers along an axis differ in that place alone.
            others = int(np.take(grid, 0, axis=i)[place[:i] + place[i + 1 :]])
            self._groups[name] = self._world.Split(others, place[i])

    def gathered(self, number: int) -> list[int]:
        """Return the numbers that all processes give."""
        sizes = np.empty(self._world.Get_size(), np.int64)
        self._wait(self._world.Iallgather(np.array([number], np.int64), sizes), "gathered", "all")
        return [int(n) for n in sizes]

    def all_reduce(self, x: Any, mesh_axis: str, reduction: str = "sum") -> Any:
        """Return the sum (``"max"``, ``"min"``) of the arrays along an axis of the mesh."""
        own = _sent(x)
        reduced = np.empty(own.shape, own.dtype)
        op = self._ops[reduction]
        self._wait(self._groups[mesh_axis].Iallreduce(own, reduced, op), "all_reduce", mesh_axis)
        return reduced.astype(x.dtype, copy=False)

    def start_all_reduce(self, x: Any, mesh_axis: str) -> Any:
        """Return an array that holds the sum of the arrays along an axis of the mesh after the next `wait`."""
        own = _sent(x)
        if own.dtype != x.dtype:
            return self.all_reduce(x, mesh_axis)
        reduced = np.empty(own.shape, own.dtype)
        # The memory that is sent has to live until then.
        self._started.append((self._groups[mesh_axis].Iallreduce(own, reduced, self._mpi.SUM), mesh_axis, own))
        return reduced

    def wait(self) -> None:
        """Wait for the sums that were started."""
        started, self._started = self._started, []
        for request, mesh_axis, _ in started:
            self._wait(request, "all_reduce", mesh_axis)

    def all_gather(self, x: Any, mesh_axis: str, axis: int) -> Any:
        """Return the arrays along an axis of the mesh, joined along ``axis``."""
        group = self._groups[mesh_axis]
        own = np.ascontiguousarray(x)
        gathered_parts = np.empty((group.Get_size(), *own.shape), own.dtype)
        # As bytes: MPI does not know all dtypes.
        self._wait(group.Iallgather(_bytes(own), _bytes(gathered_parts)), "all_gather", mesh_axis)
        return np.concatenate(list(gathered_parts), axis)

    def reduce_scatter(self, x: Any, mesh_axis: str, axis: int) -> Any:
        """Return the block of this process of the sum of the arrays along an axis of the mesh."""
        group = self._groups[mesh_axis]
        parts = np.ascontiguousarray(np.split(_sent(x), group.Get_size(), axis))
        reduced = np.empty(parts.shape[1:], parts.dtype)
        self._wait(group.Ireduce_scatter_block(parts, reduced, self._mpi.SUM), "reduce_scatter", mesh_axis)
        return reduced.astype(x.dtype, copy=False)

    def all_to_all(self, x: Any, mesh_axis: str, axis: int, joined: int) -> Any:
        """Send each process its block along ``axis``; return those of all, joined along ``joined``."""
        group = self._groups[mesh_axis]
        parts = np.ascontiguousarray(np.split(x, group.Get_size(), axis))
        received = np.empty(parts.shape, parts.dtype)
        # As bytes: MPI does not know all dtypes.
        self._wait(group.Ialltoall(_bytes(parts), _bytes(received)), "all_to_all", mesh_axis)
        return np.concatenate(list(received), joined)

    def permute(self, x: Any, mesh_axis: str, pairs: Sequence[tuple[int, int]]) -> Any:
        """Send an array along each pair ``(from, to)`` of places on an axis; return the one received, or zeros."""
        group = self._groups[mesh_axis]
        place, own = group.Get_rank(), np.ascontiguousarray(x)
        received = np.zeros_like(own)
        requests = [group.Irecv(_bytes(received), source) for source, to in pairs if to == place]
        requests += [group.Isend(_bytes(own), to) for source, to in pairs if source == place]
        for request in requests:
            self._wait(request, "permute", mesh_axis)
        return received

    def index(self, mesh_axis: str) -> Any:
        """Return the place of this process along an axis of the mesh, as an array."""
        return np.asarray(self._groups[mesh_axis].Get_rank(), np.int64)

    def _wait(self, request: Any, op: str, mesh_axis: str) -> None:
        """Wait until an exchange is done. MPI itself would wait forever."""
        until = time.monotonic() + self._limit
        with exchanging(op, mesh_axis):
            while not request.Test():
                if time.monotonic() > until:
                    raise TimeoutError(f"no answer within {self._limit:g} s")

    def shard(self, x: Any, mesh_axis: str, axis: int) -> Any:
        """Return the block of this process of an array that all have."""
        group = self._groups[mesh_axis]
        size = x.shape[axis] // group.Get_size()
        start = group.Get_rank() * size
        return x[(slice(None),) * axis + (slice(start, start + size),)]


_ended_together = False


def _end_together(world: Any) -> None:
    """Let an error that nobody catches end all processes: MPI would wait for the others when it is shut down."""
    global _ended_together
    if _ended_together:
        return
    _ended_together = True
    shown = sys.excepthook

    def hook(*error: Any) -> None:
        shown(*error)
        sys.stderr.flush()
        # mpirun drops what it has not passed on when it ends the processes.
        time.sleep(0.5)
        world.Abort(1)

    sys.excepthook = hook


def _bytes(array: Any) -> Any:
    return array.reshape(-1).view(np.uint8)


def _sent(x: Any) -> Any:
    """Return a contiguous array of a dtype that MPI adds and compares."""
    if x.dtype.name in ("float16", "bfloat16"):
        return np.asarray(x, np.float32, order="C")
    return np.asarray(x, np.uint8 if x.dtype == np.bool_ else x.dtype, order="C")
