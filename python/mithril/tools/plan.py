"""`plan`: what each device of a mesh computes, holds and exchanges, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import _core
from ..backends.keywords import passes_on
from ..backends.with_manualgrad.numpy_backend import NumpyBackend
from ..compiled import internals
from ..compiled.compile import compile
from ..compiled.physical_model import PhysicalModel
from ..errors import InvalidValueError
from ..optim import Optimizer
from ..optim.internals import slot_bytes
from ..parallel.auto import Search, named, search
from ..parallel.auto_pipeline import PipelineRunner
from ..parallel.hardware import Hardware, as_hardware
from ..parallel.layout import Layout, Mesh, as_layout
from ..parallel.pipeline import Pipeline
from ..parallel.simulated_pipeline import PipelineProgram
from ..parallel.strategies import PlannedLayout, Strategy, planned_layout, with_strategy
from ..tables import plain
from ..tables import seconds as took
from . import plan_picture
from .pipeline_plan import PipelinePlan
from .plan_report import PlanReport

__all__ = ["Communication", "Estimate", "Plan", "plan"]


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
    seconds : float or None
        Estimated time; None if no hardware was given.
    """

    op: str
    axis: str
    devices: int
    bytes: int
    path: str | None
    line: str | None
    seconds: float | None = None


@dataclass(frozen=True)
class Estimate:
    """What a step costs a device.

    Attributes
    ----------
    flops : int
        Operations: two for each product that a sum adds up, else one for each element.
    moved : int
        Bytes that ops read and write.
    arithmetic, memory_bound : float
        Seconds of the ops that the processor limits, and of those that the memory limits.
    collectives : tuple of float
        Seconds of each collective, in order.
    computation : tuple of float
        Seconds of computation before each collective, and after the last one.
    update : float
        Seconds of the step of the optimizer, which reads and writes parameters and what it keeps.
    """

    flops: int
    moved: int
    arithmetic: float
    memory_bound: float
    collectives: tuple[float, ...]
    computation: tuple[float, ...]
    update: float

    @property
    def communication(self) -> float:
        """Seconds of all collectives."""
        return sum(self.collectives)

    @property
    def seconds(self) -> float:
        """Seconds of a step in which nothing overlaps."""
        return self.arithmetic + self.memory_bound + self.communication + self.update

    @property
    def limit(self) -> str:
        """What takes most of the time: ``"arithmetic"``, ``"memory"`` or ``"communication"``."""
        parts = {
            "arithmetic": self.arithmetic,
            "memory": self.memory_bound + self.update,
            "communication": self.communication,
        }
        return max(parts, key=lambda name: parts[name])


def _estimate(program: _core.Partitioned, layout: Layout, hardware: Hardware, memory: Mapping[str, int]) -> Estimate:
    flops, moved, arithmetic, memory_bound, collectives, computation = program.estimate(
        hardware.as_argument(layout.mesh)
    )
    update = 0.0
    if memory["gradients"]:
        touched = 2 * memory["parameters"] + memory["gradients"] + 2 * memory.get("optimizer", 0)
        update = touched / hardware.bandwidth
    return Estimate(flops, moved, arithmetic, memory_bound, tuple(collectives), tuple(computation), update)


