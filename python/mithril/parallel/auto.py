"""Layouts that the compiler decides: of strategies, and the one whose step is estimated to be the shortest."""

from __future__ import annotations

from dataclasses import dataclass

from .. import _core
from .hardware import Hardware
from .layout import Layout, Mesh
from .strategies import short

__all__ = ["Candidate", "Search", "named", "search"]


@dataclass(frozen=True)
class Candidate:
    """A layout that the search looked at.

    Attributes
    ----------
    name : str
        The strategy along each axis of the mesh, or ``"chosen"``.
    seconds : float
        Estimated time of a step.
    memory : int
        Bytes on a device.
    fits : bool
        Whether they fit.
    """

    name: str
    seconds: float
    memory: int
    fits: bool


@dataclass(frozen=True)
class Search:
    """What a search found.

    Attributes
    ----------
    layout : Layout
        The layout.
    candidates : tuple of Candidate
        The known strategies in the order in which they were tried, and what was chosen.
    evaluated : int
        How many layouts were partitioned and costed.
    """

    layout: Layout
    candidates: tuple[Candidate, ...]
    evaluated: int

    def ranking(self, count: int = 6) -> list[Candidate]:
        """Return what was chosen, then the best of the known strategies, those that fit first."""
        best = sorted(self.candidates[:-1], key=lambda c: (not c.fits, c.seconds))
        return [self.candidates[-1], *best[:count]]


def search(
    core: _core.Compiled, mesh: Mesh, hardware: Hardware, *, slots: float, gradients: tuple[list[str], list[str]] | None
) -> Search:
    """Search for the layout of a program whose sizes are known."""
    outputs, inputs = gradients or ([], [])
    batch, parameters, patterns, rows, evaluated = _core.best_layout(
        core, list(mesh.axes.items()), hardware.as_argument(mesh), slots, outputs, inputs
    )
    tensors = {pattern: tuple(short(axis) for axis in spec) for pattern, spec in patterns}
    layout = Layout(mesh, tensors, batch=short(batch), parameters=short(parameters))
    return Search(layout, tuple(Candidate(*row) for row in rows), evaluated)


def named(
    core: _core.Compiled, mesh: Mesh, strategies: dict[str, str], gradients: tuple[list[str], list[str]] | None
) -> Layout:
    """Return the layout of strategies, one for each axis of a mesh, of a program whose sizes are known."""
    outputs, inputs = gradients or ([], [])
    names = [strategies[axis] for axis in mesh.axes]
    batch, parameters, patterns = _core.named_layout(core, list(mesh.axes.items()), names, outputs, inputs)
    tensors = {pattern: tuple(short(axis) for axis in spec) for pattern, spec in patterns}
    return Layout(mesh, tensors, batch=short(batch), parameters=short(parameters))
