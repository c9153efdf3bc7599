"""Cases with special values: NaN, infinities, zeros of both signs, the largest and smallest numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..backends.exchange import numpy_dtype
from .cases import Case

__all__ = ["special_cases"]

#: Families of ops in which each element counts for itself, or decides about its row.
_FAMILIES = (
    "elementwise",
    "function",
    "compare",
    "arithmetic",
    "activation",
    "softmax",
    "reduce",
    "scan",
    "sort",
    "missing",
)
#: Ops whose results for special values depend on an order that is nowhere promised.
_UNDEFINED = {"argsort", "topk", "norm"}


def special_cases(row: dict[str, Any], dtype: str) -> Iterator[Case]:
    """Cases with special values in the place of the first one or two float tensors of an op."""
    if "float" not in dtype or row["family"] not in _FAMILIES or row["name"] in _UNDEFINED:
        return
    ports = row["ports"]
    floats = [i for i, p in enumerate(ports) if p["kind"] == "tensor" and "float" in p["kinds"]]
    others = [i for i, p in enumerate(ports) if i not in floats and p["required"]]
    if not floats or len(floats) > 2 or others:
        return
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.0], np.float64).astype(numpy_dtype(dtype))
    arrays = [values[:, None] * np.ones((1, 3)).astype(values.dtype)] if len(floats) == 1 else [values[:, None], values]
    args = [True if p["training"] else p.get("default") for p in ports]
    for i, array in zip(floats, arrays, strict=True):
        args[i] = np.ascontiguousarray(array, values.dtype)
    yield Case(row["name"], "special values", tuple(args))
