"""Runs pipelines on workers of this process: each has the layers of a device."""

from __future__ import annotations

from typing import Any

from ..errors import BackendUnavailableError, UnsupportedOpError
from .pieces import holders
from .pipeline import Pipeline
from .pipeline_engine import PipelineEngine, StagedProgram
from .step_runner import Key
from .workers import MOST, WorkerFailure, Workers, blocks, joined, workers_on

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
        layout = self.layout
        workers = workers_on(self.backend.name, self.devices, "steps", self._stages())
        engine = self.backend.engine
        number = workers.programs.get(program)
        if number is None:
            number = self._loaded(workers, program)
        messages: list[Any] = [None] * len(self.devices)
        for stage in range(layout.stage_count):
            ranks, kept = layout.ranks(stage), program.kept(stage)
            shared: dict[str, int] = {}
            micro: list[dict[str, int]] = [{} for _ in range(program.count)]
            arrays: list[list[Any]] = [[] for _ in ranks]
            for name, m, array, spec in program.arguments(stage, groups):
                (shared if m is None else micro[m])[name] = len(arrays[0])
                for own, block in zip(arrays, blocks(array, program.mesh, spec, engine), strict=True):
                    own.append(block)
            head = {"do": "steps", "program": number, "shared": shared, "micro": micro}
            for place, rank in enumerate(ranks):
                # Of what several devices of a stage have, one sends it back.
                results = [key for key in kept if place in holders(program.mesh, program.spec(key[0]))]
                messages[rank] = ({**head, "results": results}, arrays[place])
        replies = workers.call(messages)
        computed: dict[Key, Any] = {}
        for stage in range(layout.stage_count):
            parts: dict[Key, dict[int, Any]] = {key: {} for key in program.kept(stage)}
            for place, rank in enumerate(layout.ranks(stage)):
                for key, array in zip(messages[rank][0]["results"], replies[rank][1], strict=True):
                    parts[key][place] = engine.unpacked(array)
            for key, blocks_of in parts.items():
                computed[key] = joined(blocks_of, program.mesh, program.spec(key[0]), engine)
        return program.outcomes(groups, computed, engine)

    def _stages(self) -> tuple[int, ...]:
        """Return the stage of each device, where a stage has several."""
        layout = self.layout
        if layout.layout is None:
            return ()
        stages = {rank: stage for stage in range(layout.stage_count) for rank in layout.ranks(stage)}
        return tuple(stages[rank] for rank in range(layout.devices))

    def _loaded(self, workers: Workers, program: StagedProgram) -> int:
        engine = self.backend.engine
        number = workers.programs[program] = workers.number()
        constants = program.source.constants()
        packed = [engine.packed(engine.constant(value)) for value in constants.values()]
        about = {"do": "load", "program": number, "text": program.source.text, "constants": list(constants)}
        about |= {"steps": program.steps, "count": program.count}
        if self.layout.layout is not None:
            about["mesh"] = list(self.layout.grid.axes.items())
        each: list[Any] = [None] * len(self.devices)
        all_ranks = [self.layout.ranks(stage) for stage in range(self.layout.stage_count)]
        for stage, ranks in enumerate(all_ranks):
            for place, rank in enumerate(ranks):
                # What a device computes goes to the device at its place in another stage.
                sends = {name: [all_ranks[to][place] for to in peers] for name, peers in program.sends(stage).items()}
                each[rank] = {**about, "order": program.orders[stage], "sends": sends}
        workers.call([(message, packed) for message in each])
        return number
