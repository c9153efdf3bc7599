"""Which backends a tool is asked for: names, classes, instances, a list or a mapping of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._core import Model
from ..backends.backend import Backend
from ..backends.registry import get_backend
from ..errors import BackendUnavailableError, ConflictingOptionError, InvalidValueError, KeyNotFoundError
from ..suggestions import did_you_mean

__all__ = ["WITH_DEVICES", "available", "check_device", "each", "logical", "make"]

#: Backends that compute on other devices than the processor.
WITH_DEVICES = ("torch", "jax", "mlx")


def each(backends: Any) -> dict[str, Any]:
    """Name what is asked for: name to a name, class or instance, in order.

    Examples
    --------
    >>> import mithril as ml
    >>> each(["numpy", ml.NumpyBackend(dtype="float64")])
    {'numpy': 'numpy', 'numpy float64': NumpyBackend(device='cpu', dtype=float64)}
    """
    if isinstance(backends, Mapping):
        by_name = {str(name): backend for name, backend in backends.items()}
    elif isinstance(backends, (str, Backend, type)):
        by_name = each([backends])
    elif isinstance(backends, Iterable):
        by_name = {}
        for backend in backends:
            by_name[_free(_name(backend), backend, by_name)] = backend
    else:
        raise InvalidValueError(
            f"backends is a {type(backends).__name__}", hint='give names, e.g. ["numpy", "torch"], or instances'
        )
    if not by_name:
        raise InvalidValueError("backends is empty", hint='give names, e.g. ["numpy", "torch"], or instances')
    return by_name


def make(backend: Any, **options: Any) -> Backend:
    """Make an instance of a name or class; an instance is taken as it is."""
    if isinstance(backend, str):
        return get_backend(backend, **options)
    if isinstance(backend, type) and issubclass(backend, Backend):
        return backend(**options)
    if isinstance(backend, Backend):
        return backend
    raise InvalidValueError(f"{backend!r} is not a backend", hint='give a name, e.g. "torch", a class or an instance')


def logical(model: Any) -> Model:
    """Return a model that is given as such, by its name in `mithril.models`, or by a function that makes it."""
    if isinstance(model, str):
        from .. import models

        function = getattr(models, model, None)
        if function is None or isinstance(function, type):
            known = [name for name in models.__all__ if not isinstance(getattr(models, name, None), type)]
            raise KeyNotFoundError(
                f"there is no model called {model!r}", hint=did_you_mean(model, known, "see mithril.models")
            )
        model = function
    if not isinstance(model, Model) and callable(model) and not isinstance(model, type):
        model = model()
    if not isinstance(model, Model):
        raise InvalidValueError(
            f"the model is a {type(model).__name__}", hint='pass an ml.Model, or a name such as "resnet18"'
        )
    return model


def available(backend: Any, **options: Any) -> Backend | str:
    """Make an instance, or say why there is none."""
    try:
        return make(backend, **options)
    except BackendUnavailableError as error:
        return error.message + (f" ({error.hint})" if error.hint else "")


def check_device(names: Sequence[str], device: str) -> None:
    """Check that one of these backends may be told the device that it computes on."""
    if not isinstance(device, str) or not device:
        raise InvalidValueError(f"device is {device!r}", hint='give a name, e.g. "cuda"')
    if not any(name in WITH_DEVICES for name in names):
        compute = "computes" if len(names) == 1 else "compute"
        raise ConflictingOptionError(
            f"{' and '.join(names)} {compute} on the processor, and the device is {device}",
            hint=f"choose among {', '.join(WITH_DEVICES)}, or leave the device out",
        )


def _name(backend: Any) -> str:
    return backend if isinstance(backend, str) else str(getattr(backend, "name", backend))


def _free(name: str, backend: Any, taken: Mapping[str, Any]) -> str:
    """Tell two backends of one name apart by what differs."""
    if name not in taken:
        return name
    if isinstance(backend, Backend):
        for further in (str(backend.default_dtype), backend.device, type(backend).__name__):
            if f"{name} {further}" not in taken:
                return f"{name} {further}"
    return next(f"{name} {i}" for i in range(2, len(taken) + 3) if f"{name} {i}" not in taken)
