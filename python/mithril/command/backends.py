"""Which backend a command runs on: the one that is named, or the first that is installed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from ..backends.backend import Backend
from ..backends.registry import get_backend
from ..errors import BackendUnavailableError
from ..tools.chosen import WITH_DEVICES, check_device

__all__ = ["PREFERRED", "add_device", "chosen", "on_device"]

#: What runs published models, the quickest first.
PREFERRED = ("torch", "mlx", "jax", "numpy")


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the option of a device to a parser."""
    text = "where torch, jax and mlx compute, such as cuda, cuda:1 or gpu (default: where each does by itself)"
    parser.add_argument("--device", metavar="NAME", help=text)


def on_device(names: Sequence[str], device: str | None, **options: Any) -> list[Any]:
    """Return backends by their names: on this device those that may be told one, others by their names.

    Raises
    ------
    ConflictingOptionError
        If none of them may be told a device.
    BackendUnavailableError
        If one has no such device here.
    """
    if device is None:
        return list(names)
    check_device(names, device)
    options = {"device": device, **{key: value for key, value in options.items() if value is not None}}
    return [get_backend(name, **options) if name in WITH_DEVICES else name for name in names]


def chosen(
    name: str | None, preferred: Sequence[str] = PREFERRED, device: str | None = None, **options: Any
) -> Backend:
    """Make the backend of a name; of None the first that is installed, which is said on the standard error.

    Raises
    ------
    BackendUnavailableError
        If the one that is named, or each of the others, is not installed, or has no such device.
    ConflictingOptionError
        If it may not be told a device.
    """
    if device is not None:
        check_device([name] if name is not None else preferred, device)
        preferred = [candidate for candidate in preferred if candidate in WITH_DEVICES]
        options["device"] = device
    if name is not None:
        return get_backend(name, **options)
    for candidate in preferred:
        try:
            backend = get_backend(candidate, **options)
        except BackendUnavailableError:
            if candidate == preferred[-1]:
                raise
            continue
        print(f"backend: {candidate} (choose another with --backend)", file=sys.stderr)
        return backend
    raise BackendUnavailableError("there is no backend to choose from", hint="name one: --backend numpy")
