"""Meshes of processes: each runs the same script, and its part of every program."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ..backends.custom import given
from ..compiled.loading import load
from ..errors import InvalidValueError
from .mesh_engine import Division, MeshEngine, Spec, selected

if TYPE_CHECKING:
    from .. import _core

__all__ = ["Communicator", "ProcessEngine"]


class Communicator(Protocol):
    """What the global ``mesh`` of generated code is: the collectives of a process among the others of a mesh."""

    def gathered(self, number: int) -> list[int]:
        """Return the numbers that all processes give; less than 2⁵³."""

    def all_reduce(self, x: Any, mesh_axis: str, reduction: str = "sum") -> Any:
        """Return the sum (``"max"``, ``"min"``) of the arrays along an axis of the mesh."""

    def all_gather(self, x: Any, mesh_axis: str, axis: int) -> Any:
        """Return the arrays along an axis of the mesh, joined along ``axis``."""

    def reduce_scatter(self, x: Any, mesh_axis: str, axis: int) -> Any:
        """Return the block of this process of the sum of the arrays along an axis of the mesh."""

    def shard(self, x: Any, mesh_axis: str, axis: int) -> Any:
        """Return the block of this process of an array that all have."""


class ProcessEngine(MeshEngine):
    """Runs programs in processes of which each is given whole arrays, computes its part, and returns whole arrays."""

    mesh: Communicator

    def module(self, source: _core.Source, name: str) -> Any:
        """Load generated source, if all processes have the same."""
        self._check_agreement(source.text)
        return load(source, name, self.backend.engine.constant, {**given(self.backend), "mesh": self.mesh})

    def _check_agreement(self, text: str) -> None:
        """Raise if processes are about to run different programs: they would wait forever, or compute nonsense."""
        digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")
        first, *rest = self.mesh.gathered(digest)
        others = [str(i) for i, other in enumerate(rest, 1) if other != first]
        if others:
            raise InvalidValueError(
                f"process {', '.join(others)} compiles another program than process 0",
                hint="give all processes the same model, options, layout and shapes",
            )

    def divided(self, module: Any, name: str, division: Division) -> Callable[..., Any]:
        """Return a function of whole arrays that runs the function of that name on all devices."""
        function, mesh = module.function(name), self.mesh

        def call(*groups: Any) -> Any:
            arguments = [
                {name: _block(mesh, value, specs[name]) for name, value in selected(group, specs).items()}
                for group, specs in zip(groups, division.arguments, strict=True)
            ]
            found = function(*arguments)
            dicts = found if isinstance(found, tuple) else (found,)
            results = [
                {name: _whole(mesh, group[name], spec) for name, spec in specs.items()}
                for group, specs in zip(dicts, division.results, strict=True)
            ]
            return results[0] if len(results) == 1 else tuple(results)

        return call


def _block(mesh: Communicator, value: Any, spec: Spec) -> Any:
    for axis, names in enumerate(spec):
        for name in names:
            value = mesh.shard(value, name, axis)
    return value


def _whole(mesh: Communicator, value: Any, spec: Spec) -> Any:
    for axis, names in enumerate(spec):
        for name in reversed(names):
            value = mesh.all_gather(value, name, axis)
    return value
