"""A plan as a picture: the memory of a device, a step along its time, and the layouts that were compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from .. import tables

if TYPE_CHECKING:
    from ..parallel.auto import Search
    from .plan import Plan

__all__ = [
    "DARK",
    "GAP",
    "LANE",
    "LEFT",
    "MEMORY",
    "SPAN",
    "WIDTH",
    "Block",
    "bar",
    "blocks",
    "candidates",
    "joined",
    "label",
    "legend",
    "page",
    "svg",
    "ticks",
    "title",
]

WIDTH, LEFT, RIGHT, LANE, GAP = 900, 132, 24, 22, 6
SPAN = WIDTH - LEFT - RIGHT
#: Narrower blocks of a lane that follow each other are drawn as one.
_NARROWEST = 1.0
MEMORY = {
    "parameters": "#3b6fd4",
    "states": "#667085",
    "data": "#d9822b",
    "gradients": "#1f9d72",
    "optimizer": "#8a5bd1",
    "activations": "#a9c3f5",
}
_COMPUTATION, _UPDATE, _COLLECTIVES = "#a9c3f5", "#8a5bd1", ("#d9822b", "#1f9d72", "#c94f5d", "#667085")
DARK, _PALE, _LINE = "#1d2430", "#667085", "#d0d5dd"


@dataclass(frozen=True)
class Block:
    """What a device does for a while.

    Attributes
    ----------
    lane : str
        ``"computation"``, ``"update"``, or the axis of the mesh along which devices exchange.
    start, length : float
        In seconds; in bytes if no hardware was given.
    what : str
        Which collective for which part.
    """

    lane: str
    start: float
    length: float
    what: str


def blocks(plan: Plan) -> list[Block]:
    """Return what a device does in a step, one after another; without hardware, its collectives alone.

    Parameters
    ----------
    plan : Plan
        The plan.
    """
    estimate, at, sequence = plan.estimate, 0.0, []
    lengths = [float(c.bytes) for c in plan.communications] if estimate is None else estimate.collectives
    before = [0.0] * (len(lengths) + 1) if estimate is None else estimate.computation
    for i, (c, length) in enumerate(zip(plan.communications, lengths, strict=True)):
        if before[i]:
            sequence.append(Block("computation", at, before[i], f"computation {tables.seconds(before[i])}"))
        at += before[i]
        took = "" if c.seconds is None else f", {tables.seconds(c.seconds)}"
        what = f"{c.op} over {c.axis} ({c.devices}) for {c.path or 'results'}: {tables.magnitude(c.bytes)}B{took}"
        sequence.append(Block(c.axis, at, length, what))
        at += length
    if estimate is not None:
        if before[-1]:
            sequence.append(Block("computation", at, before[-1], f"computation {tables.seconds(before[-1])}"))
        if estimate.update:
            took = tables.seconds(estimate.update)
            sequence.append(Block("update", at + before[-1], estimate.update, f"update of the parameters {took}"))
    return sequence


def svg(plan: Plan) -> str:
    """Return the picture, on a white ground.

    Parameters
    ----------
    plan : Plan
        The plan.
    """
    out: list[str] = []
    y = _memory(out, plan, 12.0)
    y = _step(out, plan, y + 14)
    if plan.search is not None:
        y = candidates(out, plan.search, y + 14)
    return page(out, y)


def page(out: list[str], y: float) -> str:
    """Return the picture of what was drawn, down to ``y``."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:.0f}" width="{WIDTH}" '
            f'height="{y:.0f}" font-family="system-ui, sans-serif" font-size="12" fill="{DARK}">',
            f'<rect width="{WIDTH}" height="{y:.0f}" fill="#ffffff"/>',
            *out,
            "</svg>\n",
        ]
    )


def title(out: list[str], text: str, y: float) -> float:
    """Draw a title; return where the next thing is drawn."""
    shown = escape(tables.visible(text))
    out.append(f'<text x="12" y="{y + 14:.1f}" font-size="15" font-weight="600">{shown}</text>')
    return y + 28


def bar(out: list[str], x: float, y: float, width: float, color: str, what: str) -> None:
    """Draw a bar of a lane, which says what it stands for where the mouse rests on it."""
    text = escape(tables.visible(what))
    out.append(
        f'<rect x="{x:.2f}" y="{y:.1f}" width="{max(width, 0.5):.2f}" height="{LANE}" fill="{color}">'
        f"<title>{text}</title></rect>"
    )


def label(out: list[str], text: str, y: float) -> None:
    """Draw the name of a lane."""
    shown = escape(tables.visible(text if len(text) <= 18 else f"{text[:17]}…"))
    out.append(f'<text x="{LEFT - 8}" y="{y + 15:.1f}" text-anchor="end">{shown}</text>')


def ticks(out: list[str], longest: float, y: float, bottom: float, unit: str) -> float:
    """Draw lines at round numbers below a title; return where the next thing is drawn."""
    power = 10.0 ** math.floor(math.log10(longest / 4))
    step = next(digit * power for digit in (5, 2, 1) if digit * power * 4 <= longest)
    for i in range(int(longest / step + 1e-9) + 1):
        x = LEFT + i * step / longest * SPAN
        text = (tables.seconds(i * step) if i else "0") if unit == "s" else f"{tables.magnitude(i * step)}{unit}"
        out.append(f'<path d="M{x:.1f} {y:.1f}V{bottom:.1f}" stroke="{_LINE}"/>')
        out.append(f'<text x="{x:.1f}" y="{bottom + 14:.1f}" fill="{_PALE}" text-anchor="middle">{text}</text>')
    return bottom + 22


