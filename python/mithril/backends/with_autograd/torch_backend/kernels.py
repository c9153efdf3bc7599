"""Kernels of GPUs: which ones PyTorch chooses, and what they say when they cannot compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ....compiled.loading import is_refused_by_kernel, refused_by_kernel

__all__ = ["explained", "with_settings"]


@contextmanager
def explained() -> Iterator[None]:
    """Say in words of ours that a kernel could not compute."""
    try:
        yield
    except RuntimeError as error:
        if not is_refused_by_kernel(error):
            raise
        raise refused_by_kernel(error) from error


def with_settings(torch: Any, function: Callable[..., Any], *, benchmark: bool, exact: bool) -> Callable[..., Any]:
    """Return a function that is called with these settings, which PyTorch keeps for the whole process.

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
