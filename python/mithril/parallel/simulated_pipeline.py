"""Pipelines along their time, as the compiler estimates it: what each device computes, holds and sends, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import InvalidValueError
from .layout import Mesh
from .mesh_engine import Division
from .pieces import holders
from .pipeline import SCHEDULES, Pipeline, rows
from .pipeline_engine import StagedProgram, layer_costs, layer_devices, with_micro_batches
from .timeline import kept_bytes, timeline

if TYPE_CHECKING:
    from .. import _core
    from .hardware import Hardware

__all__ = ["PipelineProgram", "SimulatedPipeline", "Stage"]


@dataclass(frozen=True)
class Stage:
    """What a device of a stage computes, holds and exchanges in a call.

    Attributes
    ----------
    layers : tuple of str
        What is placed on it.
    memory : dict of str to int
        Bytes: ``"parameters"``, ``"states"``, ``"data"``, ``"gradients"``, ``"optimizer"``, and ``"activations"``, the
        most that values between the inputs and the results take at a time.
    flops : int
        Operations.
    busy : float or None
        Seconds of computation; None if no hardware was given.
    sent, received : int
        Bytes to and from other stages.
    loaded, returned : int
        Bytes that the script hands over to all devices of the stage at each call, and that come back. In a training,
        parameters and gradients stay with the stage.
    update : float
        Seconds of the step of the optimizer.
    devices : int
        How many devices the stage has.
    exchanged : int
        Bytes that the device sends to the others of its stage, by the ring algorithm.
    """

    layers: tuple[str, ...]
    memory: dict[str, int]
    flops: int
    busy: float | None
    sent: int
    received: int
    loaded: int
    returned: int
    update: float = 0.0
    devices: int = 1
    exchanged: int = 0

    @property
    def bytes_held(self) -> int:
        """Bytes that the device holds at the most."""
        return sum(self.memory.values())


class PipelineProgram:
    """The program of a pipeline, which each schedule runs in another order.

    Parameters
    ----------
    core : Compiled
        The program on one device, whose sizes are known.
    layout : Pipeline
        Which layers are on which device.
    gradients : tuple or None
        Names of outputs and of parameters.
    target : Target
        What the code is for.

    Attributes
    ----------
    padded : tuple of int, int or None
        How many examples the batch has, and how many once it is padded; None if it divides.
    """

    def __init__(self, core: _core.Compiled, layout: Pipeline, gradients: Any, target: Any) -> None:
        self.padded: tuple[int, int] | None = None
        core = core.with_layout(layout.argument())
        try:
            core, self._count = with_micro_batches(core, layout)
        except InvalidValueError as error:
            # As it runs; see `DividedProgram`.
            try:
                core, _, *sizes = core.padded()
            except InvalidValueError as reason:
                raise error from reason
            self.padded = (sizes[0], sizes[1])
            core, self._count = with_micro_batches(core, layout)
        self._core, self._layout, self._gradients = core, layout, gradients
        self._program = core.partition(gradients, target)

    @cached_property
    def _costs(self) -> dict[str, int] | None:
        if not isinstance(self._layout.stages, int):
            return None
        # They are the same for all targets.
        return layer_costs(self._core, self._layout, self._core.partition(self._gradients))

    def simulated(self, schedule: str, hardware: Hardware | None) -> SimulatedPipeline:
        """Return the pipeline along its time, with a schedule on some hardware."""
        layout = self._layout.with_schedule(schedule)
        placement = layer_devices(self._core, layout, self._gradients, self._costs)
        return SimulatedPipeline(placement, self._program, layout, self._count, hardware)

    def schedules(self, hardware: Hardware | None) -> dict[str, SimulatedPipeline]:
        """Return the pipeline with each schedule."""
        return {schedule: self.simulated(schedule, hardware) for schedule in SCHEDULES}


class SimulatedPipeline:
    """A pipeline along its time.

    Parameters
    ----------
    placement : dict of str to int
        The device of each layer.
    program : Partitioned
        The program of a micro-batch.
    layout : Pipeline
        The pipeline.
    count : int
        Number of micro-batches.
    hardware : Hardware or None
        The devices; without them, steps are as long as they have operations.

    Attributes
    ----------
    spans : list of Span
        What each device does when.
    count : int
        Number of micro-batches that there are.
    """

    def __init__(
        self, placement: dict[str, int], program: Any, layout: Pipeline, count: int, hardware: Hardware | None
    ) -> None:
        self._placement = placement
        axes = {layout.axis: layout.stage_count, **({} if layout.layout is None else layout.layout.mesh.axes)}
        links = None if hardware is None else hardware.as_argument(Mesh(**axes))
        described, results, sizes = program.stages(list(self._placement.items()), links)
        self._steps = rows([row for row, *_ in described])
        self._flops = [flops for _, flops, _, _, _ in described]
        self._inside = [held for _, _, _, held, _ in described]
        self._exchanged = [exchanged for *_, exchanged in described]
        self._sizes: Mapping[str, int] = sizes
        self._hardware, self._layout = hardware, layout
        self._staged = StagedProgram(None, self._steps, results, Division(program, layout), count, layout)
        #: In a training the stage that keeps each parameter, and how many others read it.
        self._homes: dict[str, tuple[int, set[int]]] = {}
        if self._staged.gradients():
            for name, (home, _) in self._staged.homes().items():
                self._homes[f"param:{name}"] = home, self._staged.readers(f"param:{name}") - {home}
        self.count = self._staged.count
        self._lengths = [self._length(i, seconds) for i, (_, _, seconds, _, _) in enumerate(described)]
        rate = float("inf") if links is None else links[4][0]
        latency = 0.0 if hardware is None else hardware.latency
        self._rate = rate
        self.spans = timeline(
            self._steps,
            self._staged.orders,
            self.count,
            self._lengths,
            lambda name: (self._sizes.get(name, 0) / rate, latency),
            [self._before(stage, latency) for stage in range(layout.stage_count)],
        )

    def _length(self, i: int, seconds: float) -> float:
        step = self._steps[i]
        if self._hardware is None:
            return float(self._flops[i])
        if step.waits:
            moved = sum(self._sizes.get(name, 0) * self._staged.copies(name) for name in (*step.reads, *step.makes))
            return moved / self._hardware.bandwidth
        return seconds

    def seconds(self, stages: Sequence[Stage]) -> float:
        """Return the time of a step, with that of the optimizer."""
        return max((span.end for span in self.spans), default=0.0) + max(stage.update for stage in stages)

    def _before(self, stage: int, latency: float) -> tuple[float, float]:
        """Return until when a stage sends parameters that others read, and until when it waits for those of others."""
        sources = {home for home, others in self._homes.values() if stage in others}
        arrived = [self._shared(home) / self._rate + latency for home in sources]
        return self._shared(stage) / self._rate, max(arrived, default=0.0)

    def _shared(self, stage: int) -> int:
        """Return the bytes of parameters that a stage keeps and sends to others that read them, at each step."""
        homes = self._homes.items()
        return sum(self._sizes.get(name, 0) * len(others) for name, (home, others) in homes if home == stage)

    def handover(self, stages: Sequence[Stage]) -> float:
        """Return the time for what the script hands over at each call and gets back, over the links between stages."""
        return sum(stage.loaded + stage.returned for stage in stages) / self._rate

    def _busy(self) -> list[float]:
        busy = [0.0] * self._layout.stage_count
        for span in self.spans:
            busy[span.device] += span.end - span.start
        return busy

    @property
    def bubble(self) -> float:
        """The share of the time in which devices wait."""
        end = max((span.end for span in self.spans), default=0.0)
        return 1 - sum(self._busy()) / (end * self._layout.stage_count) if end else 0.0

    def kinds(self) -> tuple[str, ...]:
        """Return for each step whether it goes forward or backward, or is for all micro-batches."""
        makers = {name: i for i, step in enumerate(self._steps) for name in step.makes}
        kinds: list[str] = []
        for step in self._steps:
            sources = [kinds[makers[name]] for name in step.reads if name in makers]
            is_backward = "backward" in sources or any(name.startswith("cotangent:") for name in step.reads)
            kinds.append("all micro-batches" if step.is_joint else "backward" if is_backward else "forward")
        return tuple(kinds)

    def stages(self, slots: float) -> tuple[Stage, ...]:
        """Return what each device does."""
        staged, sizes, busy = self._staged, self._sizes, self._busy()
        return tuple(
            self._stage(device, slots, busy[device], staged, sizes) for device in range(self._layout.stage_count)
        )

    def _stage(self, device: int, slots: float, busy: float, staged: StagedProgram, sizes: Mapping[str, int]) -> Stage:
        memory = dict.fromkeys(("parameters", "states", "data", "gradients"), 0)
        group = {"param": "parameters", "state": "states"}
        for name, copies in staged.inputs(device):
            memory[group.get(name.partition(":")[0], "data")] += sizes.get(name, 0) * copies
        devices = self._layout.inner_mesh.devices
        kept = staged.kept(device)
        gradients = staged.gradients()
        loaded = sum(memory.values()) - (memory["parameters"] if gradients else 0)
        memory["gradients"] = sum(sizes.get(name, 0) for name, _ in kept if name in gradients)
        # Those whose optimizer is here; others are copies for a step.
        own = sum(sizes.get(name, 0) for name, (home, _) in self._homes.items() if home == device)
        if slots and own:
            memory["optimizer"] = int(own * slots)
        memory["activations"] = kept_bytes(
            self._steps, staged.orders[device], self.count, sizes, self._inside, set(kept)
        )
        sent = {name: (at, len(to)) for name, (at, to) in staged.routes.items() if to}
        read = [name for name, (_, others) in self._homes.items() if device in others]
        touched = 2 * own + memory["gradients"] + 2 * memory.get("optimizer", 0)
        hardware = self._hardware
        return Stage(
            layers=tuple(name for name, place in self._placement.items() if place == device),
            memory=memory,
            flops=sum(self._flops[span.step] for span in self.spans if span.device == device),
            busy=None if hardware is None else busy,
            sent=self._shared(device)
            + sum(sizes.get(name, 0) * staged.copies(name) * to for name, (at, to) in sent.items() if at == device),
            received=sum(sizes.get(name, 0) for name in read)
            + sum(sizes.get(name, 0) * staged.copies(name) for name, (_, to) in staged.routes.items() if device in to),
            loaded=loaded * devices,
            returned=sum(
                sizes.get(name, 0) * len(holders(staged.mesh, staged.spec(name)))
                for name, _ in kept
                if name not in gradients
            ),
            devices=devices,
            exchanged=sum(self._exchanged[span.step] for span in self.spans if span.device == device),
            update=0.0 if hardware is None or not memory["gradients"] else touched / hardware.bandwidth,
        )
