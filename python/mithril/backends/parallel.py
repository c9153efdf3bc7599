"""Functions and layers on several devices, in the spellings of a backend; models take a layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .._core import Model
from ..errors import BackendUnavailableError, InvalidValueError, KeyNotFoundError
from ..parallel.pipeline import Pipeline
from ..suggestions import did_you_mean
from . import options
from .backend import Backend

__all__ = ["data_parallel", "place_model"]


def data_parallel(
    function: Callable[..., Any], *, backend: Backend, num_devices: int | None = None
) -> Callable[..., Any]:
    """Divide the batches that a function takes among devices of JAX.

    Parameters
    ----------
    function : callable
        Takes arrays whose first axis is the batch, which has to divide; numbers are given to all devices.
    backend : Backend
        Where the devices are.
    num_devices : int, optional
        How many (default: all that the backend finds).

    Returns
    -------
    callable
        The function, compiled for all devices; its results are those of one device. With one, the function itself.

    Raises
    ------
    BackendUnavailableError
        If there are fewer devices, or the backend does not divide functions.

    Examples
    --------
    >>> import mithril as ml
    >>> from mithril.backends.parallel import data_parallel
    >>> backend = ml.NumpyBackend()
    >>> data_parallel(backend.exp, backend=backend, num_devices=1)(backend.zeros(2))
    array([1., 1.], dtype=float32)
    """
    if not callable(function) or isinstance(function, type):
        raise InvalidValueError(f"{function!r} is not a function", hint="pass a function of arrays")
    # A graphics card beside a processor does not make two devices.
    num_parts = len(options.peers(backend.device, backend.devices)) if num_devices is None else num_devices
    layout = options.layout(options.Options({"device_mesh": ("num_devices", num_parts)}), lambda: 1)
    return function if layout is None else backend.engine.on_mesh(layout).data_parallel(function)


def place_model(backend: Backend, model: Model, placement: Mapping[str, int]) -> Model:
    """Place the layers of a model on devices; see `Backend.place_model`."""
    layers = model.layer_keys
    for name, device in placement.items():
        if name not in layers:
            hint = did_you_mean(name, layers, f"available: {', '.join(layers)}")
            raise KeyNotFoundError(f"the placement names {name!r}, which is not a layer of the model", hint=hint)
        if isinstance(device, bool) or not isinstance(device, int) or device < 0:
            raise InvalidValueError(f"layer {name!r} is placed on {device!r}", hint="give the number of a device")
    if not placement:
        return model
    listed = [str(name) for name in backend.listed_devices]
    peers = listed if len(listed) > 1 else options.peers(backend.device, backend.devices)
    for name, device in placement.items():
        if device >= len(peers):
            raise BackendUnavailableError(
                f"layer {name!r} is placed on device {device}, and {type(backend).__name__} finds {', '.join(peers)}",
                hint="devices are counted from 0; several on a processor are named: TorchBackend(devices=['cpu'] * 2)",
            )
    if len(listed) > 1 or len(set(placement.values())) > 1:
        pipeline = Pipeline(placement)
        backend.engine.on_pipeline(pipeline)
        backend.placements[id(model)] = model, pipeline
        return model
    for name, device in placement.items():
        if options.device_key(peers[device]) != options.device_key(backend.device):
            # Running it on the device of the backend would be silently elsewhere.
            raise BackendUnavailableError(
                f"layer {name!r} is placed on device {device} ({peers[device]}), and {backend!r} runs on "
                f"{backend.device}",
                hint=f"make the backend there: {type(backend).__name__}(device={peers[device]!r})",
            )
    return model
