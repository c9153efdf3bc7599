"""Backends whose arrays are NumPy arrays on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtypes
from ..errors import BackendUnavailableError, InvalidValueError
from .backend import Backend, _integer, _shape, _size
from .exchange import numpy_dtype, to_host
from .numpy_complex import ComplexTransforms

__all__ = ["NumpyArrays", "numpy_dtype"]


class NumpyArrays(ComplexTransforms, Backend):
    """A backend whose arrays are NumPy arrays."""

    is_manualgrad = True

    def _find_device(self, device: Any) -> str:
        if device is not None and str(device).lower() not in ("cpu", "cpu:0"):
            raise BackendUnavailableError(
                f"{type(self).__name__} has no device {str(device)!r}",
                hint='it runs on "cpu"; use another backend for others',
            )
        return "cpu"

    def _native(self, dtype: str) -> Any:
        return numpy_dtype(dtype)

    def tensor(self, data: Any, dtype: Any = None) -> Any:
        """Create an array; see `array`."""
        found = to_host(data)
        if dtype is not None:
            return self._convert(found, dtypes.normalize(dtype))
        if found.dtype.kind == "f" or found.dtype.name == "bfloat16":
            return self._convert(found, self.default_dtype)
        return self._convert(found, dtypes.DType(found.dtype.name))

    def _convert(self, found: np.ndarray[Any, Any], dtype: dtypes.DType) -> Any:
        wanted = numpy_dtype(dtype)
        if found.dtype.kind == "f" and wanted.kind in "iu":
            return self.cast(found, dtype)
        if found.dtype.kind in "iu" and wanted.kind in "iu" and found.dtype != wanted:
            _check_range(found, wanted)
        return np.array(found, dtype=wanted)

    def _take(self, host: np.ndarray[Any, Any], dtype: dtypes.DType | None) -> Any:
        wanted = dtype or (self.default_dtype if "float" in host.dtype.name else host.dtype.name)
        is_ours = type(self).tensor is NumpyArrays.tensor
        return host if is_ours and host.dtype.name == wanted else self.array(host, dtype)

    _has_strides = True
    _writes_in_place = True

    def _span(self, array: Any) -> tuple[int, int]:
        if array.flags.c_contiguous:
            start = array.__array_interface__["data"][0]
            return start, start + array.nbytes
        return np.lib.array_utils.byte_bounds(array)

    def _is_writable(self, array: Any) -> bool:
        return bool(array.flags.writeable and array.flags.c_contiguous)

    def _copied(self, array: Any) -> Any:
        return np.array(array, order="C")

    def _is_own(self, arg: Any) -> bool:
        return type(arg) is np.ndarray and arg.dtype.isnative and arg.dtype.name in dtypes.ALL

    def _adopt(self, arg: Any) -> Any:
        # Floats of another memory layout keep their dtype, as those of ours do.
        name = arg.dtype.name if isinstance(arg, np.ndarray) and arg.dtype.name in dtypes.ALL else None
        return self.tensor(arg, name)

    def _as_array(self, data: Any, dtype: dtypes.DType) -> Any:
        """As `tensor`, without a copy where dtype and memory allow it."""
        if isinstance(data, np.ndarray) and data.dtype == numpy_dtype(dtype):
            return data
        return self.tensor(data, dtype)

    def zeros(self, *shape: Any, dtype: Any = None) -> Any:
        """Create an array of zeros: ``zeros(3, 4)`` or ``zeros((3, 4), dtype="int64")``.

        Examples
        --------
        >>> import mithril as ml
        >>> ml.NumpyBackend().zeros(2)
        array([0., 0.], dtype=float32)
        """
        shape, dtype = _shape_and_dtype(shape, dtype)
        return np.zeros(shape, numpy_dtype(self._float(dtype)))

    def ones(self, *shape: Any, dtype: Any = None) -> Any:
        """Create an array of ones; see `zeros`."""
        shape, dtype = _shape_and_dtype(shape, dtype)
        return np.ones(shape, numpy_dtype(self._float(dtype)))

    def eye(self, n: int, m: int | None = None, k: int = 0, dtype: Any = None) -> Any:
        """Create a matrix with ones on a diagonal."""
        rows, columns, diagonal = _size(n), _size(n if m is None else m), _integer(k)
        return np.eye(rows, columns, diagonal, numpy_dtype(self._float(dtype)))


def _shape_and_dtype(shape: tuple[Any, ...], dtype: Any) -> tuple[tuple[int, ...], Any]:
    """Read ``zeros((3, 4), "float32")``: a second place that is a dtype."""
    if dtype is None and len(shape) == 2 and (not hasattr(shape[0], "__index__") or not _is_size(shape[1])):
        first, dtype = shape
        return _shape((first,)), dtype
    return _shape(shape), dtype


def _is_size(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, type)


def _check_range(found: np.ndarray[Any, Any], wanted: np.dtype[Any]) -> None:
    limits = np.iinfo(wanted)
    if found.size and not limits.min <= int(found.min()) <= int(found.max()) <= limits.max:
        raise InvalidValueError(
            f"the data holds integers that do not fit into {wanted}",
            hint=f"{wanted} goes from {limits.min} to {limits.max}; `cast` wraps around",
        )
