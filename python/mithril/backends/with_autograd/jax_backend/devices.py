"""Devices of JAX, of this process and of others, and the memory that it takes there."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import BackendUnavailableError
from ....parallel.processes import time_limit

if TYPE_CHECKING:
    from ....parallel.stored import StoredArray

__all__ = ["device_names", "find_device", "join_processes", "placed", "preallocate", "restored", "whole"]

#: Names that other frameworks give to a platform of JAX.
_PLATFORMS = {"cuda": "gpu", "rocm": "gpu"}
_PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"


def find_device(jax: Any, device: Any) -> Any:
    """Return the device of JAX for a name such as ``"gpu:1"``, a number, a `jax.Device` or None, the usual one.

    Raises
    ------
    BackendUnavailableError
        If it is not here; the message says what is.
    """
    if device is None:
        return next(iter(jax.numpy.zeros(0).devices()))
    if isinstance(device, jax.Device):
        return device
    name = str(device).lower()
    platform, _, number = ("", "", name) if name.isdecimal() else name.partition(":")
    try:
        # Of several processes each names its own.
        devices = jax.local_devices(backend=_PLATFORMS.get(platform, platform) or None)
    except RuntimeError as error:
        raise _missing(jax, device, str(error).splitlines()[0]) from error
    if not (number or "0").isdecimal() or int(number or 0) >= len(devices):
        raise _missing(jax, device, f"{platform or 'JAX'} has {len(devices)} of them")
    return devices[int(number or 0)]


def device_names(jax: Any) -> tuple[str, ...]:
    """Names of all devices here."""
    return tuple(f"{device.platform}:{device.id}" for device in jax.devices())


def join_processes(jax: Any) -> None:
    """Connect this process with those that `mithril launch` started beside it; once, before JAX starts."""
    address, count = os.environ.get("JAX_COORDINATOR_ADDRESS"), os.environ.get("JAX_NUM_PROCESSES")
    number = os.environ.get("JAX_PROCESS_ID")
    if address is None or count is None or number is None or jax.distributed.is_initialized():
        return
    if _has_started():
        raise BackendUnavailableError(
            "JAX has started before the processes of jax.distributed were connected",
            hint="construct the first JaxBackend before anything else uses JAX, or call jax.distributed.initialize()",
        )
    seconds = time_limit()
    jax.distributed.initialize(
        address,
        int(count),
        int(number),
        initialization_timeout=int(max(seconds, 1)),
        heartbeat_timeout_seconds=int(max(seconds, 1)),
    )
    _end_together()


def _end_together() -> None:
    """Let an error that nobody catches end this process: JAX would wait for the others when it is shut down."""
    shown = sys.excepthook

    def hook(*error: Any) -> None:
        shown(*error)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    sys.excepthook = hook


def placed(jax: Any, array: Any, sharding: Any) -> Any:
    """Return an array whose parts lie as ``sharding`` says, where all processes have the same array."""
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    if not getattr(array, "is_fully_addressable", True):
        return jax.jit(lambda x: x, out_shardings=sharding)(array)
    host = np.asarray(array)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def restored(jax: Any, array: StoredArray, sharding: Any) -> Any:
    """Return an array of a checkpoint whose parts lie as ``sharding`` says; each process reads those of its devices."""

    def part(index: Any) -> Any:
        ends = [axis.indices(size) for axis, size in zip(index, array.shape, strict=True)]
        return array.read([[(start, stop)] for start, stop, _ in ends])

    with jax.enable_x64(True):
        return jax.make_array_from_callback(array.shape, sharding, part)


def whole(jax: Any, array: Any) -> Any:
    """Return all of an array whose parts may lie in several processes, on a device of this one."""
    if not hasattr(array, "is_fully_addressable") or array.is_fully_addressable:
        return array
    if not array.is_fully_replicated:
        everywhere = jax.sharding.NamedSharding(array.sharding.mesh, jax.sharding.PartitionSpec())
        array = jax.jit(lambda x: x, out_shardings=everywhere)(array)
    return array.addressable_data(0)


def _missing(jax: Any, device: Any, reason: str) -> BackendUnavailableError:
    return BackendUnavailableError(
        f"JaxBackend has no device {str(device)!r} here; JAX {jax.__version__} finds {', '.join(device_names(jax))} "
        f"({reason})",
        hint='for NVIDIA GPUs: pip install "jax[cuda13]"; for TPUs: pip install "jax[tpu]"',
    )


def preallocate(is_enabled: bool) -> bool:
    """Tell JAX whether to take most of the memory of a GPU when it starts; False if it has started otherwise."""
    if is_enabled == (os.environ.get(_PREALLOCATE, "true").lower() not in ("false", "0")):
        return True
    if _has_started():
        return False
    os.environ[_PREALLOCATE] = str(is_enabled).lower()
    return True


def _has_started() -> bool:
    # JAX has no public way to ask.
    from jax._src import xla_bridge

    return bool(getattr(xla_bridge, "backends_are_initialized", lambda: False)())
