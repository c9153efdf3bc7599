"""Arrays from one framework to another: methods that all backends share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import dtypes
from .exchange import to_host

if TYPE_CHECKING:
    from .backend import Backend

__all__ = ["Conversions"]


class Conversions:
    """``from_torch``, ``to_torch`` and so on: what is in the framework already stays as it is, dtypes are kept."""

    def from_torch(self, array: Any) -> Any:
        """Array of this backend from one of PyTorch; see `from_mlx`."""
        return _adopted(self, array)

    def from_jax(self, array: Any) -> Any:
        """Array of this backend from one of JAX; see `from_mlx`."""
        return _adopted(self, array)

    def from_mlx(self, array: Any) -> Any:
        """Array of this backend from one of MLX, or from anything that converts to an array.

        Parameters
        ----------
        array : array
            An array of any framework, or an object with ``__array__`` or ``__dlpack__``.

        Returns
        -------
        array
            The same array if it is one of this backend, otherwise a copy with the same dtype.

        Examples
        --------
        >>> import mithril as ml
        >>> import numpy as np
        >>> ml.NumpyBackend().from_mlx(np.array([1.0, 2.0])).dtype
        dtype('float64')
        """
        return _adopted(self, array)

    def to_torch(self, array: Any) -> Any:
        """Array of PyTorch from one of this backend; see `to_mlx`."""
        return _exchanged("torch", self, array)

    def to_jax(self, array: Any) -> Any:
        """Array of JAX from one of this backend; see `to_mlx`."""
        return _exchanged("jax", self, array)

    def to_mlx(self, array: Any) -> Any:
        """Array of MLX from one of this backend.

        Parameters
        ----------
        array : array
            An array.

        Returns
        -------
        array
            The same array if it is one of MLX, otherwise a copy with the same dtype, on the usual device.

        Raises
        ------
        BackendUnavailableError
            If MLX is not installed.
        """
        return _exchanged("mlx", self, array)


def _adopted(backend: Any, array: Any) -> Any:
    if backend.engine.is_own(array) and backend.engine.is_here(array):
        return array
    return backend.tensor(array, _dtype(array))


def _dtype(array: Any) -> Any:
    """Dtype of an array of any framework; that of NumPy for what has none that we know."""
    name = str(getattr(array, "dtype", "")).rpartition(".")[2]
    dtype_of_array = name if name in dtypes.ALL else to_host(array).dtype.name
    return dtypes.normalize(dtype_of_array)


def _exchanged(framework: str, backend: Any, array: Any) -> Any:
    from .registry import get_backend

    other: Backend = backend if backend.name == framework else get_backend(framework)
    return _adopted(other, array)
