"""Packages that only some tasks need: imported when they are used, with an error that says how to get them."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .errors import BackendUnavailableError

__all__ = ["DISTRIBUTION", "install", "is_installed", "require"]

#: What Mithril is called where packages are installed from; pyproject.toml says the same. The package `mithril` of the
#: index is another project.
DISTRIBUTION = "mithril-compiler"

#: Extra -> the packages in it. Hints name these: Mithril may run from a checkout, where it has no extras.
EXTRAS: dict[str, tuple[str, ...]] = {
    "bfloat16": ("ml_dtypes",),
    "torch": ("torch",),
    "jax": ("jax",),
    "mlx": ("mlx[cpu]",) if sys.platform == "linux" else ("mlx",),
    "plot": ("matplotlib",),
    "tensorboard": ("tensorboardX",),
    "mlflow": ("mlflow",),
    "mpi": ("mpi4py", "mpich") if sys.platform == "linux" else ("mpi4py",),
    "vision": ("pillow",),
    "text": ("tokenizers", "tqdm"),
    "c": ("ziglang",),
    "demo": ("scikit-learn", "matplotlib", "tqdm"),
}

#: Module -> distribution, extra of ours.
PACKAGES: dict[str, tuple[str, str]] = {
    "PIL": ("pillow", "vision"),
    "tokenizers": ("tokenizers", "text"),
    "tqdm": ("tqdm", "text"),
    "sklearn": ("scikit-learn", "demo"),
    "mpi4py": ("mpi4py", "mpi"),
    "matplotlib": ("matplotlib", "plot"),
    "tensorboardX": ("tensorboardX", "tensorboard"),
    "mlflow": ("mlflow", "mlflow"),
}


def install(extra: str) -> str:
    """Return the command that installs the packages of an extra.

    Examples
    --------
    >>> from mithril.optional_packages import install
    >>> install("text")
    'pip install tokenizers tqdm'
    """
    packages = EXTRAS.get(extra, (extra,))
    return "pip install " + " ".join(f'"{name}"' if "[" in name else name for name in packages)


def is_installed(module: str) -> bool:
    """Whether a package can be imported; it is not imported for that."""
    return find_spec(module) is not None


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
            f"{task} needs the package {distribution}: {error}", hint=install(extra)
        ) from error
