"""Packages that only some tasks need: imported when they are used, with an error that says how to get them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .errors import BackendUnavailableError

__all__ = ["require"]

#: Module -> distribution, extra of ours.
PACKAGES: dict[str, tuple[str, str]] = {
    "PIL": ("pillow", "vision"),
    "tokenizers": ("tokenizers", "text"),
    "tqdm": ("tqdm", "text"),
    "sklearn": ("scikit-learn", "demo"),
    "mpi4py": ("mpi4py", "mpi"),
    "matplotlib": ("matplotlib", "plot"),
}


def require(module: str, task: str) -> Any:
    """Import a package that a task needs.

    Parameters
    ----------
    module : str
        Name of the module; its first part is a key of `PACKAGES`.
    task : str
        What needs it, for the message.

    Returns
    -------
    module

    Raises
    ------
    BackendUnavailableError
        If it is not installed, or cannot be imported.

    Examples
    --------
    >>> from mithril.optional_packages import require
    >>> require("PIL.Image", "reading images").__name__
    'PIL.Image'
    """
    distribution, extra = PACKAGES[module.partition(".")[0]]
    try:
        return import_module(module)
    except ImportError as error:
        raise BackendUnavailableError(
            f"{task} needs the package {distribution}: {error}", hint=f'pip install "mithril[{extra}]"'
        ) from error
