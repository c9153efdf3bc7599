"""Pictures of a training: losses and metrics by epoch with the best one marked; with matplotlib, or as plain SVG."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import InvalidValueError, KeyNotFoundError
from ..optional_packages import require
from ..suggestions import among

if TYPE_CHECKING:
    from .history import History

__all__ = ["Picture", "panels", "plot", "svg"]

#: Columns of an epoch that are not curves, or one of their own.
_OTHERS = ("epoch", "seconds", "learning_rate")
_COLORS = ("#3b6fd4", "#d9822b", "#1f9d72", "#8a5bd1", "#c94f5d", "#667085")
#: Curves of more points are lines alone.
_MOST_DOTS = 60
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 460, 240, 58, 14, 30, 34


@dataclass(frozen=True)
class Curve:
    """Points of a curve; a faint one is drawn thin, behind the others."""

    name: str
    points: tuple[tuple[float, float], ...]
    is_faint: bool = False


@dataclass(frozen=True)
class Panel:
    """Curves with one pair of axes, and the point that is marked, if there is one."""

    title: str
    curves: tuple[Curve, ...]
    marked: tuple[float, float] | None = None
    label: str = ""


@dataclass(frozen=True)
class Picture:
    """A picture as the text of SVG; it shows itself in a notebook.

    Attributes
    ----------
    text : str
        The SVG.
    """

    text: str = field(repr=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, usually ``*.svg``."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.text + "\n")

    def _repr_svg_(self) -> str:
        return self.text


def plot(history: History, path: str | os.PathLike[str] | None = None, names: Sequence[str] | None = None) -> Any:
    """Draw the picture of `History.plot`, and write it to a file."""
    drawn = panels(history, names)
    if not drawn:
        raise InvalidValueError("the history has no epochs to plot", hint="train first: ml.train.fit(...)")
    suffix = "" if path is None else os.path.splitext(os.fspath(path))[1].lower()
    if path is not None and suffix not in (".svg", ".png", ".pdf"):
        raise InvalidValueError(f"a plot is written as *.svg, *.png or *.pdf, not {os.fspath(path)!r}")
    if find_spec("matplotlib") is None and suffix in ("", ".svg"):
        picture = Picture(svg(drawn))
        if path is not None:
            picture.save(path)
        return picture
    figure = _figure(drawn)
    if path is not None:
        figure.savefig(path)
    return figure


def panels(history: History, names: Sequence[str] | None = None) -> list[Panel]:
    """Return what is drawn: a panel for each loss or metric with its validation, one for a learning rate that changes.

    Parameters
    ----------
    history : History
        The training.
    names : sequence of str, optional
        Columns that are drawn. Default: all.
    """
    known = list(dict.fromkeys(name for row in history.epochs for name in row if name not in _OTHERS))
    rates = [rate for rate in history.batches["learning_rate"] if rate is not None]
    for name in names or ():
        if name not in (*known, "learning_rate"):
            raise KeyNotFoundError(f"the history has no {name!r}", hint=among(name, [*known, "learning_rate"]))
    chosen = [name for name in known if names is None or name in names]
    places = _places(history.batches)
    best = history.best
    result = []
    for title in dict.fromkeys(name.removeprefix("val_") for name in chosen):
        curves = []
        if title == "loss" and "loss" in chosen and len(history.batches["loss"]) > len(history.epochs):
            curves.append(Curve("loss of batches", _points(places, history.batches["loss"]), is_faint=True))
        for name in (title, f"val_{title}"):
            if name in chosen:
                epochs = [row["epoch"] for row in history.epochs]
                curves.append(Curve(name, _points(epochs, [row.get(name) for row in history.epochs])))
        marked, label = None, ""
        if best is not None and history.monitor is not None and history.monitor.removeprefix("val_") == title:
            marked = (float(best["epoch"]), float(best[history.monitor]))
            label = f"best: epoch {best['epoch']}, {history.monitor} {best[history.monitor]:.4g}"
        result.append(Panel(title, tuple(curves), marked, label))
    is_shown = len(set(rates)) > 1 if names is None else "learning_rate" in names
    if rates and is_shown:
        curve = Curve("learning_rate", _points(places, history.batches["learning_rate"]))
        result.append(Panel("learning rate", (curve,)))
    return result


def _places(batches: Mapping[str, Sequence[Any]]) -> list[float]:
    """Return where batches lie between the epochs: the last one of epoch 1 at 1."""
    counts: dict[int, int] = {}
    for epoch, batch in zip(batches["epoch"], batches["batch"], strict=True):
        counts[epoch] = max(counts.get(epoch, 0), batch)
    pairs = zip(batches["epoch"], batches["batch"], strict=True)
    # An epoch that was interrupted looks as if it were whole.
    return [epoch - 1 + batch / counts[epoch] for epoch, batch in pairs]


def _points(places: Sequence[float], values: Sequence[Any]) -> tuple[tuple[float, float], ...]:
    pairs = zip(places, values, strict=True)
    return tuple((float(x), float(y)) for x, y in pairs if y is not None and math.isfinite(y))


def _figure(drawn: Sequence[Panel]) -> Any:
    """Draw with matplotlib, without its state of a current figure."""
    columns = min(2, len(drawn))
    rows = -(-len(drawn) // columns)
    size = (5.2 * columns, 3.2 * rows)
    figure = require("matplotlib.figure", "a plot").Figure(figsize=size, layout="constrained")
    for i, panel in enumerate(drawn):
        axes = figure.add_subplot(rows, columns, i + 1)
        # A name between dollars would be read as mathematics.
        axes.set_title(panel.title, parse_math=False)
        for k, curve in enumerate(panel.curves):
            x, y = [p[0] for p in curve.points], [p[1] for p in curve.points]
            style: dict[str, Any] = {"linewidth": 0.6, "alpha": 0.45} if curve.is_faint else {}
            style |= {"marker": "."} if len(curve.points) <= _MOST_DOTS else {}
            [line] = axes.plot(x, y, color=_COLORS[k % len(_COLORS)], **style)
            line.set_label(curve.name if not curve.name.startswith("_") else f" {curve.name}")
        if panel.marked is not None:
            axes.axvline(panel.marked[0], color="#98a1b0", linestyle="--", linewidth=0.8)
            axes.plot(*panel.marked, "*", color="#c94f5d", markersize=11, label=panel.label)
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.25)
        for text in axes.legend(fontsize="small").get_texts():
            text.set_parse_math(False)
    return figure


# --- plain SVG --------------------------------------------------------------------------------------------------


def svg(drawn: Sequence[Panel]) -> str:
    """Return panels as SVG, two in a row.

    Examples
    --------
    >>> picture = svg([Panel("a <b>", (Curve("loss", ((1.0, 0.5), (2.0, 0.25))),))])
    >>> "a &lt;b&gt;" in picture, "polyline" in picture
    (True, True)
    """
    columns = min(2, max(1, len(drawn)))
    width, height = columns * _WIDTH, -(-len(drawn) // columns) * _HEIGHT
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="11" fill="#1d2430">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for i, panel in enumerate(drawn):
        out.append(f'<g transform="translate({i % columns * _WIDTH} {i // columns * _HEIGHT})">')
        out += _drawn(panel)
        out.append("</g>")
    return "\n".join([*out, "</svg>"])


def _drawn(panel: Panel) -> list[str]:
    points = [point for curve in panel.curves for point in curve.points]
    out = [f'<text x="{_LEFT}" y="18" font-size="13" font-weight="600">{escape(panel.title)}</text>']
    if not points:
        return [*out, f'<text x="{_LEFT}" y="60" fill="#98a1b0">no finite numbers</text>']
    left, right = _range([x for x, _ in points])
    low, high = _range([y for _, y in points])
    across, up = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + (x - left) / (right - left) * across, _TOP + (high - y) / (high - low) * up

    for value in _ticks(low, high):
        _, y = place(left, value)
        out.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#e4e8ee"/>')
        out.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#667085">{value:.4g}</text>')
    for value in _ticks(left, right):
        x, _ = place(value, low)
        out.append(f'<text x="{x:.1f}" y="{_HEIGHT - 14}" text-anchor="middle" fill="#667085">{value:g}</text>')
    x = _LEFT + 24 + 8.0 * len(panel.title)
    for k, curve in enumerate(panel.curves):
        color = _COLORS[k % len(_COLORS)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(*point) for point in curve.points))
        style = 'stroke-width="0.7" opacity="0.5"' if curve.is_faint else 'stroke-width="1.8"'
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" {style}/>')
        if len(curve.points) <= _MOST_DOTS:
            dots = (place(*point) for point in curve.points)
            out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2" fill="{color}"/>' for a, b in dots]
        out.append(f'<rect x="{x:.0f}" y="10" width="9" height="9" fill="{color}"/>')
        out.append(f'<text x="{x + 13:.0f}" y="18">{escape(curve.name)}</text>')
        x += 26 + 6.2 * len(curve.name)
    if panel.marked is not None:
        a, b = place(*panel.marked)
        out.append(f'<path d="M{a:.1f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="#98a1b0" stroke-dasharray="4 3"/>')
        out.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="5" fill="#c94f5d"/>')
        out.append(f'<text x="{_LEFT}" y="{_HEIGHT - 2}" fill="#c94f5d">{escape(panel.label)}</text>')
    return out


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high > low:
        return low, high
    margin = abs(low) / 2 or 0.5
    return low - margin, high + margin


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers between two others."""
    step = 10.0 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if (high - low) / (step * factor) <= 5)
    first = math.ceil(low / step - 1e-9)
    return [round((first + i) * step, 12) for i in range(int((high - first * step) / step + 1e-9) + 1)]
