"""Runs pipelines on several devices of this process, which compute while it goes on."""

from __future__ import annotations

from typing import Any, Protocol

from .divided_array import is_divided, local
from .mesh_engine import Spec
from .pipeline import Pipeline, sequence
from .pipeline_engine import PipelineEngine, StagedProgram
from .stage_array import StageArray
from .step_runner import DeviceSteps, Key, StepRun

__all__ = ["DevicePipelineEngine", "SingleDevice", "StageDevices"]


class StageDevices(Protocol):
    """The devices of a stage, and arrays on them."""

    #: A backend on the first of them.
    backend: Any
    #: How many arrays stand for one, along an axis in front; 0 if one does.
    stacked: int

    def load(self, source: Any) -> Any:
        """Load the steps of a program."""

    def placed(self, array: Any, spec: Spec) -> Any:
        """Return what the devices have of an array."""

    def moved(self, array: Any) -> Any:
        """Return what the devices of another stage have, on these."""

    def whole(self, array: Any, spec: Spec, home: Any) -> Any:
        """Return all of an array, on the device of an engine."""

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return zeros, of which each device has an array of that shape."""


class SingleDevice:
    """A stage on one device."""

    stacked = 0

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def load(self, source: Any) -> Any:
        """Load the steps of a program."""
        return self.backend.engine.load_steps(source)

    def placed(self, array: Any, spec: Spec) -> Any:
        """Return an array on the device."""
        return self.moved(array)

    def moved(self, array: Any) -> Any:
        """Return an array of another device on this one."""
        return self.backend.engine.placed(array)

    def whole(self, array: Any, spec: Spec, home: Any) -> Any:
        """Return an array on the device of an engine."""
        return home.placed(array)

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return zeros on the device."""
        return self.backend.zeros(shape, dtype=dtype)


class DevicePipelineEngine(PipelineEngine):
    """Starts the steps of all devices one after another; a device waits for what others send, and not this process.

    Parameters
    ----------
    backend : Backend
        Whose arrays they are.
    layout : Pipeline
        Which layers are on which device.
    devices : list
        The devices.

    Attributes
    ----------
    places : list of StageDevices
        The devices of each stage.
    """

    def __init__(self, backend: Any, layout: Pipeline, devices: list[Any]) -> None:
        super().__init__(backend, layout, devices)
        ranks = map(layout.ranks, range(layout.stage_count))
        self.places: list[StageDevices] = [
            SingleDevice(backend.engine.on_device(self.devices[own[0]]))
            if layout.layout is None
            else backend.engine.on_stage([self.devices[rank] for rank in own], layout.inner_mesh)
            for own in ranks
        ]
        self._loaded: dict[StagedProgram, tuple[Any, list[DeviceSteps]]] = {}

    # --- arrays -----------------------------------------------------------------------------------------------

    def distribute_to(self, array: Any, stage: int, spec: Spec) -> Any:
        """Return an array that a stage keeps."""
        if isinstance(array, StageArray) and array.is_on(self.layout, spec) and array.stage == stage:
            return array
        array = self.distribute(local(array), spec)
        return self._kept(self.places[stage].placed(array, spec), spec, stage)

    def zeros_on(self, stage: int, shape: tuple[int, ...], dtype: str, spec: Spec) -> Any:
        """Return zeros that a stage keeps; ``shape`` is that of the part of a device."""
        return self._kept(self.places[stage].zeros(shape, dtype), spec, stage)

    def gathered_from(self, array: StageArray) -> Any:
        """Return the whole of an array that a stage keeps."""
        return self.places[array.stage].whole(array.value, array.spec, self.backend.engine)

    def _kept(self, value: Any, spec: Spec, stage: int) -> StageArray:
        shape = tuple(value.shape[1:] if self.places[stage].stacked else value.shape)
        return StageArray(self, value, str(self.backend.dtype(value)), shape, self.layout.inner_mesh, spec, stage)

    # --- programs ---------------------------------------------------------------------------------------------

    def call(self, program: StagedProgram, groups: Any) -> Any:
        """Run a program on whole arrays."""
        module, steps = self._loaded_steps(program)
        try:
            return self._run(program, steps, groups)
        except Exception as error:
            explained = module.explain(error)
            if explained is None:
                raise
            raise explained from error

    def _loaded_steps(self, program: StagedProgram) -> tuple[Any, list[DeviceSteps]]:
        if program not in self._loaded:
            modules = [place.load(program.source) for place in self.places]
            steps = [
                DeviceSteps(
                    module,
                    program.steps,
                    program.orders[stage],
                    program.sends(stage),
                    program.count,
                    stacked=self.places[stage].stacked,
                )
                for stage, module in enumerate(modules)
            ]
            self._loaded[program] = modules[0], steps
        return self._loaded[program]

    def _run(self, program: StagedProgram, steps: list[DeviceSteps], groups: Any) -> Any:
        arrived: list[dict[Key, Any]] = [{} for _ in steps]

        def send(peer: int, key: Key, array: Any) -> None:
            arrived[peer][key] = self.moved(array, peer)

        stays = program.staying(groups, is_divided)
        groups = program.converted(
            groups,
            lambda array, spec: array if is_divided(array) and array.is_on(self.layout, spec) else local(array),
        )
        runs = []
        for stage, (own, place) in enumerate(zip(steps, self.places, strict=True)):
            values: dict[Key, Any] = {}
            for name, m, array, spec in program.arguments(stage, groups):
                placed = self._on_stage(array, stage) if is_divided(array) else place.placed(array, spec)
                values.update({(name, n): placed for n in (range(program.count) if m is None else [m])})
            receive = arrived[stage].pop
            runs.append(StepRun(own, place.backend, values, program.kept(stage), receive, send))
        for stage, task in sequence(program.steps, program.orders, program.count):
            runs[stage].do(task)
        home = self.backend.engine
        computed = {
            key: self._kept(run.values[key], program.spec(key[0]), stage)
            if key[0] in stays
            else place.whole(run.values[key], program.spec(key[0]), home)
            for stage, (run, place) in enumerate(zip(runs, self.places, strict=True))
            for key in program.kept(stage)
        }
        return program.outcomes(groups, computed, home)

    def _on_stage(self, array: StageArray, stage: int) -> Any:
        """Return what the devices of a stage have of an array that one keeps."""
        return array.value if array.stage == stage else self.moved(array.value, stage)

    def moved(self, array: Any, stage: int) -> Any:
        """Return what the devices of one stage computed, on those of another."""
        return self.places[stage].moved(array)
