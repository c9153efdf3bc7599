"""The error for what a module does not define, with the nearest name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["absent"]


def absent(module: str, known: Iterable[str], name: str) -> AttributeError:
    """Make the error for an attribute that a module does not have.

    Examples
    --------
    >>> from mithril.suggestions import absent
    >>> absent("mithril", ["NumpyBackend", "compile"], "compil")
    AttributeError("module 'mithril' has no attribute 'compil'; did you mean 'compile'?")
    """
    near = difflib.get_close_matches(name, [n for n in known if not n.startswith("_")], n=1)
    guess = f"; did you mean {near[0]!r}?" if near and not name.startswith("_") else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{guess}", name=name)
