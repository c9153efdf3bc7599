"""A worker: a process with one device of a mesh, which runs programs that another process hands over."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from ..backends.registry import get_backend
from ..compiled.loading import is_out_of_memory, load
from .channel import Packed, ReceivedSource, receive, send
from .held import HeldArrays, about
from .layout import Mesh
from .processes import Communicator
from .sections import arranged, decoded, restored
from .step_worker import StepWorker

__all__ = ["main"]


def main() -> None:
    """Run what comes until the channel is closed; started by `workers.Workers`."""
    settings = json.loads(sys.argv[2])
    channels = {name: socket.socket(fileno=number) for name, number in settings["channels"].items()}
    threading.Thread(target=_live, args=(channels["alive"], settings["beat"], settings["folder"]), daemon=True).start()
    try:
        _serve(settings, channels)
    except (EOFError, OSError):
        # This thread may see the end of the other process before `_live` does.
        shutil.rmtree(settings["folder"], ignore_errors=True)


def _serve(settings: dict[str, Any], channels: dict[str, socket.socket]) -> None:
    """Do what messages ask for, and answer each; raise `EOFError` or `OSError` once the channel is closed."""
    control = channels["control"]
    try:
        make: Any = StepWorker if settings["kind"] == "steps" else _Worker
        worker = make(settings, {int(n): channels[n] for n in channels if n.isdecimal()})
    except BaseException as error:
        send(control, {"error": _described(error, {})})
        return
    send(control, {"ready": True})
    while True:
        head, arrays = receive(control)
        try:
            reply, results = worker.do(head, arrays)
        except Exception as error:
            reply, results = {"error": _described(error, worker.files)}, []
        send(control, reply, results)


def _live(alive: socket.socket, beat: float, folder: str) -> None:
    """Tell the other process that this one lives, and end when that one does not."""
    alive.settimeout(beat)
    while True:
        with contextlib.suppress(TimeoutError, OSError):
            if not alive.recv(1):
                # It was killed, and could not do so itself.
                shutil.rmtree(folder, ignore_errors=True)
                os._exit(1)
        with contextlib.suppress(OSError):
            alive.send(b".", socket.MSG_DONTWAIT)


def _described(error: BaseException, files: dict[str, int]) -> dict[str, Any]:
    """Return what an error says, and in which lines of which programs it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "kind": type(error).__name__,
        "message": getattr(error, "message", None) or str(error),
        "hint": getattr(error, "hint", None),
        "traceback": "".join(traceback.format_exception(error)),
        "lines": [frame.lineno for frame in frames if frame.filename in files],
        "is_memory": is_out_of_memory(error),
    }


class _Worker:
    """The programs and arrays of a device.

    Attributes
    ----------
    files : dict of str to int
        Names of the generated files, with the numbers of their programs.
    """

    def __init__(self, settings: dict[str, Any], peers: dict[int, socket.socket]) -> None:
        for peer in peers.values():
            peer.setblocking(False)
        self._rank: int = settings["rank"]
        self._peers = peers
        self._backend = get_backend(settings["backend"], device=settings["device"])
        self._engine = self._backend.engine
        self._engine.join_workers(self._rank, settings["count"], settings["folder"])
        self._meshes: dict[Mesh, Communicator] = {}
        self._programs: dict[int, tuple[Callable[..., Any], Communicator]] = {}
        self._held = HeldArrays(self._backend)
        self.files: dict[str, int] = {}

    def do(self, head: dict[str, Any], arrays: list[Packed]) -> tuple[dict[str, Any], list[Packed]]:
        """Do what a message asks for."""
        self._held.drop(head["dropped"])
        values = [self._engine.unpacked(array) for array in arrays]
        done = self._held.do(head, values)
        if done is None:
            action = {"load": self._load, "run": self._run}[head["do"]]
            done = action(head, values)
        return done

    def _mesh(self, axes: list[Any]) -> Communicator:
        mesh = Mesh(**dict(axes))
        if mesh not in self._meshes:
            self._meshes[mesh] = self._engine.worker_mesh(mesh, self._rank, self._peers)
        return self._meshes[mesh]

    def _load(self, head: dict[str, Any], constants: list[Any]) -> tuple[dict[str, Any], list[Packed]]:
        on_host = [self._engine.to_host(array) for array in constants]
        mesh = self._mesh(head["mesh"])
        source: Any = ReceivedSource(head["text"], dict(zip(head["constants"], on_host, strict=True)))
        module = load(source, head["name"], self._engine.constant, {"mesh": mesh})
        self.files[module.filename] = head["program"]
        self._programs[head["program"]] = module.function(head["name"]), mesh
        return {}, []

    def _run(self, head: dict[str, Any], arrays: list[Any]) -> tuple[dict[str, Any], list[Packed]]:
        function, mesh = self._programs[head["program"]]
        self._held.close_files()
        groups = [
            {name: arrays[ref] if isinstance(ref, int) else self._block(ref, mesh) for name, ref in group.items()}
            for group in head["arguments"]
        ]
        with self._engine.without_gradients():
            computed = function(*groups)
            mesh.wait()
        results: list[Packed] = []
        kept: dict[int, Any] = {}
        computed_groups = computed if isinstance(computed, tuple) else (computed,)
        for group, numbers in zip(computed_groups, head["results"], strict=True):
            for name, number in numbers.items():
                if number is None:
                    results.append(self._engine.packed(group[name]))
                elif number >= 0:
                    # What a program passes through is an argument, which may share memory with others.
                    kept[number] = self._held.arrays[number] = group[name]
        described = {number: about(self._backend, array) for number, array in kept.items() if self._rank == 0}
        return {"kept": described}, results

    def _block(self, ref: dict[str, Any], mesh: Communicator) -> Any:
        """Return an array that is here, divided as a program takes it."""
        value = self._held[ref["held"]]
        if "from" not in ref:
            return value
        spec, held = decoded(ref["from"]), Mesh(**dict(ref["mesh"]))
        for axis, names in enumerate(spec):
            for name in reversed(names):
                value = self._mesh(ref["mesh"]).all_gather(value, name, axis)
        value = restored(value, spec, held, self._engine.taken)
        spec = decoded(ref["to"])
        value = arranged(value, spec, Mesh(**dict(ref["own"])), self._engine.taken)
        for axis, names in enumerate(spec):
            for name in names:
                value = mesh.shard(value, name, axis)
        return value
