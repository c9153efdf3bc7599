"""A worker of a pipeline: runs the steps of its layers, and hands what they make to the workers that need it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from ..backends.registry import get_backend
from ..compiled.loading import load
from .channel import Packed, ReceivedSource, receive, send
from .pipeline import Step
from .processes import exchanging, time_limit

__all__ = ["StepWorker"]

#: Name of a value, and number of a micro-batch.
Key = tuple[str, int]


class StepWorker:
    """The programs of a device of a pipeline.

    Attributes
    ----------
    files : dict of str to int
        Names of the generated files, with the numbers of their programs.
    """

    def __init__(self, settings: dict[str, Any], peers: dict[int, socket.socket]) -> None:
        self._peers = peers
        self._backend = get_backend(settings["backend"], device=settings["device"])
        self._engine = self._backend.engine
        self._programs: dict[int, _Program] = {}
        self._came: dict[Key, Packed] = {}
        self._news = threading.Condition()
        self._is_closed = False
        self.files: dict[str, int] = {}
        for peer in peers.values():
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
        values = [self._engine.unpacked(array) for array in arrays]
        if head["do"] == "load":
            given = {name: self._engine.to_host(a) for name, a in zip(head["constants"], values, strict=True)}
            source: Any = ReceivedSource(head["text"], given)
            module = load(source, "steps", self._engine.constant)
            self.files[module.filename] = head["program"]
            steps = [Step(*row) for row in head["steps"]]
            self._programs[head["program"]] = _Program(module, steps, head)
            return {}, []
        with self._engine.without_gradients():
            return {}, self._run(self._programs[head["program"]], head, values)

    def _run(self, program: _Program, head: dict[str, Any], arrays: list[Any]) -> list[Packed]:
        count = program.count
        values: dict[Key, Any] = {}
        for name, number in head["shared"].items():
            values.update(dict.fromkeys(((name, m) for m in range(count)), arrays[number]))
        for m, own in enumerate(head["micro"]):
            values.update({(name, m): arrays[number] for name, number in own.items()})
        kept = {(name, m) for name, m in head["results"]}
        uses = Counter(program.uses)
        for i, m in program.order:
            step = program.steps[i]
            micros = range(count) if m < 0 else (m,)
            for name in step.reads:
                for n in micros:
                    if (name, n) not in values:
                        values[name, n] = self._await((name, n))
            made = (
                self._exchanged(step, values, m, count) if step.exchange else self._computed(program, step, values, m)
            )
            values.update(made)
            for name in step.makes:
                for peer in program.sends.get(name, ()):
                    for n in micros:
                        send(self._peers[peer], {"name": name, "micro": n}, [self._engine.packed(values[name, n])])
            for key in [(name, n) for name in (*step.reads, *step.makes) for n in micros]:
                uses[key] -= key[0] in step.reads
                if uses[key] <= 0 and key not in kept:
                    values.pop(key, None)
        return [self._engine.packed(values[name, m]) for name, m in head["results"]]

    def _computed(self, program: _Program, step: Step, values: dict[Key, Any], m: int) -> dict[Key, Any]:
        found = program.functions[step.name]({name: values[name, m] for name in step.reads})
        return {(name, m): array for name, array in found.items()}

    def _exchanged(self, step: Step, values: dict[Key, Any], m: int, count: int) -> dict[Key, Any]:
        """Compute a collective over the micro-batches."""
        assert step.exchange is not None
        axis, along, reduction = step.exchange
        [make] = step.makes
        if step.name == "mesh_index":
            return {(make, m): self._engine.constant(np.asarray(m, np.int64))}
        [read] = step.reads
        if step.name == "shard":
            return {(make, m): _part(values[read, m], axis, m, count)}
        parts = [values[read, n] for n in range(count)]
        if step.name == "all_gather":
            whole = self._engine.joined(parts, axis) if count > 1 else parts[0]
            return {(make, n): whole for n in range(count)}
        if step.name == "all_to_all":
            return {
                (make, n): self._engine.joined([_part(part, axis, n, count) for part in parts], along)
                for n in range(count)
            }
        total = parts[0]
        for part in parts[1:]:
            if reduction == "SUM":
                total = total + part
            else:
                total = getattr(self._backend, {"MAX": "maximum", "MIN": "minimum"}[reduction])(total, part)
        is_divided = step.name == "reduce_scatter"
        return {(make, n): _part(total, axis, n, count) if is_divided else total for n in range(count)}

    def _await(self, key: Key) -> Any:
        limit = time_limit()
        with self._news, exchanging("a step", "the pipeline"):
            if not self._news.wait_for(lambda: key in self._came or self._is_closed, limit):
                raise TimeoutError(f"no answer within {limit:g} s")
            if key not in self._came:
                raise ConnectionError("the channel was closed")
            array = self._came.pop(key)
        return self._engine.unpacked(array)


class _Program:
    """The steps of a program on this device, in their order."""

    def __init__(self, module: Any, steps: list[Step], head: dict[str, Any]) -> None:
        self.steps = steps
        self.count: int = head["count"]
        self.order = [(i, m) for i, m in head["order"]]
        self.sends: dict[str, list[int]] = head["sends"]
        own = {i for i, _ in self.order}
        self.functions: dict[str, Callable[..., Any]] = {
            steps[i].name: module.function(steps[i].name) for i in own if steps[i].exchange is None
        }
        #: How often each value is read here.
        self.uses = Counter(
            (name, n) for i, m in self.order for name in steps[i].reads for n in (range(self.count) if m < 0 else (m,))
        )


def _part(array: Any, axis: int, number: int, count: int) -> Any:
    size = array.shape[axis] // count
    return array[(slice(None),) * axis + (slice(number * size, (number + 1) * size),)]
