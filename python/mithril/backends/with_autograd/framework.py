"""What the backends of PyTorch, JAX and MLX have in common: arrays that come from the host, places of arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ... import dtypes
from ...errors import InvalidValueError, TypeInferenceError
from ..exchange import to_host
from ..keywords import FrameworkOptions, names
from ..shapes import check_range, read_integer, read_shape, read_shape_and_dtype, read_size
from .backend import AutogradBackend
from .framework_engine import FrameworkEngine

__all__ = ["Framework"]


class Framework(AutogradBackend):
    """A backend over a framework with arrays, devices, gradients and a compiler of its own."""

    _options: tuple[str, ...] = names(FrameworkOptions)
    _engine_type = FrameworkEngine

    # --- arrays -----------------------------------------------------------------------------------------------

    def tensor(self, data: Any, dtype: Any = None) -> Any:
        """Create an array on the device of the backend; see `array`."""
        target_dtype = None if dtype is None else dtypes.normalize(dtype)
        if self.engine.is_own(data):
            own = self.dtype(data)
            target = target_dtype or (self.default_dtype if own.is_floating else own)
            return self.cast(data, target) if _needs_care(own, target) else self.engine.convert(data, target)
        host = to_host(data)
        own = dtypes.normalize(host.dtype.name)
        target = target_dtype or (self.default_dtype if own.is_floating else own)
        if own.is_floating and not target.is_floating and target != "bool":
            return self.cast(self.engine.from_host(host, own), target)
        if not own.is_floating and not target.is_floating and own != target and target != "bool":
            check_range(host, np.dtype(str(target)))
        return self.engine.from_host(host, target)

    def zeros(self, *shape: Any, dtype: Any = None) -> Any:
        """Create an array of zeros: ``zeros(3, 4)`` or ``zeros((3, 4), dtype="int64")``."""
        shape, dtype = read_shape_and_dtype(shape, dtype)
        return self.engine.full(read_shape((shape,)), 0, self._float(dtype))

    def ones(self, *shape: Any, dtype: Any = None) -> Any:
        """Create an array of ones; see `zeros`."""
        shape, dtype = read_shape_and_dtype(shape, dtype)
        return self.engine.full(read_shape((shape,)), 1, self._float(dtype))

    def eye(self, n: int, m: int | None = None, k: int = 0, dtype: Any = None) -> Any:
        """Create a matrix with ones on a diagonal."""
        rows, columns, diagonal = read_size(n), read_size(n if m is None else m), read_integer(k)
        return self.engine.from_host(np.eye(rows, columns, diagonal), self._float(dtype))

    # --- gradients of functions -------------------------------------------------------------------------------

    def _places(self, argnums: int | Sequence[int], args: tuple[Any, ...]) -> tuple[int, ...]:
        """Places of the arguments to differentiate, checked; arrays that are not ours must be floats."""
        positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        for place in positions:
            if not isinstance(place, int) or not -len(args) <= place < len(args):
                raise InvalidValueError(
                    f"argnums is {place!r}, but {len(args)} arguments are given",
                    hint="argnums counts from 0; -1 is the last",
                )
        places = tuple(place % len(args) for place in positions)
        for place in places:
            if hasattr(args[place], "dtype") and "float" not in str(args[place].dtype):
                raise TypeInferenceError(
                    f"argument {place} is {args[place].dtype}, and gradients are with respect to floats",
                    hint='convert it: backend.array(x, dtype="float32")',
                )
        return places

    def _check_number(self, value: Any) -> Any:
        if not self.engine.is_own(value):
            raise InvalidValueError(
                f"the function returns a {type(value).__name__}", hint="return one number, made by ops of the backend"
            )
        if tuple(value.shape) != ():
            raise InvalidValueError(
                f"the function returns shape {list(value.shape)}", hint="return one number, e.g. its reduce_sum"
            )
        return value


def _needs_care(own: dtypes.DType, target: dtypes.DType) -> bool:
    """Whether a conversion has a definition of ours that differs from the framework's: floats to integers."""
    return own.is_floating and not target.is_floating and target != "bool"


#: A function with its arguments, differentiated by a framework.
Differentiated = Callable[..., Any]
