"""Cuts programs into the steps of a pipeline, which `pipeline_workers` or `pipeline_devices` run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import BackendUnavailableError
from .hardware import HARDWARE
from .layout import Mesh
from .mesh_engine import Division, MeshEngine, Spec, staying
from .pipeline import STAGE, TIME, Pipeline, Step, Task, balanced, layer_of, orders, rows, single
from .step_runner import Key, part
from .worker_engine import WorkerProgram

if TYPE_CHECKING:
    from .. import _core

__all__ = ["PipelineEngine", "StagedProgram", "inside", "layer_costs", "layer_devices", "with_micro_batches"]

_GROUPS = ("param", "data", "state", "cotangent")


class PipelineEngine(MeshEngine):
    """Cuts programs into steps, which the devices of the stages run.

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
        core, count = with_micro_batches(core, self.layout)
        backend = self.backend
        placement = list(layer_devices(core, self.layout, gradients).items())
        source, described, results = core.staged_source(backend.target, placement, gradients, backend.device)
        assert source.partition is not None
        division = Division(source.partition, self.layout)
        program = StagedProgram(source, rows(described), results, division, count, self.layout)
        self.check(program)
        return program, lambda *groups: self.call(program, groups)

    def distribute_to(self, array: Any, stage: int, spec: Spec) -> Any:
        """Return an array, a whole one or one in a file, that a stage keeps."""
        raise NotImplementedError

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
        self.mesh = layout.inner_mesh
        is_divided = any(_divided_axis(spec) is not None for group in division.arguments for spec in group.values())
        self.count = count if is_divided else 1
        self._one = single(steps)
        self.orders: list[list[Task]] = orders(steps, self.count, layout.schedule, layout.stage_count)
        makers = {name: step.device for step in steps for name in step.makes}
        self._readers: dict[str, set[int]] = {}
        for step in steps:
            for name in step.reads:
                self._readers.setdefault(name, set()).add(step.device)
        self.routes = {
            name: (device, sorted(self._readers.get(name, set()) - {device})) for name, device in makers.items()
        }
        specs = [spec for group in division.results for spec in group.values()]
        self._specs = {name: inside(spec) for name, spec in zip(results, specs, strict=True)}
        self._kept: dict[int, list[Key]] = {}
        for name, spec in zip(results, specs, strict=True):
            if name in makers:
                own = self._kept.setdefault(makers[name], [])
                keys = [(name, m) for m in (range(self.count) if _divided_axis(spec) is not None else [0])]
                own += [key for key in keys if key not in own]

    def sends(self, device: int) -> dict[str, list[int]]:
        """Return the values that a device makes and others read, with those."""
        return {name: to for name, (maker, to) in self.routes.items() if maker == device and to}

    def kept(self, device: int) -> list[Key]:
        """Return the results that a device computes."""
        return self._kept.get(device, [])

    def spec(self, name: str) -> Spec:
        """Return how the devices of a stage divide a result."""
        return self._specs[name]

    def copies(self, name: str) -> int:
        """Return how many arrays of a name there are in a call: one for each micro-batch, or one for all."""
        return 1 if name in self._one else self.count

    def inputs(self, device: int) -> Iterator[tuple[str, int]]:
        """Yield the inputs that a device reads, and of how many micro-batches each is."""
        for kind, specs in zip(_GROUPS, self.division.arguments, strict=False):
            for name, spec in specs.items():
                if device in self._readers.get(f"{kind}:{name}", ()):
                    yield f"{kind}:{name}", 1 if _divided_axis(spec) is None else self.count

    def readers(self, name: str) -> set[int]:
        """Return the stages that read a value."""
        return self._readers.get(name, set())

    def homes(self) -> dict[str, tuple[int, Spec]]:
        """Return for each parameter the stage that is to keep it, and how the devices of that divide it.

        Where its gradient is computed, else the first that reads it.
        """
        results = iter(self.results)
        made = [{name: next(results) for name in specs} for specs in self.division.results]
        gradients = made[1] if len(self.division.arguments) == len(_GROUPS) else {}
        homes = {}
        for name, spec in self.division.arguments[0].items():
            first = min(self.readers(f"param:{name}"), default=0)
            stage, _ = self.routes.get(gradients.get(name, ""), (first, []))
            homes[name] = stage, inside(spec)
        return homes

    def staying(self, groups: Any, is_divided: Callable[[Any], bool]) -> set[str]:
        """Return the results that stay where they are computed: those of what lies on the devices already."""
        results, names = iter(self.results), set()
        for specs, stays in zip(self.division.results, staying(self.division, groups, is_divided), strict=True):
            for name, spec in specs.items():
                value = next(results)
                if name in stays and (_divided_axis(spec) is None or self.count == 1):
                    names.add(value)
        return names

    def converted(self, groups: Any, convert: Callable[[Any, Spec | None], Any]) -> list[dict[str, Any]]:
        """Return the arguments, each converted; how a stage divides it is given, or None if micro-batches divide it."""
        return [
            {
                name: convert(group[name], inside(spec) if _divided_axis(spec) is None else None)
                for name, spec in specs.items()
            }
            for group, specs in zip(groups, self.division.arguments, strict=False)
        ]

    def kept_arguments(self, groups: Any, is_kept: Callable[[Any], bool]) -> Iterator[tuple[str, Any, list[int]]]:
        """Yield the arguments that stages keep, with the stages that read them."""
        for kind, group in zip(_GROUPS, groups, strict=False):
            for name, array in group.items():
                if is_kept(array):
                    yield f"{kind}:{name}", array, sorted(self.readers(f"{kind}:{name}"))

    def gradients(self) -> set[str]:
        """Return the names of values that are gradients."""
        sizes = [len(specs) for specs in self.division.results]
        has_gradients = len(self.division.arguments) == len(_GROUPS)
        return set(self.results[sizes[0] : sizes[0] + sizes[1]]) if has_gradients else set()

    def arguments(self, device: int, groups: Any) -> Iterator[tuple[str, int | None, Any, Spec]]:
        """Yield what the steps of a stage read: name, micro-batch or None for all, array, and how it is divided."""
        for kind, group, specs in zip(_GROUPS, groups, self.division.arguments, strict=False):
            for name, spec in specs.items():
                if device not in self._readers.get(f"{kind}:{name}", ()):
                    continue
                axis = _divided_axis(spec)
                if axis is None:
                    yield f"{kind}:{name}", None, group[name], inside(spec)
                    continue
                for m in range(self.count):
                    yield f"{kind}:{name}", m, part(group[name], axis, m, self.count), inside(spec)

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