class Plan(PlanReport):
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
    hardware : Hardware or None
        The devices for which times are estimated.
    estimate : Estimate or None
        Operations, bytes and seconds of a step on a device; None if no hardware was given.
    search : Search or None
        How the layout was found, with ``strategy="auto"``: `layout`, `candidates`, `evaluated`.
    """

    def __init__(
        self,
        program: _core.Partitioned,
        layout: Layout,
        *,
        hardware: Hardware | None = None,
        slots: float = 0.0,
        search: Search | None = None,
    ) -> None:
        self.layout = layout
        self.memory: dict[str, int] = program.memory()
        kept = int(self.memory["parameters"] * slots)
        if kept:
            self.memory["optimizer"] = kept
        self.shapes = {name: tuple(shape) for name, _, _, shape, _ in program.inputs()}
        self.hardware, self.search = hardware, search
        self.estimate = None if hardware is None else _estimate(program, layout, hardware, self.memory)
        times = [None] * len(program.communications()) if self.estimate is None else self.estimate.collectives
        rows = zip(program.communications(), times, strict=True)
        self.communications = tuple(replace(Communication(*row), seconds=seconds) for row, seconds in rows)
        self._program = program

    @property
    def bytes_held(self) -> int:
        """Bytes that each device holds at the most."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool | None:
        """Whether a device has that much memory; None if no hardware was given."""
        return None if self.hardware is None else self.bytes_held <= self.hardware.memory

    @property
    def text(self) -> str:
        """The program that each device runs."""
        text: str = self._program.text
        return text

    @property
    def bytes_sent(self) -> int:
        """Bytes that each device sends in a call."""
        return sum(c.bytes for c in self.communications)

    def picture(self) -> str:
        """Return a picture as SVG: the memory of a device, a step along its time, and the layouts that were compared.

        Without hardware there are no times: collectives are as long as the bytes that they send.
        """
        return plan_picture.svg(self)

    _schema = "mithril.plan/1"

    def _facts(self) -> dict[str, Any]:
        return {
            "mesh": dict(self.layout.mesh.axes),
            "devices": self.layout.mesh.devices,
            "bytes_sent": self.bytes_sent,
            "memory": self.memory,
            "shapes": self.shapes,
            "communications": self.communications,
            "hardware": self.hardware,
            "estimate": None if self.estimate is None else {**plain(self.estimate), "seconds": self.estimate.seconds},
            "fits": self.fits,
            "layout": repr(self.layout),
            "candidates": () if self.search is None else self.search.candidates,
        }

    def _groups(self) -> dict[tuple[str, str, int, str], tuple[int, int, float]]:
        """Return number, bytes and seconds of the collectives that are one row of the table."""
        groups: dict[tuple[str, str, int, str], tuple[int, int, float]] = {}
        for c in self.communications:
            key = (c.op, c.axis, c.devices, c.path or "")
            count, size, time = groups.get(key, (0, 0, 0.0))
            groups[key] = (count + 1, size + c.bytes, time + (c.seconds or 0.0))
        return groups

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        timed = self.estimate is not None
        head = ["collective", "mesh axis", "times", "bytes sent", *(["time"] if timed else []), "for"]
        rows = [
            [op, f"{axis} ({devices})", str(count), f"{size:,}", *([took(time)] if timed else []), path or "results"]
            for (op, axis, devices, path), (count, size, time) in self._groups().items()
        ]
        return head, rows

    def _places(self) -> list[list[str]]:
        return [[path] if path else [] for _, _, _, path in self._groups()]

    def _sentences(self) -> list[str]:
        mesh = self.layout.mesh
        parts = ", ".join(f"{name} {size:,}" for name, size in self.memory.items() if size)
        return [
            f"{mesh}: each of {mesh.devices} devices sends {self.bytes_sent:,} bytes in {len(self.communications)} "
            "collectives",
            f"bytes on each device: {parts or 'none'}",
            *(f"{path or 'the image'} is computed whole: {reason}" for path, reason in self._program.gathered()),
            *self._estimated(),
            *([] if self.search is None else self.search.sentences()),
        ]

    def _estimated(self) -> list[str]:
        if self.estimate is None or self.hardware is None:
            return []
        estimate, held, memory = self.estimate, self.bytes_held, self.hardware.memory
        has = f"{held:,} of {memory:,} bytes of memory"
        return [
            f"it fits: {has}" if self.fits else f"it does not fit: {has}",
            f"a step takes about {took(estimate.seconds)}: "
            f"arithmetic {took(estimate.arithmetic)} ({estimate.flops:.4g} operations), "
            f"memory {took(estimate.memory_bound)}, communication {took(estimate.communication)}, "
            f"update {took(estimate.update)}; most of it is {estimate.limit}",
        ]

    def __repr__(self) -> str:
        return f"<Plan on {self.layout.mesh}: {len(self.communications)} collectives, {self.bytes_sent:,} bytes sent>"


