"""Several devices of PyTorch: each process of `torch.distributed` runs its part of a program."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any

from ....errors import BackendUnavailableError
from ....parallel.layout import Layout, Mesh
from ....parallel.mesh_engine import Division, Spec
from ....parallel.processes import ProcessEngine, exchanging, time_limit
from ....parallel.stored import StoredArray

__all__ = ["TorchMesh", "TorchMeshEngine"]


class TorchMeshEngine(ProcessEngine):
    """Runs the programs of a mesh in the processes of `torch.distributed`, which `torchrun` starts."""

    #: A `DTensor` is divided into blocks.
    divides_sections = False

    def __init__(self, backend: Any, layout: Layout) -> None:
        super().__init__(backend, layout)
        self.mesh: TorchMesh = torch_mesh(backend._torch, layout.mesh, backend._device)

    def divided(self, module: Any, name: str, division: Division) -> Callable[..., Any]:
        """Return a function of whole arrays that runs the function of that name on all devices."""
        # Gradients are computed by programs of their own: PyTorch would not see through the collectives.
        return self.backend._torch.no_grad()(super().divided(module, name, division))  # type: ignore[no-any-return]

    def is_distributed(self, value: Any) -> bool:
        """Whether each process holds only its part of a tensor: a `DTensor`."""
        return isinstance(value, self.mesh.distributed_type)

    def block(self, value: Any, spec: Spec) -> Any:
        """Return the part of this process of a tensor."""
        if not self.is_distributed(value):
            return super().block(value, spec)
        if tuple(value.placements) == self.mesh.placements(spec):
            return value.to_local()
        return super().block(value.full_tensor(), spec)

    def distributed(self, block: Any, spec: Spec) -> Any:
        """Return a `DTensor` of the parts."""
        return self.mesh.distributed(block, spec)

    def distribute(self, array: Any, spec: Spec) -> Any:
        """Return a `DTensor` of a whole tensor, or of one in a file, of which this process keeps its part."""
        if isinstance(array, StoredArray):
            block = array.block(self.layout.mesh, spec, self.mesh.rank)
            return self.mesh.distributed(self.backend.tensor(block, array.dtype), spec)
        return self.mesh.distributed(self.block(array, spec).clone(), spec)


#: Smaller sums wait until they are so many bytes together; what is larger is sent at once.
_LARGE = 1 << 22
#: Meshes that this process is in: groups of processes are made once.
_meshes: dict[tuple[Mesh, str], TorchMesh] = {}


def torch_mesh(torch: Any, mesh: Mesh, device: Any) -> TorchMesh:
    """Return the mesh of processes, made at the first call."""
    key = (mesh, device.type)
    if key not in _meshes:
        _meshes[key] = TorchMesh(torch, mesh, device)
    return _meshes[key]


def is_launched(torch: Any) -> bool:
    """Whether this process is one of several that run the same script."""
    distributed = torch.distributed
    return (distributed.is_available() and distributed.is_initialized()) or {"RANK", "WORLD_SIZE"} <= os.environ.keys()


def process_count(torch: Any, kind: str) -> int:
    """Return how many processes were started together; in a script that runs alone, how many devices there are."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    if not is_launched(torch) and kind == "cuda":
        return int(torch.cuda.device_count())
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_devices(backend: Any, layout: Layout) -> list[str] | None:
    """Return the devices of the workers that this process starts; None if it is to be a process of several itself."""
    torch, count = backend._torch, layout.mesh.devices
    if is_launched(torch) or not torch.distributed.is_available():
        return None
    if len(backend.listed_devices) > 1:
        return [str(name) for name in backend.listed_devices]
    kind = backend._device.type
    if kind == "cuda" and torch.cuda.device_count() >= count:
        return [f"cuda:{i}" for i in range(count)]
    # A processor is as many devices as the user says it is.
    return [backend.device] * count if kind == "cpu" and backend.layout is not None else None


