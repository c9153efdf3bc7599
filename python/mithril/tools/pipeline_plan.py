"""Plans of pipelines: what each device computes, holds and sends, and how long devices wait for each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import InvalidValueError
from ..parallel.layout import Mesh
from ..parallel.mesh_engine import Division
from ..parallel.pieces import holders
from ..parallel.pipeline import Pipeline, rows
from ..parallel.pipeline_engine import StagedProgram, layer_devices, with_micro_batches
from ..parallel.timeline import Span, kept_bytes, timeline
from ..tables import plain
from ..tables import seconds as took
from . import pipeline_picture
from .plan_report import PlanReport

if TYPE_CHECKING:
    from .. import _core
    from ..parallel.hardware import Hardware

__all__ = ["PipelinePlan", "Stage", "plan_pipeline"]


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
        Bytes of parameters, states and data that the script hands over to all devices of the stage, and of results that
        come back.
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


class PipelinePlan(PlanReport):
    """A model whose layers are on several devices: printed, a table of the stages.

    Attributes
    ----------
    layout : Pipeline
        The pipeline that was asked for.
    micro_batches : int
        Number of parts of a batch.
    stages : tuple of Stage
        What each device of a stage does.
    bubble : float
        The share of the time in which devices wait, on average.
    bubbles : dict of str to float
        The same for each schedule; the layers of ``"interleaved"`` are in two parts on each device, where the
        pipeline distributes them itself.
    padded : tuple of int, int or None
        How many examples the batch has, and how many once it is padded; None if it divides.
    seconds : float or None
        Estimated time of a step, with that of the optimizer; None if no hardware was given.
    hardware : Hardware or None
        The devices for which times are estimated.
    spans : list of Span
        What each device does when; in operations if no hardware was given.
    """

    def __init__(
        self,
        layout: Pipeline,
        micro_batches: int,
        stages: tuple[Stage, ...],
        spans: list[Span],
        bubbles: dict[str, float],
        hardware: Hardware | None,
        kinds: tuple[str, ...],
        padded: tuple[int, int] | None = None,
    ) -> None:
        self.layout, self.micro_batches, self.stages, self.spans = layout, micro_batches, stages, spans
        self.bubbles, self.hardware, self.kinds, self.padded = bubbles, hardware, kinds, padded
        self.bubble = bubbles[layout.schedule]
        end = max((span.end for span in spans), default=0.0)
        self.seconds = None if hardware is None else end + max(stage.update for stage in stages)

    @property
    def bytes_sent(self) -> int:
        """Bytes that all devices send to other stages in a call."""
        return sum(stage.sent * stage.devices for stage in self.stages)

    @property
    def bytes_exchanged(self) -> int:
        """Bytes that all devices send to others of their stage in a call."""
        return sum(stage.exchanged * stage.devices for stage in self.stages)

    @property
    def fits(self) -> bool | None:
        """Whether each device has as much memory; None if no hardware was given."""
        return None if self.hardware is None else all(s.bytes_held <= self.hardware.memory for s in self.stages)

    def picture(self) -> str:
        """Return a picture as SVG: the memory of each device, and its micro-batches along the time of a step.

        Without hardware there are no times: steps are as long as they have operations.
        """
        return pipeline_picture.svg(self)

    _schema = "mithril.pipeline_plan/1"

    def _facts(self) -> dict[str, Any]:
        return {
            "layout": repr(self.layout),
            "devices": self.layout.devices,
            "micro_batches": self.micro_batches,
            "stages": [{**plain(stage), "bytes_held": stage.bytes_held} for stage in self.stages],
            "bytes_sent": self.bytes_sent,
            "bytes_exchanged": self.bytes_exchanged,
            "padded": self.padded,
            "bubble": self.bubble,
            "bubbles": self.bubbles,
            "hardware": self.hardware,
            "seconds": self.seconds,
            "fits": self.fits,
        }

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        timed = self.hardware is not None
        is_mixed = self.layout.layout is not None
        times, within = (["time"] if timed else []), (["exchanges"] if is_mixed else [])
        first = "devices" if is_mixed else "device"
        head = [first, "bytes held", "operations", *times, "sends", "receives", *within, "layers"]
        rows = [
            [
                _numbers(self.layout.ranks(device)),
                f"{stage.bytes_held:,}",
                f"{stage.flops:.4g}",
                *([] if stage.busy is None else [took(stage.busy)]),
                f"{stage.sent:,}",
                f"{stage.received:,}",
                *([f"{stage.exchanged:,}"] if is_mixed else []),
                _layers(stage.layers),
            ]
            for device, stage in enumerate(self.stages)
        ]
        return head, rows

    def _places(self) -> list[list[str]]:
        return [list(stage.layers) for stage in self.stages]

    def _sentences(self) -> list[str]:
        loaded, returned = (sum(getattr(s, name) for s in self.stages) for name in ("loaded", "returned"))
        waits = ", ".join(f"{name} {share:.1%}" for name, share in self.bubbles.items())
        between = "devices"
        if self.layout.layout is not None:
            between = f"stages and {self.bytes_exchanged:,} within them"
        padded = [] if self.padded is None else [f"the batch of {self.padded[0]} is padded to {self.padded[1]}"]
        distributed = ["layers are distributed by their estimated times"] if isinstance(self.layout.stages, int) else []
        lines = [
            f"{self.layout!r}: {self.micro_batches} micro-batches, {self.bytes_sent:,} bytes between {between}",
            *padded,
            *distributed,
            f"the script hands over {loaded:,} bytes and gets {returned:,} back",
            f"devices wait {self.bubble:.1%} of the time ({waits})",
        ]
        if self.hardware is not None and self.seconds is not None:
            most = max(stage.bytes_held for stage in self.stages)
            does = "it fits" if self.fits else "it does not fit"
            lines.append(f"{does}: at most {most:,} of {self.hardware.memory:,} bytes of memory")
            lines.append(f"a step takes about {took(self.seconds)}")
        return lines

    def __repr__(self) -> str:
        return f"<PipelinePlan of {self.layout!r}: {self.bytes_sent:,} bytes between devices>"


def _numbers(ranks: list[int]) -> str:
    """Return numbers of devices, as a range if they follow each other."""
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks[:4])) + (" …" if len(ranks) > 4 else "")


def _layers(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) < 5 else f"{names[0]} … {names[-1]} ({len(names)})"


def plan_pipeline(
    core: _core.Compiled, layout: Pipeline, target: Any, gradients: Any, hardware: Hardware | None, slots: float
) -> PipelinePlan:
    """Return the plan of a pipeline.

    Parameters
    ----------
    core : Compiled
        The program, whose sizes are known.
    layout : Pipeline
        Which layers are on which device.
    target : Target
        What the code is for.
    gradients : tuple or None
        Names of outputs and of parameters.
    hardware : Hardware or None
        The devices.
    slots : float
        What an optimizer keeps, in parts of the parameters.
    """
    core, padded = core.with_layout(layout.argument()), None
    try:
        core, count = with_micro_batches(core, layout)
    except InvalidValueError as error:
        # As it runs; see `DividedProgram`.
        try:
            core, _, *sizes = core.padded()
        except InvalidValueError as reason:
            raise error from reason
        padded = (sizes[0], sizes[1])
        core, count = with_micro_batches(core, layout)
    program = core.partition(gradients, target)
    bubbles = {}
    for schedule in ("gpipe", "1f1b", "interleaved"):
        other = layout if schedule == layout.schedule else _variant(layout, schedule)
        placement = layer_devices(core, other, gradients)
        simulated = _Simulated(placement, program, other, count, hardware)
        bubbles[schedule] = simulated.bubble
        if other is layout:
            chosen = simulated
    stages, kinds = chosen.stages(slots), chosen.kinds()
    return PipelinePlan(layout, chosen.count, stages, chosen.spans, bubbles, hardware, kinds, padded)


def _variant(layout: Pipeline, schedule: str) -> Pipeline:
    other = Pipeline(layout.stages, micro_batches=layout.micro_batches, schedule=schedule, layout=layout.layout)
    return other.over(layout.grid, layout.axis)


class _Simulated:
    """A pipeline along its time."""

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
        self.count = self._staged.count
        self._lengths = [self._length(i, seconds) for i, (_, _, seconds, _, _) in enumerate(described)]
        rate = float("inf") if links is None else links[4][0]
        latency = 0.0 if hardware is None else hardware.latency
        self.spans = timeline(
            self._steps,
            self._staged.orders,
            self.count,
            self._lengths,
            lambda name: (self._sizes.get(name, 0) / rate, latency),
        )

    def _length(self, i: int, seconds: float) -> float:
        step = self._steps[i]
        if self._hardware is None:
            return float(self._flops[i])
        if step.waits:
            moved = sum(self._sizes.get(name, 0) * self._staged.copies(name) for name in (*step.reads, *step.makes))
            return moved / self._hardware.bandwidth
        return seconds

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
        loaded = sum(memory.values()) * devices
        kept = staged.kept(device)
        gradients = staged.gradients()
        memory["gradients"] = sum(sizes.get(name, 0) for name, _ in kept if name in gradients)
        if slots and memory["parameters"]:
            memory["optimizer"] = int(memory["parameters"] * slots)
        memory["activations"] = kept_bytes(
            self._steps, staged.orders[device], self.count, sizes, self._inside, set(kept)
        )
        sent = {name: (at, len(to)) for name, (at, to) in staged.routes.items() if to}
        touched = 2 * memory["parameters"] + memory["gradients"] + 2 * memory.get("optimizer", 0)
        hardware = self._hardware
        return Stage(
            layers=tuple(name for name, place in self._placement.items() if place == device),
            memory=memory,
            flops=sum(self._flops[span.step] for span in self.spans if span.device == device),
            busy=None if hardware is None else busy,
            sent=sum(sizes.get(name, 0) * staged.copies(name) * to for name, (at, to) in sent.items() if at == device),
            received=sum(
                sizes.get(name, 0) * staged.copies(name) for name, (_, to) in staged.routes.items() if device in to
            ),
            loaded=loaded,
            returned=sum(sizes.get(name, 0) * len(holders(staged.mesh, staged.spec(name))) for name, _ in kept),
            devices=devices,
            exchanged=sum(self._exchanged[span.step] for span in self.spans if span.device == device),
            update=0.0 if hardware is None or not memory["gradients"] else touched / hardware.bandwidth,
        )
