"""Example inputs as `from_torch` and `from_jax` take them: those by position in `args`, those by name in `kwargs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidValueError


def check_kwargs(call: str, kwargs: Any) -> None:
    """Check that `kwargs` are example inputs by name, and not a second one by position."""
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InvalidValueError(
            f"kwargs are example inputs by name, not a value of type {type(kwargs).__name__}",
            hint=f"give those by position as one tuple: ml.{call}(…, (x, y)), and others by name: kwargs={{'mask': z}}",
        )
