"""Runs pipelines on workers of this process: each has the layers of a device, and may keep what belongs to them."""

from __future__ import annotations

from typing import Any

from ..errors import BackendUnavailableError, UnsupportedOpError
from .divided_array import local
from .mesh_engine import Spec
from .pieces import holders
from .pipeline import Pipeline
from .pipeline_engine import PipelineEngine, StagedProgram
from .remote import RemoteArray, is_remote
from .step_runner import Key
from .stored import StoredArray
from .workers import MOST, WorkerFailure, Workers, blocks, joined, workers_on

__all__ = ["WorkerPipelineEngine"]


class WorkerPipelineEngine(PipelineEngine):
    """Hands the steps to workers, and at each call those arrays to them that they do not keep."""

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
    def start(cls, backend: Any, layout: Pipeline) -> WorkerPipelineEngine:
        """Make the engine on the devices of a backend."""
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

    @property
    def _workers(self) -> Workers:
        """The workers; started if there are none."""
        return workers_on(self.backend.name, self.devices, "steps", self._stages())

    def distribute_to(self, array: Any, stage: int, spec: Spec) -> Any:
        """Return an array that a stage keeps."""
        workers, mesh, home = self._workers, self.layout.inner_mesh, (self.layout, stage)
        if self._is_kept(array, workers, spec) and array.home[1] == stage:
            return array
        if isinstance(array, StoredArray):
            return workers.read(self.backend, array, mesh, spec, home)
        return workers.keep(self.backend, local(array), mesh, spec, home)

    def _is_kept(self, array: Any, workers: Workers, spec: Spec | None) -> bool:
        """Whether a stage keeps an array, divided so."""
        return isinstance(array, RemoteArray) and array.workers is workers and array.is_on(self.layout, spec)

    def _run(self, program: StagedProgram, groups: Any) -> Any:
        layout, workers, engine = self.layout, self._workers, self.backend.engine
        number = workers.programs.get(program)
        if number is None:
            number = self._loaded(workers, program)
        stays = program.staying(groups, is_remote)
        groups = program.converted(
            groups, lambda array, spec: array if self._is_kept(array, workers, spec) else local(array)
        )
        messages: list[Any] = [None] * len(self.devices)
        numbers: dict[str, int] = {}
        all_ranks = [layout.ranks(stage) for stage in range(layout.stage_count)]
        for stage, ranks in enumerate(all_ranks):
            kept = program.kept(stage)
            shared: dict[str, int] = {}
            micro: list[dict[str, int]] = [{} for _ in range(program.count)]
            arrays: list[list[Any]] = [[] for _ in ranks]
            awaited = []
            for name, m, array, spec in program.arguments(stage, groups):
                if is_remote(array):
                    if array.home[1] != stage:
                        awaited.append(name)
                    continue
                (shared if m is None else micro[m])[name] = len(arrays[0])
                for own, block in zip(arrays, blocks(array, program.mesh, spec, engine), strict=True):
                    own.append(block)
            held = {
                name: (array.number, [reader for reader in readers if reader != stage])
                for name, array, readers in program.kept_arguments(groups, is_remote)
                if array.home[1] == stage and readers
            }
            kept_as = {key[0]: workers.number() for key in kept if key[0] in stays}
            numbers |= kept_as
            head = {"do": "steps", "program": number, "shared": shared, "micro": micro, "awaited": awaited}
            for place, rank in enumerate(ranks):
                # Of what several devices of a stage have, one sends it back.
                results = [
                    key
                    for key in kept
                    if key[0] not in kept_as and place in holders(program.mesh, program.spec(key[0]))
                ]
                # What a device keeps goes to the device at its place in another stage.
                own_held = [[n, i, [all_ranks[to][place] for to in readers]] for n, (i, readers) in held.items()]
                messages[rank] = ({**head, "results": results, "kept": kept_as, "held": own_held}, arrays[place])
        try:
            replies = workers.call(messages)
        except KeyboardInterrupt:
            for kept_number in numbers.values():
                workers.drop(kept_number)
            raise
        computed: dict[Key, Any] = {}
        for stage, ranks in enumerate(all_ranks):
            parts: dict[Key, dict[int, Any]] = {key: {} for key in program.kept(stage) if key[0] not in numbers}
            for place, rank in enumerate(ranks):
                for key, array in zip(messages[rank][0]["results"], replies[rank][1], strict=True):
                    parts[key][place] = engine.unpacked(array)
            for key, blocks_of in parts.items():
                computed[key] = joined(blocks_of, program.mesh, program.spec(key[0]), engine)
            for name in messages[ranks[0]][0]["kept"]:
                about = replies[ranks[0]][0]["kept"][str(numbers[name])]
                spec, home = program.spec(name), (layout, stage)
                computed[name, 0] = RemoteArray(workers, self.backend, numbers[name], about, program.mesh, spec, home)
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
