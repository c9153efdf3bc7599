"""`strategy="auto"`: the layout over a mesh whose step is estimated to be the shortest of those that fit in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import _core
from ..errors import ConflictingOptionError, InvalidValueError
from .hardware import Hardware
from .layout import Layout, Mesh
from .pipeline import Pipeline

__all__ = ["AutoLayout", "Candidate", "Search", "check_strategy", "search"]


class AutoLayout(Layout):
    """The place of a layout that is searched for when the model is compiled."""


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


def search(
    core: _core.Compiled, mesh: Mesh, hardware: Hardware, *, slots: float, gradients: tuple[list[str], list[str]] | None
) -> Search:
    """Search for the layout of a program whose sizes are known."""
    outputs, inputs = gradients or ([], [])
    batch, parameters, patterns, rows, evaluated = _core.best_layout(
        core, list(mesh.axes.items()), hardware.as_argument(mesh), slots, outputs, inputs
    )
    tensors = {pattern: tuple(_short(axis) for axis in spec) for pattern, spec in patterns}
    layout = Layout(mesh, tensors, batch=_short(batch), parameters=_short(parameters))
    return Search(layout, tuple(Candidate(*row) for row in rows), evaluated)


def _short(axes: list[str]) -> Any:
    return None if not axes else axes[0] if len(axes) == 1 else tuple(axes)


def check_strategy(strategy: Any, layout: Any) -> Mesh | None:
    """Return the mesh over which a layout is to be searched for; None if none is asked for."""
    if strategy is None:
        return layout.mesh if isinstance(layout, AutoLayout) else None
    if strategy != "auto":
        raise InvalidValueError(
            f"the strategy is {strategy!r}", hint='pass strategy="auto", or a layout: layout=ml.Layout(...)'
        )
    if isinstance(layout, AutoLayout):
        return layout.mesh
    if isinstance(layout, (Layout, Pipeline)):
        raise ConflictingOptionError(
            f'strategy="auto" searches for a layout, and {layout!r} is one',
            hint="pass the mesh alone: layout=ml.Mesh(data=2, model=4); or leave strategy out",
        )
    if not isinstance(layout, Mesh):
        raise InvalidValueError(
            f'strategy="auto" needs a mesh, not {layout!r}', hint="pass one: layout=ml.Mesh(data=2, model=4)"
        )
    return layout
