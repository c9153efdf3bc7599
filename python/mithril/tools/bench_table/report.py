"""Tables of measured models: rows are models, columns backends; as text, Markdown, JSON and SVG."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from ... import tables
from . import chart
from .chart import number
from .workloads import TABLES, WORKLOADS

__all__ = ["BenchmarkTable", "Cell"]

#: Ending of a file -> method that writes it.
_FORMATS = {".md": "to_markdown", ".json": "to_json", ".svg": "to_svg"}


#: Part of the processors that others may use before the tables say so.
_DISTURBED = 0.1


@dataclass(frozen=True)
class Cell:
    """A model on a backend.

    Attributes
    ----------
    table : str
        ``"inference"``, ``"training"`` or ``"memory"``.
    model : str
        A key of the models, e.g. ``"resnet50"``.
    backend : str
        Name of the backend.
    by_hand : bool
        Whether it is the same network written by hand in the framework, without Mithril.
    batch : int
        Examples of a call.
    units : int
        Images, pairs or tokens of a call.
    times : tuple of float
        Seconds of each call that was measured.
    first : float or None
        Seconds of the first call, which compiles where a framework's compiler is used.
    peak_bytes : int or None
        The most memory that the calls needed, beyond that of the process before the model was made; on a device of its
        own the memory of that device.
    startup_bytes : int or None
        The same of compiling and the first call.
    device : str
        Where it ran.
    reason : str
        Why it was not measured; empty if it was.
    """

    table: str
    model: str
    backend: str
    by_hand: bool
    batch: int
    units: int
    times: tuple[float, ...] = ()
    first: float | None = None
    peak_bytes: int | None = None
    startup_bytes: int | None = None
    device: str = ""
    reason: str = ""

    @property
    def value(self) -> float | None:
        """Units or steps in a second, from the median time; of the table of memory the peak in GB."""
        if self.reason or not self.times:
            return None
        if self.table == "memory":
            return None if self.peak_bytes is None else self.peak_bytes / 1e9
        return self._count / statistics.median(self.times)

    @property
    def quartiles(self) -> tuple[float, float] | None:
        """The same from the third and the first quartile of the times; None of memory, and of a single call."""
        if self.value is None or self.table == "memory" or len(self.times) < 2:
            return None
        low, _, high = statistics.quantiles(self.times, n=4, method="inclusive")
        return self._count / high, self._count / low

    @property
    def _count(self) -> int:
        return 1 if self.table == "training" else self.units


class BenchmarkTable(tables.Report):
    """What `mithril.benchmark_table` measured; printed as tables.

    Attributes
    ----------
    tables : tuple of str
        Which tables: ``"inference"``, ``"training"``, ``"memory"``.
    cells : tuple of Cell
        All cells, also those without a number.
    columns : dict
        Title by the pair of a backend and whether it is by hand, in order.
    machine : dict
        Processor, cores, memory, system, and the part of the processors that other programs used meanwhile.
    versions : dict
        Versions of Mithril, Python and the frameworks.
    seconds : float
        How long all of it took.
    quick : bool
        Whether the models were small ones, whose numbers say nothing.
    notes : tuple of str
        Sentences of the one who measured.
    """

    _schema = "mithril.bench-table/1"

    def __init__(
        self,
        tables: Sequence[str],
        cells: Sequence[Cell],
        columns: Mapping[tuple[str, bool], str],
        machine: Mapping[str, Any],
        versions: Mapping[str, str],
        seconds: float,
        quick: bool,
        notes: Sequence[str] = (),
    ) -> None:
        self.tables, self.cells, self.columns = tuple(tables), tuple(cells), dict(columns)
        self.machine, self.versions = dict(machine), dict(versions)
        self.seconds, self.quick, self.notes = seconds, quick, tuple(notes)

    def __len__(self) -> int:
        return sum(cell.value is not None for cell in self.cells)

    def cell(self, table: str, model: str, backend: str, *, by_hand: bool = False) -> Cell:
        """Return a cell.

        Raises
        ------
        KeyError
            If there is none.
        """
        key = (table, model, backend, by_hand)
        for candidate in self.cells:
            if (candidate.table, candidate.model, candidate.backend, candidate.by_hand) == key:
                return candidate
        raise KeyError(key)

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        return self._of(self.tables[0])

    def _of(self, name: str) -> tuple[list[str], list[list[str]]]:
        """Give head and rows of a table."""
        reasons = self._reasons()
        rows: dict[str, dict[tuple[str, bool], str]] = {}
        batches: dict[str, int] = {}
        for cell in self.cells:
            if cell.table == name:
                rows.setdefault(cell.model, {})[cell.backend, cell.by_hand] = _text(cell, reasons)
                batches[cell.model] = cell.batch
        head = ["Model", "unit", "batch", *self.columns.values()]
        unit = {"training": "steps/s", "memory": "GB"}
        return head, [
            [WORKLOADS[model].title, unit.get(name, f"{WORKLOADS[model].unit}/s"), str(batches[model])]
            + [result.get(key, "") for key in self.columns]
            for model, result in rows.items()
        ]

    def _reasons(self) -> dict[str, int]:
        """Give each reason for what was not measured a number."""
        return {reason: i for i, reason in enumerate(dict.fromkeys(c.reason for c in self.cells if c.reason), 1)}

    def _sentences(self) -> list[str]:
        cores = f"{self.machine['cores']} core{'s' if self.machine['cores'] != 1 else ''}"
        memory = f"{self.machine['memory_gb']:g} GB"
        # Of several cells, in the order of the columns; that all else is computed on the processor need not be said.
        devices = dict.fromkeys(f"{c.backend} on {c.device}" for c in self.cells if c.device not in ("", "cpu"))
        sentences = [
            "in parentheses: the quartiles; each cell was measured in a process of its own",
            f"machine: {self.machine['processor']}, {cores}, {memory}, {self.machine['system']}",
            *([f"devices: {'; '.join(devices)}"] if devices else []),
            f"versions: {', '.join(f'{name} {version}' for name, version in self.versions.items())}",
        ]
        if "memory" in self.tables:
            sentences.append(
                "memory is what the process holds at most during calls, more than before the model was made, or what "
                "the device holds; parameters and data count, imported packages do not"
            )
        if self.quick:
            sentences.append(
                "these are small configurations, to try the command: the numbers say nothing about the models"
            )
        sentences += self.notes
        return sentences + [f"({number}) {reason}" for reason, number in self._reasons().items()]

    def _warnings(self) -> list[str]:
        """Say what stands before the tables."""
        others = self.machine.get("used_by_others")
        if others is None or others <= _DISTURBED:
            return []
        return [
            f"Other programs used {others:.0%} of the processors meanwhile: speeds are not reliable. Those of "
            "frameworks whose threads spin while they wait for each other suffer by far the most; between two runs "
            "they may differ tenfold. Measure again on an idle machine before you compare."
        ]

    def __str__(self) -> str:
        parts = [f"{TABLES[name][0]} ({TABLES[name][1]})\n\n{tables.text(*self._of(name))}" for name in self.tables]
        return "\n\n".join([*self._warnings(), *parts, "\n".join(self._sentences())])

    def to_markdown(self, title: str | None = None) -> str:
        """Return the tables in Markdown.

        Parameters
        ----------
        title : str, optional
            Title of a page.
        """
        level = "##" if title else "###"
        parts = [f"# {title}"] if title else []
        parts += [f"**{warning}**" for warning in self._warnings()]
        for name in self.tables:
            parts += [
                f"{level} {TABLES[name][0]}",
                _sentence(TABLES[name][1]),
                tables.markdown(*self._of(name)),
            ]
        return "\n\n".join([*parts, "\n".join(f"- {line}" for line in self._sentences())])

    def to_svg(self) -> str:
        """Return bar charts, one below the other, as a picture."""
        return chart.svg(
            [
                (f"{TABLES[name][0]}: {TABLES[name][1]}", self._groups(name), list(self.columns.values()))
                for name in self.tables
            ]
        )

    def _groups(self, name: str) -> list[chart.Group]:
        groups: dict[str, chart.Group] = {}
        order = list(self.columns)
        for cell in self.cells:
            if cell.table == name:
                work = WORKLOADS[cell.model]
                unit = {"training": "steps/s", "memory": "GB"}.get(name, f"{work.unit}/s")
                group = groups.setdefault(cell.model, chart.Group(f"{work.title}, {unit}", []))
                group.bars.append(chart.Bar(order.index((cell.backend, cell.by_hand)), cell.value, cell.quartiles))
        return list(groups.values())

    def _facts(self) -> dict[str, Any]:
        rows = [
            {**tables.plain(cell), "value": cell.value, "quartiles": cell.quartiles, "unit": WORKLOADS[cell.model].unit}
            for cell in self.cells
        ]
        facts = ("tables", "machine", "versions", "seconds", "quick", "notes")
        return {**{name: getattr(self, name) for name in facts}, "cells": rows}

    def _repr_html_(self) -> str:
        parts = []
        for name in self.tables:
            below = self._sentences() if name == self.tables[-1] else ()
            parts.append(f"<h4>{TABLES[name][0]} ({TABLES[name][1]})</h4>" + tables.html(*self._of(name), below))
        return "".join([*(f"<p><b>{escape(warning)}</b></p>" for warning in self._warnings()), *parts])

    def save(self, path: str | os.PathLike[str], *, title: str | None = None) -> None:
        """Write the tables to a file: ``*.md``, ``*.json`` or ``*.svg``.

        Parameters
        ----------
        path : path-like
            The file.
        title : str, optional
            Title of a page of Markdown.

        Raises
        ------
        InvalidValueError
            For another ending.
        """
        check_path(path)
        suffix = Path(path).suffix.lower()
        text = self.to_markdown(title) if suffix == ".md" else getattr(self, _FORMATS[suffix])()
        Path(path).write_text(text + "\n", encoding="utf-8")


def check_path(path: str | os.PathLike[str]) -> None:
    """Raise an error if the ending of a file does not say what to write, or its folder is not there."""
    tables.check_path(path, "tables are", _FORMATS)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _text(cell: Cell, reasons: Mapping[str, int]) -> str:
    if cell.value is None:
        return f"- ({reasons[cell.reason]})" if cell.reason else "-"
    if cell.quartiles is None:
        return number(cell.value)
    low, high = cell.quartiles
    return f"{number(cell.value)} ({number(low)}-{number(high)})"
