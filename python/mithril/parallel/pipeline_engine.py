"""Runs pipelines on workers of this process: each has the layers of a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import BackendUnavailableError, UnsupportedOpError
from .layout import Layout, Mesh
from .mesh_engine import Division, MeshEngine, Spec
from .pipeline import Pipeline, Step, balanced, orders, rows
from .worker_engine import WorkerProgram
from .workers import MOST, WorkerFailure, blocks, joined, workers_on

if TYPE_CHECKING:
    from .. import _core

__all__ = ["PipelineEngine"]

_GROUPS = ("param", "data", "state", "cotangent")


class PipelineEngine(MeshEngine):
    """Cuts programs into steps, which workers run; parameters and optimizers stay in this process.

    Parameters
    ----------
    backend : Backend
        Whose arrays they are.
    layout : Pipeline
        Which layers are on which device.
    devices : list of str
        Device of each worker.
    """

    layout: Pipeline

    def __init__(self, backend: Any, layout: Pipeline, devices: list[str]) -> None:
        super().__init__(backend, layout)
        count = layout.devices
        if count > len(devices):
            raise BackendUnavailableError(
                f"{layout!r} needs {count} devices, and {type(backend).__name__} was given {len(devices)}",
                hint=f"name them: {type(backend).__name__}(devices=[{backend.device!r}] * {count})",
            )
        if count > MOST:
            raise BackendUnavailableError(
                f"{layout!r} needs {count} devices, and at most {MOST} workers are started on a machine",
                hint="put more layers on each",
            )
        if backend.engine.overrides:
            raise UnsupportedOpError(
                f"{type(backend).__name__} defines ops, which workers do not have",
                hint="use the backend it derives from",
            )
        self.devices = devices[:count]

    @classmethod
    def start(cls, backend: Any, layout: Pipeline, *, is_one_of_several: bool) -> PipelineEngine:
        """Make the engine on the devices of a backend; a process that was started beside others has none."""
        if is_one_of_several:
            raise BackendUnavailableError(
                "pipelines run on workers of one process, and this one is one of several",
                hint="start the script as any other: python script.py",
            )
        listed = [str(name) for name in backend.listed_devices]
        return cls(backend, layout, listed or [backend.device])

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
            count = self._most(core)
            core = core.with_layout(_micro_batches(count))
        backend = self.backend
        source, found, results = core.staged_source(
            backend.target, list(self._placement(core).items()), gradients, backend.device
        )
        if "host_call(" in source.text:
            raise UnsupportedOpError(
                "the model calls Python functions (ml.Lambda, or ops that run on the host), which workers do not have",
                hint="leave them out, or run the model on one device",
            )
        assert source.partition is not None
        division = Division(source.partition, self.layout)
        is_divided = any(any(spec) for group in division.arguments for spec in group.values())
        program = _Staged(source, rows(found), results, division, count if is_divided else 1)
        return program, lambda *groups: self._call(program, groups)

    def _most(self, core: _core.Compiled) -> int:
        """Return the largest number of micro-batches that divides the batch, up to two for each device."""
        whole = core.with_layout(_micro_batches(1)).partition(None)
        sizes = [shape[0] for _, role, _, shape, _ in whole.inputs() if role == "data" and shape]
        return max(m for m in range(1, 2 * self.layout.devices + 1) if all(size % m == 0 for size in sizes))

    def _placement(self, core: _core.Compiled) -> dict[str, int]:
        stages = self.layout.stages
        if isinstance(stages, int):
            sizes = [(name, max(1, _product(shape))) for name, _, shape in core.inputs("param")]
            return balanced(sizes, stages)
        return stages

    def distribute(self, array: Any, spec: Spec) -> Any:
        """Return the array: parameters stay in this process, and are sent to the device of their layer."""
        return super().distribute(array, spec)

    def _call(self, program: _Staged, groups: Any) -> Any:
        try:
            return self._run(program, groups)
        except WorkerFailure as failure:
            raise program.explained(failure) from None

    def _run(self, program: _Staged, groups: Any) -> Any:
        workers = workers_on(self.backend.name, self.devices, "steps")
        engine = self.backend.engine
        number = workers.programs.get(program)
        if number is None:
            number = workers.programs[program] = workers.number()
            constants = program.source.constants()
            packed = [engine.packed(engine.constant(value)) for value in constants.values()]
            order = orders(program.steps, program.count, self.layout.schedule, len(self.devices))
            messages: list[Any] = []
            for device, own in enumerate(order):
                about = {"program": number, "text": program.source.text, "constants": list(constants)}
                sends = {name: to for name, (at, to) in program.routes.items() if at == device and to}
                about |= {"steps": program.steps, "order": own, "sends": sends, "count": program.count}
                messages.append(({"do": "load", **about}, packed))
            workers.call(messages)
        mesh = Mesh(micro=program.count)
        messages = []
        for device in range(len(self.devices)):
            shared: dict[str, int] = {}
            micro: list[dict[str, int]] = [{} for _ in range(program.count)]
            arrays: list[Any] = []
            for kind, group, specs in zip(_GROUPS, groups, program.division.arguments, strict=False):
                for name, spec in specs.items():
                    if device not in program.readers.get(f"{kind}:{name}", ()):
                        continue
                    if not any(spec):
                        shared[f"{kind}:{name}"] = len(arrays)
                        arrays.append(engine.packed(group[name]))
                        continue
                    for m, block in enumerate(blocks(group[name], mesh, spec, engine)):
                        micro[m][f"{kind}:{name}"] = len(arrays)
                        arrays.append(block)
            head = {"do": "steps", "program": number, "shared": shared, "micro": micro}
            messages.append(({**head, "results": program.wanted[device]}, arrays))
        found: dict[Any, Any] = {}
        for device, (_, arrays) in enumerate(workers.call(messages)):
            found.update(
                (tuple(key), engine.unpacked(array)) for key, array in zip(program.wanted[device], arrays, strict=True)
            )
        outcomes, names = [], iter(program.results)
        for specs in program.division.results:
            outcome = {}
            for name, spec in specs.items():
                value = next(names)
                kind, _, rest = value.partition(":")
                if rest:
                    outcome[name] = groups[_GROUPS.index(kind)][rest]
                elif any(spec):
                    parts = {m: found[value, m] for m in range(program.count)}
                    outcome[name] = joined(parts, mesh, spec, engine)
                else:
                    outcome[name] = found[value, 0]
            outcomes.append(outcome)
        return outcomes[0] if len(outcomes) == 1 else tuple(outcomes)


class _Staged(WorkerProgram):
    """A program in steps, in the place of a loaded module.

    Attributes
    ----------
    routes : dict of str to (int, list of int)
        For each value between steps the device that makes it, and the others that read it.
    readers : dict of str to set of int
        Devices that read an input.
    wanted : list of list
        For each device the values that it sends back: name, micro-batch.
    """

    def __init__(self, source: Any, steps: list[Step], results: list[str], division: Division, count: int) -> None:
        super().__init__(source, "steps")
        self.steps = steps
        self.results = results
        self.division = division
        self.count = count
        makers = {name: step.device for step in steps for name in step.makes}
        self.readers: dict[str, set[int]] = {}
        for step in steps:
            for name in step.reads:
                self.readers.setdefault(name, set()).add(step.device)
        self.routes = {
            name: (device, sorted(self.readers.get(name, set()) - {device})) for name, device in makers.items()
        }
        specs = [spec for group in division.results for spec in group.values()]
        devices = max((step.device for step in steps), default=0) + 1
        self.wanted: list[list[list[Any]]] = [[] for _ in range(max(devices, 64))]
        for name, spec in zip(results, specs, strict=True):
            if name in makers:
                keys = [[name, m] for m in (range(count) if any(spec) else [0])]
                self.wanted[makers[name]] += [key for key in keys if key not in self.wanted[makers[name]]]


def _micro_batches(count: int) -> Any:
    """Return the layout that divides the batch along an axis of time."""
    return Layout(Mesh(micro=count), batch="micro").argument(sections=False)


def _product(shape: Any) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
