"""Backends whose arrays are NumPy arrays on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtypes
from ..errors import BackendUnavailableError
from .backend import Backend
from .exchange import numpy_dtype, to_host
from .numpy_complex import ComplexTransforms
from .numpy_engine import NumpyEngine
from .shapes import check_range, read_integer, read_shape_and_dtype, read_size

__all__ = ["NumpyArrays", "numpy_dtype"]


class NumpyArrays(ComplexTransforms, Backend):
    """A backend whose arrays are NumPy arrays."""

    is_manualgrad = True
    _engine_type = NumpyEngine

    def _find_device(self, device: Any) -> str:
        if device is not None and str(device).lower() not in ("cpu", "cpu:0"):
            raise BackendUnavailableError(
                f"{type(self).__name__} has no device {str(device)!r}",
                hint='it runs on "cpu"; use another backend for others',
            )
        return "cpu"

    def tensor(self, data: Any, dtype: Any = None) -> Any:
        """Create an array; see `array`."""
        host = to_host(data)
        if dtype is not None:
            return self._convert(host, dtypes.normalize(dtype))
        if host.dtype.kind == "f" or host.dtype.name == "bfloat16":
            return self._convert(host, self.default_dtype)
        return self._convert(host, dtypes.DType(host.dtype.name))

    def _convert(self, array: np.ndarray[Any, Any], dtype: dtypes.DType) -> Any:
        target = numpy_dtype(dtype)
        if array.dtype.kind == "f" and target.kind in "iu":
            return self.cast(array, dtype)
        if array.dtype.kind in "iu" and target.kind in "iu" and array.dtype != target:
            check_range(array, target)
        return np.array(array, dtype=target)

    def zeros(self, *shape: Any, dtype: Any = None) -> Any:
        """Create an array of zeros: ``zeros(3, 4)`` or ``zeros((3, 4), dtype="int64")``.

        Examples
        --------
        >>> import mithril as ml
        >>> ml.NumpyBackend().zeros(2)
        array([0., 0.], dtype=float32)
        """
        shape, dtype = read_shape_and_dtype(shape, dtype)
        return np.zeros(shape, numpy_dtype(self._float(dtype)))

    def ones(self, *shape: Any, dtype: Any = None) -> Any:
        """Create an array of ones; see `zeros`."""
        shape, dtype = read_shape_and_dtype(shape, dtype)
        return np.ones(shape, numpy_dtype(self._float(dtype)))

    def eye(self, n: int, m: int | None = None, k: int = 0, dtype: Any = None) -> Any:
        """Create a matrix with ones on a diagonal."""
        rows, columns, diagonal = read_size(n), read_size(n if m is None else m), read_integer(k)
        return np.eye(rows, columns, diagonal, numpy_dtype(self._float(dtype)))
