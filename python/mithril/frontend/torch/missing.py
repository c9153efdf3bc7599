"""What a program has that cannot be converted: all of it in one error, with places."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ...errors import UnsupportedOpError
from ..rows import times

__all__ = ["DATA_DEPENDENT", "Missing", "error", "line", "origin", "spot"]

#: What helps where the shape of a result depends on values.
DATA_DEPENDENT = "the shape of the result depends on data"


class Missing:
    """Uses of ops that cannot be converted."""

    def __init__(self) -> None:
        self.uses: dict[tuple[str, str], list[str]] = {}

    def add(self, op: str, path: str, trace: str, reason: str = "") -> None:
        """Add a use of an op: the module that it is in, the stack of PyTorch, and why it cannot be converted."""
        self.uses.setdefault((op, reason), []).append(spot(path, trace))

    def refuse(self, notes: Sequence[str] = ()) -> None:
        """Raise the error, if there is anything."""
        if not self.uses and not notes:
            return
        listed = [
            f"`{op}`{f' ({reason})' if reason else ''}, {times(len(places))}{places[0]}"
            for (op, reason), places in sorted(self.uses.items())
        ]
        hints = []
        if any(DATA_DEPENDENT in reason for _, reason in self.uses):
            hints.append("keep sizes fixed: torch.where(mask, x, 0) in place of x[mask], a length in place of a count")
        if any(not reason for _, reason in self.uses):
            hints.append("write these parts with other ops of PyTorch, or convert the modules around them one by one")
        raise error(
            "the module has ops that Mithril cannot convert",
            [*listed, *notes],
            "; ".join(hints) or "rewrite these parts of the module",
        )


def error(text: str, notes: Sequence[str], hint: str) -> UnsupportedOpError:
    """Make the error of what cannot be converted."""
    lines = "".join(f"\n  note: {note}" for note in notes)
    return UnsupportedOpError(
        f"error[{UnsupportedOpError.code}]: {text}{lines}\n  help: {hint}", message=text, notes=tuple(notes), hint=hint
    )


def origin(node: Any) -> tuple[str, str]:
    """Where a node stands: the module, and PyTorch's stack when it was made."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return (stack[-1][0] if stack else ""), node.meta.get("stack_trace") or ""


def spot(path: str, trace: str) -> str:
    """Say where something stands: the module, and the last line of its stack."""
    file, number = line(trace)
    return (f" in `{path}`" if path else "") + (f' at "{file}", line {number}' if file else "")


def line(trace: str) -> tuple[str | None, int]:
    """Find the last line of a stack that is in a file: code that PyTorch wrote itself is not."""
    for text in reversed(trace.splitlines()):
        match = re.match(r'\s*File "([^<"][^"]*)", line (\d+)', text)
        if match:
            return match.group(1), int(match.group(2))
    return None, 0
