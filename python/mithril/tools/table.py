"""Tables of text and of Markdown, for what the tools print."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Report", "markdown", "seconds", "text"]


class Report:
    """What a tool found: a table with sentences below it, as text, as Markdown, in a notebook."""

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

    def _repr_markdown_(self) -> str:
        return self.to_markdown()


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
    right = [bool(rows) and all(_is_number(row[i]) for row in rows) for i in range(len(head))]

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
    >>> seconds(0.00123), seconds(2.5), seconds(None)
    ('1.23 ms', '2.50 s', '')
    """
    if time is None:
        return ""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if time >= unit:
            return f"{time / unit:.3g} {name}" if time / unit >= 100 else f"{time / unit:.2f} {name}"
    return f"{time / 1e-6:.2f} µs"


def _is_number(content: str) -> bool:
    return content == "" or content[0].isdigit() or content[0] in "≤<-"
