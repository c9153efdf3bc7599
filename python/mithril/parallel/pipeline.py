"""Pipelines: layers on devices, batches in pieces that go through them one behind the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import InvalidValueError, KeyNotFoundError
from ..suggestions import did_you_mean, nearest
from .layout import Layout, Mesh

__all__ = ["Pipeline", "Step", "Task", "balanced", "orders", "sequence"]

_SCHEDULES = ("gpipe", "1f1b")
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
        computed where its operands are. Or the number of devices: the layers are distributed by the sizes of their
        parameters.
    micro_batches : int, optional
        Number of parts of a batch. Default: the most that divide it, up to two for each device.
    schedule : str, optional
        ``"gpipe"``: all micro-batches forward, then all backward. ``"1f1b"`` (default): as soon as a micro-batch can go
        backward, it does, so that fewer are kept.

    Raises
    ------
    InvalidValueError
        If a device is not a number, or the schedule is not known.

    Examples
    --------
    >>> import mithril as ml
    >>> ml.Pipeline({"layer1": 0, "layer2": 1}, micro_batches=4)
    Pipeline({'layer1': 0, 'layer2': 1}, micro_batches=4)
    """

    def __init__(
        self, stages: Mapping[str, int] | int, *, micro_batches: int | None = None, schedule: str = "1f1b"
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
        if schedule not in _SCHEDULES:
            near = nearest(str(schedule), _SCHEDULES)
            guess = f"did you mean {near!r}?" if near else f"there are {', '.join(map(repr, _SCHEDULES))}"
            raise InvalidValueError(f"the schedule is {schedule!r}", hint=guess)
        super().__init__(Mesh(micro=micro_batches or 1), batch="micro")
        self.stages = stages if isinstance(stages, int) else dict(stages)
        self.micro_batches = micro_batches
        self.schedule = schedule

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.stages if isinstance(self.stages, int) else max(self.stages.values()) + 1

    def with_whole_batch(self) -> Layout:
        """Return the layout that divides no batches."""
        return Layout(self.mesh)

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
        return f"Pipeline({', '.join(parts)})"


class Step(NamedTuple):
    """A part of a program that one device runs, for each micro-batch.

    Attributes
    ----------
    device, level : int
        Where; above the levels of all steps that it reads from.
    name : str
        The generated function, or the op of a collective over the micro-batches.
    reads, makes : list of str
        Names of values.
    exchange : tuple of int, int and str, or None
        Axis, axis that is joined, and reduction of a collective.
    """

    device: int
    level: int
    name: str
    reads: list[str]
    makes: list[str]
    exchange: tuple[int, int, str] | None

    @property
    def is_joint(self) -> bool:
        """Whether it is one task for all micro-batches."""
        return self.exchange is not None and self.name not in ("shard", "mesh_index")


def balanced(params: Sequence[tuple[str, int]], devices: int) -> dict[str, int]:
    """Distribute layers over devices, in order, so that the largest sum of the sizes of their parameters is small.

    Examples
    --------
    >>> from mithril.parallel.pipeline import balanced
    >>> balanced([("h.0.up.weight", 4), ("h.0.down.weight", 4), ("h.1.up.weight", 8), ("head.weight", 9)], 2)
    {'h.0': 0, 'h.1': 0, 'head': 1}
    """
    sizes: dict[str, int] = {}
    for name, size in params:
        unit = _unit(name)
        sizes[unit] = sizes.get(unit, 0) + size
    low, high = max(sizes.values(), default=0), sum(sizes.values())
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if max(_filled(sizes, middle).values()) < devices else (middle + 1, high)
    return _filled(sizes, low)


def _unit(name: str) -> str:
    """Return the layer of a parameter: one of a row of numbered ones as a whole."""
    parts = name.split(".")[:-1] or [name]
    numbers = [i for i, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[: numbers[0] + 1] if numbers else parts)


def _filled(sizes: Mapping[str, int], most: int) -> dict[str, int]:
    device = filled = 0
    devices = {}
    for unit, size in sizes.items():
        if filled and filled + size > most:
            device, filled = device + 1, 0
        filled += size
        devices[unit] = device
    return devices


def orders(steps: Sequence[Step], count: int, schedule: str, devices: int) -> list[list[Task]]:
    """Return in which order each device does its tasks; together they never wait for each other in a circle.

    Parameters
    ----------
    steps : sequence of Step
        In the order of their levels.
    count : int
        Number of micro-batches.
    schedule : str
        ``"gpipe"`` or ``"1f1b"``.
    devices : int
        Number of devices.
    """
    tasks = [(i, m) for i, step in enumerate(steps) for m in ([-1] if step.is_joint else range(count))]
    order: list[list[Task]] = [[] for _ in range(devices)]
    if schedule == "gpipe":
        for task in tasks:
            order[steps[task[0]].device].append(task)
        return order
    makers = {name: i for i, step in enumerate(steps) for name in step.makes}
    needs: dict[Task, set[Task]] = {}
    behind: set[Task] = set()
    for i, m in tasks:
        sources = [makers[name] for name in steps[i].reads if name in makers]
        needs[i, m] = {(j, n) for j in sources for n in ([-1] if steps[j].is_joint else range(count) if m < 0 else [m])}
        if m < 0 or needs[i, m] & behind:
            # It waits for all micro-batches.
            behind.add((i, m))
    left = [[task for task in tasks if steps[task[0]].device == device] for device in range(devices)]
    done: set[Task] = set()
    while any(left):
        ready = [_next(own, done, needs, behind, steps, devices - device) for device, own in enumerate(left)]
        if not any(ready):
            # A value of the whole batch is needed: all micro-batches have to come.
            ready = [_next(own, done, needs, behind, steps, count) for own in left]
        for device, chosen in enumerate(ready):
            if chosen is not None:
                left[device].remove(chosen)
                order[device].append(chosen)
        done.update(task for task in ready if task is not None)
    return order


def _next(
    left: list[Task],
    done: set[Task],
    needs: Mapping[Task, set[Task]],
    behind: set[Task],
    steps: Sequence[Step],
    most: int,
) -> Task | None:
    """Return what a device does next: the last step that it can, and no more micro-batches at once than ``most``."""
    waiting = {m for i, m in left if (i, m) not in behind}
    begun = {m for i, m in done if left and steps[i].device == steps[left[0][0]].device and m in waiting}
    able = [task for task in left if needs[task] <= done and (task in behind or task[1] in begun or len(begun) < most)]
    return max(able, key=lambda task: (steps[task[0]].level, -task[1]), default=None)


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
    makers = {name for step in steps for name in step.makes}
    made: set[tuple[str, int]] = set()
    left = [deque(own) for own in orders]
    merged: list[tuple[int, Task]] = []
    while any(left):
        before = len(merged)
        for device, own in enumerate(left):
            if not own:
                continue
            i, m = own[0]
            micro_batches = range(count) if m < 0 else (m,)
            if all((name, n) in made for name in steps[i].reads if name in makers for n in micro_batches):
                merged.append((device, own.popleft()))
                made.update((name, n) for name in steps[i].makes for n in micro_batches)
        if len(merged) == before:
            raise RuntimeError("the devices of a pipeline wait for each other")
    return merged


def rows(described: Sequence[Any]) -> list[Step]:
    """Return the steps that the compiler describes."""
    return [Step(*row) for row in described]
