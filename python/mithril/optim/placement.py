"""Where optimizers compute: on the backend of the arrays that they are given."""

from __future__ import annotations

from typing import Any

from ..backends.backend import Backend
from ..backends.exchange import owner_of
from ..backends.registry import get_backend
from ..errors import InvalidValueError, ParameterError
from ..parallel.divided_array import DividedArray
from ..parallel.stored import StoredArray

__all__ = ["adopted", "backend_of", "check_backend"]

#: Top-level package of an array's type -> name of the backend.
_PACKAGES = {"numpy": "numpy", "torch": "torch", "jaxlib": "jax", "jax": "jax", "mlx": "mlx"}
_known: dict[tuple[str, Any], Backend] = {}


def backend_of(name: str, array: Any) -> Backend:
    """Return a backend that computes with arrays such as this parameter."""
    own = array.backend if isinstance(array, DividedArray) else owner_of(array)
    if own is not None:
        return own
    package = _PACKAGES.get(type(array).__module__.partition(".")[0])
    if package is None or not hasattr(array, "dtype"):
        raise ParameterError(
            f"parameter {name!r} is a {type(array).__name__}",
            hint="give arrays of NumPy, PyTorch, JAX or MLX; for others name the backend: backend=...",
        )
    device = _device(package, array)
    backend = _known.get((package, device))
    if backend is None:
        options = {} if device is None else {"device": device}
        backend = _known[package, device] = get_backend(package, **options)
    return backend


def _device(package: str, array: Any) -> Any:
    """Name of the device that an array is on, where there may be several."""
    if package == "torch":
        return str(array.device)
    if package == "jax":
        if not hasattr(array, "devices"):
            return None
        # Those of other processes cannot be computed on from here.
        here = [device for device in array.devices() if device.process_index == device.client.process_index()]
        return min(here, key=lambda device: device.id)
    return None


def adopted(backend: Backend, value: Any, dtype: str, like: Any) -> Any:
    """Return an array as one of a backend; of one in a file, each device reads the part that it has of ``like``."""
    if isinstance(value, StoredArray):
        value = backend.engine.restored(value, like)
    return backend.engine.as_array(value, dtype)


def check_backend(backend: Any) -> None:
    """Refuse what is not a backend; None stands for that of the arrays."""
    if backend is not None and not isinstance(backend, Backend):
        raise InvalidValueError(f"the backend is a {type(backend).__name__}", hint="pass e.g. ml.NumpyBackend()")
