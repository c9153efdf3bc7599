"""A graph as a still picture: layers from top to bottom."""

from __future__ import annotations

from collections import defaultdict
from html import escape

from ..tables import visible
from .closed import Box, Closed

__all__ = ["svg"]

_GAP_X, _GAP_Y, _MARGIN, _LINE = 26, 48, 16, 15
_LONGEST = 44
_COLORS = {
    "input": ("#e9f8ef", "#8fcfa9"),
    "output": ("#e9f8ef", "#8fcfa9"),
    "node": ("#eef4ff", "#9dbcf2"),
    "closed": ("#f4efff", "#b9a3ea"),
}


def svg(graph: Closed) -> str:
    """Return the picture, on a white ground.

    Parameters
    ----------
    graph : Closed
        The boxes and edges.
    """
    sizes = [_size(box) for box in graph.boxes]
    places, width, height = _place(graph, sizes)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="ui-monospace, monospace" font-size="12" text-anchor="middle">',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#8b97a8"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
    ]
    written = set()
    for a, b, type_ in graph.edges:
        x, y = places[a][0] + sizes[a][0] / 2, places[a][1] + sizes[a][1]
        to_x, to_y = places[b][0] + sizes[b][0] / 2, places[b][1]
        middle = max(20.0, (to_y - y) / 2)
        out.append(
            f'<path d="M{x:.0f} {y:.0f}C{x:.0f} {y + middle:.0f} {to_x:.0f} {to_y - middle:.0f} {to_x:.0f} {to_y:.0f}" '
            'fill="none" stroke="#8b97a8" marker-end="url(#arrow)"/>'
        )
        if (a, type_) not in written:
            written.add((a, type_))
            out.append(
                f'<text x="{x + 6:.0f}" y="{y + 15:.0f}" font-size="10" fill="#667085" text-anchor="start">'
                f"{_text(type_)}</text>"
            )
    for box, (x, y), (w, h) in zip(graph.boxes, places, sizes, strict=True):
        fill, line = _COLORS[box.kind]
        name = _text(".".join((*box.groups[-1:], box.title)))
        out.append(f"<g><title>{escape(visible('.'.join((*box.groups[-1:], box.title))))}</title>")
        out.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="{w}" height="{h}" rx="6" fill="{fill}" stroke="{line}"/>')
        out.append(f'<text x="{x + w / 2:.0f}" y="{y + 19:.0f}" font-weight="600" fill="#1d2430">{name}</text>')
        for i, text in enumerate(box.lines):
            at = y + 19 + _LINE * (i + 1)
            out.append(f'<text x="{x + w / 2:.0f}" y="{at:.0f}" font-size="10.5" fill="#667085">{_text(text)}</text>')
        out.append("</g>")
    return "\n".join([*out, "</svg>"]) + "\n"


def _text(text: str) -> str:
    shown = visible(text)
    return escape(shown if len(shown) <= _LONGEST else f"…{shown[1 - _LONGEST :]}")


def _size(box: Box) -> tuple[int, int]:
    title = ".".join((*box.groups[-1:], box.title))
    longest = max(7.6 * min(_LONGEST, len(title)), *(6.6 * min(_LONGEST, len(line)) for line in (*box.lines, "")))
    return max(80, int(longest) + 24), 28 + _LINE * len(box.lines)


def _place(graph: Closed, sizes: list[tuple[int, int]]) -> tuple[list[tuple[float, float]], float, float]:
    """Layers by the longest path; in a layer the order follows the means of what feeds them."""
    forward = [(a, b) for a, b, _ in graph.edges if a < b]
    before: dict[int, list[int]] = defaultdict(list)
    rank = [0] * len(sizes)
    for a, b in sorted(forward):
        rank[b] = max(rank[b], rank[a] + 1)
        before[b].append(a)
    first_use: dict[int, int] = {}
    for a, b in forward:
        first_use[a] = min(first_use.get(a, rank[b]), rank[b])
    for a, used in first_use.items():
        if a not in before:
            rank[a] = max(0, used - 1)
    layers: dict[int, list[int]] = defaultdict(list)
    for i, layer in enumerate(rank):
        layers[layer].append(i)
    center = [0.0] * len(sizes)
    y = float(_MARGIN)
    tops = [0.0] * len(sizes)
    for layer in sorted(layers):
        members = layers[layer]

        def wish(i: int) -> float:
            return sum(center[j] for j in before[i]) / len(before[i]) if before.get(i) else 0.0

        members.sort(key=wish)
        total = sum(sizes[i][0] + _GAP_X for i in members) - _GAP_X
        x = sum(map(wish, members)) / len(members) - total / 2
        for i in members:
            center[i] = x + sizes[i][0] / 2
            tops[i] = y
            x += sizes[i][0] + _GAP_X
        y += max(sizes[i][1] for i in members) + _GAP_Y
    left = min((c - w / 2 for c, (w, _) in zip(center, sizes, strict=True)), default=0.0) - _MARGIN
    # Types stand to the right of the edges.
    right = max((c + max(w / 2, 160) for c, (w, _) in zip(center, sizes, strict=True)), default=0.0) + _MARGIN
    places = [(c - w / 2 - left, top) for c, (w, _), top in zip(center, sizes, tops, strict=True)]
    return places, right - left, y - _GAP_Y + _MARGIN
