"""Importing a framework when a backend is constructed: what is missing or too old is said with the way to get it."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from ..errors import BackendUnavailableError
from ..optional_packages import install

__all__ = ["require"]

#: Module -> distribution, extra of ours, oldest version that the tests pass with.
FRAMEWORKS: dict[str, tuple[str, str, str]] = {
    "torch": ("torch", "torch", "2.7"),
    "jax": ("jax", "jax", "0.8"),
    "mlx.core": ("mlx", "mlx", "0.29"),
}


def require(owner: str, module: str) -> Any:
    """Import a framework for a backend.

    Parameters
    ----------
    owner : str
        Class that needs it, for the message.
    module : str
        A key of `FRAMEWORKS`.

    Returns
    -------
    module

    Raises
    ------
    BackendUnavailableError
        If it is not installed, cannot be imported, or is too old.
    """
    distribution, extra, oldest = FRAMEWORKS[module]
    command = install(extra)
    try:
        package = import_module(module)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == module.split(".")[0]
        problem = f"{distribution} is not installed" if absent else f"{distribution} cannot be imported: {error}"
        raise BackendUnavailableError(f"{owner}: {problem}", hint=command) from error
    version = getattr(package, "__version__", None)
    if version is not None and _numbers(version) < _numbers(oldest):
        raise BackendUnavailableError(
            f"{owner}: {distribution} {version} is too old, {oldest} is needed", hint=f"{command} --upgrade"
        )
    return package


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])
