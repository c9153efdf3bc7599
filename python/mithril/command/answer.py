"""What a command prints: text, Markdown, or JSON whose ``schema`` says of which form it is."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..tables import plain, to_json

__all__ = ["Answer"]


@dataclass(frozen=True)
class Answer:
    """What a command found.

    Attributes
    ----------
    text : str
        What is printed.
    facts : mapping
        The same as JSON holds it, with a ``schema``; printed instead with ``--json``.
    is_well : bool
        Whether the program ends with status 0.
    """

    text: str
    facts: Mapping[str, Any]
    is_well: bool = True

    @classmethod
    def of(cls, report: Any, args: argparse.Namespace, *, note: str = "", is_well: bool = True) -> Answer:
        """Return the answer that is a report, with a line below it."""
        text = str(report.to_markdown() if args.markdown else report)
        return cls(_with(text, note), {**report.to_dict(), **({"note": note} if note else {})}, is_well)

    @classmethod
    def several(cls, schema: str, reports: Sequence[Any], args: argparse.Namespace, *, is_well: bool) -> Answer:
        """Return the answer that is a list of reports."""
        text = "\n\n".join(str(report.to_markdown() if args.markdown else report) for report in reports)
        return cls(text, {"schema": schema, "results": [report.to_dict() for report in reports]}, is_well)

    @classmethod
    def noted(cls, text: str, schema: str, facts: Mapping[str, Any], note: str = "") -> Answer:
        """Return the answer of a command that has no report."""
        return cls(_with(text, note), {"schema": schema, **facts, **({"note": note} if note else {})})

    def printed(self, args: argparse.Namespace) -> str:
        """Return what is printed."""
        return to_json(plain(self.facts)) if getattr(args, "json", False) else self.text


def _with(text: str, note: str) -> str:
    return f"{text}\n{note}" if note else text
