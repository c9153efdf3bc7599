"""Backends that the documentation speaks of and this version does not have yet, from one table."""

from __future__ import annotations

import difflib
from typing import Any

from ..errors import BackendUnavailableError
from .backend import Backend

__all__ = ["absent", "attribute"]

#: Name for `get_backend` -> names of the class; all names of one row are one class.
ABSENT: dict[str, tuple[str, ...]] = {
    "ggml": ("GGMLBackend", "GgmlBackend"),
}


def absent(name: str) -> BackendUnavailableError:
    """Make the error for a backend that this version does not have."""
    return BackendUnavailableError(
        f"{name} is not part of this version of Mithril",
        hint="there are: NumpyBackend, TorchBackend, JaxBackend, MlxBackend, CBackend, InterpreterBackend",
    )


def _class(name: str) -> type[Backend]:
    def __init__(self: Any, *args: Any, **options: Any) -> None:
        raise absent(name)

    doc = f"Not part of this version: creating one raises `BackendUnavailableError`, and nothing is a {name}."
    return type(name, (Backend,), {"__init__": __init__, "__doc__": doc, "__module__": __name__})


_CLASSES: dict[str, type[Backend]] = {}
for _names in ABSENT.values():
    _CLASSES.update(dict.fromkeys(_names, _class(_names[0])))


def attribute(module: str, known: Any, name: str) -> Any:
    """Find what a module does not define: the class of an absent backend, or an error with the nearest name."""
    if name in _CLASSES:
        return _CLASSES[name]
    near = difflib.get_close_matches(name, [n for n in known if not n.startswith("_")], n=1)
    guess = f"; did you mean {near[0]!r}?" if near and not name.startswith("_") else ""
    raise AttributeError(f"module {module!r} has no attribute {name!r}{guess}", name=name)


def __getattr__(name: str) -> Any:
    return attribute(__name__, (), name)
