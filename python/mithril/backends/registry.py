"""Backends by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import import_module, metadata
from typing import Any

from ..errors import InvalidValueError, KeyNotFoundError
from . import later
from .backend import Backend

__all__ = ["get_backend", "list_backends", "register_backend"]

_FACTORIES: dict[str, Callable[..., Any]] = {}
_BUILT_IN: dict[str, tuple[str, str]] = {
    "interpreter": ("mithril.backends.with_manualgrad.interpreter_backend", "InterpreterBackend"),
    "numpy": ("mithril.backends.with_manualgrad.numpy_backend", "NumpyBackend"),
    "torch": ("mithril.backends.with_autograd.torch_backend", "TorchBackend"),
    "jax": ("mithril.backends.with_autograd.jax_backend", "JaxBackend"),
    "mlx": ("mithril.backends.with_autograd.mlx_backend", "MlxBackend"),
}


def register_backend(name: str, factory: Callable[..., Any], *, override: bool = False) -> None:
    """Make a backend available to `get_backend`.

    Parameters
    ----------
    name : str
        Name.
    factory : callable
        The class, or a function that returns an instance.
    override : bool, optional
        Replace a backend of that name (default: it is an error).
    """
    if not callable(factory):
        raise InvalidValueError(f"a backend is registered by its class, not {factory!r}")
    if not override and name in list_backends():
        raise InvalidValueError(f"there is a backend called {name!r} already", hint="pass override=True to replace it")
    _FACTORIES[name] = factory


def list_backends() -> list[str]:
    """Names of all backends, those that other packages offer included."""
    found = {entry.name for entry in metadata.entry_points(group="mithril.backends")}
    return sorted({*_FACTORIES, *_BUILT_IN, *found})


def get_backend(name: str, **options: Any) -> Backend:
    """Create a backend by name; options go to its constructor.

    Examples
    --------
    >>> import mithril as ml
    >>> ml.get_backend("numpy", dtype="float64")
    NumpyBackend(device='cpu', dtype=float64)
    """
    factory = _FACTORIES.get(name)
    if factory is None and name in _BUILT_IN:
        module, class_name = _BUILT_IN[name]
        factory = getattr(import_module(module), class_name)
    if factory is None:
        for entry in metadata.entry_points(group="mithril.backends"):
            if entry.name == name:
                factory = entry.load()
    if factory is None and name in later.ABSENT:
        raise later.absent(later.ABSENT[name][0])
    if factory is None:
        names = list_backends()
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
        raise KeyNotFoundError(f"there is no backend called {name!r}", hint=hint)
    backend: Backend = factory(**options)
    return backend
