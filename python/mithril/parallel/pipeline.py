"""Pipelines: layers on devices, batches in pieces that go through them one behind the other."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from ..errors import ConflictingOptionError, InvalidValueError, KeyNotFoundError
from ..suggestions import did_you_mean, nearest
from .layout import Layout, Mesh, as_layout

__all__ = [
    "SCHEDULES",
    "TIME",
    "Pipeline",
    "Step",
    "Task",
    "balanced",
    "keys",
    "layer_of",
    "orders",
    "rows",
    "sequence",
    "single",
    "summed",
]

#: In which order devices compute.
SCHEDULES = ("gpipe", "1f1b", "interleaved")
#: The axis of time, along which batches are divided into micro-batches, and that of the stages.
TIME, STAGE = "micro-batches", "stage"
#: A task: number of a step and of a micro-batch, or -1 if it is one for all of them.
Task = tuple[int, int]


class Pipeline(Layout):
    """Layers on devices, in the place of a layout.

    A batch is divided into micro-batches, so that devices compute at the same time. Results are those of one device:
    gradients are summed over micro-batches, and batch norm uses the statistics of the whole batch, for which devices
    wait for all micro-batches.

    Parameters
    ----------
    stages : mapping of str to int, or int
        Name of a layer, or path in the model, to the number of the device that computes it. What is not named is
        computed where its operands are. Or the number of stages: the layers are distributed by the time that they take
        forward and backward, as the compiler estimates it.
    micro_batches : int, optional
        Number of parts of a batch. Default: the most that divide it, up to two for each device.
    schedule : str, optional
        ``"gpipe"``: all micro-batches forward, then all backward. ``"1f1b"`` (default): as soon as a micro-batch can go
        backward, it does, so that fewer are kept. ``"interleaved"``: the same, and each device has several parts of the
        model, one after another, so that devices wait less at the beginning and at the end. Where taking turns would
        let devices wait for each other forever (layers that go back and forth between devices), the order is that of
        ``"gpipe"``; results are the same.
    chunks : int, optional
        How many parts of the model each device has with ``schedule="interleaved"``, if ``stages`` is a number.
        Default: 2.
    layout : Layout or Mesh, optional
        How each stage is divided over devices of its own, such as ``ml.Mesh(data=2)``: each of two devices then
        computes half of every micro-batch. Gradients are summed over those devices once a step.

    Raises
    ------
    InvalidValueError
        If a device is not a number, the schedule is not known, or the layout is not one of the devices of a stage.

    Examples
    --------
    >>> import mithril as ml
    >>> ml.Pipeline({"layer1": 0, "layer2": 1}, micro_batches=4)
    Pipeline({'layer1': 0, 'layer2': 1}, micro_batches=4)

    Two stages on two devices each, which share each micro-batch:

    >>> pipeline = ml.Pipeline(2, layout=ml.Mesh(data=2))
    >>> pipeline.devices
    4
    """

    def __init__(
        self,
        stages: Mapping[str, int] | int,
        *,
        micro_batches: int | None = None,
        schedule: str = "1f1b",
        chunks: int | None = None,
        layout: Layout | Mesh | None = None,
    ) -> None:
        numbers = [stages] if isinstance(stages, int) else list(stages.values())
        least = 1 if isinstance(stages, int) else 0
        if not numbers or any(isinstance(n, bool) or not isinstance(n, int) or n < least for n in numbers):
            raise InvalidValueError(
                f"the stages are {stages!r}", hint="give the device of each layer: {'layer1': 0, 'layer2': 1}"
            )
        if micro_batches is not None and (
            isinstance(micro_batches, bool) or not isinstance(micro_batches, int) or micro_batches < 1
        ):
            raise InvalidValueError(f"micro_batches is {micro_batches!r}", hint="give a positive number, e.g. 4")
        if schedule not in SCHEDULES:
            near = nearest(str(schedule), SCHEDULES)
            guess = f"did you mean {near!r}?" if near else f"there are {', '.join(map(repr, SCHEDULES))}"
            raise InvalidValueError(f"the schedule is {schedule!r}", hint=guess)
        if chunks is not None and (isinstance(chunks, bool) or not isinstance(chunks, int) or chunks < 1):
            raise InvalidValueError(f"chunks is {chunks!r}", hint="give the number of parts on each device, e.g. 2")
        if chunks is not None and (schedule != "interleaved" or not isinstance(stages, int)):
            raise ConflictingOptionError(
                f"chunks={chunks} is for a number of devices and schedule='interleaved'",
                hint="leave it out, or pass ml.Pipeline(2, schedule='interleaved', chunks=2)",
            )
        inner = None if layout is None else as_layout(layout)
        if inner is not None:
            _check_inner(inner)
        self.layout = inner
        self.stages = stages if isinstance(stages, int) else dict(stages)
        self.micro_batches = micro_batches
        self.schedule = schedule
        self.chunks = (chunks or 2) if schedule == "interleaved" and isinstance(stages, int) else 1
        #: Of the devices, the axis of the stages and those of their layout.
        self.grid = Mesh(**{STAGE: self.stage_count, **self.inner_mesh.axes})
        self.axis = STAGE
        divided = self.with_count(micro_batches or 1)
        super().__init__(
            divided.mesh,
            divided.tensors,
            batch=divided.batch,
            sequence=divided.sequence,
            parameters=divided.parameters,
            experts=divided.experts,
        )

    @property
    def stage_count(self) -> int:
        """Number of stages."""
        return self.stages if isinstance(self.stages, int) else max(self.stages.values()) + 1

    @property
    def inner_mesh(self) -> Mesh:
        """The devices of a stage; a mesh of one, whose axis has no name, if there is no layout."""
        return Mesh(**{"": 1}) if self.layout is None else self.layout.mesh

    @property
    def devices(self) -> int:
        """Number of devices of all stages."""
        return self.stage_count * self.inner_mesh.devices

    def over(self, grid: Mesh, axis: str) -> Pipeline:
        """Return the pipeline on the devices of a mesh, one of whose axes is that of the stages.

        Examples
        --------
        >>> import mithril as ml
        >>> pipeline = ml.Pipeline(2, layout=ml.Mesh(data=2)).over(ml.Mesh(data=2, pipe=2), "pipe")
        >>> pipeline.ranks(0), pipeline.ranks(1)
        ([0, 2], [1, 3])
        """
        pipeline = self.replaced(self.layout)
        pipeline.grid, pipeline.axis = grid, axis
        return pipeline

    def replaced(self, layout: Layout | None) -> Pipeline:
        """Return the same pipeline with another layout of the devices of each stage."""
        pipeline = Pipeline(
            self.stages,
            micro_batches=self.micro_batches,
            schedule=self.schedule,
            chunks=self.chunks if self.chunks > 1 else None,
            layout=layout,
        )
        pipeline.grid, pipeline.axis = self.grid, self.axis
        return pipeline

    def with_schedule(self, schedule: str) -> Pipeline:
        """Return the same pipeline with another schedule; ``"interleaved"`` is with two parts on each device."""
        if schedule == self.schedule:
            return self
        other = Pipeline(self.stages, micro_batches=self.micro_batches, schedule=schedule, layout=self.layout)
        return other.over(self.grid, self.axis)

    def ranks(self, stage: int) -> list[int]:
        """Return the numbers of the devices of a stage, in the order of its mesh."""
        sizes = tuple(self.grid.axes.values())
        numbers = np.arange(self.devices).reshape(sizes)
        return [int(n) for n in numbers.take(stage, list(self.grid.axes).index(self.axis)).reshape(-1)]

    def with_count(self, count: int, data: Sequence[tuple[str, int]] = ()) -> Layout:
        """Return how tensors are divided along time, into so many micro-batches, and over the devices of a stage.

        Parameters
        ----------
        count : int
            Number of micro-batches.
        data : sequence of (str, int)
            Names of data with the number of their axes: those that a pattern of the layout names are divided in time,
            too.
        """
        inner = self.layout
        if inner is None:
            return Layout(Mesh(**{TIME: count}), batch=TIME)
        tensors = dict(inner.tensors)
        for name, rank in data:
            for pattern, spec in inner.patterns:
                if rank and re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name):
                    first, *rest = spec or [[]]
                    tensors = {name: ((TIME, *first), *map(tuple, rest)), **tensors}
                    break
        return Layout(
            Mesh(**{TIME: count, **inner.mesh.axes}),
            tensors,
            batch=(TIME, *_axes(inner.batch)),
            sequence=inner.sequence,
            parameters=inner.parameters,
            experts=inner.experts,
        )

    def with_whole_batch(self) -> Layout:
        """Return the layout that divides no batches."""
        inner = self.layout
        if inner is None:
            return Layout(self.mesh)
        return Layout(self.mesh, inner.tensors, parameters=inner.parameters, experts=inner.experts)

    def check_layers(self, layers: Sequence[str]) -> None:
        """Raise if a stage names what is not a layer, nor in one."""
        for name in {} if isinstance(self.stages, int) else self.stages:
            if name.partition(".")[0] not in layers:
                hint = did_you_mean(name, layers, f"available: {', '.join(layers)}")
                raise KeyNotFoundError(f"the stages name {name!r}, which is not a layer of the model", hint=hint)

    def __repr__(self) -> str:
        parts = [repr(self.stages)]
        if self.micro_batches is not None:
            parts.append(f"micro_batches={self.micro_batches}")
        if self.schedule != "1f1b":
            parts.append(f"schedule={self.schedule!r}")
        if self.schedule == "interleaved" and isinstance(self.stages, int) and self.chunks != 2:
            parts.append(f"chunks={self.chunks}")
        if self.layout is not None:
            parts.append(f"layout={self.layout!r}")
        inner = () if self.layout is None else self.layout.mesh.axes.items()
        named = [axis for axis in self.grid.axes.items() if axis[0]]
        over = "" if named == [(STAGE, self.stage_count), *inner] else f".over({self.grid!r}, {self.axis!r})"
        return f"Pipeline({', '.join(parts)}){over}"


def _axes(names: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if names is None else (names,) if isinstance(names, str) else tuple(names)


def _check_inner(layout: Layout) -> None:
    """Refuse layouts that the devices of a stage cannot have."""
    if isinstance(layout, Pipeline):
        raise InvalidValueError(
            "the stages of a pipeline are divided by another pipeline",
            hint="pass the layout of tensors: ml.Mesh(data=2)",
        )
    for name in (STAGE, TIME):
        if name in layout.mesh.axes:
            raise InvalidValueError(
                f"the axis {name!r} of {layout.mesh} is that of the pipeline",
                hint="the layout is that of the devices of one stage: ml.Pipeline(2, layout=ml.Mesh(data=2))",
            )
    if layout.batch_statistics == "local":
        raise InvalidValueError(
            'batch_statistics is "local" in the layout of a stage: pipelines take the statistics of the whole batch',
            hint="leave it out, or divide tensors without stages: layout=ml.Layout(...) in ml.compile",
        )


class Step(NamedTuple):
    """A part of a program that one device runs, for each micro-batch.

    Attributes
    ----------
    device, level : int
        Where, which is the stage if that has several devices; above the levels of all steps that it reads from.
    name : str
        The generated function, or the op of a collective over the micro-batches.
    reads, makes : list of str
        Names of values.
    exchange : tuple of int, int and str, or None
        Axis, axis that is joined, and reduction of a collective.
    is_shared : bool
        Whether it computes what is the same for all micro-batches.
    """

    device: int
    level: int
    name: str
    reads: list[str]
    makes: list[str]
    exchange: tuple[int, int, str] | None
    is_shared: bool = False

    @property
    def is_joint(self) -> bool:
        """Whether it is one task for all micro-batches."""
        return self.is_shared or self.waits

    @property
    def waits(self) -> bool:
        """Whether it needs the values of all micro-batches."""
        return self.exchange is not None and self.name not in ("shard", "mesh_index")

    @property
    def makes_one(self) -> bool:
        """Whether what it makes is one value for all micro-batches."""
        return self.is_shared or (self.exchange is not None and self.name in ("all_reduce", "all_gather"))


def balanced(params: Sequence[tuple[str, int]], devices: int) -> dict[str, int]:
    """Distribute the layers of parameters over devices, in order, so that the largest sum of their sizes is small.

    Raises
    ------
    InvalidValueError
        If there are fewer layers than devices.

    Examples
    --------
    >>> from mithril.parallel.pipeline import balanced
    >>> balanced([("h.0.up.weight", 4), ("h.0.down.weight", 4), ("h.1.up.weight", 8), ("head.weight", 9)], 2)
    {'h.0': 0, 'h.1': 0, 'head': 1}
    """
    sizes: dict[str, int] = {}
    for name, size in params:
        unit = layer_of(name)
        sizes[unit] = sizes.get(unit, 0) + size
    if len(sizes) < devices:
        layers = "1 layer" if len(sizes) == 1 else f"{len(sizes)} layers"
        raise InvalidValueError(
            f"the model has {layers} with parameters, too few for {devices} stages",
            hint="choose fewer stages, or place all layers yourself: ml.Pipeline({'layer1': 0, 'layer2': 1})",
        )
    low, high = max(sizes.values(), default=0), sum(sizes.values())
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if max(_filled(sizes, middle, 1).values()) < devices else (middle + 1, high)
    return _filled(sizes, low, devices)


def layer_of(name: str) -> str:
    """Return the layer of a parameter: one of a row of numbered ones as a whole."""
    parts = name.split(".")[:-1] or [name]
    numbers = [i for i, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[: numbers[0] + 1] if numbers else parts)


def _filled(sizes: Mapping[str, int], most: int, devices: int) -> dict[str, int]:
    """Fill one device after the other up to a size, so that the last layers leave none of them empty."""
    device = filled = 0
    places: dict[str, int] = {}
    for left, (unit, size) in zip(range(len(sizes), 0, -1), sizes.items(), strict=True):
        if places and (filled + size > most or left < devices - device):
            device, filled = device + 1, 0
        filled += size
        places[unit] = device
    return places


def orders(steps: Sequence[Step], count: int, schedule: str, devices: int) -> list[list[Task]]:
    """Return in which order each device does its tasks; together they never wait for each other in a circle.

    Parameters
    ----------
    steps : sequence of Step
        In the order of their levels.
    count : int
        Number of micro-batches.
    schedule : str
        ``"gpipe"``, ``"1f1b"`` or ``"interleaved"``.
    devices : int
        Number of devices.
    """
    behind = _behind(steps)
    # What is the same for all micro-batches and waits for none of them.
    first = {i for i, step in enumerate(steps) if step.is_shared} - behind
    own = [[i for i, step in enumerate(steps) if step.device == device] for device in range(devices)]
    # Step by step, each for all micro-batches, in the order of the levels.
    whole = [[(i, m) for i in mine for m in ([-1] if steps[i].is_joint else range(count))] for mine in own]
    if schedule == "gpipe":
        return whole
    backward, above, apart = _backward(steps), _above(steps), behind | first
    forward = [_turns(steps, [i for i in mine if i not in backward and i not in apart], above) for mine in own]
    back = [_turns(steps, [i for i in mine if i in backward and i not in apart], above) for mine in own]
    chunks = max(map(len, forward))
    by_level = sorted(range(devices), key=lambda device: (not forward[device], forward[device][:1]))
    alternating: list[list[Task]] = []
    for device in range(devices):
        later = devices - 1 - by_level.index(device)
        ahead = later * (2 if schedule == "interleaved" else 1) + (chunks - 1) * devices
        # Where forward and backward meet, they are one step: there is nothing to do in its turn forward.
        rounds = [*forward[device], *[[] for _ in range(chunks - len(forward[device]))]]
        ordered = _alternating(_grouped(rounds, count, devices), _grouped(back[device], count, devices), ahead)
        early, late = ([task for task in whole[device] if task[0] in some] for some in (first, behind))
        alternating.append([*early, *ordered, *late])
    return alternating if _is_free_of_deadlock(steps, alternating, count) else whole


def _above(steps: Sequence[Step]) -> list[int]:
    """Return for each step all that it depends on: the bits of a number."""
    makers = {name: i for i, step in enumerate(steps) for name in step.makes}
    above: list[int] = []
    for step in steps:
        sources = {makers[name] for name in step.reads if name in makers}
        above.append(reduce(lambda bits, j: bits | above[j] | 1 << j, sources, 0))
    return above


def _turns(steps: Sequence[Step], own: Sequence[int], above: Sequence[int]) -> list[list[int]]:
    """Return steps of a device that run one after another, where nothing on other devices comes between."""
    rounds: list[list[int]] = []
    for j in own:
        last = rounds[-1][-1] if rounds else -1
        between = [k for k in range(last + 1, j) if above[j] >> k & 1 and steps[k].device != steps[j].device]
        if rounds and not any(above[k] >> last & 1 for k in between):
            rounds[-1].append(j)
        else:
            rounds.append([j])
    return rounds


def _grouped(rounds: Sequence[Sequence[int]], count: int, size: int) -> list[list[Task]]:
    """Return the tasks of rounds: those of some micro-batches, round by round, then those of the next ones."""
    groups = [range(start, min(count, start + size)) for start in range(0, count, size)]
    return [[(i, m) for i in tasks] for group in groups for tasks in rounds for m in group]


def _alternating(forward: Sequence[list[Task]], backward: Sequence[list[Task]], ahead: int) -> list[Task]:
    """Return tasks forward and backward alternately, after some forward."""
    ordered = list(forward[:ahead])
    for k in range(max(len(forward) - ahead, len(backward))):
        ordered += [*forward[ahead + k : ahead + k + 1], *backward[k : k + 1]]
    return [task for turn in ordered for task in turn]


def _behind(steps: Sequence[Step]) -> set[int]:
    """Return the steps that wait for all micro-batches."""
    makers = {name: i for i, step in enumerate(steps) for name in step.makes}
    behind: set[int] = set()
    for i, step in enumerate(steps):
        if step.waits or any(makers.get(name) in behind for name in step.reads):
            behind.add(i)
    return behind


def _backward(steps: Sequence[Step]) -> set[int]:
    """Return the steps that compute gradients: what follows from the cotangents of the outputs."""
    makers = {name: i for i, step in enumerate(steps) for name in step.makes}
    backward: set[int] = set()
    for i, step in enumerate(steps):
        if any(name.startswith("cotangent:") or makers.get(name) in backward for name in step.reads):
            backward.add(i)
    return backward


def _is_free_of_deadlock(steps: Sequence[Step], orders: Sequence[Sequence[Task]], count: int) -> bool:
    """Whether all tasks are done in the end: no devices wait for each other in a circle."""
    return len(sequence(steps, orders, count)) == sum(map(len, orders))


def sequence(steps: Sequence[Step], orders: Sequence[Sequence[Task]], count: int) -> list[tuple[int, Task]]:
    """Return the tasks of all devices in one order, in which what a task reads was made before.

    Parameters
    ----------
    steps : sequence of Step
        The steps.
    orders : sequence of sequence of Task
        What each device does, in order.
    count : int
        Number of micro-batches.
    """
    makers, one = {name for step in steps for name in step.makes}, single(steps)
    made: set[tuple[str, int]] = set()
    left = [deque(own) for own in orders]
    merged: list[tuple[int, Task]] = []
    while any(left):
        before = len(merged)
        for device, own in enumerate(left):
            if not own:
                continue
            i, m = own[0]
            if all(key in made for name in steps[i].reads if name in makers for key in keys(name, m, count, one)):
                merged.append((device, own.popleft()))
                made.update(key for name in steps[i].makes for key in keys(name, m, count, one))
        if len(merged) == before:
            # They wait for each other.
            break
    return merged


def single(steps: Sequence[Step]) -> set[str]:
    """Return the values of which there is one for all micro-batches."""
    return {name for step in steps if step.makes_one for name in step.makes}


def keys(name: str, m: int, count: int, one: Collection[str]) -> list[tuple[str, int]]:
    """Return the values of that name that a task reads or makes: for all micro-batches if ``m`` is negative."""
    return [(name, 0)] if name in one else [(name, n) for n in (range(count) if m < 0 else (m,))]


def summed(steps: Sequence[Step], device: int) -> set[str]:
    """Return the values of a device that it needs as sums over the micro-batches alone: gradients of parameters.

    It adds each to the sum as soon as it is computed, and keeps none of them.
    """
    readers: dict[str, list[Step]] = {}
    for step in steps:
        for name in step.reads:
            readers.setdefault(name, []).append(step)
    return {
        name
        for step in steps
        for name in step.makes
        if step.device == device and not step.is_joint and len(readers.get(name, ())) == 1
        for reader in readers[name]
        if reader.device == device and reader.name in ("all_reduce", "reduce_scatter")
        if reader.exchange is not None and reader.exchange[2] == "SUM"
    }


def rows(described: Sequence[Any]) -> list[Step]:
    """Return the steps that the compiler describes."""
    return [Step(*row) for row in described]
