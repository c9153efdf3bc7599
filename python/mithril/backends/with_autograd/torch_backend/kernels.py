"""Which kernels PyTorch chooses on a GPU: settings of the whole process, changed while a backend computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["with_settings"]


def with_settings(torch: Any, function: Callable[..., Any], *, benchmark: bool, exact: bool) -> Callable[..., Any]:
    """Return a function that is called with these settings.

    Parameters
    ----------
    torch : module
        PyTorch.
    function : callable
        What computes.
    benchmark : bool
        Whether cuDNN tries its algorithms and keeps the fastest.
    exact : bool
        Whether products and convolutions of float32 are computed in float32, not in TensorFloat-32, which has 10 bits.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    settings = [(cudnn, "benchmark", True)] if benchmark else []
    if exact:
        settings += [(cudnn, "allow_tf32", False), (matmul, "allow_tf32", False)]

    def call(*args: Any) -> Any:
        # A compiler traces what is computed, and chooses kernels when that runs.
        if torch.compiler.is_compiling():
            return function(*args)
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in settings]
        try:
            for owner, name, value in settings:
                setattr(owner, name, value)
            return function(*args)
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)

    return call
