"""Which backend a command runs on: the one that is named, or the first that is installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ..backends.backend import Backend
from ..backends.registry import get_backend
from ..errors import BackendUnavailableError

__all__ = ["PREFERRED", "chosen"]

#: What runs published models, the quickest first.
PREFERRED = ("torch", "mlx", "jax", "numpy")


def chosen(name: str | None, preferred: Sequence[str] = PREFERRED, **options: Any) -> Backend:
    """Make the backend of a name; of None the first that is installed, which is said on the standard error.

    Raises
    ------
    BackendUnavailableError
        If the one that is named, or each of the others, is not installed.
    """
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