def _memory(out: list[str], plan: Plan, y: float) -> float:
    limit = None if plan.hardware is None else float(plan.hardware.memory)
    held = plan.bytes_held
    of = "" if limit is None else f" of {tables.magnitude(limit)}B" + ("" if plan.fits else ", which does not fit")
    mesh = plan.layout.mesh
    y = title(out, f"{mesh}: each of {mesh.devices} devices holds {tables.magnitude(held)}B{of}", y)
    # What is left of a large memory would leave no room to show what is in it.
    shown = limit if limit is not None and held > limit / 5 else None
    longest = max(float(held), shown or 0.0, 1.0)
    x = float(LEFT)
    label(out, "memory", y)
    for name, size in plan.memory.items():
        width = size / longest * SPAN
        if size:
            bar(out, x, y, width, MEMORY[name], f"{name} {tables.magnitude(size)}B")
        x += width
    if shown is not None:
        color = DARK if plan.fits else "#c94f5d"
        x = LEFT + shown / longest * SPAN
        out.append(f'<path d="M{x:.1f} {y - 4:.1f}V{y + LANE + 4:.1f}" stroke="{color}" stroke-width="2"/>')
    parts = {f"{name} {tables.magnitude(size)}B": MEMORY[name] for name, size in plan.memory.items() if size}
    return legend(out, parts, y + LANE + 10)


def legend(out: list[str], parts: Mapping[str, str], y: float) -> float:
    """Draw what colors stand for; return where the next thing is drawn."""
    x = float(LEFT)
    for text, color in parts.items():
        out.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="11" height="11" fill="{color}"/>')
        out.append(f'<text x="{x + 16:.1f}" y="{y + 10:.1f}">{text}</text>')
        x += 34 + 6.6 * len(text)
    return y + 20


def _step(out: list[str], plan: Plan, y: float) -> float:
    sequence = blocks(plan)
    sent = f"{tables.magnitude(plan.bytes_sent)}B in {len(plan.communications):,} collectives"
    estimate = plan.estimate
    if estimate is None:
        y = title(out, f"Each device sends {sent}", y)
    else:
        y = title(out, f"A step takes about {tables.seconds(estimate.seconds)}; each device sends {sent}", y)
    longest = max((block.start + block.length for block in sequence), default=0.0)
    if not longest:
        return y
    axes = [axis for axis, _ in plan.layout.mesh.axes.items() if any(block.lane == axis for block in sequence)]
    colors = {axis: _COLLECTIVES[i % len(_COLLECTIVES)] for i, axis in enumerate(axes)}
    lanes = [lane for lane in ("computation", "update") if any(block.lane == lane for block in sequence)] + axes
    bottom = y + len(lanes) * (LANE + GAP)
    end = ticks(out, longest, y - 4, bottom, "B" if estimate is None else "s")
    for lane in lanes:
        label(out, lane if lane in ("computation", "update") else f"along {lane}", y)
        color = colors.get(lane, _COMPUTATION if lane == "computation" else _UPDATE)
        for block in joined([block for block in sequence if block.lane == lane], longest / SPAN):
            x = LEFT + block.start / longest * SPAN
            bar(out, x, y, block.length / longest * SPAN, color, block.what)
        y += LANE + GAP
    return end


def joined(lane: Sequence[Block], pixel: float) -> Iterator[Block]:
    """Give the blocks of a lane; those that are too narrow to be seen apart are one."""
    group: list[Block] = []
    for block in lane:
        if group:
            end = group[-1].start + group[-1].length
            is_narrow = max(end - group[0].start, block.length, block.start - end) < _NARROWEST * pixel
            if not is_narrow:
                yield _merged(group)
                group = []
        group.append(block)
    if group:
        yield _merged(group)


def _merged(group: Sequence[Block]) -> Block:
    first, last = group[0], group[-1]
    what = first.what if len(group) == 1 else f"{len(group)} of them, the first: {first.what}"
    return Block(first.lane, first.start, last.start + last.length - first.start, what)


def candidates(out: list[str], search: Search, y: float) -> float:
    """Draw the layouts that a search compared; return where the next thing is drawn."""
    y = title(out, f"Chosen of {search.evaluated:,} layouts", y)
    rows = search.ranking()
    longest = max(row.seconds for row in rows) or 1.0
    for row in rows:
        text = f"{row.name}: {tables.seconds(row.seconds)}, {tables.magnitude(row.memory)}B"
        text += "" if row.fits else ", does not fit"
        width = row.seconds / longest * (WIDTH - 400)
        bar(out, 12, y, width, "#1f9d72" if row.name == "chosen" else "#a9c3f5" if row.fits else "#f2b8bf", text)
        out.append(f'<text x="{width + 20:.1f}" y="{y + 15:.1f}">{escape(text)}</text>')
        y += LANE + GAP
    return y + 6
