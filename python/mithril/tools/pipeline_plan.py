"""Plans of pipelines: what each device computes, holds and sends, and how long devices wait for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..parallel.pipeline import Pipeline
from ..parallel.simulated_pipeline import Stage
from ..tables import plain
from ..tables import seconds as took
from . import pipeline_picture
from .plan_report import PlanReport

if TYPE_CHECKING:
    from ..parallel.auto import Search
    from ..parallel.hardware import Hardware
    from ..parallel.simulated_pipeline import PipelineProgram
    from ..parallel.timeline import Span

__all__ = ["PipelinePlan", "Stage"]


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
    handover : float or None
        Estimated time for what the script hands over at each call and gets back, over the links between stages; it is
        not in ``seconds``. In a training those are data, states and outputs. None if no hardware was given.
    hardware : Hardware or None
        The devices for which times are estimated.
    spans : list of Span
        What each device does when; in operations if no hardware was given.
    search : Search or None
        How the pipeline was found, with ``strategy="auto"``: `layout`, `candidates`, `evaluated`.
    """

    def __init__(
        self,
        layout: Pipeline,
        program: PipelineProgram,
        *,
        hardware: Hardware | None = None,
        slots: float = 0.0,
        search: Search | None = None,
    ) -> None:
        simulated = program.schedules(hardware)
        chosen = simulated[layout.schedule]
        self.layout, self.micro_batches, self.padded = layout, chosen.count, program.padded
        self.stages: tuple[Stage, ...] = chosen.stages(slots)
        self.spans: list[Span] = chosen.spans
        self.kinds = chosen.kinds()
        self.bubbles = {schedule: other.bubble for schedule, other in simulated.items()}
        self.bubble = self.bubbles[layout.schedule]
        self.hardware, self.search = hardware, search
        self.seconds = None if hardware is None else chosen.seconds(self.stages)
        self._is_training = any(stage.memory["gradients"] for stage in self.stages)
        self.handover = None if hardware is None else chosen.handover(self.stages)

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
            "handover": self.handover,
            "fits": self.fits,
            "candidates": () if self.search is None else self.search.candidates,
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
        handover = "" if self.handover is None else f", which takes {took(self.handover)} beside the step"
        lines = [
            f"{self.layout!r}: {self.micro_batches} micro-batches, {self.bytes_sent:,} bytes between {between}",
            *padded,
            *distributed,
            f"the script hands over {loaded:,} bytes and gets {returned:,} back{handover}",
            *(["parameters, gradients and what the optimizer keeps stay on their stages"] if self._is_training else []),
            f"devices wait {self.bubble:.1%} of the time ({waits})",
        ]
        if self.hardware is not None and self.seconds is not None:
            most = max(stage.bytes_held for stage in self.stages)
            does = "it fits" if self.fits else "it does not fit"
            lines.append(f"{does}: at most {most:,} of {self.hardware.memory:,} bytes of memory")
            lines.append(f"a step takes about {took(self.seconds)}")
        return [*lines, *([] if self.search is None else self.search.sentences())]

    def __repr__(self) -> str:
        return f"<PipelinePlan of {self.layout!r}: {self.bytes_sent:,} bytes between devices>"


def _numbers(ranks: list[int]) -> str:
    """Return numbers of devices, as a range if they follow each other."""
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks[:4])) + (" …" if len(ranks) > 4 else "")


def _layers(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) < 5 else f"{names[0]} … {names[-1]} ({len(names)})"
