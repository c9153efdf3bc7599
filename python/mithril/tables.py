"""Tables of text, Markdown, HTML and JSON, for what the tools print."""

from __future__ import annotations

import json
import math
import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from pathlib import Path, PurePath
from typing import Any, ClassVar

import numpy as np

from .errors import InvalidValueError

__all__ = ["Report", "check_path", "html", "magnitude", "markdown", "plain", "seconds", "text", "to_json", "visible"]

_THOUSANDS = {0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}


class Report:
    """What a tool found: a table with sentences below it, as text, Markdown, JSON, and HTML in a notebook."""

    #: Name and version of what `to_dict` gives; the version is raised when a field changes its meaning or goes away.
    _schema: ClassVar[str] = ""

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """Give head and rows of the table."""
        raise NotImplementedError

    def _sentences(self) -> list[str]:
        """Say what follows from the table."""
        return []

    def __str__(self) -> str:
        below = self._sentences()
        return "\n".join([text(*self._cells()), *(["", *below] if below else [])])

    def __repr__(self) -> str:
        return str(self)

    def to_markdown(self) -> str:
        """Return the table in Markdown."""
        below = [f"- {line}" for line in self._sentences()]
        return "\n".join([markdown(*self._cells()), *(["", *below] if below else [])])

    def _facts(self) -> dict[str, Any]:
        """Give what `to_dict` holds besides the schema."""
        head, rows = self._cells()
        return {"rows": [dict(zip(head, row, strict=True)) for row in rows]}

    def to_dict(self) -> dict[str, Any]:
        """Return what was found as numbers, strings, lists and dictionaries; ``schema`` says of which form."""
        content: dict[str, Any] = plain({"schema": self._schema, **self._facts()})
        return content

    def to_json(self) -> str:
        """Return `to_dict` as JSON, as the option ``--json`` of the command line prints it."""
        return to_json(self.to_dict())

    def _repr_markdown_(self) -> str:
        # Markdown may hold HTML, and names are the user's.
        return escape(self.to_markdown(), quote=False)

    def _repr_html_(self) -> str:
        return html(*self._cells(), self._sentences())


def plain(value: Any) -> Any:
    """Return a value as JSON holds it; numbers that JSON lacks are None.

    Examples
    --------
    >>> plain({"shape": (2, "batch"), "error": float("nan")})
    {'shape': [2, 'batch'], 'error': None}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(entry) for entry in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value.as_posix() if isinstance(value, PurePath) else str(value)


def to_json(content: Mapping[str, Any]) -> str:
    """Write what `plain` gives as indented JSON."""
    return json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)


def html(head: Sequence[str], rows: Sequence[Sequence[str]], sentences: Sequence[str] = ()) -> str:
    """Make a table of HTML with sentences below it; all text is escaped.

    Examples
    --------
    >>> html(["op"], [["a <b>"]])
    '<table><thead><tr><th>op</th></tr></thead><tbody><tr><td>a &lt;b&gt;</td></tr></tbody></table>'
    """
    right = _right(head, rows)

    def line(cells: Sequence[str], tag: str) -> str:
        style = [' style="text-align:right"' if is_right else "" for is_right in right]
        return "".join(f"<{tag}{where}>{escape(cell)}</{tag}>" for cell, where in zip(cells, style, strict=True))

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    below = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    return f"<table><thead><tr>{line(head, 'th')}</tr></thead><tbody>{body}</tbody></table>{below}"


def text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns; what looks like a number stands to the right.

    Examples
    --------
    >>> print(text(["op", "uses"], [["add", "12"], ["matmul", "3"]]))
    op      uses
    add       12
    matmul     3
    """
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    right = _right(head, rows)

    def cell(i: int, content: str) -> str:
        return content.rjust(widths[i]) if right[i] else content.ljust(widths[i])

    return "\n".join("  ".join(cell(i, content) for i, content in enumerate(line)).rstrip() for line in lines)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Make a table of Markdown.

    Examples
    --------
    >>> print(markdown(["op", "uses"], [["add", "12"]]))
    | op | uses |
    |---|---|
    | add | 12 |
    """
    lines = [list(head), ["---"] * len(head), *(list(row) for row in rows)]
    escaped = ([content.replace("|", "\\|") for content in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped).replace("| --- ", "|---").replace("--- |", "---|")


def seconds(time: float | None) -> str:
    """Write a time with a unit that fits.

    Examples
    --------
    >>> seconds(0.00123), seconds(2.5), seconds(3e-9), seconds(None)
    ('1.23 ms', '2.50 s', '3 ns', '')
    """
    if time is None:
        return ""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if time >= unit:
            return f"{time / unit:.3g} {name}" if time / unit >= 100 else f"{time / unit:.2f} {name}"
    return f"{time / 1e-9:.3g} ns" if time else "0 s"


def check_path(path: str | os.PathLike[str], what: str, endings: Iterable[str]) -> None:
    """Raise an error if a file does not have one of the endings, or its folder is not there.

    Parameters
    ----------
    path : path-like
        The file that is to be written.
    what : str
        What is written, with its verb: ``"tables are"``.
    endings : iterable of str
        What the name may end with.

    Raises
    ------
    InvalidValueError
        If it cannot be written there.
    """
    if PurePath(path).suffix.lower() not in endings:
        known = list(endings)
        hint = f"let it end with {'one of ' * (len(known) > 1)}{', '.join(known)}"
        raise InvalidValueError(f"{what} not written to {os.fspath(path)!r}", hint=hint)
    if not Path(path).absolute().parent.is_dir():
        raise InvalidValueError(f"the folder of {os.fspath(path)!r} does not exist", hint="make it first")


def magnitude(number: float) -> str:
    """Write a number with the letter of its thousands, to which a unit is added.

    Examples
    --------
    >>> magnitude(2.5e9), magnitude(100.0), magnitude(0.01), magnitude(0)
    ('2.5 G', '100 ', '0.01 ', '0 ')
    """
    power = 0 if number <= 0 else max(0, min(15, 3 * math.floor(math.log10(number) / 3 + 1e-9)))
    return f"{number / 10.0**power:.3g} {_THOUSANDS[power]}"


def visible(text: str) -> str:
    r"""Write characters that cannot be seen, or that turn a text around, as their numbers.

    Examples
    --------
    >>> visible("a\u202eb")
    'a\\u202eb'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(c) if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs") else c for c in text)


def _escaped(c: str) -> str:
    return f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}"


def _right(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    return [bool(rows) and all(_is_number(row[i]) for row in rows) for i in range(len(head))]


def _is_number(content: str) -> bool:
    return content == "" or content[0].isdigit() or content[0] in "≤<-"
