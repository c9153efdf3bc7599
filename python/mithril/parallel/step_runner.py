"""Runs the steps of one device of a pipeline in their order, whatever carries arrays between devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .pipeline import Step, Task, keys, single, summed

if TYPE_CHECKING:
    from .processes import Communicator

__all__ = ["DeviceSteps", "Key", "StepRun", "finished", "part"]

#: Name of a value, and number of a micro-batch.
Key = tuple[str, int]


class DeviceSteps:
    """The steps of a program on one device.

    Parameters
    ----------
    module : Module
        The loaded functions.
    steps : list of Step
        Those of all devices.
    order : list of Task
        What this device does, in order.
    sends : dict of str to list of int
        The devices that read a value which is computed here.
    count : int
        Number of micro-batches.
    stacked : int
        If arrays are those of several devices, one behind another along an axis in front: how many; else 0.
    """

    def __init__(
        self,
        module: Any,
        steps: list[Step],
        order: list[Task],
        sends: Mapping[str, list[int]],
        count: int,
        *,
        stacked: int = 0,
    ) -> None:
        self.steps = steps
        self.order = order
        self.sends = sends
        self.count = count
        self.stacked = stacked
        self.first_axis = 1 if stacked else 0
        self._one = single(steps)
        own = {i for i, _ in order}
        self.summed = summed(steps, steps[order[0][0]].device) if order else set()
        self.functions: dict[str, Callable[..., Any]] = {
            steps[i].name: module.function(steps[i].name) for i in own if steps[i].exchange is None
        }
        #: How often each value is read here.
        self.uses = Counter(key for i, m in order for key in self.keys(steps[i].reads, m))

    def keys(self, names: Iterable[str], m: int) -> list[Key]:
        """Return the values of those names that a task reads or makes."""
        return [key for name in names for key in keys(name, m, self.count, self._one)]


class StepRun:
    """One call of the steps of a device.

    Parameters
    ----------
    program : DeviceSteps
        What is run.
    backend : Backend
        That of the device.
    values : dict of Key to array
        What the steps read that no step makes.
    results : collection of Key
        What is kept until the end.
    receive : callable
        Returns the array of a name and a micro-batch that another device sends.
    send : callable
        Takes the number of a device, a name, a micro-batch and an array.
    """

    def __init__(
        self,
        program: DeviceSteps,
        backend: Any,
        values: dict[Key, Any],
        results: Collection[Key],
        receive: Callable[[Key], Any],
        send: Callable[[int, Key, Any], None],
    ) -> None:
        self._program, self._backend, self._engine = program, backend, backend.engine
        self._receive, self._send = receive, send
        self._results = set(results)
        self._uses = Counter(program.uses)
        self._sums: dict[str, Any] = {}
        self.values = values

    def do(self, task: Task) -> None:
        """Run one task; its operands have to be here, or come."""
        i, m = task
        program, values = self._program, self.values
        step = program.steps[i]
        for key in program.keys((name for name in step.reads if name not in program.summed), m):
            if key not in values:
                values[key] = self._receive(key)
        values.update(self._exchanged(step, m) if step.exchange else self._computed(step, m))
        for name in program.summed.intersection(step.makes):
            array = values.pop((name, m))
            self._sums[name] = self._sums[name] + array if name in self._sums else array
        for name in step.makes:
            for peer in program.sends.get(name, ()):
                for key in program.keys([name], m):
                    self._send(peer, key, values[key])
        for key in program.keys((*step.reads, *step.makes), m):
            self._uses[key] -= key[0] in step.reads
            if self._uses[key] <= 0 and key not in self._results:
                values.pop(key, None)

    def _computed(self, step: Step, m: int) -> dict[Key, Any]:
        m = max(m, 0)
        operands = {name: self.values[self._program.keys([name], m)[0]] for name in step.reads}
        results = self._program.functions[step.name](operands)
        return {(name, m): array for name, array in results.items()}

    def _exchanged(self, step: Step, m: int) -> dict[Key, Any]:
        """Compute a collective over the micro-batches."""
        assert step.exchange is not None
        axis, along, reduction = step.exchange
        axis, along = axis + self._program.first_axis, along + self._program.first_axis
        program, values, count = self._program, self.values, self._program.count
        [make] = step.makes
        if step.name == "mesh_index":
            shape = (program.stacked,) if program.stacked else ()
            return {(make, m): self._engine.constant(np.full(shape, m, np.int64))}
        [read] = step.reads
        if step.name == "shard":
            return {(make, m): part(values[program.keys([read], m)[0]], axis, m, count)}
        is_summed = read in program.summed
        parts = [self._sums.pop(read)] if is_summed else [values[program.keys([read], n)[0]] for n in range(count)]
        if step.name == "all_gather":
            return {(make, 0): self._engine.joined(parts, axis) if count > 1 else parts[0]}
        if step.name == "all_to_all":
            return {
                (make, n): self._engine.joined([part(own, axis, n, count) for own in parts], along)
                for n in range(count)
            }
        total = parts[0]
        for own in parts[1:]:
            if reduction == "SUM":
                total = total + own
            else:
                total = getattr(self._backend, {"MAX": "maximum", "MIN": "minimum"}[reduction])(total, own)
        if step.name == "reduce_scatter":
            return {(make, n): part(total, axis, n, count) for n in range(count)}
        return {(make, 0): total}


def part(array: Any, axis: int, number: int, count: int) -> Any:
    """Return one of so many equal parts of an array along an axis."""
    size = array.shape[axis] // count
    return array[(slice(None),) * axis + (slice(number * size, (number + 1) * size),)]


def finished(function: Callable[..., Any], mesh: Communicator) -> Callable[..., Any]:
    """Return a function that waits for the sums which it has started."""

    def call(values: dict[str, Any]) -> Any:
        results = function(values)
        mesh.wait()
        return results

    return call
