"""What the engines of PyTorch, JAX and MLX have in common: arrays that come from the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import dtypes
from .. import custom
from .engine import AutogradEngine

__all__ = ["FrameworkEngine"]


class FrameworkEngine(AutogradEngine):
    """The engine of backends over PyTorch, JAX and MLX."""

    def from_host(self, host: np.ndarray[Any, Any], dtype: dtypes.DType) -> Any:
        """Copy a NumPy array to the device; floats may have to be rounded to ``dtype``."""
        raise NotImplementedError

    def share(self, host: np.ndarray[Any, Any]) -> Any:
        """Array of ours, of the same dtype, that may share memory with a contiguous NumPy array."""
        raise NotImplementedError

    def convert(self, array: Any, dtype: dtypes.DType) -> Any:
        """Copy an array of the framework to our device as ``dtype``."""
        raise NotImplementedError

    def full(self, shape: tuple[int, ...], value: float, dtype: dtypes.DType) -> Any:
        """Make an array with the same number everywhere."""
        raise NotImplementedError

    def wrap_host(self, host: np.ndarray[Any, Any], dtype: dtypes.DType | None) -> Any:
        own = dtypes.normalize(host.dtype.name)
        target = dtype or (self.backend.default_dtype if own.is_floating else own)
        is_ours = not custom.is_overridden(self.backend, "tensor")
        return self.share(host) if is_ours and own == target else self.backend.array(host, dtype)

    def constant(self, host: np.ndarray[Any, Any]) -> Any:
        return self.from_host(host, dtypes.normalize(host.dtype.name))

    def as_array(self, data: Any, dtype: dtypes.DType) -> Any:
        if self.is_own(data) and self.backend.dtype(data) == dtype and self.is_here(data):
            return data
        return self.backend.tensor(data, dtype)

    def adopt(self, arg: Any) -> Any:
        if self.is_own(arg):
            return self.convert(arg, self.backend.dtype(arg))
        # Floats of NumPy keep their dtype, as those of ours do.
        name = arg.dtype.name if isinstance(arg, np.ndarray) and arg.dtype.name in dtypes.ALL else None
        return self.backend.tensor(arg, name)
