"""Data for tools that run models: what is given, converted; what is missing, drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _core
from ..backends.backend import Backend
from ..backends.exchange import to_host
from ..dtypes import DType
from ..errors import InvalidValueError, KeyNotFoundError, UnresolvedShapeError
from ..suggestions import did_you_mean
from .inspection import compiled, data_names

__all__ = ["complete", "narrowed", "others", "refuse_unknown"]

Array = np.ndarray[Any, Any]


def complete(
    model: _core.Model,
    backend: Backend,
    shapes: Mapping[str, Any] | None,
    data: Mapping[str, Any] | None,
    seed: int,
    narrow: Callable[[Array], Array],
    options: Mapping[str, Any],
) -> dict[str, Array]:
    """All data inputs of a model as NumPy arrays.

    Floats that are drawn are normal, integers 0 or 1, booleans even.
    """
    host_arrays = {name: to_host(value) for name, value in (data or {}).items()}
    # What is not known of other inputs may follow from these.
    known = {**(shapes or {}), **{name: list(array.shape) for name, array in host_arrays.items()}}
    try:
        core = compiled(model, backend, shapes=known, **options)
    except KeyNotFoundError:
        # A name that only the data has is not a name among the shapes.
        refuse_unknown("data", host_arrays, data_names(model, backend, shapes=shapes, **options))
        raise
    refuse_unknown("data", host_arrays, [name for name, _, _ in core.inputs("data")])
    random = np.random.default_rng(seed)
    arrays = {}
    for name, dtype, shape in core.inputs("data"):
        if name not in host_arrays:
            host_arrays[name] = _draw(random, name, dtype, shape)
        arrays[name] = narrow(host_arrays[name])
    return arrays


def others(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the core as those of `compile`, for drawing data."""
    names = {"dtypes": "dtypes", "data_keys": "data_keys", "constants": "constant_keys"}
    names |= {"trainable_keys": "trainable_keys", "discard_keys": "discard_keys"}
    settings = {names[name]: value for name, value in options.items() if name in names and value}
    return {**settings, "inference": not options["training"]}


def refuse_unknown(what: str, names: Iterable[str], known: Sequence[str]) -> None:
    """Raise an error for a name that is not known."""
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, f"available: {', '.join(known) or 'none'}")
            raise KeyNotFoundError(f"{what} names {name!r}, which is not there", hint=hint)


def _draw(random: np.random.Generator, name: str, dtype: str, shape: Sequence[Any]) -> Array:
    if not all(isinstance(n, int) for n in shape):
        sizes = ", ".join(str(n) for n in shape)
        raise UnresolvedShapeError(
            f"the shape of {name!r} is [{sizes}]", hint=f"give numbers: shapes={{{name!r}: [...]}}, or data"
        )
    if "float" in dtype:
        return random.standard_normal(shape)
    drawn = random.integers(0, 2, shape)
    return drawn.astype(bool) if dtype == "bool" else drawn


def narrowed(dtypes: Sequence[DType]) -> Callable[[Array], Array]:
    """Return a function that rounds floats to numbers that all of these dtypes can hold."""
    names = {str(dtype) for dtype in dtypes}
    if names & {"bfloat16"} and names & {"float16"}:
        raise InvalidValueError(
            "backends of float16 and of bfloat16 hold different numbers", hint="compare each of them with float32"
        )

    def narrow(array: Array) -> Array:
        if array.dtype.kind not in "f" and array.dtype.name != "bfloat16":
            return array
        if "bfloat16" in names:
            bits = array.astype(np.float32).view(np.uint32)
            return ((bits + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32)
        for name in ("float16", "float32"):
            if name in names:
                return array.astype(name)
        return array

    return narrow
