"""Runs pipelines on several devices of this process, which compute while it goes on."""

from __future__ import annotations

from typing import Any

from .pipeline import Pipeline, sequence
from .pipeline_engine import PipelineEngine, StagedProgram
from .step_runner import DeviceSteps, Key, StepRun

__all__ = ["DevicePipelineEngine"]


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
    backends : list of Backend
        One like the backend on each device.
    """

    def __init__(self, backend: Any, layout: Pipeline, devices: list[Any]) -> None:
        super().__init__(backend, layout, devices)
        self.backends = [backend.engine.on_device(device) for device in self.devices]
        self._loaded: dict[StagedProgram, tuple[Any, list[DeviceSteps]]] = {}

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
            modules = [backend.engine.load_steps(program.source) for backend in self.backends]
            steps = [
                DeviceSteps(module, program.steps, program.orders[device], program.sends(device), program.count)
                for device, module in enumerate(modules)
            ]
            self._loaded[program] = modules[0], steps
        return self._loaded[program]

    def _run(self, program: StagedProgram, steps: list[DeviceSteps], groups: Any) -> Any:
        arrived: list[dict[Key, Any]] = [{} for _ in steps]

        def send(peer: int, key: Key, array: Any) -> None:
            arrived[peer][key] = self.moved(array, peer)

        runs = []
        for device, own in enumerate(steps):
            values: dict[Key, Any] = {}
            for name, m, array in program.arguments(device, groups):
                placed = self.backends[device].engine.placed(array)
                values.update({(name, n): placed for n in (range(program.count) if m is None else [m])})
            receive = arrived[device].pop
            runs.append(StepRun(own, self.backends[device], values, program.kept(device), receive, send))
        for device, task in sequence(program.steps, program.orders, program.count):
            runs[device].do(task)
        home = self.backend.engine
        computed = {key: home.placed(run.values[key]) for i, run in enumerate(runs) for key in program.kept(i)}
        return program.outcomes(groups, computed, home)

    def moved(self, array: Any, device: int) -> Any:
        """Return an array that one device computed, on another."""
        return self.backends[device].engine.placed(array)
