"""Collectives of NumPy between the workers of a process: each has a socket to each other one."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .layout import Mesh
from .processes import exchanging, time_limit

__all__ = ["SocketMesh"]

_REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class SocketMesh:
    """The collectives of a worker of NumPy.

    Sums are taken in the order of the devices, so that all of them have the same bits.

    Parameters
    ----------
    mesh : Mesh
        The devices.
    rank : int
        Number of this worker.
    peers : dict of int to socket
        Sockets to the others; each pair of workers has one.
    """

    def __init__(self, mesh: Mesh, rank: int, peers: Mapping[int, socket.socket]) -> None:
        self.rank = rank
        self._peers = peers
        self._limit = time_limit()
        grid = np.arange(mesh.devices).reshape(tuple(mesh.axes.values()))
        place = tuple(int(i[0]) for i in np.nonzero(grid == rank))
        self._places = dict(zip(mesh.axes, place, strict=True))
        self._groups = {
            name: [int(n) for n in np.moveaxis(grid, i, -1)[place[:i] + place[i + 1 :]]]
            for i, name in enumerate(mesh.axes)
        }

    def gathered(self, number: int) -> list[int]:
        """Return the numbers that all processes give."""
        received = self._exchange(dict.fromkeys(self._peers, np.array([number], np.int64)), "gathered", "all")
        return [number if n == self.rank else int(received[n][0]) for n in range(len(self._peers) + 1)]

    def all_reduce(self, x: Any, mesh_axis: str, reduction: str = "sum") -> Any:
        """Return the sum (``"max"``, ``"min"``) of the arrays along an axis of the mesh."""
        group = self._groups[mesh_axis]
        own = _added(x).reshape(-1)
        # As a ring does it: each reduces a part, and then has those of the others.
        parts = np.array_split(own, len(group))
        mine = self._reduced(parts, mesh_axis, reduction, "all_reduce")
        sizes = [part.size for part in parts]
        received = self._exchange(
            {n: mine for n in group if n != self.rank},
            "all_reduce",
            mesh_axis,
            {n: ((size,), own.dtype) for n, size in zip(group, sizes, strict=True)},
        )
        joined = np.concatenate([mine if n == self.rank else received[n] for n in group])
        return joined.reshape(x.shape).astype(x.dtype, copy=False)

    def start_all_reduce(self, x: Any, mesh_axis: str) -> Any:
        """Return an array that holds the sum of the arrays along an axis of the mesh after the next `wait`."""
        return self.all_reduce(x, mesh_axis)

    def wait(self) -> None:
        """Wait for the sums that were started: they are there."""

    def all_gather(self, x: Any, mesh_axis: str, axis: int) -> Any:
        """Return the arrays along an axis of the mesh, joined along ``axis``."""
        group = self._groups[mesh_axis]
        own = np.ascontiguousarray(x)
        received = self._exchange({n: own for n in group if n != self.rank}, "all_gather", mesh_axis)
        return np.concatenate([own if n == self.rank else received[n] for n in group], axis)

    def reduce_scatter(self, x: Any, mesh_axis: str, axis: int) -> Any:
        """Return the block of this process of the sum of the arrays along an axis of the mesh."""
        parts = np.split(_added(x), len(self._groups[mesh_axis]), axis)
        return self._reduced(parts, mesh_axis, "sum", "reduce_scatter").astype(x.dtype, copy=False)

    def all_to_all(self, x: Any, mesh_axis: str, axis: int, joined: int) -> Any:
        """Send each process its block along ``axis``; return those of all, joined along ``joined``."""
        group = self._groups[mesh_axis]
        parts = {n: np.ascontiguousarray(part) for n, part in zip(group, np.split(x, len(group), axis), strict=True)}
        own = parts.pop(self.rank)
        received = self._exchange(parts, "all_to_all", mesh_axis)
        return np.concatenate([own if n == self.rank else received[n] for n in group], joined)

    def permute(self, x: Any, mesh_axis: str, pairs: Sequence[tuple[int, int]]) -> Any:
        """Send an array along each pair ``(from, to)`` of places on an axis; return the one received, or zeros."""
        group, place = self._groups[mesh_axis], self._places[mesh_axis]
        to = next((group[to] for source, to in pairs if source == place), None)
        source = next((group[source] for source, to in pairs if to == place), None)
        if source == self.rank:
            return x
        own, nothing = np.ascontiguousarray(x), np.empty((0,), x.dtype)
        peers = {n for n in (to, source) if n is not None}
        received = self._exchange(
            {n: own if n == to else nothing for n in peers},
            "permute",
            mesh_axis,
            {n: (own.shape if n == source else (0,), own.dtype) for n in peers},
        )
        return np.zeros_like(own) if source is None else received[source]

    def index(self, mesh_axis: str) -> Any:
        """Return the place of this process along an axis of the mesh, as an array."""
        return np.asarray(self._places[mesh_axis], np.int64)

    def shard(self, x: Any, mesh_axis: str, axis: int) -> Any:
        """Return the block of this process of an array that all have."""
        size = x.shape[axis] // len(self._groups[mesh_axis])
        start = self._places[mesh_axis] * size
        return x[(slice(None),) * axis + (slice(start, start + size),)]

    def _reduced(self, parts: list[Any], mesh_axis: str, reduction: str, op: str) -> Any:
        """Send each part to whom it belongs; return the own one of all, reduced."""
        group = self._groups[mesh_axis]
        own = parts[self._places[mesh_axis]]
        sent = {n: np.ascontiguousarray(part) for n, part in zip(group, parts, strict=True) if n != self.rank}
        received = self._exchange(sent, op, mesh_axis, dict.fromkeys(group, (own.shape, own.dtype)))
        values = [own if n == self.rank else received[n] for n in group]
        result = values[0].copy()
        for value in values[1:]:
            _REDUCE[reduction](result, value, out=result)
        return result

    def _exchange(
        self,
        sent: Mapping[int, Any],
        op: str,
        mesh_axis: str,
        expected: Mapping[int, tuple[tuple[int, ...], Any]] | None = None,
    ) -> dict[int, Any]:
        """Send an array to each of some peers, and receive one of each; of those that are sent if nothing is said."""
        received = {n: np.empty(*((a.shape, a.dtype) if expected is None else expected[n])) for n, a in sent.items()}
        outgoing = {n: _bytes(a) for n, a in sent.items()}
        incoming = {n: _bytes(a) for n, a in received.items()}
        until = time.monotonic() + self._limit
        with exchanging(op, mesh_axis), selectors.DefaultSelector() as selector:
            for n in (n for n in sent if outgoing[n] or incoming[n]):
                selector.register(self._peers[n], _events(outgoing[n], incoming[n]), n)
            while any(outgoing.values()) or any(incoming.values()):
                ready = selector.select(max(0.0, until - time.monotonic()))
                if not ready:
                    raise TimeoutError(f"no answer within {self._limit:g} s")
                for key, events in ready:
                    n = key.data
                    if events & selectors.EVENT_WRITE and outgoing[n]:
                        outgoing[n] = outgoing[n][self._peers[n].send(outgoing[n][: 1 << 20]) :]
                    if events & selectors.EVENT_READ and incoming[n]:
                        count = self._peers[n].recv_into(incoming[n])
                        if not count:
                            raise ConnectionError("the channel was closed")
                        incoming[n] = incoming[n][count:]
                    wants = _events(outgoing[n], incoming[n])
                    if not wants:
                        selector.unregister(self._peers[n])
                    elif wants != key.events:
                        selector.modify(self._peers[n], wants, n)
        return received


def _bytes(array: Any) -> memoryview:
    content: Any = array.reshape(-1).view(np.uint8)
    return memoryview(content)


def _events(outgoing: memoryview, incoming: memoryview) -> int:
    return (selectors.EVENT_WRITE if outgoing else 0) | (selectors.EVENT_READ if incoming else 0)


def _added(x: Any) -> Any:
    """Return an array of a dtype in which it is added and compared."""
    if x.dtype.name in ("float16", "bfloat16"):
        return np.asarray(x, np.float32)
    return np.asarray(x, np.uint8 if x.dtype == np.bool_ else x.dtype)
