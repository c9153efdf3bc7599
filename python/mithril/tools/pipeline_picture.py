"""A plan of a pipeline as a picture: the memory of each device, and its micro-batches along the time of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import tables
from .plan_picture import (
    GAP,
    LANE,
    LEFT,
    MEMORY,
    SPAN,
    Block,
    bar,
    candidates,
    joined,
    label,
    legend,
    page,
    ticks,
    title,
)

if TYPE_CHECKING:
    from .pipeline_plan import PipelinePlan

__all__ = ["svg"]

_COLORS = {"forward": "#a9c3f5", "backward": "#3b6fd4", "all micro-batches": "#d9822b", "update": "#8a5bd1"}
#: Narrower bars have no number of a micro-batch in them.
_NUMBERED = 16.0


def svg(plan: PipelinePlan) -> str:
    """Return the picture, on a white ground.

    Parameters
    ----------
    plan : PipelinePlan
        The plan.
    """
    out: list[str] = []
    y = _memory(out, plan, 12.0)
    y = _step(out, plan, y + 14)
    return page(out, y if plan.search is None else candidates(out, plan.search, y + 14))


def _memory(out: list[str], plan: PipelinePlan, y: float) -> float:
    most = max(stage.bytes_held for stage in plan.stages)
    limit = None if plan.hardware is None else float(plan.hardware.memory)
    of = "" if limit is None else f" of {tables.magnitude(limit)}B" + ("" if plan.fits else ", which does not fit")
    y = title(out, f"{plan.layout!r}: a device holds at most {tables.magnitude(most)}B{of}", y)
    for device, stage in enumerate(plan.stages):
        label(out, f"device {device}", y)
        x = float(LEFT)
        for name, size in stage.memory.items():
            width = size / max(most, 1) * SPAN
            if size:
                bar(out, x, y, width, MEMORY[name], f"{name} of device {device}: {tables.magnitude(size)}B")
            x += width
        y += LANE + GAP
    named = {name for stage in plan.stages for name, size in stage.memory.items() if size}
    return legend(out, {name: color for name, color in MEMORY.items() if name in named}, y + 4)


def _step(out: list[str], plan: PipelinePlan, y: float) -> float:
    timed = plan.hardware is not None
    sent = f"devices send {tables.magnitude(plan.bytes_sent)}B to each other and wait {plan.bubble:.0%} of the time"
    y = title(
        out, f"A step takes about {tables.seconds(plan.seconds)}; {sent}" if plan.seconds else sent.capitalize(), y
    )
    end = max((span.end for span in plan.spans), default=0.0)
    longest = end + max(stage.update for stage in plan.stages)
    if not longest:
        return y
    bottom = ticks(out, longest, y - 4, y + len(plan.stages) * (LANE + GAP), "s" if timed else " operations")
    shown: set[str] = set()
    for device, stage in enumerate(plan.stages):
        label(out, f"device {device}", y)
        lanes: dict[str, list[Block]] = {}
        for span in plan.spans:
            if span.device == device and span.end > span.start:
                kind = plan.kinds[span.step]
                long = span.end - span.start
                took = tables.seconds(long) if timed else f"{tables.magnitude(long)} operations"
                which = kind if span.micro_batch < 0 else f"{kind}, micro-batch {span.micro_batch}"
                lanes.setdefault(kind, []).append(Block(str(span.micro_batch), span.start, long, f"{which}: {took}"))
        if stage.update:
            what = f"update of the parameters: {tables.seconds(stage.update)}"
            lanes["update"] = [Block("-1", end, stage.update, what)]
        shown |= set(lanes)
        for kind, lane in lanes.items():
            for block in joined(lane, longest / SPAN):
                x, width = LEFT + block.start / longest * SPAN, block.length / longest * SPAN
                bar(out, x, y, max(width - 0.6, 0.5), _COLORS[kind], block.what)
                if width >= _NUMBERED and int(block.lane) >= 0:
                    color = "#1d2430" if kind == "forward" else "#ffffff"
                    text = f'<text x="{x + width / 2:.1f}" y="{y + 15:.1f}" fill="{color}" text-anchor="middle"'
                    out.append(f'{text} pointer-events="none">{int(block.lane) + 1}</text>')
        y += LANE + GAP
    return legend(out, {kind: color for kind, color in _COLORS.items() if kind in shown}, bottom)
