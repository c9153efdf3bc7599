"""Meshes of processes: each runs the same script, and its part of every program."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from ..backends.custom import namespace_of
from ..compiled.loading import load
from ..errors import BackendUnavailableError, InvalidValueError
from .mesh_engine import Division, MeshEngine, Spec, selected, staying
from .sections import arranged, restored

if TYPE_CHECKING:
    from .. import _core

__all__ = ["Communicator", "ProcessEngine", "Processes", "check_agreement", "exchanging", "time_limit"]

#: Variable of the environment that says how many seconds a process waits for the others.
TIMEOUT = "MITHRIL_MESH_TIMEOUT"


class Processes(Protocol):
    """The processes that run the same script: which one this is, and what all of them say."""

    rank: int

    def gathered(self, number: int) -> list[int]:
        """Return the numbers that all processes give; less than 2⁵³."""


class Communicator(Processes, Protocol):
    """What the global ``mesh`` of generated code is: the collectives of a process among the others of a mesh."""

    def all_reduce(self, x: Any, mesh_axis: str, reduction: str = "sum") -> Any:
        """Return the sum (``"max"``, ``"min"``) of the arrays along an axis of the mesh."""

    def start_all_reduce(self, x: Any, mesh_axis: str) -> Any:
        """Return an array that holds the sum of the arrays along an axis of the mesh after the next `wait`."""

    def wait(self) -> None:
        """Wait for the sums that were started."""

    def all_gather(self, x: Any, mesh_axis: str, axis: int) -> Any:
        """Return the arrays along an axis of the mesh, joined along ``axis``."""

    def reduce_scatter(self, x: Any, mesh_axis: str, axis: int) -> Any:
        """Return the block of this process of the sum of the arrays along an axis of the mesh."""

    def all_to_all(self, x: Any, mesh_axis: str, axis: int, joined: int) -> Any:
        """Send each process its block along ``axis``; return those of all, joined along ``joined``."""

    def permute(self, x: Any, mesh_axis: str, pairs: Sequence[tuple[int, int]]) -> Any:
        """Send an array along each pair ``(from, to)`` of places on an axis; return the one received, or zeros."""

    def index(self, mesh_axis: str) -> Any:
        """Return the place of this process along an axis of the mesh, as an array."""

    def shard(self, x: Any, mesh_axis: str, axis: int) -> Any:
        """Return the block of this process of an array that all have."""


def time_limit() -> float:
    """Return how many seconds a process waits for the others; the environment may say otherwise."""
    text = os.environ.get(TIMEOUT, "60")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise InvalidValueError(f"{TIMEOUT} is {text!r}", hint="give a number of seconds, e.g. 60")
    return seconds


@contextmanager
def exchanging(op: str, mesh_axis: str) -> Iterator[None]:
    """Explain errors of an exchange between processes, of which frameworks tell little."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BackendUnavailableError(
            f"{op} along {mesh_axis!r} failed: another process of the mesh has ended, or does not answer ({reason})",
            hint=f"see what the other processes print; they are waited for {time_limit():g} s ({TIMEOUT})",
        ) from error


def check_agreement(processes: Processes, text: str) -> None:
    """Raise if processes are about to run different programs: they would wait forever, or compute nonsense."""
    digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")
    first, *rest = processes.gathered(digest)
    others = [str(i) for i, other in enumerate(rest, 1) if other != first]
    if others:
        raise InvalidValueError(
            f"process {', '.join(others)} compiles another program than process 0",
            hint="give all processes the same model, options, layout and shapes",
        )


class ProcessEngine(MeshEngine):
    """Runs programs in processes of which each is given whole arrays, computes its part, and returns whole arrays."""

    mesh: Communicator

    def module(self, source: _core.Source, name: str) -> Any:
        """Load generated source, if all processes have the same."""
        check_agreement(self.mesh, source.text)
        return load(source, name, self.backend.engine.constant, {**namespace_of(self.backend), "mesh": self.mesh})

    def divided(self, module: Any, name: str, division: Division) -> Callable[..., Any]:
        """Return a function of whole arrays that runs the function of that name on all devices."""
        function = module.function(name)

        def call(*groups: Any) -> Any:
            arguments = [
                {name: self.block(value, specs[name]) for name, value in selected(group, specs).items()}
                for group, specs in zip(groups, division.arguments, strict=True)
            ]
            results = function(*arguments)
            self.mesh.wait()
            dicts = results if isinstance(results, tuple) else (results,)
            stays = staying(division, groups, self.is_distributed)
            results = [
                {
                    name: self.distributed(group[name], spec) if name in own else self.whole(group[name], spec)
                    for name, spec in specs.items()
                }
                for group, specs, own in zip(dicts, division.results, stays, strict=True)
            ]
            return results[0] if len(results) == 1 else tuple(results)

        return call

    def is_distributed(self, value: Any) -> bool:
        """Whether each process holds only its part of an array."""
        return False

    def block(self, value: Any, spec: Spec) -> Any:
        """Return the part of this process of an array."""
        value = arranged(value, spec, self.layout.mesh, self.backend.engine.taken)
        for axis, names in enumerate(spec):
            for name in names:
                value = self.mesh.shard(value, name, axis)
        return value

    def whole(self, value: Any, spec: Spec) -> Any:
        """Return the array that the processes have parts of."""
        for axis, names in enumerate(spec):
            for name in reversed(names):
                value = self.mesh.all_gather(value, name, axis)
        return restored(value, spec, self.layout.mesh, self.backend.engine.taken)

    def distributed(self, block: Any, spec: Spec) -> Any:
        """Return the array that the processes have parts of, and leave the parts where they are."""
        return self.whole(block, spec)