@passes_on(compile)
def plan(
    model: _core.Model | PhysicalModel,
    layout: Layout | Mesh | None = None,
    *,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    gradients: bool = False,
    hardware: Hardware | str | None = None,
    optimizer: Optimizer | None = None,
    strategy: Strategy | None = None,
    **options: Any,
) -> Plan | PipelinePlan:
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
        layout already. Or a `Pipeline`.
    shapes : mapping of str to sequence of int, optional
        Shapes of the data on all devices together; each size has to be known.
    gradients : bool
        Whether the gradients of all parameters are part of the plan.
    hardware : Hardware or str, optional
        The devices: times are estimated, and whether it fits in memory. Names: ``"cpu"``, ``"a100"``, ``"h100"``,
        ``"tpu-v5e"``.
    optimizer : Optimizer, optional
        What it keeps of each parameter is counted.
    strategy : str or mapping of str to str, optional
        A strategy for a mesh of one axis, or for each axis by its name, such as ``{"data": "data_parallel", "model":
        "tensor_parallel"}``; see `compile`. ``"auto"`` searches for the layout over a mesh whose step is the shortest
        of those that fit, or for a `Pipeline` along one of its axes, which backends have to be able to run: of a model
        that is compiled, only where its backend is. ``"pipeline_parallel"`` distributes the layers along one axis of
        the mesh.
    **options
        Other options of `compile`.

    Returns
    -------
    Plan or PipelinePlan
        Collectives, memory, and the program of a device; of a pipeline what each device computes, holds and sends, and
        how long devices wait.

    Raises
    ------
    InvalidValueError
        If the layout does not fit the model: an unknown name, an axis that does not divide; if the hardware is not
        known, or no layout fits in its memory.
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
    devices = None if hardware is None else as_hardware(hardware)
    if isinstance(model, PhysicalModel):
        compiled = model
        layout = internals.program_settings(model).layout if layout is None else layout
    else:
        options.setdefault("inference", not gradients)
        compiled = compile(model, NumpyBackend(), shapes=shapes, **options)
    if layout is None:
        raise InvalidValueError("the model has no layout", hint="pass one: ml.plan(model, ml.Mesh(data=4))")
    layout = as_layout(with_strategy(strategy, layout))
    if isinstance(layout, Pipeline):
        layout.check_layers(internals.logical_model(compiled).layer_keys)
    if internals.compile_options(compiled)["batch_groups"] != layout.batch_groups:
        compiled = internals.recompiled(compiled, batch_groups=layout.batch_groups)
    core = internals.known_program(compiled).core
    sizes = {} if shapes is None else {name: list(shape) for name, shape in shapes.items()}
    if sizes and all(isinstance(size, int) for shape in sizes.values() for size in shape):
        core = core.specialize(sizes)
    requested = (list(internals.names_by_role(compiled)["output"]), list(core.trained)) if gradients else None
    slots = 0.0 if optimizer is None else slot_bytes(optimizer)
    if isinstance(layout, Pipeline):
        inner = planned_layout(layout)
        if inner is not None and inner.strategies is not None:
            layout = layout.replaced(named(core, inner.mesh, inner.strategies, requested))
        return _pipeline_plan(core, layout, compiled, requested, devices, slots)
    estimate = None
    if isinstance(layout, PlannedLayout) and layout.strategies is not None:
        layout = named(core, layout.mesh, layout.strategies, requested)
    elif isinstance(layout, PlannedLayout):
        if devices is None:
            raise InvalidValueError(
                'strategy="auto" needs to know the devices', hint='pass hardware="a100", or an ml.Hardware'
            )
        # Devices keep the parameters of their layers; without a training that is for those who run the plan.
        is_free = compiled is not model
        runs = is_free or compiled.backend.engine.runs_pipelines
        hands_over = not is_free and requested is None
        runner = PipelineRunner(lambda _: runs, hands_over, target=compiled.backend.target)
        estimate = search(core, layout.mesh, devices, slots=slots, gradients=requested, runner=runner)
        layout = estimate.layout
        if isinstance(layout, Pipeline):
            return _pipeline_plan(core, layout, compiled, requested, devices, slots, estimate)
    program = core.with_layout(layout.argument()).partition(requested)
    return Plan(program, layout, hardware=devices, slots=slots, search=estimate)


def _pipeline_plan(
    core: _core.Compiled,
    layout: Pipeline,
    compiled: PhysicalModel,
    gradients: Any,
    hardware: Hardware | None,
    slots: float,
    search: Search | None = None,
) -> PipelinePlan:
    program = PipelineProgram(core, layout, gradients, compiled.backend.target)
    return PipelinePlan(layout, program, hardware=hardware, slots=slots, search=search)
