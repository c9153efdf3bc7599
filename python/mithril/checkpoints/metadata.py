"""What a file says about itself: values by name, between Python and the core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import InvalidValueError

__all__ = ["from_core", "named_to_core", "to_core"]


def from_core(value: Any) -> Any:
    """Make what the core read: texts, booleans, numbers and arrays with NumPy's types, lists."""
    if isinstance(value, tuple):
        code, data, many = value
        numbers = np.frombuffer(data, code)
        return numbers.copy() if many else numbers[0]
    return [from_core(item) for item in value] if isinstance(value, list) else value


def to_core(key: str, value: Any) -> Any:
    """Make what the core writes of a text, a boolean, a number, an array, or a list of one of these.

    Numbers of NumPy keep their type; an int becomes one of 32 bits if it fits, without a sign if it is not negative; a
    float has 32 bits. Integers in lists have a sign.
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, str):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return _numbers(key, value)
    if isinstance(value, int):
        kind = next((kind for kind in ("u4", "i4", "u8", "i8") if _fits(value, kind)), None)
        if kind is None:
            raise InvalidValueError(f"metadata {key!r} is {value}", hint="integers have 64 bits at most")
        return _numbers(key, np.dtype(kind).type(value))
    if isinstance(value, float):
        return _numbers(key, np.float32(value))
    if isinstance(value, (list, tuple)):
        return _items(key, list(value))
    raise InvalidValueError(
        f"metadata {key!r} is a {type(value).__name__}", hint="give strings, numbers, booleans, or lists of these"
    )


def _fits(value: int, kind: str) -> bool:
    about = np.iinfo(kind)
    return int(about.min) <= value <= int(about.max)


def _numbers(key: str, value: Any) -> Any:
    array = np.asarray(value)
    if array.ndim > 1:
        return [_numbers(key, row) for row in array]
    if array.dtype.kind == "b":
        return array.tolist()
    if array.dtype.kind not in "iuf" or (array.dtype.itemsize == 2 and array.dtype.kind == "f"):
        raise InvalidValueError(
            f"metadata {key!r} is of dtype {array.dtype}", hint="give integers, float32 or float64, or strings"
        )
    code = array.dtype.newbyteorder("<")
    return code.str, array.astype(code).tobytes(), array.ndim == 1


def _items(key: str, items: list[Any]) -> Any:
    kinds = {bool if isinstance(item, np.bool_) else type(item) for item in items}
    if not items or kinds in ({str}, {bool}):
        return items
    if kinds == {int}:
        kind = next((kind for kind in ("i4", "i8", "u8") if all(_fits(item, kind) for item in items)), None)
        if kind is not None:
            return _numbers(key, np.array(items, kind))
    if kinds in ({float}, {int, float}):
        return _numbers(key, np.array(items, np.float32))
    if kinds <= {list, tuple, np.ndarray}:
        return [_items(key, list(item)) if not isinstance(item, np.ndarray) else _numbers(key, item) for item in items]
    raise InvalidValueError(f"metadata {key!r} mixes kinds in a list", hint="all items of a list are of one kind")


def named_to_core(metadata: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Make what the core writes of values by name."""
    for key in metadata:
        if not isinstance(key, str):
            raise InvalidValueError(f"the name {key!r} of metadata is not a string", hint="names are strings")
    return [(key, to_core(key, value)) for key, value in metadata.items()]
