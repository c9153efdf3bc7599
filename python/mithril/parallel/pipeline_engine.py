"""Cuts programs into the steps of a pipeline, which `pipeline_workers` or `pipeline_devices` run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import BackendUnavailableError
from .layout import Layout, Mesh
from .mesh_engine import Division, MeshEngine, Spec
from .pipeline import Pipeline, Step, Task, balanced, orders, rows
from .step_runner import Key, part
from .worker_engine import WorkerProgram

if TYPE_CHECKING:
    from .. import _core

__all__ = ["PipelineEngine", "StagedProgram", "layer_devices", "most_micro_batches", "with_micro_batches"]

_GROUPS = ("param", "data", "state", "cotangent")


class PipelineEngine(MeshEngine):
    """Cuts programs into steps; parameters and optimizers stay on the device of the backend.

    Parameters
    ----------
    backend : Backend
        Whose arrays they are.
    layout : Pipeline
        Which layers are on which device.
    devices : list
        The devices, as many as the layout has.
    """

    layout: Pipeline

    def __init__(self, backend: Any, layout: Pipeline, devices: list[Any]) -> None:
        super().__init__(backend, layout)
        count = layout.devices
        if count > len(devices):
            raise BackendUnavailableError(
                f"{layout!r} needs {count} devices, and {type(backend).__name__} was given {len(devices)}",
                hint=f"name them: {type(backend).__name__}(devices=[{backend.device!r}] * {count})",
            )
        self.devices = devices[:count]

    def evaluator(self, core: _core.Compiled) -> tuple[Any, Callable[..., Any]]:
        """Return the module of a program, and ``evaluate(params, data, state)`` of whole arrays."""
        return self._staged(core, None)

    def differentiator(
        self, core: _core.Compiled, outputs: list[str], inputs: list[str]
    ) -> tuple[Any, Callable[..., Any]]:
        """Return the module of a program, and ``evaluate_gradients(params, data, state, cotangents)``."""
        return self._staged(core, (outputs, inputs))

    def _staged(self, core: _core.Compiled, gradients: Any) -> tuple[Any, Callable[..., Any]]:
        count = self.layout.micro_batches
        if count is None:
            count = most_micro_batches(core, self.layout.devices)
            core = with_micro_batches(core, count)
        backend = self.backend
        placement = list(layer_devices(core, self.layout).items())
        source, described, results = core.staged_source(backend.target, placement, gradients, backend.device)
        assert source.partition is not None
        division = Division(source.partition, self.layout)
        program = StagedProgram(source, rows(described), results, division, count, self.layout)
        self.check(program)
        return program, lambda *groups: self.call(program, groups)

    def check(self, program: StagedProgram) -> None:
        """Raise if the devices cannot run a program."""

    def call(self, program: StagedProgram, groups: Any) -> Any:
        """Run a program on whole arrays."""
        raise NotImplementedError


class StagedProgram(WorkerProgram):
    """A program in steps, in the place of a loaded module.

    Attributes
    ----------
    orders : list of list of Task
        What each device does, in order.
    count : int
        Number of micro-batches.
    routes : dict of str to (int, list of int)
        For each value between steps the device that makes it, and the others that read it.
    results : list of str
        Names of the outputs and new states.
    """

    def __init__(
        self,
        source: Any,
        steps: list[Step],
        results: list[str],
        division: Division,
        count: int,
        layout: Pipeline,
    ) -> None:
        super().__init__(source, "steps")
        self.steps = steps
        self.results = results
        self.division = division
        is_divided = any(any(spec) for group in division.arguments for spec in group.values())
        self.count = count if is_divided else 1
        self.orders: list[list[Task]] = orders(steps, self.count, layout.schedule, layout.devices)
        makers = {name: step.device for step in steps for name in step.makes}
        self._readers: dict[str, set[int]] = {}
        for step in steps:
            for name in step.reads:
                self._readers.setdefault(name, set()).add(step.device)
        self.routes = {
            name: (device, sorted(self._readers.get(name, set()) - {device})) for name, device in makers.items()
        }
        specs = [spec for group in division.results for spec in group.values()]
        self._kept: dict[int, list[Key]] = {}
        for name, spec in zip(results, specs, strict=True):
            if name in makers:
                own = self._kept.setdefault(makers[name], [])
                keys = [(name, m) for m in (range(self.count) if any(spec) else [0])]
                own += [key for key in keys if key not in own]

    def sends(self, device: int) -> dict[str, list[int]]:
        """Return the values that a device makes and others read, with those."""
        return {name: to for name, (maker, to) in self.routes.items() if maker == device and to}

    def kept(self, device: int) -> list[Key]:
        """Return the results that a device computes."""
        return self._kept.get(device, [])

    def inputs(self, device: int) -> Iterator[tuple[str, int]]:
        """Yield the inputs that a device reads, and of how many micro-batches each is."""
        for kind, specs in zip(_GROUPS, self.division.arguments, strict=False):
            for name, spec in specs.items():
                if device in self._readers.get(f"{kind}:{name}", ()):
                    yield f"{kind}:{name}", 1 if _divided_axis(spec) is None else self.count

    def gradients(self) -> set[str]:
        """Return the names of values that are gradients."""
        sizes = [len(specs) for specs in self.division.results]
        has_gradients = len(self.division.arguments) == len(_GROUPS)
        return set(self.results[sizes[0] : sizes[0] + sizes[1]]) if has_gradients else set()

    def arguments(self, device: int, groups: Any) -> Iterator[tuple[str, int | None, Any]]:
        """Yield what the steps of a device read: name, micro-batch or None for all of them, and array."""
        for kind, group, specs in zip(_GROUPS, groups, self.division.arguments, strict=False):
            for name, spec in specs.items():
                if device not in self._readers.get(f"{kind}:{name}", ()):
                    continue
                axis = _divided_axis(spec)
                if axis is None:
                    yield f"{kind}:{name}", None, group[name]
                    continue
                for m in range(self.count):
                    yield f"{kind}:{name}", m, part(group[name], axis, m, self.count)

    def outcomes(self, groups: Any, computed: Mapping[Key, Any], engine: Any) -> Any:
        """Return the dicts of results, of what all devices computed."""
        outcomes, names = [], iter(self.results)
        for specs in self.division.results:
            outcome = {}
            for name, spec in specs.items():
                value = next(names)
                kind, _, rest = value.partition(":")
                axis = _divided_axis(spec)
                if rest:
                    outcome[name] = groups[_GROUPS.index(kind)][rest]
                elif axis is None or self.count == 1:
                    outcome[name] = computed[value, 0]
                else:
                    outcome[name] = engine.joined([computed[value, m] for m in range(self.count)], axis)
            outcomes.append(outcome)
        return outcomes[0] if len(outcomes) == 1 else tuple(outcomes)


def layer_devices(core: _core.Compiled, layout: Pipeline) -> dict[str, int]:
    """Return the device of each layer that a pipeline places."""
    stages = layout.stages
    if isinstance(stages, int):
        sizes = [(name, max(1, math.prod(shape))) for name, _, shape in core.inputs("param")]
        # Of several parts on a device, the first of all devices come first.
        return {name: i % stages for name, i in balanced(sizes, stages * layout.chunks).items()}
    return stages


def most_micro_batches(core: _core.Compiled, devices: int) -> int:
    """Return the largest number of micro-batches that divides the batch, up to two for each device."""
    whole = with_micro_batches(core, 1).partition(None)
    sizes = [shape[0] for _, role, _, shape, _ in whole.inputs() if role == "data" and shape]
    return max(m for m in range(1, 2 * devices + 1) if all(size % m == 0 for size in sizes))


def with_micro_batches(core: _core.Compiled, count: int) -> _core.Compiled:
    """Return the program whose batch is divided along an axis of time."""
    divided: _core.Compiled = core.with_layout(Layout(Mesh(micro=count), batch="micro").argument(sections=False))
    return divided


def _divided_axis(spec: Spec) -> int | None:
    """Return the axis of a tensor that micro-batches divide."""
    return next((axis for axis, names in enumerate(spec) if names), None)
