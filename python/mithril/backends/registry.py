"""Backends by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module, metadata
from typing import Any

from ..errors import BackendUnavailableError, InvalidValueError, KeyNotFoundError
from ..suggestions import among
from .backend import Backend
from .keywords import COptions, GgmlOptions, JaxOptions, MlxOptions, NumpyOptions, TorchOptions, passes_on

__all__ = ["get_backend", "list_backends", "register_backend"]

_FACTORIES: dict[str, Callable[..., Any]] = {}
BUILT_IN: dict[str, tuple[str, str]] = {
    "interpreter": ("mithril.backends.with_manualgrad.interpreter_backend", "InterpreterBackend"),
    "numpy": ("mithril.backends.with_manualgrad.numpy_backend", "NumpyBackend"),
    "c": ("mithril.backends.with_manualgrad.c_backend", "CBackend"),
    "ggml": ("mithril.backends.with_manualgrad.ggml_backend", "GGMLBackend"),
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

    Examples
    --------
    >>> import mithril as ml
    >>> class Half(ml.NumpyBackend):
    ...     def __init__(self, dtype="float16"):
    ...         super().__init__(dtype=dtype)
    >>> ml.backends.register_backend("half", Half)
    >>> ml.get_backend("half")
    Half(device='cpu', dtype=float16)
    """
    if not isinstance(name, str) or not name:
        raise InvalidValueError(f"a backend is registered under a name, not {name!r}")
    if not callable(factory):
        raise InvalidValueError(f"a backend is registered by its class, not {factory!r}")
    if not override and name in list_backends():
        raise InvalidValueError(f"there is a backend called {name!r} already", hint="pass override=True to replace it")
    _FACTORIES[name] = factory


def list_backends() -> list[str]:
    """Names of all backends, those that other packages offer included."""
    names = {entry.name for entry in metadata.entry_points(group="mithril.backends")}
    return sorted({*_FACTORIES, *BUILT_IN, *names})


@passes_on(TorchOptions, JaxOptions, MlxOptions, NumpyOptions, COptions, GgmlOptions)
def get_backend(name: str, **options: Any) -> Backend:
    """Create a backend by name.

    Parameters
    ----------
    name : str
        One of `list_backends`.
    **options
        Options of its constructor: not every backend has all of them, and those of other packages may have more.

    Returns
    -------
    Backend

    Raises
    ------
    KeyNotFoundError
        If there is no backend with that name.

    Examples
    --------
    >>> import mithril as ml
    >>> ml.get_backend("numpy", dtype="float64")
    NumpyBackend(device='cpu', dtype=float64)
    """
    factory = _FACTORIES.get(name)
    if factory is None and name in BUILT_IN:
        module, class_name = BUILT_IN[name]
        factory = getattr(import_module(module), class_name)
    factory = factory or _from_entry_point(name)
    if factory is None:
        raise KeyNotFoundError(f"there is no backend called {name!r}", hint=among(name, list_backends()))
    backend = factory(**options)
    if not isinstance(backend, Backend):
        raise InvalidValueError(
            f"the backend {name!r} is made by {factory!r}, which returns a {type(backend).__name__}",
            hint="register a class that derives from mithril.backends.backend.Backend",
        )
    return backend


def _from_entry_point(name: str) -> Callable[..., Any] | None:
    """Load what another package offers under a name in the group ``mithril.backends``."""
    entries = [entry for entry in metadata.entry_points(group="mithril.backends") if entry.name == name]
    if not entries:
        return None
    owners = sorted({str(entry.dist.name if entry.dist else entry.value) for entry in entries})
    if len(owners) > 1:
        raise InvalidValueError(
            f"{' and '.join(owners)} both offer a backend called {name!r}", hint="uninstall one of them"
        )
    try:
        factory: Callable[..., Any] = entries[0].load()
    except (ImportError, AttributeError) as error:
        raise BackendUnavailableError(
            f"the backend {name!r} of the package {owners[0]} cannot be loaded: {error}",
            hint=f"its entry point is {entries[0].value}",
        ) from error
    return factory
