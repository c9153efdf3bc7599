"""The steps of a profile as a flame graph: a frame for each submodel, as wide as the steps inside it take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from .. import tables

if TYPE_CHECKING:
    from .profile import Profile, ProfileRow

__all__ = ["COLORS", "Frame", "describe", "frames", "legend", "limit", "svg"]

_WIDTH, _ROW, _MARGIN, _TOP, _CHARACTER = 1000, 20, 12, 46, 6.7
#: Narrower frames cannot be seen.
_NARROWEST = 0.4
#: What limits a step -> fill and stroke.
COLORS = {
    "compute": ("#dbe8ff", "#7fa6ec"),
    "memory": ("#ffe3c2", "#e2a45c"),
    "unknown": ("#e8e8ec", "#b3b7c0"),
    "submodel": ("#f4efff", "#c4b3ea"),
}
_KINDS = {"compute": "bound by compute", "memory": "bound by memory", "unknown": "FLOPs not known"}


@dataclass
class Frame:
    """The whole model, a submodel, or a step.

    Attributes
    ----------
    label : str
        The last part of its path.
    path : str
        Its path; that of the whole model is empty.
    depth : int
        How many frames are around it.
    start, seconds : float
        Where it begins, and how long it takes: the sum of its steps. Steps of a submodel stand side by side, whatever
        runs between them.
    operations : int
        Operations of those steps whose operations are known.
    unknown : int
        Number of steps whose operations are not known.
    bytes : int
        Bytes that the steps read or write.
    row : int or None
        Position of the step among the rows of the profile; None for the model and submodels.
    """

    label: str
    path: str
    depth: int = 0
    start: float = 0.0
    seconds: float = 0.0
    operations: int = 0
    unknown: int = 0
    bytes: int = 0
    row: int | None = None

    def add(self, row: ProfileRow) -> None:
        """Add what a step takes."""
        self.seconds += row.seconds
        self.operations += row.operations or 0
        self.unknown += row.operations is None
        self.bytes += row.bytes


@dataclass
class _Node:
    frame: Frame
    children: dict[str | int, _Node] = field(default_factory=dict)


def frames(rows: Sequence[ProfileRow], label: str = "model") -> list[Frame]:
    """Return the frames, each before those inside it, in the order of the steps.

    Parameters
    ----------
    rows : sequence of ProfileRow
        The steps in the order in which they run.
    label : str, default "model"
        What the frame of the whole model is called.

    Examples
    --------
    >>> from mithril.tools.profile import ProfileRow
    >>> rows = [ProfileRow("a.first", "first", "", 2.0, 8, 4), ProfileRow("a.second", "second", "", 1.0, None, 4)]
    >>> [(frame.path, frame.depth, frame.start, frame.seconds) for frame in frames(rows)]
    [('', 0, 0.0, 3.0), ('a', 1, 0.0, 3.0), ('a.first', 2, 0.0, 2.0), ('a.second', 2, 2.0, 1.0)]
    """
    root = _Node(Frame(label, ""))
    for i, row in enumerate(rows):
        root.frame.add(row)
        at, path = root, ""
        for part in row.path.split(".") if row.path else ():
            path = f"{path}.{part}" if path else part
            at = at.children.setdefault(part, _Node(Frame(part, path)))
            at.frame.add(row)
        at.children[i] = _Node(Frame(row.name or row.what, row.path, row=i))
        at.children[i].frame.add(row)
    out: list[Frame] = []
    # Without recursion: a path may be longer than Python's stack.
    waiting = [(root, 0, 0.0)]
    while waiting:
        node, depth, start = waiting.pop()
        frame = node.frame
        only = next(iter(node.children.values())) if len(node.children) == 1 else None
        inside = list(node.children.values())
        if only is not None and only.frame.row is not None and node is not root:
            # A layer of a single step is that step.
            frame.row, inside = only.frame.row, []
        frame.depth, frame.start = depth, start
        out.append(frame)
        starts = []
        for child in inside:
            starts.append((child, depth + 1, start))
            start += child.frame.seconds
        waiting.extend(reversed(starts))
    return out


def describe(profile: Profile, frame: Frame) -> str:
    """Say what a frame takes: path, time, share of the whole, operations, bytes, and what a step computes."""
    total = sum(row.seconds for row in profile.rows)
    share = frame.seconds / total if total else 0.0
    parts = [f"{frame.path or frame.label}: {tables.seconds(frame.seconds)}, {share:.1%}"]
    if frame.operations:
        more = " and those of steps that depend on data" if frame.unknown else ""
        parts.append(f"{frame.operations / 1e6:,.3g} MFLOP{more}")
    parts.append(f"{frame.bytes / 1e6:,.3g} MB")
    if frame.row is not None:
        row = profile.rows[frame.row]
        parts.append(row.what if row.name in (frame.path, "") else f"{row.name}: {row.what}")
    return "\n".join(parts)


def limit(profile: Profile, row: ProfileRow) -> str:
    """Return what limits a step on this machine: ``"compute"``, ``"memory"``, or ``"unknown"``."""
    if row.operations is None:
        return "unknown"
    return "memory" if profile.is_memory_bound(row) else "compute"


def legend(right: float, kinds: Sequence[str]) -> list[str]:
    """Return elements of SVG that say what the colors mean, in the first line of a picture, up to a coordinate."""
    out = []
    x = right + 10
    for kind in reversed(kinds):
        x -= _CHARACTER * len(_KINDS[kind]) + 27
        fill, line = COLORS[kind]
        out.append(f'<rect x="{x:.1f}" y="10" width="12" height="12" rx="2" fill="{fill}" stroke="{line}"/>')
        out.append(f'<text x="{x + 17:.1f}" y="20" fill="#667085" text-anchor="start">{_KINDS[kind]}</text>')
    return out


def svg(profile: Profile, title: str = "model") -> str:
    """Return the flame graph as a picture, on a white ground; the whole model is at the top.

    Parameters
    ----------
    profile : Profile
        The times.
    title : str, default "model"
        What the frame of the whole model is called.
    """
    rows = frames(profile.rows, title)
    total = rows[0].seconds
    scale = (_WIDTH - 2 * _MARGIN) / total if total else 0.0
    shown = [frame for frame in rows if frame.seconds * scale >= _NARROWEST or frame.depth == 0]
    height = _TOP + _ROW * (1 + max(frame.depth for frame in shown)) + _MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="ui-monospace, monospace" font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_MARGIN}" y="20" font-size="13" font-weight="600" fill="#1d2430">{tables.seconds(total)} in '
        f"{len(profile)} step{'s' if len(profile) != 1 else ''}</text>",
    ]
    out += legend(_WIDTH - _MARGIN, ("compute", "memory", "unknown"))
    for frame in shown:
        kind = "submodel" if frame.row is None else limit(profile, profile.rows[frame.row])
        fill, line = COLORS[kind]
        width = frame.seconds * scale if frame.depth else _WIDTH - 2 * _MARGIN
        x, y = _MARGIN + frame.start * scale, _TOP + _ROW * frame.depth
        said = "\n".join(map(tables.visible, describe(profile, frame).split("\n")))
        out.append(f"<g><title>{escape(said)}</title>")
        out.append(
            f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 1}" rx="2" fill="{fill}" stroke="{line}" '
            'stroke-width="0.6"/>'
        )
        label = _cut(frame.label, int((width - 6) / _CHARACTER))
        if label:
            out.append(f'<text x="{x + 4:.2f}" y="{y + 14}" fill="#1d2430">{escape(label)}</text>')
        out.append("</g>")
    return "\n".join([*out, "</svg>"]) + "\n"


def _cut(label: str, most: int) -> str:
    """Shorten a label to so many characters; empty if hardly anything would be left."""
    label = tables.visible(label)
    if len(label) <= most:
        return label
    return f"{label[: most - 1]}…" if most >= 3 else ""
