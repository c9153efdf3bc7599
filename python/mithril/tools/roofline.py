"""The steps of a profile as a roofline plot: FLOPs per byte against FLOP/s, below what the machine can do."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

from .. import tables
from ..tables import magnitude
from .flame_graph import COLORS, legend, limit

if TYPE_CHECKING:
    from .profile import Profile

__all__ = ["picture", "roofline"]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 900, 560, 76, 24, 44, 56
#: Radius of a step that takes all of the time, and the least.
_LARGEST, _LEAST = 30.0, 2.5


def roofline(profile: Profile) -> dict[str, Any]:
    """Return where lines and dots lie; coordinates are decimal logarithms.

    Parameters
    ----------
    profile : Profile
        The times.

    Returns
    -------
    dict
        ``x``, ``y``: the least and the largest coordinate. ``ridge``: where the roof of the memory, FLOP/s that grow
        with FLOPs per byte, meets the roof of computing, at ``peak``. ``dots``: x, y, radius in pixels, position of
        the step among the rows, the longest first. ``left_out``: number of steps without FLOPs, or whose FLOPs are
        not known.
    """
    total = sum(row.seconds for row in profile.rows)
    dots = []
    for i, row in enumerate(profile.rows):
        if row.operations and row.bytes and row.seconds:
            x, y = math.log10(row.operations / row.bytes), math.log10(row.operations / row.seconds)
            dots.append([x, y, max(_LEAST, _LARGEST * math.sqrt(row.seconds / total)), i])
    # Small dots are drawn on top of large ones.
    dots.sort(key=lambda dot: -dot[2])
    peak, bandwidth = math.log10(profile.peak_operations), math.log10(profile.peak_bandwidth)
    ridge = peak - bandwidth
    xs = [math.floor(min([ridge - 1, *(dot[0] for dot in dots)]) - 0.05), max([ridge + 1, *(d[0] + 0.3 for d in dots)])]
    ys = [min([bandwidth + xs[0], *(dot[1] - 0.3 for dot in dots)]), max([peak, *(dot[1] for dot in dots)]) + 0.35]
    threads = f"{profile.threads} thread{'s' if profile.threads != 1 else ''}"
    return {
        "x": xs,
        "y": ys,
        "ridge": ridge,
        "peak": peak,
        "dots": dots,
        "left_out": len(profile.rows) - len(dots),
        "roofs": [
            f"{magnitude(profile.peak_operations)}FLOP/s on {threads}",
            f"{magnitude(profile.peak_bandwidth)}B/s from memory",
        ],
    }


def picture(profile: Profile) -> str:
    """Return the plot as SVG, on a white ground.

    Parameters
    ----------
    profile : Profile
        The times.
    """
    plot = roofline(profile)
    left, right = map(float, plot["x"])
    low, high = map(float, plot["y"])

    def px(x: float) -> float:
        return _LEFT + (x - left) / (right - left) * (_WIDTH - _LEFT - _RIGHT)

    def py(y: float) -> float:
        return _HEIGHT - _BOTTOM - (y - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="ui-monospace, monospace" font-size="11" text-anchor="middle">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
    ]
    out += legend(_WIDTH - _RIGHT, ("compute", "memory"))
    bottom = _HEIGHT - _BOTTOM
    for n in range(math.ceil(left), math.floor(right) + 1):
        out.append(f'<path d="M{px(n):.1f} {_TOP}V{bottom}" stroke="#e6eaf0"/>')
        out.append(f'<text x="{px(n):.1f}" y="{bottom + 18}" fill="#667085">{magnitude(10.0**n)}</text>')
    for n in range(math.ceil(low), math.floor(high) + 1):
        out.append(f'<path d="M{_LEFT} {py(n):.1f}H{_WIDTH - _RIGHT}" stroke="#e6eaf0"/>')
        out.append(
            f'<text x="{_LEFT - 8}" y="{py(n) + 4:.1f}" fill="#667085" text-anchor="end">{magnitude(10.0**n)}</text>'
        )
    out.append(f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 14}" fill="#1d2430">FLOPs per byte</text>')
    out.append(
        f'<text x="18" y="{(_TOP + bottom) / 2}" fill="#1d2430" transform="rotate(-90 18 {(_TOP + bottom) / 2})">'
        "FLOP/s</text>"
    )
    peak, ridge = plot["peak"], plot["ridge"]
    corner = peak - (ridge - left)
    out.append(
        f'<path d="M{px(left):.1f} {py(corner):.1f}L{px(ridge):.1f} {py(peak):.1f}H{_WIDTH - _RIGHT}" fill="none" '
        'stroke="#475467" stroke-width="1.6"/>'
    )
    for x, y, radius, i in plot["dots"]:
        row = profile.rows[i]
        fill, line = COLORS[limit(profile, row)]
        label = tables.visible(
            f"{row.path or row.name}: {tables.seconds(row.seconds)}, {profile.share(row):.1%}, {row.what}, "
            f"{magnitude(10.0**y)}FLOP/s, {10.0**x:.3g} FLOPs per byte"
        )
        out.append(
            f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="{radius:.1f}" fill="{fill}" fill-opacity="0.75" '
            f'stroke="{line}"><title>{escape(label)}</title></circle>'
        )
    computing, memory = plot["roofs"]
    # Readable on top of dots.
    style = 'fill="#475467" stroke="#ffffff" stroke-width="3" paint-order="stroke"'
    out.append(f'<text x="{_WIDTH - _RIGHT - 4}" y="{py(peak) - 8:.1f}" {style} text-anchor="end">{computing}</text>')
    angle = math.degrees(math.atan2(py(peak) - py(corner), px(ridge) - px(left)))
    x, y = (px(left) + px(ridge)) / 2, (py(corner) + py(peak)) / 2 - 8
    out.append(f'<text x="{x:.1f}" y="{y:.1f}" {style} transform="rotate({angle:.1f} {x:.1f} {y:.1f})">{memory}</text>')
    if plot["left_out"]:
        count = plot["left_out"]
        note = f"{count} step{'s' if count != 1 else ''} not shown: no FLOPs, or not known"
        out.append(f'<text x="{_LEFT}" y="24" fill="#667085" text-anchor="start">{note}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"
