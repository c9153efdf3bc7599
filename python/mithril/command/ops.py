"""`mithril ops`: what the registry says about ops."""

from __future__ import annotations

from typing import Any

from .. import _core
from ..errors import KeyNotFoundError
from ..suggestions import did_you_mean

__all__ = ["describe", "families"]


def families() -> dict[str, list[str]]:
    """Return the names of all ops by family.

    Examples
    --------
    >>> from mithril.command.ops import families
    >>> "matmul" in families()["linalg"]
    True
    """
    by_family: dict[str, list[str]] = {}
    for row in _core.op_definitions():
        by_family.setdefault(row["family"], []).append(row["name"])
    return by_family


def describe(name: str) -> dict[str, Any]:
    """Return name, family, inputs, outputs and documentation of an op.

    Raises
    ------
    KeyNotFoundError
        If there is none of that name.

    Examples
    --------
    >>> from mithril.command.ops import describe
    >>> describe("exp")["outputs"]
    ['output']
    """
    rows = {row["name"]: row for row in _core.op_definitions()}
    row = rows.get(name) or next((row for row in rows.values() if name in row["aliases"]), None)
    if row is None:
        hint = did_you_mean(name, rows, "`mithril ops` lists all of them")
        raise KeyNotFoundError(f"unknown op {name!r}", hint=hint)
    return {
        "name": row["name"],
        "family": row["family"],
        "inputs": [port["name"] for port in row["ports"]],
        "outputs": list(row["outputs"]),
        "aliases": list(row["aliases"]),
        "doc": row["doc"],
    }
