"""Whether an imported model computes what it was made of, on the example inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .._core import Model
from ..errors import NumericsError

__all__ = ["verify"]

#: How much of the largest element of an output may be off: rounding adds up through hundreds of layers. What float64 is
#: computed from may be float32.
_ALLOWED, _ALLOWED_IN_16_BITS = 1e-3, 0.1


def verify(
    model: Model,
    params: Mapping[str, Any],
    data: Mapping[str, Any],
    expected: Mapping[str, Any],
    source: str,
    help: Callable[[], str],
    *,
    is_rounded: bool = False,
) -> None:
    """Compare a model on NumPy with what it was made of.

    Parameters
    ----------
    model : Model
        The model.
    params : mapping
        Its parameters.
    data : mapping
        Example inputs; those that the model does not have are left out.
    expected : mapping
        The outputs there, by the names that they have in the model.
    source : str
        What computed them, for messages.
    help : callable
        Finds out what is to be done if something differs.
    is_rounded : bool
        Whether intermediate results are rounded to few numbers, as by a quantized model.

    Raises
    ------
    NumericsError
        If an output has another shape, or differs by more than 0.001 of its largest element (0.1 where it, or an input
        or parameter, has 16 bits, or where intermediate results are rounded; integers and truth values by anything).
    """
    # These import what imports models.
    from ..backends.registry import get_backend
    from ..compiled.compile import compile

    data = {name: value for name, value in data.items() if name in model.input_keys}
    shapes = {name: list(value.shape) for name, value in data.items()}
    # What was imported in training mode computes as in training.
    outputs = compile(model, get_backend("numpy"), shapes=shapes).evaluate(dict(params), data)
    is_coarse = is_rounded or any(map(_is_half, (*data.values(), *params.values())))
    notes = []
    for name, reference in expected.items():
        allowed = _ALLOWED_IN_16_BITS if is_coarse or _is_half(reference) else _ALLOWED
        note = _difference(np.asarray(outputs[name]), np.asarray(reference), allowed)
        if note is not None:
            notes.append(f"`{name}` {note}")
    if notes:
        message = f"the model computes other numbers than {source}: {notes[0]}"
        hint = help()
        text = "\n  ".join([f"error[M0902]: {message}", *notes[1:], f"help: {hint}"])
        raise NumericsError(text, code="M0902", message=message, notes=tuple(notes), hint=hint)


def _is_half(array: Any) -> bool:
    return array.dtype.name in ("float16", "bfloat16")


def _difference(actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], allowed: float) -> str | None:
    """Say how far an output is from what is expected, if that is too far."""
    if actual.shape != expected.shape:
        return f"has shape {list(actual.shape)} in place of {list(expected.shape)}"
    if expected.dtype.kind in "biu":
        wrong = int(np.count_nonzero(actual != expected))
        return f"differs in {wrong} of {expected.size} elements" if wrong else None
    wide, exact = actual.astype(np.float64), expected.astype(np.float64)
    is_finite = np.isfinite(exact)
    if (
        not np.array_equal(wide[~is_finite], exact[~is_finite], equal_nan=True)
        or not np.isfinite(wide[is_finite]).all()
    ):
        return "is infinite or not a number where the other is not"
    off = float(np.abs(wide - exact)[is_finite].max(initial=0.0))
    largest = float(np.abs(exact[is_finite]).max(initial=0.0))
    if off <= allowed * largest:
        return None
    if largest == 0:
        return f"is up to {off:.2g} in place of 0"
    return f"differs by {off / largest:.2g} of its largest element, where {allowed:g} is allowed"
