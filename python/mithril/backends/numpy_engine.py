"""The engine of backends whose arrays are NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtypes
from . import custom
from .engine import Engine
from .exchange import numpy_dtype

__all__ = ["NumpyEngine"]


class NumpyEngine(Engine):
    """The engine of backends whose arrays are NumPy's."""

    has_strides = True
    writes_in_place = True

    def native_dtype(self, dtype: str) -> Any:
        return numpy_dtype(dtype)

    def wrap_host(self, host: np.ndarray[Any, Any], dtype: dtypes.DType | None) -> Any:
        target = dtype or (self.backend.default_dtype if "float" in host.dtype.name else host.dtype.name)
        is_ours = not custom.is_overridden(self.backend, "tensor")
        return host if is_ours and host.dtype.name == target else self.backend.array(host, dtype)

    def memory_span(self, array: Any) -> tuple[int, int]:
        if array.flags.c_contiguous:
            start = array.__array_interface__["data"][0]
            return start, start + array.nbytes
        return np.lib.array_utils.byte_bounds(array)

    def is_writable(self, array: Any) -> bool:
        return bool(array.flags.writeable and array.flags.c_contiguous)

    def copy(self, array: Any) -> Any:
        return np.array(array, order="C")

    def is_own(self, arg: Any) -> bool:
        return type(arg) is np.ndarray and arg.dtype.isnative and arg.dtype.name in dtypes.ALL

    def adopt(self, arg: Any) -> Any:
        # Floats of another memory layout keep their dtype, as those of ours do.
        name = arg.dtype.name if isinstance(arg, np.ndarray) and arg.dtype.name in dtypes.ALL else None
        return self.backend.tensor(arg, name)

    def as_array(self, data: Any, dtype: dtypes.DType) -> Any:
        """As `tensor`, without a copy where dtype and memory allow it."""
        if isinstance(data, np.ndarray) and data.dtype == numpy_dtype(dtype):
            return data
        return self.backend.tensor(data, dtype)
