"""When the devices of a pipeline do what, and what they hold meanwhile: its schedule along the time that steps take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from .pipeline import Step, Task, keys, sequence, single, summed

__all__ = ["Span", "kept_bytes", "timeline"]


class Span(NamedTuple):
    """A task of a device, with its beginning and end.

    Attributes
    ----------
    device, step : int
        Where, and the number of the step.
    micro_batch : int
        Its number; -1 for all of them.
    start, end : float
        In seconds, or in operations.
    """

    device: int
    step: int
    micro_batch: int
    start: float
    end: float


def timeline(
    steps: Sequence[Step],
    orders: Sequence[Sequence[Task]],
    count: int,
    lengths: Sequence[float],
    transfer: Callable[[str], tuple[float, float]],
    before: Sequence[tuple[float, float]] = (),
) -> list[Span]:
    """Return when each task runs, if devices compute while others send.

    Parameters
    ----------
    steps : sequence of Step
        The steps.
    orders : sequence of sequence of Task
        What each device does, in order.
    count : int
        Number of micro-batches.
    lengths : sequence of float
        How long each step takes.
    transfer : callable
        For a value how long its device sends, and how much later it arrives.
    before : sequence of (float, float), optional
        Until when each device sends what others need from the beginning, and until when it waits for such.
    """
    makers, one = {name: step.device for step in steps for name in step.makes}, single(steps)
    readers: dict[str, set[int]] = {}
    for step in steps:
        for name in step.reads:
            readers.setdefault(name, set()).add(step.device)
    sending, free = ([float(times[i]) for times in before or [(0.0, 0.0)] * len(orders)] for i in (0, 1))
    arrived: dict[tuple[int, str, int], float] = {}
    spans = []
    for device, (i, m) in sequence(steps, orders, count):
        step = steps[i]
        read = [key for name in step.reads if name in makers for key in keys(name, m, count, one)]
        needs = [arrived[device, name, n] for name, n in read]
        start = max([free[device], *needs])
        free[device] = end = start + lengths[i]
        spans.append(Span(device, i, m, start, end))
        for name in step.makes:
            length, delay = transfer(name)
            for _, n in keys(name, m, count, one):
                arrived[device, name, n] = end
                for peer in sorted(readers.get(name, set()) - {device}):
                    sending[device] = max(sending[device], end) + length
                    arrived[peer, name, n] = sending[device] + delay
    return spans


def kept_bytes(
    steps: Sequence[Step],
    order: Sequence[Task],
    count: int,
    sizes: Mapping[str, int],
    inside: Sequence[int],
    results: set[tuple[str, int]],
) -> int:
    """Return the most bytes that a device holds at a time of what steps make, but for results.

    Parameters
    ----------
    steps : sequence of Step
        The steps of all devices.
    order : sequence of Task
        What the device does, in order.
    count : int
        Number of micro-batches.
    sizes : mapping of str to int
        Bytes of values.
    inside : sequence of int
        The most bytes between the ops of each step.
    results : set of (str, int)
        What it keeps until the end.
    """
    makers = {name for step in steps for name in step.makes}
    sums = summed(steps, steps[order[0][0]].device) if order else set()
    # A sum, and what is the same for all micro-batches, are one array for all of them.
    one = single(steps) | sums

    def all_of(names: Sequence[str], m: int) -> set[tuple[str, int]]:
        return {key for name in names if name in makers for key in keys(name, m, count, one)}

    uses = Counter(key for i, m in order for key in all_of(steps[i].reads, m))
    held: set[tuple[str, int]] = set()
    total = most = 0
    for i, m in order:
        step = steps[i]
        added = sum(sizes.get(name, 0) for name in step.makes if name in sums and (name, 0) in held)
        touched = all_of((*step.reads, *step.makes), m)
        new = touched - results - held
        held |= new
        total += sum(sizes.get(name, 0) for name, _ in new)
        most = max(most, total + added + inside[i])
        for key in all_of(step.reads, m):
            uses[key] -= 1
        gone = {key for key in touched & held if uses[key] <= 0}
        held -= gone
        total -= sum(sizes.get(name, 0) for name, _ in gone)
    return most
