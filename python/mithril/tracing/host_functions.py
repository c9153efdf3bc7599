"""Functions of the user's program that models call: what cannot be traced, and gradients that users write.

A model knows such a function by a name; generated code calls it through the global ``host_call``. Every result is
checked against the shape and dtype that the model was compiled with.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _core, dtypes
from ..backends.signatures import canonical, ports
from ..errors import InvalidValueError, ShapeError, TypeInferenceError, UnsupportedOpError

if TYPE_CHECKING:
    from ..backends.backend import Backend

__all__ = ["HostFunction", "apply", "check_declared", "host_call", "register"]


@dataclass(frozen=True)
class HostFunction:
    """A function that models call, with what is checked about it.

    Attributes
    ----------
    function : callable
        Takes arrays, returns one array or a tuple of them.
    backward : bool
        Whether it is given the cotangents of the results, then the inputs, then the results.
    results : int
        Number of results of the forward function.
    """

    function: Callable[..., Any]
    backward: bool = False
    results: int = 1


class _Differentiating(threading.local):
    """How many calls of native gradients are running in this thread."""

    depth = 0


_state = _Differentiating()


def differentiated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark calls of a function as native gradients, which do not pass through arrays of other frameworks."""

    def call(*args: Any) -> Any:
        _state.depth += 1
        try:
            return function(*args)
        finally:
            _state.depth -= 1

    return call