def join_processes(torch: Any, device: Any, rank: int, count: int, folder: str) -> None:
    """Connect this worker with the others; they meet in a file of a folder that nobody else can open."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=time_limit()),
    )


def _how_to_start(torch: Any, mesh: Mesh, device: Any) -> str:
    count = mesh.devices
    if device.type == "cuda" and torch.cuda.device_count() < count:
        return (
            f"this machine has {torch.cuda.device_count()} of them: make the mesh smaller, start the script on several "
            f"machines with torchrun, or try it on the processor: TorchBackend(devices=['cpu'] * {count})"
        )
    return f"start the script in {count} processes: mithril launch -n {count} script.py"


class TorchMesh:
    """The collectives of a process, over `torch.distributed`."""

    def __init__(self, torch: Any, mesh: Mesh, device: Any) -> None:
        self._torch, self._device = torch, device
        distributed = self._distributed = torch.distributed
        if not distributed.is_available():
            raise BackendUnavailableError(
                f"{mesh!r} needs torch.distributed, which this PyTorch is built without", hint="install another build"
            )
        if not distributed.is_initialized():
            if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
                raise BackendUnavailableError(
                    f"{mesh!r} has {mesh.devices} devices, and this process is alone",
                    hint=_how_to_start(torch, mesh, device),
                )
            if os.environ["WORLD_SIZE"] == os.environ.get("LOCAL_WORLD_SIZE") and sys.platform in ("linux", "darwin"):
                # All on this machine, whose name may not resolve: gloo would wait for minutes.
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
            distributed.init_process_group(
                "nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=time_limit())
            )
            atexit.register(distributed.destroy_process_group)
        count = distributed.get_world_size()
        if count != mesh.devices:
            raise BackendUnavailableError(
                f"{mesh!r} has {mesh.devices} devices, and {count} processes were started",
                hint=f"start {mesh.devices}, or make the mesh as large",
            )
        # DTensor is a module that is imported on request.
        import_module("torch.distributed.tensor")
        grid = torch.distributed.device_mesh.init_device_mesh(
            device.type, tuple(mesh.axes.values()), mesh_dim_names=tuple(mesh.axes)
        )
        self._grid = grid
        #: Dtypes that gloo and NCCL do not have, and those in which their numbers are reduced.
        self._wide = {torch.bool: torch.uint8, torch.int16: torch.int32}
        self._wide |= {torch.uint16: torch.int32, torch.uint32: torch.int64}
        #: Sums under way: the axis of the mesh, what is waited for, the results, and the tensor that is sent.
        self._started: list[tuple[str, Any, list[Any], Any]] = []
        #: Small sums that wait to be sent together, by axis of the mesh and dtype: terms and results; and their bytes.
        self._waiting: dict[tuple[str, Any], list[tuple[Any, Any]]] = {}
        self._waiting_bytes: dict[tuple[str, Any], int] = {}
        #: Groups of two processes, and tensors that are being sent.
        self._lines: dict[tuple[int, int], Any] = {}
        self._sent: list[tuple[Any, Any]] = []
        self.rank: int = distributed.get_rank()
        self._groups = {name: grid.get_group(name) for name in mesh.axes}
        self._sizes = mesh.axes
        self._places = {name: grid.get_local_rank(name) for name in mesh.axes}

    @property
    def distributed_type(self) -> Any:
        """The type of tensors of which each process holds a part; it carries them, and computes nothing."""
        return self._torch.distributed.tensor.DTensor

    def placements(self, spec: Spec) -> tuple[Any, ...]:
        """Return the placements of a `DTensor` that is divided so."""
        tensor = self._torch.distributed.tensor
        axes = {name: axis for axis, names in enumerate(spec) for name in names}
        return tuple(tensor.Shard(axes[name]) if name in axes else tensor.Replicate() for name in self._sizes)

    def distributed(self, block: Any, spec: Spec) -> Any:
        """Return a `DTensor` of the parts of all processes."""
        if not any(spec):
            return block
        return self.distributed_type.from_local(block, self._grid, self.placements(spec), run_check=False)

    def gathered(self, number: int) -> list[int]:
        """Return the numbers that all processes give."""
        own = self._torch.tensor([number], dtype=self._torch.int64, device=self._device)
        sizes = own.new_empty(self._distributed.get_world_size())
        self._distributed.all_gather_into_tensor(sizes, own)
        return list(sizes.tolist())

    def all_reduce(self, x: Any, mesh_axis: str, reduction: str = "sum") -> Any:
        """Return the sum (``"max"``, ``"min"``) of the tensors along an axis of the mesh."""
        torch = self._torch
        if reduction != "sum" and x.is_floating_point():
            return self._largest(x, mesh_axis) if reduction == "max" else -self._largest(-x, mesh_axis)
        if x.dtype == torch.uint64:
            # Sums of signed integers have the same bits; their order is that without the highest one.
            flipped = 0 if reduction == "sum" else torch.iinfo(torch.int64).min
            return (self.all_reduce(x.view(torch.int64) ^ flipped, mesh_axis, reduction) ^ flipped).view(x.dtype)
        reduced = x.to(self._wide.get(x.dtype, x.dtype), copy=True, memory_format=torch.contiguous_format)
        op = getattr(self._distributed.ReduceOp, reduction.upper())
        with exchanging("all_reduce", mesh_axis):
            self._distributed.all_reduce(reduced, op, group=self._groups[mesh_axis])
        return reduced.to(x.dtype)

    def _largest(self, x: Any, mesh_axis: str) -> Any:
        """Return the largest floats, NaN where one is.

        gloo and NCCL lose NaN among floats, so integers are compared that have the same order: the bits, of negative
        numbers all but the sign inverted.
        """
        torch = self._torch
        wide = x.float() if x.itemsize < 4 else x
        integer = torch.int32 if wide.itemsize == 4 else torch.int64
        largest = torch.iinfo(integer).max
        bits = torch.where(wide.isnan(), torch.nan, wide).view(integer)
        order = self.all_reduce(torch.where(bits < 0, bits ^ largest, bits), mesh_axis, "max")
        return torch.where(order < 0, order ^ largest, order).view(wide.dtype).to(x.dtype)

    def _moved(self, x: Any) -> Any:
        """Return what is sent of a tensor: bytes, if its dtype is not one that gloo and NCCL have."""
        is_known = x.dtype not in self._wide and x.dtype != self._torch.uint64
        return x.contiguous() if is_known else x.contiguous().view(self._torch.uint8)

    def start_all_reduce(self, x: Any, mesh_axis: str) -> Any:
        """Return a tensor that holds the sum of the tensors along an axis of the mesh after the next `wait`."""
        if x.dtype in self._wide or x.dtype == self._torch.uint64:
            return self.all_reduce(x, mesh_axis)
        key = (mesh_axis, x.dtype)
        if x.nbytes >= _LARGE:
            reduced = x.clone(memory_format=self._torch.contiguous_format)
            self._start(key, [reduced], reduced)
            return reduced
        reduced = self._torch.empty_like(x, memory_format=self._torch.contiguous_format)
        self._waiting.setdefault(key, []).append((x, reduced))
        self._waiting_bytes[key] = self._waiting_bytes.get(key, 0) + x.nbytes
        if self._waiting_bytes[key] >= _LARGE:
            self._start_waiting(key)
        return reduced

    def _start_waiting(self, key: tuple[str, Any]) -> None:
        """Start the sums that wait to be sent together."""
        waiting, self._waiting_bytes[key] = self._waiting.pop(key), 0
        joined = self._torch.cat([part.reshape(-1) for part, _ in waiting])
        self._start(key, [reduced for _, reduced in waiting], joined)

    def _start(self, key: tuple[str, Any], results: list[Any], sent: Any) -> None:
        mesh_axis = key[0]
        with exchanging("all_reduce", mesh_axis):
            work = self._distributed.all_reduce(sent, group=self._groups[mesh_axis], async_op=True)
        self._started.append((mesh_axis, work, results, sent))

    def wait(self) -> None:
        """Wait for the sums that were started, and for those that wait to be sent."""
        for key in list(self._waiting):
            self._start_waiting(key)
        started, self._started = self._started, []
        for mesh_axis, work, results, sent in started:
            with exchanging("all_reduce", mesh_axis):
                work.wait()
            if results[0] is not sent:
                for result, own in zip(results, sent.split([r.numel() for r in results]), strict=True):
                    result.copy_(own.view_as(result))

    def all_gather(self, x: Any, mesh_axis: str, axis: int) -> Any:
        """Return the tensors along an axis of the mesh, joined along ``axis``."""
        torch, count = self._torch, self._sizes[mesh_axis]
        own = self._moved(x)
        gathered_parts = own.new_empty((count * own.shape[0], *own.shape[1:]))
        with exchanging("all_gather", mesh_axis):
            self._distributed.all_gather_into_tensor(gathered_parts, own.contiguous(), group=self._groups[mesh_axis])
        gathered_parts = gathered_parts.view(x.dtype)
        return gathered_parts if axis == 0 else torch.cat(gathered_parts.chunk(count), axis)

    def reduce_scatter(self, x: Any, mesh_axis: str, axis: int) -> Any:
        """Return the block of this process of the sum of the tensors along an axis of the mesh."""
        torch, count = self._torch, self._sizes[mesh_axis]
        if x.dtype in self._wide or x.dtype == torch.uint64:
            return self.shard(self.all_reduce(x, mesh_axis), mesh_axis, axis)
        parts = x if axis == 0 else torch.cat(x.chunk(count, axis))
        shape = list(x.shape)
        shape[axis] //= count
        reduced = x.new_empty(shape)
        with exchanging("reduce_scatter", mesh_axis):
            self._distributed.reduce_scatter_tensor(reduced, parts.contiguous(), group=self._groups[mesh_axis])
        return reduced

    def all_to_all(self, x: Any, mesh_axis: str, axis: int, joined: int) -> Any:
        """Send each process its block along ``axis``; return those of all, joined along ``joined``."""
        torch, count = self._torch, self._sizes[mesh_axis]
        sent = self._moved(torch.stack(x.chunk(count, axis)))
        received = torch.empty_like(sent)
        with exchanging("all_to_all", mesh_axis):
            if self._device.type == "cuda":
                self._distributed.all_to_all_single(received, sent, group=self._groups[mesh_axis])
            else:
                self._exchange(mesh_axis, {n: sent[n] for n in range(count)}, {n: received[n] for n in range(count)})
        return torch.cat(list(received.view(x.dtype)), joined)

    def permute(self, x: Any, mesh_axis: str, pairs: Sequence[tuple[int, int]]) -> Any:
        """Send a tensor along each pair ``(from, to)`` of places on an axis; return the one received, or zeros."""
        place, own = self._places[mesh_axis], self._moved(x.reshape(-1))
        received = self._torch.zeros_like(own)
        with exchanging("permute", mesh_axis):
            self._exchange(
                mesh_axis,
                {to: own for source, to in pairs if source == place},
                {source: received for source, to in pairs if to == place},
            )
        return received.view(x.dtype).reshape(x.shape)

    def _exchange(self, mesh_axis: str, sent: Mapping[int, Any], received: Mapping[int, Any]) -> None:
        """Send tensors to places on an axis, and receive others into the memory of ``received``."""
        distributed, group = self._distributed, self._groups[mesh_axis]
        place, works = self._places[mesh_axis], []
        for n, tensor in sent.items():
            if n == place:
                received[n].copy_(tensor)
            else:
                works.append(distributed.isend(tensor, group=group, group_dst=n))
        works += [distributed.irecv(tensor, group=group, group_src=n) for n, tensor in received.items() if n != place]
        for work in works:
            work.wait()

    def index(self, mesh_axis: str) -> Any:
        """Return the place of this process along an axis of the mesh, as a tensor."""
        return self._torch.tensor(self._places[mesh_axis], device=self._device)

    def shard(self, x: Any, mesh_axis: str, axis: int) -> Any:
        """Return the block of this process of a tensor that all have."""
        size = x.shape[axis] // self._sizes[mesh_axis]
        return x.narrow(axis, self._places[mesh_axis] * size, size)

    # --- messages between any two processes, for pipelines ------------------------------------------------------

    def open_lines(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Prepare to send from some processes to others; all processes call this with the same pairs."""
        if self._device.type == "cuda":
            # NCCL sends and receives in the order of the calls, of both directions if they are of one group.
            for pair in pairs:
                if pair not in self._lines:
                    self._lines[pair] = self._distributed.new_group(sorted(pair))

    def send(self, peer: int, array: Any) -> None:
        """Begin to send a tensor to another process."""
        if array.numel():
            sent = array.detach().contiguous().reshape(-1).view(self._torch.uint8)
            with exchanging("a step", "the pipeline"):
                work = self._distributed.isend(sent, peer, group=self._lines.get((self.rank, peer)))
            # Its memory is needed until it has arrived.
            self._sent.append((work, sent))

    def receive(self, peer: int, shape: Sequence[int], dtype: str) -> Any:
        """Return the next tensor that another process sends."""
        received = self._torch.empty(tuple(shape), dtype=getattr(self._torch, dtype), device=self._device)
        if received.numel():
            with exchanging("a step", "the pipeline"):
                line = self._lines.get((peer, self.rank))
                self._distributed.recv(received.view(-1).view(self._torch.uint8), peer, group=line)
        return received

    def finish(self) -> None:
        """Wait until what was sent has arrived."""
        sent, self._sent = self._sent, []
        with exchanging("a step", "the pipeline"):
            for work, _ in sent:
                work.wait()

    def broadcast(self, array: Any, source: int, shape: Sequence[int], dtype: str) -> Any:
        """Return the tensor of one process, on all."""
        own = array.detach().contiguous() if self.rank == source else None
        kind = getattr(self._torch, dtype)
        received = self._torch.empty(tuple(shape), dtype=kind, device=self._device) if own is None else own
        if received.numel():
            with exchanging("a result", "the pipeline"):
                self._distributed.broadcast(received.view(-1).view(self._torch.uint8), source)
        return received
