"""Pipelines that `strategy="auto"` considers: stages along an axis of the mesh, each divided along the other axes.

How a stage is divided over its devices is searched for as if there were no stages, with the memory of all of them: each
stage has its part of the parameters, of the activations and of the work. The time that this gives, divided by the
number of stages and with the bubble, is what no pipeline falls below, so that most axes are ruled out without more. The
others are costed as a plan is: partitioned, cut into stages and simulated along their time, for some numbers of
micro-batches and each schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..dtypes import normalize
from ..errors import InvalidValueError
from .layout import Layout, Mesh
from .pipeline import SCHEDULES, STAGE, Pipeline, layer_of
from .searches import Candidate, Search
from .simulated_pipeline import PipelineProgram

if TYPE_CHECKING:
    from .. import _core
    from .hardware import Hardware

__all__ = ["PipelineRunner", "PipelineSearch"]

#: Up to how many micro-batches for each stage are tried.
_FACTORS = (1, 2, 4, 8)
#: The most stages times micro-batches of a pipeline that is simulated.
_TASKS = 8192


@dataclass(frozen=True)
class PipelineRunner:
    """What is to run pipelines.

    Attributes
    ----------
    runs : callable
        Whether it can run a pipeline.
    hands_over : bool
        Whether the script keeps the parameters and hands them over at each call, as it does without a training. The
        time for that counts, and the first device holds them.
    target : Target
        What the code is for: the order of steps may depend on it.
    """

    runs: Callable[[Pipeline], bool]
    hands_over: bool
    target: Any


class _Costed(NamedTuple):
    """A pipeline with what it costs."""

    candidate: Candidate
    pipeline: Pipeline


class PipelineSearch:
    """Looks for a pipeline that is better than what was found without one.

    Parameters
    ----------
    core : Compiled
        The program on one device, whose sizes are known.
    mesh : Mesh
        The devices.
    hardware : Hardware
        Their description.
    slots : float
        What an optimizer keeps, in parts of the parameters.
    gradients : tuple or None
        Names of outputs and of parameters.
    runner : PipelineRunner
        What is to run it.
    tensors : callable
        Searches for the layout of tensors over a mesh.
    """

    def __init__(
        self,
        core: _core.Compiled,
        mesh: Mesh,
        hardware: Hardware,
        slots: float,
        gradients: Any,
        runner: PipelineRunner,
        tensors: Callable[[Mesh, Hardware], Search],
    ) -> None:
        self._core, self._mesh, self._hardware, self._slots = core, mesh, hardware, slots
        self._gradients, self._runner, self._tensors = gradients, runner, tensors
        self._candidates: list[Candidate] = []
        self._evaluated = 0
        self._layers = len({layer_of(name) for name, _, _ in core.inputs("param")})

    def improved(self, found: Search) -> Search:
        """Return what was found, or a pipeline that is better."""
        best: _Costed | None = None
        for axis, grid in self._places():
            than = found.chosen if best is None else best.candidate
            # On one device, whatever it holds.
            other = self._along(axis, grid, found.candidates[0].seconds, than)
            if other is not None and other.candidate.is_better(than):
                best = other
        layout, chosen, others = found.layout, found.chosen, found.candidates[:-1]
        if best is not None:
            others = (*others, replace(chosen, name="the best without stages"))
            layout, chosen = best.pipeline, replace(best.candidate, name="chosen")
        return Search(layout, (*others, *self._candidates, chosen), found.evaluated + self._evaluated)

    def _places(self) -> Iterator[tuple[str, Mesh]]:
        """Yield axes of stages with their meshes: each of the mesh, and one of all devices."""
        for axis, size in self._mesh.axes.items():
            if 1 < size <= self._layers:
                yield axis, self._mesh
        is_grid = sum(size > 1 for size in self._mesh.axes.values()) > 1
        # What links along different axes do to a row of stages is not known.
        if is_grid and self._mesh.devices <= self._layers and not isinstance(self._hardware.link_bandwidth, Mapping):
            yield STAGE, Mesh(**{STAGE: self._mesh.devices})

    def _along(self, axis: str, grid: Mesh, alone: float, than: Candidate) -> _Costed | None:
        """Return the best pipeline whose stages are along an axis, if it may be better than another candidate.

        ``alone`` is the time of one device.
        """
        stages = grid.axes[axis]
        rest = {name: size for name, size in grid.axes.items() if name != axis}
        try:
            trial = Pipeline(stages, layout=Layout(Mesh(**rest)) if rest else None).over(grid, axis)
        except InvalidValueError:
            # The name of an axis is one of pipelines.
            return None
        if not self._runner.runs(trial) or not self._may_be_better(alone / trial.devices, None, stages, than):
            return None
        if not rest:
            return self._climbed(trial, "")
        inner = self._inner(rest, self._hardware.memory * stages)
        if not self._may_be_better(inner.chosen.seconds / stages, inner.layout, stages, than):
            return None
        best = self._climbed(trial.replaced(inner.layout), _name(inner))
        if best is not None and not best.candidate.fits:
            # Divided for less memory, by as much as it was too much.
            share = 0.95 * self._hardware.memory / best.candidate.memory
            smaller = self._inner(rest, int(self._hardware.memory * stages * share))
            if repr(smaller.layout) != repr(inner.layout):
                other = self._climbed(trial.replaced(smaller.layout), _name(smaller))
                best = other if other is not None and other.candidate.is_better(best.candidate) else best
        return best

    def _may_be_better(self, part: float, layout: Layout | None, stages: int, than: Candidate) -> bool:
        """Whether a pipeline may be better than another candidate, if ``part`` is the time that a stage computes."""
        counts = self._counts(layout, stages)
        return bool(counts) and not (than.fits and part * (counts[-1] + stages - 1) / counts[-1] >= than.seconds)

    def _inner(self, axes: Mapping[str, int], memory: int) -> Search:
        """Search for the layout of a stage over its devices."""
        found = self._tensors(Mesh(**axes), replace(self._hardware, memory=memory))
        self._evaluated += found.evaluated
        return found

    def _counts(self, layout: Layout | None, stages: int) -> list[int]:
        """Return numbers of micro-batches to try, which divide the batch after the devices of a stage have."""
        sizes = [shape[0] for _, _, shape in self._core.inputs("data") if shape]
        names = () if layout is None or layout.batch is None else layout.batch
        axes = (names,) if isinstance(names, str) else tuple(names)
        devices = 1 if layout is None else math.prod(layout.mesh.axes[name] for name in axes)
        whole = math.gcd(*sizes) if sizes else 0
        parts = whole // devices if whole % devices == 0 else 0
        counts = set()
        for factor in _FACTORS:
            most = min(factor * stages, max(2, _TASKS // stages), parts)
            counts |= {next((m for m in range(most, 1, -1) if parts % m == 0), 1)}
        return sorted(counts - {1})

    def _climbed(self, pipeline: Pipeline, name: str) -> _Costed | None:
        """Return a pipeline with its best number of micro-batches: two for each stage, or from there up or down."""
        counts = self._counts(pipeline.layout, pipeline.stage_count)
        if not counts:
            return None
        start = max((i for i, count in enumerate(counts) if count <= 2 * pipeline.stage_count), default=0)
        first = best = self._costed(pipeline, counts[start], name)
        for further in (counts[start + 1 :], counts[:start][::-1]):
            for count in further:
                other = self._costed(pipeline, count, name)
                if other is None or (best is not None and not other.candidate.is_better(best.candidate)):
                    break
                best = other
            if best is not first:
                break
        return best

    def _costed(self, pipeline: Pipeline, count: int, name: str) -> _Costed | None:
        """Return a pipeline with so many micro-batches and its best schedule; None if the batch does not divide so."""
        counted = Pipeline(pipeline.stages, micro_batches=count, layout=pipeline.layout)
        pipeline = counted.over(pipeline.grid, pipeline.axis)
        try:
            program = PipelineProgram(self._core, pipeline, self._gradients, self._runner.target)
        except InvalidValueError:
            return None
        if program.padded is not None:
            return None
        self._evaluated += 1
        along = f"{pipeline.axis}: pipeline_parallel in {count} micro-batches"
        best: _Costed | None = None
        # That of the pipeline comes first: others have to be faster.
        for schedule in sorted(SCHEDULES, key=lambda schedule: schedule != pipeline.schedule):
            other = pipeline.with_schedule(schedule)
            words = [along, "" if other is pipeline else schedule, name]
            candidate = self._candidate(program, other, ", ".join(filter(None, words)))
            if best is None or candidate.is_better(best.candidate):
                best = _Costed(candidate, other)
        assert best is not None
        self._candidates.append(best.candidate)
        return best

    def _candidate(self, program: PipelineProgram, pipeline: Pipeline, name: str) -> Candidate:
        simulated = program.simulated(pipeline.schedule, self._hardware)
        stages = simulated.stages(self._slots)
        seconds, held = simulated.seconds(stages), [stage.bytes_held for stage in stages]
        if self._runner.hands_over:
            seconds += simulated.handover(stages)
            held[0] += self._kept_by_script()
        return Candidate(name, seconds, max(held), max(held) <= self._hardware.memory)

    def _kept_by_script(self) -> int:
        """Return the bytes of the parameters, which the script keeps on the first device."""
        return sum(math.prod(shape) * normalize(dtype).itemsize for _, dtype, shape in self._core.inputs("param"))


def _name(found: Search) -> str:
    """Return the known strategies that a search has chosen, or that they are not known ones."""
    chosen = found.chosen
    known = (c.name for c in found.candidates[:-1] if (c.seconds, c.memory) == (chosen.seconds, chosen.memory))
    return next(known, ", ".join(f"{axis}: searched for" for axis in found.layout.mesh.axes))