def check_first(plain: Callable[..., Any], compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Run a function as it is before it is run compiled, once for each shape of its data."""
    seen: set[Any] = set()
    arguments = 4 if plain.__name__ == "evaluate_gradients" else 3

    def call(*args: Any) -> Any:
        key = tuple(tuple(value.shape) for value in args[1].values())
        if key not in seen:
            plain(*args[:arguments])
            seen.add(key)
        return compiled(*args)

    return call


#: Functions of models, by the name that the model knows.
_functions: dict[str, HostFunction] = {}
_lock = threading.Lock()


def register(name: str, function: Callable[..., Any], backward: bool = False, results: int = 1) -> str:
    """Keep a function for models that call it; the name that they know it by."""
    with _lock:
        plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "function"
        known = f"{plain}_{len(_functions) + 1}"
        _functions[known] = HostFunction(function, backward, results)
    return known


def host_call(
    backend: Backend, name: str, outputs: list[tuple[tuple[int, ...], str]], *args: Any, options: Any = None
) -> Any:
    """Call a function of the host program from generated code, and check what it returns.

    Parameters
    ----------
    backend : Backend
        Whose generated code calls.
    name : str
        Of the function.
    outputs : list of (shape, dtype)
        What it must return.
    *args : array
        Its arguments.
    options : dict, optional
        More of them, by name.

    Returns
    -------
    tuple of array
    """
    known = _functions.get(name)
    if known is None:
        op = canonical(name.removeprefix("backward_")) or name
        known = HostFunction(getattr(backend, name), True, len(ports(op).outputs))
    if known.backward:
        return _call_backward(backend, name, known, outputs, args, options or {})
    try:
        result = known.function(*args)
    except (TypeError, RuntimeError, ValueError) as error:
        if "racer" not in str(error) and "requires grad" not in str(error) and "eval" not in str(error):
            raise
        raise UnsupportedOpError(
            f"the function {name} cannot be differentiated or compiled by {type(backend).__name__}: {error}",
            hint='write it with functions of the framework, or pass backward= and compile with autodiff="graph"',
        ) from error
    results = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    if len(results) != len(outputs):
        raise InvalidValueError(
            f"the function {name} returns {len(results)} arrays, but is declared to return {len(outputs)}",
            hint="pass outputs= to Lambda",
        )
    if _state.depth and not all(map(backend.engine.is_own, results)):
        kind = next(type(r).__name__ for r in results if not backend.engine.is_own(r))
        raise UnsupportedOpError(
            f"the function {name} returns a {kind}, through which {type(backend).__name__} cannot differentiate",
            hint='write it with functions of the framework, or pass backward= and compile with autodiff="graph"',
        )
    values = tuple(
        r if backend.engine.is_own(r) or not hasattr(r, "dtype") else backend.engine.adopt(r) for r in results
    )
    for one, (shape, dtype) in zip(values, outputs, strict=True):
        check_declared(backend, f"the function {name}", one, shape, dtype, "declare it: Lambda(..., shape=, dtype=)")
    return values


def check_declared(backend: Backend, what: str, value: Any, shape: tuple[int, ...], dtype: str, hint: str) -> None:
    """Raise if an array that a user's function returned is not what the model was compiled with."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise TypeInferenceError(f"{what} returns a {type(value).__name__}, not an array", hint="return an array")
    if backend.shape(value) != tuple(shape):
        raise ShapeError(f"{what} returns shape {list(backend.shape(value))}, but {list(shape)} is expected", hint=hint)
    if str(backend.dtype(value)) != dtype:
        raise TypeInferenceError(f"{what} returns {backend.dtype(value)}, but {dtype} is expected", hint=hint)


def _call_backward(
    backend: Backend, name: str, known: HostFunction, outputs: Any, args: tuple[Any, ...], options: Mapping[str, Any]
) -> Any:
    """``backward(grad_output, inputs, outputs)``: one array, or a tuple with None for what has no gradient."""
    n = known.results
    cotangents, inputs, results = args[:n], args[n : len(args) - n], args[len(args) - n :]
    values = known.function(cotangents[0] if n == 1 else cotangents, inputs, results, **options)
    gradients = list(values) if isinstance(values, (tuple, list)) else [values]
    floats = [i for i, x in enumerate(inputs) if backend.dtype(x).is_floating]
    if len(gradients) != len(inputs):
        raise InvalidValueError(
            f"{name} returns {len(gradients)} gradients for {len(inputs)} inputs",
            hint="return a tuple with one gradient per input, None where there is none",
        )
    arrays = []
    for i, (shape, dtype) in zip(floats, outputs, strict=True):
        gradient = gradients[i]
        if gradient is None:
            gradient = backend.zeros(tuple(shape), dtype=dtype)
        elif not backend.engine.is_own(gradient) and hasattr(gradient, "dtype"):
            gradient = backend.engine.adopt(gradient)
        hint = f"a gradient has the shape and dtype of its input (number {i})"
        check_declared(backend, name, gradient, shape, dtype, hint)
        arrays.append(gradient)
    return tuple(arrays)


# --- as a part of a model -----------------------------------------------------------------------------------------


def apply(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    shape: Any = None,
    dtype: Any = None,
    outputs: int = 1,
    backward: Callable[..., Any] | None = None,
) -> Any:
    """Apply a function that cannot be traced to connections.

    Parameters
    ----------
    function : callable
        Takes one array per input and returns one array, or a tuple of ``outputs``.
    inputs : sequence of Connection
        What it is applied to.
    shape, dtype, outputs, backward
        As of `Lambda`.

    Returns
    -------
    Connection or tuple of Connection
    """
    if isinstance(outputs, bool) or not isinstance(outputs, int) or outputs < 1:
        raise InvalidValueError(f"outputs is {outputs!r}", hint="give the number of arrays that the function returns")
    name = getattr(function, "__name__", type(function).__name__)
    known = register(name, function)
    gradient = None if backward is None else register(f"backward_{name}", backward, backward=True, results=outputs)
    if dtype is not None:
        several = isinstance(dtype, (list, tuple))
        dtype = tuple(map(dtypes.normalize, dtype)) if several else dtypes.normalize(dtype)
    if isinstance(shape, str) and "->" not in shape:
        raise InvalidValueError(
            f"shape is {shape!r}", hint='a pattern names the shapes of inputs and outputs, e.g. "batch k -> batch 10"'
        )
    return _core.apply_op("host_call", [known, shape, dtype, outputs, gradient, None, *inputs])
