"""Arrays of other frameworks as NumPy arrays: what crosses from one backend to another goes through here."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dtypes
from ..errors import BackendUnavailableError, InvalidValueError
from ..optional_packages import install

if TYPE_CHECKING:
    from .backend import Backend

__all__ = ["narrow", "numpy_dtype", "owner_of", "remember", "to_host"]

#: Type of arrays that are not of one of the frameworks here -> the backend that makes them.
_OWNERS: weakref.WeakValueDictionary[type, Backend] = weakref.WeakValueDictionary()
#: Packages whose arrays are converted here.
_FRAMEWORKS = ("numpy", "torch", "jax", "jaxlib", "mlx")


def remember(backend: Backend) -> None:
    """Let arrays of a backend of somebody's own be converted as it does, wherever they come up."""
    kind = backend.engine.array_type
    if isinstance(kind, type) and kind.__module__.partition(".")[0] not in _FRAMEWORKS:
        _OWNERS[kind] = backend


def owner_of(array: Any) -> Backend | None:
    """Return the backend of somebody's own that makes such arrays, if there is one."""
    return _OWNERS.get(type(array))


def to_host(data: Any) -> np.ndarray[Any, Any]:
    """Return data as a NumPy array of a dtype that Mithril knows.

    Parameters
    ----------
    data : array_like
        A list, a number, an array of NumPy, PyTorch, JAX or MLX, or anything else that converts to a NumPy array.

    Returns
    -------
    ndarray
        Shares memory with ``data`` where that is possible.

    Raises
    ------
    InvalidValueError
        If the data cannot be converted to an array of numbers.
    """
    # Who has such an array has imported its module, which takes 8 MB and some 50 ms: not for everybody else.
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(data, masked.MaskedArray):
        raise InvalidValueError("the data is a masked array", hint="fill it first: data.filled(0)")
    if isinstance(data, type) or data is None:
        raise InvalidValueError(f"the data cannot be converted to an array: it is {data!r}", hint="give numbers")
    try:
        host = _convert(data)
    except ValueError as error:
        raise InvalidValueError(
            f"the data cannot be converted to an array: {error}", hint="give rows of equal length"
        ) from error
    if host.dtype.kind == "O" and all(type(item) is int for item in host.flat):
        raise InvalidValueError(
            "the data holds integers that no dtype holds",
            hint=f"int64 goes from {-(2**63)} to {2**63 - 1}, uint64 from 0 to {2**64 - 1}",
        )
    if host.dtype.kind not in "biuf" and host.dtype.name != "bfloat16":
        reason = "complex numbers are not supported" if host.dtype.kind == "c" else "give numbers"
        raise InvalidValueError(f"the data cannot be converted to an array of numbers: {host.dtype}", hint=reason)
    return host


def _convert(data: Any) -> np.ndarray[Any, Any]:
    owner = owner_of(data)
    if owner is not None:
        return np.asarray(owner.to_numpy(data))
    if hasattr(data, "full_tensor"):
        # Each process has a part: all of them have to ask.
        data = data.full_tensor()
    if hasattr(data, "detach"):
        data = data.detach().cpu()
    if _is_jax(data) and not (data.is_fully_addressable or data.is_fully_replicated):
        raise InvalidValueError(
            "the data lies divided among processes of JAX", hint="gather it on all of them: backend.to_numpy(array)"
        )
    if hasattr(data, "__dlpack__") and not hasattr(data, "__array__") and not hasattr(data, "astype"):
        return np.from_dlpack(data)
    if type(data).__module__ == "mlx.core":
        # NumPy would take no notice of an error in what is computed now, and read what the memory holds.
        _mlx().eval(data)
    # PyTorch and MLX hand no bfloat16 to NumPy; float32 holds it exactly.
    if "bfloat16" in str(getattr(data, "dtype", "")) and not isinstance(data, np.ndarray):
        single = data.float() if hasattr(data, "float") else data.astype("float32" if _is_jax(data) else _mlx().float32)
        return narrow(np.asarray(single))
    return np.asarray(data)


def _is_jax(data: Any) -> bool:
    return hasattr(data, "addressable_shards")


def _mlx() -> Any:
    import mlx.core

    return mlx.core


def narrow(single: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """bfloat16 numbers held as float32, as bfloat16 where NumPy knows it."""
    try:
        import ml_dtypes
    except ImportError:
        return single
    narrowed: np.ndarray[Any, Any] = single.astype(ml_dtypes.bfloat16)
    return narrowed


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """NumPy's dtype for a dtype of ours; bfloat16 needs the package ``ml_dtypes``."""
    name = dtypes.normalize(dtype)
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise BackendUnavailableError("NumPy has no bfloat16 of its own", hint=install("bfloat16")) from error
        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(str(name))
