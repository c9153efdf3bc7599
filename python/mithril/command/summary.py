"""The table of a model's layers as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["summary_facts"]


def summary_facts(
    model: Any, rows: Sequence[tuple[str, int, str, str, int | str | None]]
) -> tuple[str, dict[str, Any]]:
    """Return schema and facts of a summary, of the rows that a model's ``summary_rows`` gives."""
    names = ("path", "depth", "layer", "output_shape", "parameters")
    counts = [count for _, depth, _, _, count in rows if depth == 1]
    total = sum(count for count in counts if isinstance(count, int))
    is_known = all(isinstance(count, int) for count in counts)
    return "mithril.summary/1", {
        "model": str(model),
        "parameters": total if is_known else None,
        "rows": [dict(zip(names, row, strict=True)) for row in rows],
    }
