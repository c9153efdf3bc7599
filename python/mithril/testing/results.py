"""What the standard tests of a backend found, as numbers, lists and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .. import tables

__all__ = ["Outcome", "Results"]

#: What can become of a case, from worst to best; a cell of the table shows the worst.
STATUSES = ("failed", "unsupported", "limited", "refused", "skipped", "passed")


@dataclass(frozen=True)
class Outcome:
    """What became of one case.

    Attributes
    ----------
    op : str
        Name of the op, ``tensor``, ``zeros`` or ``ones``.
    dtype : str
        Dtype of the case; with ``" gradient"`` behind it if gradients were compared.
    label : str
        The case.
    status : str
        ``"passed"``, ``"failed"``, ``"unsupported"``, ``"limited"``, ``"refused"`` or ``"skipped"``.
    detail : str
        What differs, or the reason.
    """

    op: str
    dtype: str
    label: str
    status: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.label}: {self.detail}" if self.detail else self.label


@dataclass
class Results:
    """What `run_backend_tests` found.

    Attributes
    ----------
    outcomes : list of Outcome
        What became of each case.
    backend : str
        The backend.

    Examples
    --------
    >>> import mithril as ml
    >>> from mithril.testing.backend_tests import run_backend_tests
    >>> print(run_backend_tests(ml.NumpyBackend(), ["add"]))
    NumpyBackend(device='cpu', dtype=float32): 7 passed of 7
    op      float32
    tensor  ok
    zeros   ok
    ones    ok
    add     ok
    """

    outcomes: list[Outcome] = field(default_factory=list)
    backend: str = ""

    def of(self, status: str) -> list[str]:
        """Cases with that status, each with what is said about it."""
        return [str(o) for o in self.outcomes if o.status == status]

    def _count(self, status: str) -> int:
        return sum(o.status == status for o in self.outcomes)

    @property
    def passed(self) -> int:
        """Number of cases with the right result."""
        return self._count("passed")

    @property
    def failed(self) -> int:
        """Number of cases with another result, or an error."""
        return self._count("failed")

    @property
    def total(self) -> int:
        """Number of all cases."""
        return len(self.outcomes)

    @property
    def failures(self) -> list[str]:
        """Cases that failed, and what happened."""
        return self.of("failed")

    @property
    def unsupported(self) -> list[str]:
        """Cases that the backend says it does not support, and its reason."""
        return self.of("unsupported")

    @property
    def limited(self) -> list[str]:
        """Cases that fail as `Backend.limitations` says, and the reason."""
        return self.of("limited")

    @property
    def refused(self) -> list[str]:
        """Cases that the reference and the backend refuse alike: the op does not take the dtype."""
        return self.of("refused")

    @property
    def skipped(self) -> list[str]:
        """Cases that were not run, since the backend has no arrays of the dtype."""
        return self.of("skipped")

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Count further cases."""
        self.outcomes.extend(outcomes)

    # --- tables -----------------------------------------------------------------------------------------------

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Head and lines of the table: an op per line, a dtype per column."""
        dtypes = list(dict.fromkeys(o.dtype for o in self.outcomes))
        cells: dict[tuple[str, str], Counter[str]] = {}
        for o in self.outcomes:
            cells.setdefault((o.op, o.dtype), Counter())[o.status] += 1
        ops = dict.fromkeys(o.op for o in self.outcomes)
        lines = [[op, *(_cell(cells.get((op, dtype))) for dtype in dtypes)] for op in ops]
        return ["op", *dtypes], lines

    def _summary(self) -> str:
        parts = [f"{self.passed} passed"]
        parts += [f"{n} {status}" for status in STATUSES if status != "passed" and (n := self._count(status))]
        return f"{self.backend}: {', '.join(parts)} of {self.total}"

    def __str__(self) -> str:
        parts = [self._summary(), tables.text(*self.rows())]
        parts += [f"{status}:\n" + "\n".join(f"  {line}" for line in lines) for status, lines in self._details()]
        return "\n".join(parts)

    def __repr__(self) -> str:
        counts = ", ".join(f"{status}={self._count(status)}" for status in STATUSES)
        return f"Results({counts}, total={self.total})"

    def to_markdown(self) -> str:
        """Return the table, and what is said about the cases that did not pass, as Markdown.

        Examples
        --------
        >>> import mithril as ml
        >>> from mithril.testing.backend_tests import run_backend_tests
        >>> print(run_backend_tests(ml.NumpyBackend(), ["add"]).to_markdown().splitlines()[2])
        | op | float32 |
        """
        parts = [self._summary(), tables.markdown(*self.rows())]
        for status, details in self._details():
            lines = "\n".join("- " + line.replace("\n", " ") for line in details)
            parts.append(f"**{status}**\n\n{lines}")
        return "\n\n".join(parts)

    def _details(self) -> list[tuple[str, list[str]]]:
        return [
            (status, lines) for status in ("failed", "unsupported", "limited") if (lines := self._shortened(status))
        ]

    def _shortened(self, status: str) -> list[str]:
        """One line for cases of which the same is said."""
        groups: dict[Any, list[Outcome]] = {}
        for o in self.outcomes:
            if o.status == status:
                groups.setdefault((o.op, o.detail), []).append(o)
        lines = []
        for same in groups.values():
            more = f" (and {len(same) - 1} more)" if len(same) > 1 else ""
            lines.append(f"{same[0]}{more}")
        return lines


def _cell(counts: Counter[str] | None) -> str:
    if not counts:
        return ""
    worst = next(status for status in STATUSES if counts[status])
    if worst == "passed":
        return "ok"
    some = sum(counts.values())
    return worst if counts[worst] == some else f"{counts[worst]} of {some} {worst}"
