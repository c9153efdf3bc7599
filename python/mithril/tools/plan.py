"""`plan`: what each device of a mesh computes, holds and exchanges, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _core, tables
from ..backends.with_manualgrad.numpy_backend import NumpyBackend
from ..compiled import internals
from ..compiled.compile import compile
from ..compiled.physical_model import PhysicalModel
from ..errors import InvalidValueError
from ..parallel.layout import Layout, Mesh, as_layout
from ..parallel.pipeline import Pipeline

__all__ = ["Communication", "Plan", "plan"]


@dataclass(frozen=True)
class Communication:
    """A collective of a partitioned program.

    Attributes
    ----------
    op : str
        ``"all_reduce"``, ``"all_gather"`` or ``"reduce_scatter"``.
    axis : str
        The axis of the mesh along which devices exchange.
    devices : int
        How many take part.
    bytes : int
        What each of them sends, by the ring algorithm.
    path : str or None
        The part of the model that needs it; None for results.
    line : str or None
        The user's line.
    """

    op: str
    axis: str
    devices: int
    bytes: int
    path: str | None
    line: str | None


class Plan(tables.Report):
    """A model divided over a mesh: printed, a table of what devices exchange and of the memory of each.

    Attributes
    ----------
    layout : Layout
        The layout that was asked for.
    communications : tuple of Communication
        All collectives in the order in which they run.
    memory : dict of str to int
        Bytes on each device: ``"parameters"``, ``"states"``, ``"data"``, ``"gradients"``, and ``"activations"``, the
        most that values between the ops take at a time if each op stores its results (targets fuse ops, and need less).
    shapes : dict of str to tuple of int
        Shapes of the inputs on a device.
    """

    def __init__(self, program: _core.Partitioned, layout: Layout) -> None:
        self.layout = layout
        self.communications = tuple(Communication(*row) for row in program.communications())
        self.memory: dict[str, int] = program.memory()
        self.shapes = {name: tuple(shape) for name, _, _, shape, _ in program.inputs()}
        self._program = program

    @property
    def text(self) -> str:
        """The program that each device runs."""
        text: str = self._program.text
        return text

    @property
    def bytes_sent(self) -> int:
        """Bytes that each device sends in a call."""
        return sum(c.bytes for c in self.communications)

    _schema = "mithril.plan/1"

    def _facts(self) -> dict[str, Any]:
        return {
            "mesh": dict(self.layout.mesh.axes),
            "devices": self.layout.mesh.devices,
            "bytes_sent": self.bytes_sent,
            "memory": self.memory,
            "shapes": self.shapes,
            "communications": self.communications,
        }

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        groups: dict[tuple[str, str, int, str], tuple[int, int]] = {}
        for c in self.communications:
            key = (c.op, c.axis, c.devices, c.path or "results")
            count, size = groups.get(key, (0, 0))
            groups[key] = (count + 1, size + c.bytes)
        rows = [
            [op, f"{axis} ({devices})", str(count), f"{size:,}", path]
            for (op, axis, devices, path), (count, size) in groups.items()
        ]
        return ["collective", "mesh axis", "times", "bytes sent", "for"], rows

    def _sentences(self) -> list[str]:
        mesh = self.layout.mesh
        parts = ", ".join(f"{name} {size:,}" for name, size in self.memory.items() if size)
        return [
            f"{mesh}: each of {mesh.devices} devices sends {self.bytes_sent:,} bytes in {len(self.communications)} "
            "collectives",
            f"bytes on each device: {parts or 'none'}",
        ]

    def __repr__(self) -> str:
        return f"<Plan on {self.layout.mesh}: {len(self.communications)} collectives, {self.bytes_sent:,} bytes sent>"


def plan(
    model: _core.Model | PhysicalModel,
    layout: Layout | Mesh | None = None,
    *,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    gradients: bool = False,
    **options: Any,
) -> Plan:
    """Divide a model over a mesh of devices and say what each of them computes, holds and exchanges.

    How an op divides is derived from its definition. Where it divides in several ways, the cheapest in bytes sent and
    work done is taken; an op that does not divide is computed by every device. Nothing is run, and no device has to be
    there.

    Parameters
    ----------
    model : Model or PhysicalModel
        The model.
    layout : Layout or Mesh, optional
        How tensors are divided. A mesh stands for data parallelism along its first axis. A compiled model may have a
        layout already.
    shapes : mapping of str to sequence of int, optional
        Shapes of the data on all devices together; each size has to be known.
    gradients : bool
        Whether the gradients of all parameters are part of the plan.
    **options
        Other options of `compile`.

    Returns
    -------
    Plan
        Collectives, memory, and the program of a device.

    Raises
    ------
    InvalidValueError
        If the layout does not fit the model: an unknown name, an axis that does not divide.
    UnresolvedShapeError
        If sizes are not known.

    Examples
    --------
    >>> import mithril as ml
    >>> model = ml.Model()
    >>> model |= ml.Linear(64, name="up")(input="input", output="hidden")
    >>> model += ml.Gelu()
    >>> model += ml.Linear(16, name="down")(output="output")
    >>> layout = ml.Layout(
    ...     ml.Mesh(data=2, model=4),
    ...     {"up.*": "model", "down.weight": (None, "model")},
    ...     batch="data",
    ... )
    >>> print(ml.plan(model, layout, shapes={"input": [8, 16]}))
    collective  mesh axis  times  bytes sent  for
    all_reduce  model (4)      1         384  down
    <BLANKLINE>
    Mesh(data=2, model=4): each of 8 devices sends 384 bytes in 1 collectives
    bytes on each device: parameters 2,176, data 256, activations 1,536
    """
    if isinstance(model, PhysicalModel):
        compiled = model
        layout = internals.program_settings(model).layout if layout is None else layout
    else:
        options.setdefault("inference", not gradients)
        compiled = compile(model, NumpyBackend(), shapes=shapes, **options)
    if layout is None:
        raise InvalidValueError("the model has no layout", hint="pass one: ml.plan(model, ml.Mesh(data=4))")
    layout = as_layout(layout)
    if isinstance(layout, Pipeline):
        raise InvalidValueError(
            "there are no plans of pipelines", hint="pass a layout: ml.plan(model, ml.Mesh(data=4))"
        )
    core = internals.known_program(compiled).core.with_layout(layout.as_argument)
    given = {} if shapes is None else {name: list(shape) for name, shape in shapes.items()}
    if given and all(isinstance(size, int) for shape in given.values() for size in shape):
        core = core.specialize(given)
    wanted = (list(internals.names_by_role(compiled)["output"]), list(core.trained)) if gradients else None
    return Plan(core.partition(wanted), layout)