def layer_devices(
    core: _core.Compiled, layout: Pipeline, gradients: Any, costs: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the device of each layer that a pipeline places; of a program with micro-batches, whose sizes are known.

    Where the pipeline does not say it, layers are distributed by the time that they take forward, and backward if
    gradients are asked for, on the same hardware wherever the program runs: so a plan and a run agree. Those times are
    `layer_costs`, unless they are known already.
    """
    stages = layout.stages
    if not isinstance(stages, int):
        return stages
    costs = dict(layer_costs(core, layout, core.partition(gradients)) if costs is None else costs)
    sizes = [(name, costs.pop(layer_of(name), 0)) for name, _, _ in core.inputs("param")]
    # Of several parts on a device, the first of all devices come first.
    parts = min(stages * layout.chunks, len({layer_of(name) for name, _ in sizes}))
    return {name: i % stages for name, i in balanced(sizes, max(parts, stages)).items()}


def layer_costs(core: _core.Compiled, layout: Pipeline, program: _core.Partitioned) -> dict[str, int]:
    """Return the time of each layer for all micro-batches, in short units; it is the same for each schedule."""
    layers = list(dict.fromkeys(layer_of(name) for name, _, _ in core.inputs("param")))
    links = HARDWARE["a100"].as_argument(Mesh(**{STAGE: 1, **layout.inner_mesh.axes}))
    described, _, _ = program.stages([(name, i) for i, name in enumerate(layers)], links)
    seconds = dict.fromkeys(layers, 0.0)
    count = layout.micro_batches or 2 * layout.stage_count
    for row, _, length, _, _ in described:
        seconds[layers[row[0]]] += length / (count if Step(*row).is_joint else 1)
    return {name: max(1, round(length * 1e12)) for name, length in seconds.items()}


def with_micro_batches(core: _core.Compiled, layout: Pipeline) -> tuple[_core.Compiled, int]:
    """Return the program whose batch is divided along time, then over the devices of a stage; and the number of parts.

    If the layout does not say how many micro-batches there are: the largest number that divides the batch, up to two
    for each stage. A batch that the program does not divide stays whole.
    """
    inputs = [(shape, placed) for _, role, _, shape, placed in core.partition(None).inputs() if role == "data"]
    if not any(place is not None for _, placed in inputs for place in placed):
        return core, 1
    count = layout.micro_batches
    if count is None:
        sizes = [shape[0] for shape, _ in inputs if shape]
        count = max(m for m in range(1, 2 * layout.stage_count + 1) if all(size % m == 0 for size in sizes))
    data = [(name, len(shape)) for name, _, shape in core.inputs("data")]
    divided: _core.Compiled = core.with_layout(layout.with_count(count, data).argument())
    return divided, count


def _divided_axis(spec: Spec) -> int | None:
    """Return the axis of a tensor that micro-batches divide."""
    return next((axis for axis, names in enumerate(spec) if TIME in names), None)


def inside(spec: Spec) -> Spec:
    """Return how the devices of a stage divide a micro-batch of a tensor."""
    return tuple(tuple(name for name in names if name != TIME) for names in spec)
