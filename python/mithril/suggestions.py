"""Did you mean …? The nearest known name to one that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["absent", "among", "did_you_mean", "nearest"]


def nearest(word: object, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known word that is most like another one; None if none is like it.

    Examples
    --------
    >>> from mithril.suggestions import nearest
    >>> nearest("weigth", ["weight", "bias"])
    'weight'
    """
    return next(iter(difflib.get_close_matches(str(word), list(known), n=1, cutoff=cutoff)), None)


def did_you_mean(word: object, known: Iterable[str], otherwise: str = "") -> str:
    """Return a hint that names the nearest known word, or another hint where none is near.

    Examples
    --------
    >>> from mithril.suggestions import did_you_mean
    >>> did_you_mean("weigth", ["weight", "bias"])
    "did you mean 'weight'?"
    >>> did_you_mean("gamma", ["weight", "bias"], "leave it out")
    'leave it out'
    """
    suggestion = nearest(word, known)
    return otherwise if suggestion is None else f"did you mean {suggestion!r}?"


def among(word: object, known: Iterable[str]) -> str:
    """Return a hint that names the nearest known word, if one is near, and all of them.

    Examples
    --------
    >>> from mithril.suggestions import among
    >>> among("tourch", ["torch", "jax"]), among("x", ["torch", "jax"])
    ("did you mean 'torch'? Available: torch, jax", 'available: torch, jax')
    """
    names = list(known)
    guess, everything = did_you_mean(word, names), f"available: {', '.join(names)}"
    return f"{guess} A{everything[1:]}" if guess else everything


def absent(module: str, known: Iterable[str], name: str) -> AttributeError:
    """Make the error for an attribute that a module does not have.

    Examples
    --------
    >>> from mithril.suggestions import absent
    >>> absent("mithril", ["NumpyBackend", "compile"], "compil")
    AttributeError("module 'mithril' has no attribute 'compil'; did you mean 'compile'?")
    """
    public = [] if name.startswith("_") else [n for n in known if not n.startswith("_")]
    guess = did_you_mean(name, public)
    return AttributeError(f"module {module!r} has no attribute {name!r}" + (f"; {guess}" if guess else ""), name=name)
