"""Bar charts as SVG: a group of bars for each model, a color for each backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Bar", "Group", "number", "svg"]

_COLORS = ("#3b6fd4", "#a9c3f5", "#1f9d72", "#9fdcc4", "#d9822b", "#f5cfa3", "#8a5bd1", "#d0b9f0", "#c94f5d", "#667085")
_WIDTH, _LEFT, _RIGHT, _BAR, _GAP, _HEAD = 760, 190, 120, 15, 14, 26


@dataclass(frozen=True)
class Bar:
    """A bar: its series, its length (None without a measurement), and its quartiles."""

    series: int
    value: float | None
    quartiles: tuple[float, float] | None = None


@dataclass(frozen=True)
class Group:
    """The bars of one model, drawn on a scale of their own."""

    title: str
    bars: list[Bar]


def svg(charts: Sequence[tuple[str, Sequence[Group], Sequence[str]]]) -> str:
    """Return a picture of charts: title, groups, names of the series.

    Examples
    --------
    >>> picture = svg([("Speed", [Group("A <b>", [Bar(0, 2.0), Bar(1, None)])], ["torch", "jax"])])
    >>> "A &lt;b&gt;" in picture, picture.count("<rect")
    (True, 4)
    """
    out: list[str] = []
    y = 12.0
    for title, groups, series in charts:
        out.append(f'<text x="12" y="{y + 14:.0f}" font-size="15" font-weight="600">{escape(title)}</text>')
        y += _HEAD
        x = 12.0
        for i, name in enumerate(series):
            width = 26 + 7 * len(name)
            if x + width > _WIDTH:
                x, y = 12.0, y + 18
            out.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="11" height="11" fill="{_color(i)}"/>')
            out.append(f'<text x="{x + 16:.0f}" y="{y + 10:.0f}">{escape(name)}</text>')
            x += width
        y += _HEAD
        for group in groups:
            y = _group(out, group, y)
        y += _GAP
    body = "\n".join(out)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y:.0f}" width="{_WIDTH}" height="{y:.0f}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="#1d2430">\n'
        f'<rect width="{_WIDTH}" height="{y:.0f}" fill="#ffffff"/>\n{body}\n</svg>'
    )


def _group(out: list[str], group: Group, y: float) -> float:
    """Draw the bars of a model; return where the next ones start."""
    longest = max((max(b.value, (b.quartiles or (0, 0))[1]) for b in group.bars if b.value is not None), default=0.0)
    scale = (_WIDTH - _LEFT - _RIGHT) / longest if longest else 0.0
    out.append(f'<text x="{_LEFT - 8}" y="{y + 12:.0f}" text-anchor="end">{escape(group.title)}</text>')
    for bar in group.bars:
        middle = y + _BAR / 2
        if bar.value is None:
            out.append(f'<text x="{_LEFT}" y="{y + 11:.0f}" fill="#98a1b0">not measured</text>')
        else:
            length = max(1.0, bar.value * scale)
            out.append(
                f'<rect x="{_LEFT}" y="{y + 1:.1f}" width="{length:.1f}" height="{_BAR - 2}" '
                f'fill="{_color(bar.series)}"/>'
            )
            end = length
            if bar.quartiles is not None:
                low, high = (value * scale for value in bar.quartiles)
                end = max(end, high)
                out.append(
                    f'<path d="M{_LEFT + low:.1f} {middle:.1f}H{_LEFT + high:.1f}" stroke="#1d2430" '
                    'stroke-width="1.5"/>'
                )
            out.append(f'<text x="{_LEFT + end + 6:.0f}" y="{y + 12:.0f}">{number(bar.value)}</text>')
        y += _BAR
    return y + _GAP


def _color(index: int) -> str:
    return _COLORS[index % len(_COLORS)]


def number(value: float) -> str:
    """Write a number with three digits.

    Examples
    --------
    >>> from mithril.tools.bench_table.chart import number
    >>> number(1234.5), number(12.345), number(0.01234)
    ('1,234', '12.3', '0.0123')
    """
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
