"""Devices of JAX, and the memory that it takes there."""

from __future__ import annotations

import os
from typing import Any

from ....errors import BackendUnavailableError

__all__ = ["device_names", "find_device", "preallocate"]

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
        found = jax.devices(_PLATFORMS.get(platform, platform) or None)
    except RuntimeError as error:
        raise _missing(jax, device, str(error).splitlines()[0]) from error
    if not (number or "0").isdecimal() or int(number or 0) >= len(found):
        raise _missing(jax, device, f"{platform or 'JAX'} has {len(found)} of them")
    return found[int(number or 0)]


def device_names(jax: Any) -> tuple[str, ...]:
    """Names of all devices here."""
    return tuple(f"{device.platform}:{device.id}" for device in jax.devices())


def _missing(jax: Any, device: Any, reason: str) -> BackendUnavailableError:
    return BackendUnavailableError(
        f"JaxBackend has no device {str(device)!r} here; JAX {jax.__version__} finds {', '.join(device_names(jax))} "
        f"({reason})",
        hint='for NVIDIA GPUs: pip install "jax[cuda13]"; for TPUs: pip install "jax[tpu]"',
    )


def preallocate(wanted: bool) -> bool:
    """Tell JAX whether to take most of the memory of a GPU when it starts; False if it has started otherwise."""
    if wanted == (os.environ.get(_PREALLOCATE, "true").lower() not in ("false", "0")):
        return True
    if _has_started():
        return False
    os.environ[_PREALLOCATE] = str(wanted).lower()
    return True


def _has_started() -> bool:
    # JAX has no public way to ask.
    from jax._src import xla_bridge

    return bool(getattr(xla_bridge, "backends_are_initialized", lambda: False)())
