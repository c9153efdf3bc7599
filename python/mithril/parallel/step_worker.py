"""A worker of a pipeline: runs the steps of its layers, and hands what they make to the workers that need it."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from ..backends.registry import get_backend
from ..compiled.loading import load
from .channel import Packed, ReceivedSource, receive, send
from .held import HeldArrays, about
from .layout import Mesh
from .pipeline import Step
from .processes import Communicator, exchanging, time_limit
from .step_runner import DeviceSteps, Key, StepRun, finished

__all__ = ["StepWorker"]


class StepWorker:
    """The programs of a device of a pipeline.

    Attributes
    ----------
    files : dict of str to int
        Names of the generated files, with the numbers of their programs.
    """

    def __init__(self, settings: dict[str, Any], peers: dict[int, socket.socket]) -> None:
        rank, stages = settings["rank"], settings["stages"]
        # Devices of one stage exchange tensors within its steps, and get nothing else of each other.
        self._rank = rank
        self._partners = {n: peer for n, peer in peers.items() if stages and stages[n] == stages[rank]}
        self._peers = {n: peer for n, peer in peers.items() if n not in self._partners}
        self._meshes: dict[Mesh, Communicator] = {}
        self._backend = get_backend(settings["backend"], device=settings["device"])
        self._engine = self._backend.engine
        self._programs: dict[int, DeviceSteps] = {}
        self._held = HeldArrays(self._backend)
        self._came: dict[Key, Packed] = {}
        self._news = threading.Condition()
        self._is_closed = False
        self.files: dict[str, int] = {}
        if self._partners:
            self._engine.join_workers(rank, settings["count"], settings["folder"])
        for peer in self._partners.values():
            peer.setblocking(False)
        for peer in self._peers.values():
            threading.Thread(target=self._read, args=(peer,), daemon=True).start()

    def _read(self, peer: socket.socket) -> None:
        """Take what a peer sends, so that it never waits."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                head, [array] = receive(peer)
                with self._news:
                    self._came[head["name"], head["micro"]] = array
                    self._news.notify_all()
        with self._news:
            self._is_closed = True
            self._news.notify_all()

    def do(self, head: dict[str, Any], arrays: list[Packed]) -> tuple[dict[str, Any], list[Packed]]:
        """Do what a message asks for."""
        self._held.drop(head["dropped"])
        values = [self._engine.unpacked(array) for array in arrays]
        done = self._held.do(head, values)
        if done is not None:
            return done
        if head["do"] == "load":
            constants = {name: self._engine.to_host(a) for name, a in zip(head["constants"], values, strict=True)}
            source: Any = ReceivedSource(head["text"], constants)
            mesh = self._mesh(head["mesh"]) if self._partners else None
            module = load(source, "steps", self._engine.constant, {} if mesh is None else {"mesh": mesh})
            if mesh is not None:
                module.around = lambda function: finished(function, mesh)
            self.files[module.filename] = head["program"]
            steps = [Step(*row) for row in head["steps"]]
            order = [(i, m) for i, m in head["order"]]
            self._programs[head["program"]] = DeviceSteps(module, steps, order, head["sends"], head["count"])
            return {}, []
        with self._engine.without_gradients():
            return self._run(self._programs[head["program"]], head, values)

    def _mesh(self, axes: list[Any]) -> Communicator:
        """Return the collectives of this worker and those of its stage."""
        mesh = Mesh(**dict(axes))
        if mesh not in self._meshes:
            self._meshes[mesh] = self._engine.worker_mesh(mesh, self._rank, self._partners)
        return self._meshes[mesh]

    def _run(
        self, program: DeviceSteps, head: dict[str, Any], arrays: list[Any]
    ) -> tuple[dict[str, Any], list[Packed]]:
        self._held.close_files()
        values: dict[Key, Any] = {}
        # What this device keeps, and others read, too.
        for name, number, peers in head["held"]:
            for peer in peers:
                self._send(peer, (name, -1), self._held[number])
        shared = {name: arrays[number] for name, number in head["shared"].items()}
        shared |= {name: self._held[number] for name, number, _ in head["held"]}
        shared |= {name: self._await((name, -1)) for name in head["awaited"]}
        for name, array in shared.items():
            values.update(dict.fromkeys(((name, m) for m in range(program.count)), array))
        for m, own in enumerate(head["micro"]):
            values.update({(name, m): arrays[number] for name, number in own.items()})
        results = [(name, m) for name, m in head["results"]]
        kept = head["kept"]
        keys = [*results, *((name, 0) for name in kept)]
        run = StepRun(program, self._backend, values, keys, self._await, self._send)
        for task in program.order:
            run.do(task)
        self._held.arrays.update({number: run.values[name, 0] for name, number in kept.items()})
        described = {number: about(self._backend, run.values[name, 0]) for name, number in kept.items()}
        return {"kept": described}, [self._engine.packed(run.values[key]) for key in results]

    def _send(self, peer: int, key: Key, array: Any) -> None:
        with exchanging("a step", "the pipeline"):
            send(self._peers[peer], {"name": key[0], "micro": key[1]}, [self._engine.packed(array)])

    def _await(self, key: Key) -> Any:
        limit = time_limit()
        with self._news, exchanging("a step", "the pipeline"):
            if not self._news.wait_for(lambda: key in self._came or self._is_closed, limit):
                raise TimeoutError(f"no answer within {limit:g} s")
            if key not in self._came:
                raise ConnectionError("the channel was closed")
            array = self._came.pop(key)
        return self._engine.unpacked(array)
