"""Runs pipelines on workers of this process: each has the layers of a device."""

from __future__ import annotations

from typing import Any

from ..errors import BackendUnavailableError, UnsupportedOpError
from .pipeline import Pipeline
from .pipeline_engine import PipelineEngine, StagedProgram
from .step_runner import Key
from .workers import MOST, WorkerFailure, Workers, workers_on

__all__ = ["WorkerPipelineEngine"]


class WorkerPipelineEngine(PipelineEngine):
    """Hands the steps to workers, and at each call the parameters to those that read them."""

    def __init__(self, backend: Any, layout: Pipeline, devices: list[str]) -> None:
        super().__init__(backend, layout, devices)
        if layout.devices > MOST:
            raise BackendUnavailableError(
                f"{layout!r} needs {layout.devices} devices, and at most {MOST} workers are started on a machine",
                hint="put more layers on each",
            )
        if backend.engine.overrides:
            raise UnsupportedOpError(
                f"{type(backend).__name__} defines ops, which workers do not have",
                hint="use the backend it derives from",
            )

    @classmethod
    def start(cls, backend: Any, layout: Pipeline, *, is_one_of_several: bool) -> WorkerPipelineEngine:
        """Make the engine on the devices of a backend; a process that was started beside others has none."""
        if is_one_of_several:
            raise BackendUnavailableError(
                "pipelines run on workers of one process, and this one is one of several",
                hint="start the script as any other: python script.py",
            )
        listed = [str(name) for name in backend.listed_devices]
        return cls(backend, layout, listed or [backend.device])

    def check(self, program: StagedProgram) -> None:
        """Refuse what workers would not know."""
        if "host_call(" in program.source.text:
            raise UnsupportedOpError(
                "the model calls Python functions (ml.Lambda, or ops that run on the host), which workers do not have",
                hint="leave them out, or run the model on one device",
            )

    def call(self, program: StagedProgram, groups: Any) -> Any:
        """Run a program on whole arrays."""
        try:
            return self._run(program, groups)
        except WorkerFailure as failure:
            raise program.explained(failure) from None

    def _run(self, program: StagedProgram, groups: Any) -> Any:
        workers = workers_on(self.backend.name, self.devices, "steps")
        engine = self.backend.engine
        number = workers.programs.get(program)
        if number is None:
            number = self._loaded(workers, program)
        messages = []
        for device in range(len(self.devices)):
            shared: dict[str, int] = {}
            micro: list[dict[str, int]] = [{} for _ in range(program.count)]
            arrays: list[Any] = []
            for name, m, array in program.arguments(device, groups):
                (shared if m is None else micro[m])[name] = len(arrays)
                arrays.append(engine.packed(array))
            head = {"do": "steps", "program": number, "shared": shared, "micro": micro}
            messages.append(({**head, "results": program.kept(device)}, arrays))
        computed: dict[Key, Any] = {}
        for device, (_, arrays) in enumerate(workers.call(messages)):
            for key, array in zip(program.kept(device), arrays, strict=True):
                computed[key] = engine.unpacked(array)
        return program.outcomes(groups, computed, engine)

    def _loaded(self, workers: Workers, program: StagedProgram) -> int:
        engine = self.backend.engine
        number = workers.programs[program] = workers.number()
        constants = program.source.constants()
        packed = [engine.packed(engine.constant(value)) for value in constants.values()]
        about = {"do": "load", "program": number, "text": program.source.text, "constants": list(constants)}
        about |= {"steps": program.steps, "count": program.count}
        each = [{**about, "order": own, "sends": program.sends(i)} for i, own in enumerate(program.orders)]
        workers.call([(message, packed) for message in each])
        return number
