"""Which weights the C backend keeps in low precision, as users say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ....errors import InvalidValueError
from ..native import unknown_quantization

__all__ = ["SCHEMES", "Ranges", "Rules", "ranges", "rounded", "rules"]

#: Ways to keep low-bit weights.
SCHEMES = ("int8", "int8_weights", "int4_weights")

#: Patterns of names, and how the weights are kept; None: in float32. The first that fits counts.
Rules = list[tuple[str, str | None]]

#: Names of weights, and the smallest and the largest number of what they are multiplied by.
Ranges = dict[str, tuple[float, float]]


def rules(value: Any) -> Rules | None:
    """Read the option ``quantize``.

    Examples
    --------
    >>> from mithril.backends.with_manualgrad.c_backend.quantization import rules
    >>> rules("int8"), rules({"head.*": None, "*": "int4_weights"})
    ([('*', 'int8')], [('head.*', None), ('*', 'int4_weights')])
    """
    if value is None:
        return None
    entries = list(value.items()) if isinstance(value, Mapping) else [("*", value)]
    for pattern, scheme in entries:
        is_scheme = scheme in SCHEMES or (scheme is None and isinstance(value, Mapping))
        if not isinstance(pattern, str) or not isinstance(scheme, (str, type(None))) or not is_scheme:
            raise unknown_quantization(value, pattern, scheme, SCHEMES)
    return entries


def ranges(value: Any, quantize: Rules | None) -> Ranges:
    """Read the option ``quantize_ranges``.

    Examples
    --------
    >>> from mithril.backends.with_manualgrad.c_backend.quantization import ranges
    >>> ranges({"conv.weight": [0, 6]}, [("*", "int8")])
    {'conv.weight': (0.0, 6.0)}
    """
    if value is None:
        return {}
    if quantize is None:
        raise InvalidValueError("quantize_ranges has no effect without quantize", hint='add quantize="int8"')
    if not isinstance(value, Mapping):
        raise InvalidValueError(f"quantize_ranges is a {type(value).__name__}", hint=_RANGES)
    by_name = {}
    for name, pair in value.items():
        try:
            low, high = (float(np.float32(number)) for number in pair)
        except (TypeError, ValueError):
            raise InvalidValueError(f"quantize_ranges has {pair!r} for {name!r}", hint=_RANGES) from None
        if not isinstance(name, str) or not (np.isfinite([low, high]).all() and low <= high):
            raise InvalidValueError(f"quantize_ranges has {pair!r} for {name!r}", hint=_RANGES)
        by_name[name] = (low, high)
    return by_name


_RANGES = "give a mapping from names of weights to the smallest and the largest number, as ml.calibrate makes it"

#: Terms of a column that share a scale in 4 bits.
_GROUP = 32


def rounded(matrix: np.ndarray[Any, Any], scheme: str) -> np.ndarray[Any, Any]:
    """Return the numbers that stand for the weights ``[column, term]`` when they are kept by this scheme.

    Examples
    --------
    >>> import numpy as np
    >>> from mithril.backends.with_manualgrad.c_backend.quantization import rounded
    >>> rounded(np.array([[127.0, 2.4, -3.0]], np.float32), "int8").tolist()
    [[127.0, 2.0, -3.0]]
    """
    columns, terms = matrix.shape
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if scheme != "int4_weights":
            largest = np.abs(matrix).max(1, keepdims=True).astype(np.float32)
            inverse = np.where(largest > 1e-30, np.float32(127) / largest, np.float32(0))
            numbers = matrix * inverse
            whole = np.trunc(numbers + np.where(numbers < 0, -0.5, 0.5))
            result: np.ndarray[Any, Any] = whole * (largest / np.float32(127))
            return result
        padded = np.zeros((columns, -(-terms // _GROUP) * _GROUP), np.float32)
        padded[:, :terms] = matrix
        groups = padded.reshape(columns, -1, _GROUP)
        largest = np.take_along_axis(groups, np.abs(groups).argmax(2)[..., None], 2)
        bits = (largest / np.float32(-8)).view(np.uint32)
        scale = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
        inverse = np.where(np.abs(scale) > 1e-30, np.float32(1) / scale, np.float32(0))
        # The product is rounded once, with the half that is added.
        whole = np.floor((groups.astype(np.float64) * inverse + 8.5).astype(np.float32)).clip(0, 15) - 8
        result = (whole * scale).reshape(columns, -1)[:, :terms]
        return result
