"""Layouts that the compiler decides: of strategies, and the one whose step is estimated to be the shortest."""

from __future__ import annotations

from .. import _core
from ..errors import InvalidValueError
from .auto_pipeline import PipelineRunner, PipelineSearch
from .hardware import Hardware
from .layout import Layout, Mesh
from .searches import Candidate, Search
from .strategies import short

__all__ = ["Candidate", "Search", "named", "search"]

#: Names of the outputs that have cotangents, and of the parameters that have gradients.
Gradients = tuple[list[str], list[str]] | None


def search(
    core: _core.Compiled,
    mesh: Mesh,
    hardware: Hardware,
    *,
    slots: float,
    gradients: Gradients,
    runner: PipelineRunner | None = None,
) -> Search:
    """Search for the layout of a program whose sizes are known; among pipelines, too, where something runs them.

    Raises
    ------
    InvalidValueError
        If none fits in the memory of a device.
    """

    def tensors(mesh: Mesh, hardware: Hardware) -> Search:
        return _search_tensors(core, mesh, hardware, slots, gradients)

    found = tensors(mesh, hardware)
    if runner is not None:
        found = PipelineSearch(core, mesh, hardware, slots, gradients, runner, tensors).improved(found)
    if not found.chosen.fits:
        axes = ", ".join(f"{name}={size}" for name, size in mesh.axes.items())
        raise InvalidValueError(
            f"no layout over the mesh ({axes}) fits in {hardware.memory} bytes of memory: the best one needs "
            f"{found.chosen.memory} bytes on each device",
            hint="use more devices, a smaller batch, gradient_checkpointing=True, or hardware with more memory",
        )
    return found


def _search_tensors(core: _core.Compiled, mesh: Mesh, hardware: Hardware, slots: float, gradients: Gradients) -> Search:
    """Search for the layout of tensors alone; the best one, even if it does not fit."""
    outputs, inputs = gradients or ([], [])
    batch, parameters, patterns, rows, evaluated = _core.best_layout(
        core, list(mesh.axes.items()), hardware.as_argument(mesh), slots, outputs, inputs
    )
    tensors = {pattern: tuple(short(axis) for axis in spec) for pattern, spec in patterns}
    layout = Layout(mesh, tensors, batch=short(batch), parameters=short(parameters))
    return Search(layout, tuple(Candidate(*row) for row in rows), evaluated)


def named(core: _core.Compiled, mesh: Mesh, strategies: dict[str, str], gradients: Gradients) -> Layout:
    """Return the layout of strategies, one for each axis of a mesh, of a program whose sizes are known."""
    outputs, inputs = gradients or ([], [])
    names = [strategies[axis] for axis in mesh.axes]
    batch, parameters, patterns = _core.named_layout(core, list(mesh.axes.items()), names, outputs, inputs)
    tensors = {pattern: tuple(short(axis) for axis in spec) for pattern, spec in patterns}
    return Layout(mesh, tensors, batch=short(batch), parameters=short(parameters))
