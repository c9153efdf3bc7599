"""Backends: where a compiled model runs. Importing this imports no framework but NumPy."""

from __future__ import annotations

from typing import Any

from ..suggestions import absent as _absent
from .backend import Backend
from .registry import get_backend, list_backends, register_backend
from .with_autograd.jax_backend import JaxBackend
from .with_autograd.mlx_backend import MLXBackend, MlxBackend
from .with_autograd.torch_backend import TorchBackend
from .with_manualgrad.c_backend import CBackend, RawCBackend
from .with_manualgrad.ggml_backend import GGMLBackend, GgmlBackend
from .with_manualgrad.interpreter_backend import InterpreterBackend
from .with_manualgrad.numpy_backend import NumpyBackend

__all__ = [
    "Backend",
    "CBackend",
    "GGMLBackend",
    "GgmlBackend",
    "InterpreterBackend",
    "JaxBackend",
    "MLXBackend",
    "MlxBackend",
    "NumpyBackend",
    "RawCBackend",
    "TorchBackend",
    "get_backend",
    "list_backends",
    "register_backend",
    "table",
]


def table() -> Any:
    """Make a table of all backends: gradients, compilers, devices, dtypes, and whether they are installed.

    Examples
    --------
    >>> import mithril as ml
    >>> ml.backends.table()["torch"]["jit"]
    'torch.compile'
    """
    from ..tools.overview import overview

    return overview()


def __getattr__(name: str) -> Any:
    raise _absent(__name__, globals(), name)
