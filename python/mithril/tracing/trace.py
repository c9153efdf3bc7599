"""Tracing: functions over backend ops become models, for `Lambda` and for the gradients of functions."""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..errors import BackendWarning, InvalidValueError, TypeInferenceError
from . import host_functions

if TYPE_CHECKING:
    from ..backends.backend import Backend

__all__ = ["Lambda", "trace", "value_and_grad"]


def trace(function: Callable[..., Any], names: Sequence[str]) -> Any:
    """Call a function on connections; what it returns is connections too."""
    return _call(function, [_core.Connection.input(name) for name in names])


def _call(function: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    try:
        return function(*inputs)
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidValueError):
            raise
        name = getattr(function, "__name__", "the function")
        raise InvalidValueError(
            f"{name} cannot be traced: {error}",
            hint="use operators, methods of the connection and ops of a backend (backend.exp(x)); a function of "
            "NumPy or of a framework cannot become a part of a model",
        ) from error


def Lambda(
    function: Callable[..., Any],
    name: str | None = None,
    *,
    opaque: bool | None = None,
    shape: Any = None,
    dtype: Any = None,
    outputs: int = 1,
    backward: Callable[..., Any] | None = None,
) -> _core.Model:
    """Make a layer of a function.

    A function over backend ops is traced once, into ordinary ops: the layer is differentiable, runs on every
    backend and can be saved. A function that calls NumPy or a framework cannot be traced. It becomes opaque, with
    a warning: compiled models call it, on the backends that run Python and whose arrays it takes.

    Parameters
    ----------
    function : callable
        Takes one connection (opaque: array) per input and returns one, or a tuple of them. An opaque function has
        to be pure: models may call it more or less often than it is written.
    name : str, optional
        Name of the layer.
    opaque : bool, optional
        True: do not trace. False: it is an error if the function cannot be traced. Default: trace if possible.
    shape : str or sequence of int, optional
        Shape of an opaque function's result: a pattern that names the sizes of inputs and outputs, such as
        ``"batch k -> batch 10"`` or ``"*b n, *b n -> *b"``, or numbers. Default: the shape of the first input.
    dtype : dtype or sequence of dtype, optional
        Dtype of an opaque function's results. Default: that of the first input.
    outputs : int, optional
        Number of arrays that an opaque function returns (default 1).
    backward : callable, optional
        Gradient of an opaque function, ``backward(grad_output, inputs, outputs)``: one array, or a tuple with one
        per input, None where there is none. Without it the backend has to differentiate natively.

    Returns
    -------
    Model
        Its inputs are called like the parameters of the function (one alone: ``input``), its outputs
        ``output`` or ``output_0``, ``output_1`` …

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> backend = ml.NumpyBackend()
    >>> model = ml.Model()
    >>> model |= ml.Lambda(lambda x: backend.maximum(0.01 * x, x))(input="input", output="output")
    >>> ml.compile(model, backend, shapes={"input": [2]})([-1.0, 2.0])
    array([-0.01,  2.  ], dtype=float32)

    >>> model = ml.Model()
    >>> model |= ml.Lambda(np.sinc, opaque=True)(input="input", output="output")
    >>> ml.compile(model, backend, shapes={"input": [2]})([0.0, 0.5])
    array([1.        , 0.63661975], dtype=float32)
    """
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not callable(function):
        raise InvalidValueError(f"Lambda takes a function, not {function!r}")
    declared = {"shape": shape, "dtype": dtype, "backward": backward}
    if opaque is None and any(value is not None for value in declared.values()):
        opaque = True
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind in kinds]
    if opaque or (opaque is None and isinstance(function, np.ufunc)):
        # What has a default belongs to the function, not to the model.
        parameters = [p for p in parameters if p.default is p.empty]
    names = ["input"] if len(parameters) == 1 else [p.name for p in parameters]
    if not names:
        raise InvalidValueError(
            f"{getattr(function, '__name__', 'the function')} names no inputs",
            hint="write one parameter per input, no *args",
        )
    inputs = [_core.Connection.input(name) for name in names]
    result = None if opaque else _traced_or_none(function, inputs, must=opaque is False)
    if result is None:
        result = host_functions.apply(function, inputs, **declared, outputs=outputs)
    results = result if isinstance(result, (tuple, list)) else (result,)
    keys = ["output"] if len(results) == 1 else [f"output_{i}" for i in range(len(results))]
    model = _core.Model.create(**dict(zip(keys, results, strict=True)))
    if name is not None:
        model.name = name
    return model


def _traced_or_none(function: Callable[..., Any], inputs: list[Any], must: bool) -> Any:
    """Trace a function; None, with a warning, if it cannot be and need not."""
    try:
        result = _call(function, inputs)
        for output in result if isinstance(result, (tuple, list)) else (result,):
            if not isinstance(output, _core.Connection):
                raise InvalidValueError(
                    f"the function returns a {type(output).__name__}", hint="return what backend ops return"
                )
    except InvalidValueError as error:
        if must:
            raise
        warnings.warn(
            f"Lambda calls {getattr(function, '__name__', 'the function')} as it is, since it cannot be traced "
            f"({error.message}): the model runs only where Python does, and cannot be saved. opaque=True says that "
            "this is meant, opaque=False makes it an error",
            BackendWarning,
            stacklevel=3,
        )
        return None
    return result


#: Arguments of the functions that are being traced, so that functions inside may use them.
_active: ContextVar[dict[str, Any]] = ContextVar("mithril_traced_arguments")
_numbers = itertools.count()


def value_and_grad(backend: Backend, function: Callable[..., Any], argnums: int | Sequence[int]) -> Callable[..., Any]:
    """Trace a function into a model and differentiate that.

    Called with arrays, the result computes at once; called with connections, inside another function that is
    traced, it becomes a part of that one, so that gradients of gradients work to any order.
    """
    single = isinstance(argnums, int)
    positions = [argnums] if isinstance(argnums, int) else list(argnums)

    def with_gradient(*args: Any) -> tuple[Any, Any]:
        places = [_place(i, len(args)) for i in positions]
        nested = any(isinstance(a, _core.Connection) for a in args)
        value, gradients = (_connect if nested else _compute)(backend, function, places, args)
        return value, gradients[0] if single else tuple(gradients)

    return with_gradient


def _place(argnum: Any, count: int) -> int:
    if not isinstance(argnum, int) or not -count <= argnum < count:
        raise InvalidValueError(
            f"argnums is {argnum!r}, but {count} arguments are given", hint="argnums counts from 0; -1 is the last"
        )
    return argnum % count


def _traced(function: Callable[..., Any], inputs: list[Any], names: list[str]) -> _core.Model:
    """Trace a function of one result; its model has the output ``output``."""
    known = {**_active.get({}), **dict(zip(names, inputs, strict=True))}
    token = _active.set(known)
    try:
        result = _call(function, inputs)
    finally:
        _active.reset(token)
    if not isinstance(result, _core.Connection):
        raise InvalidValueError(
            f"the function returns a {type(result).__name__}", hint="return one number, made by ops of the backend"
        )
    # An argument alone is not a model: there must be an op.
    return _core.Model.create(output=result * 1.0 if any(result is i for i in inputs) else result)


def _fresh(count: int) -> list[str]:
    return [f"traced_{next(_numbers)}" for _ in range(count)]


def _compute(backend: Backend, function: Any, places: list[int], args: Sequence[Any]) -> tuple[Any, list[Any]]:
    from ..compiled.compile import compile

    arrays = [backend.array(a) for a in args]
    for i in places:
        if "float" not in str(arrays[i].dtype):
            raise TypeInferenceError(
                f"argument {i} is {arrays[i].dtype}, and gradients are with respect to floats",
                hint='convert it: backend.array(x, dtype="float32")',
            )
    names = _fresh(len(arrays))
    inputs = [_core.Connection.input(n, list(a.shape), str(a.dtype)) for n, a in zip(names, arrays, strict=True)]
    model = _traced(function, inputs, names)
    used = set(model.input_keys)
    by_name = dict(zip(names, arrays, strict=True))
    params = {names[i]: arrays[i] for i in places if names[i] in used}
    data = {n: a for n, a in by_name.items() if n in used and n not in params}
    compiled = compile(model, backend, trainable_keys=params)
    gradients: dict[str, Any] = {}
    if params:
        outputs, gradients = compiled.evaluate(params, data, True)
    else:
        outputs = compiled.evaluate(params, data)
    value = outputs["output"]
    _check_number(value.shape)
    zeros = [backend.zeros(arrays[i].shape, dtype=str(arrays[i].dtype)) for i in places]
    return value, [gradients.get(names[i], zero) for i, zero in zip(places, zeros, strict=True)]


def _connect(backend: Backend, function: Any, positions: list[int], args: Sequence[Any]) -> tuple[Any, list[Any]]:
    places = [i for i, a in enumerate(args) if isinstance(a, _core.Connection)]
    if any(i not in places for i in positions):
        raise InvalidValueError(
            "inside a traced function, gradients are with respect to what is traced",
            hint="choose argnums among the arguments that are connections",
        )
    names = dict(zip(places, _fresh(len(places)), strict=True))
    inputs = list(args)
    for i, name in names.items():
        part = _core.Model.create(output=args[i])
        shape, dtype = part.shape_of("output"), part.dtype_of("output")
        inputs[i] = _core.Connection.input(name, shape, dtype or str(backend.default_dtype))
    model = _traced(
        lambda *values: function(*_merge(args, places, values)), [inputs[i] for i in places], list(names.values())
    )
    core = _core.compile(model, str(backend.default_dtype), {"training": True})
    _check_number(core.output_type("output")[1])
    connections = {**_active.get({}), **{name: args[i] for i, name in names.items()}}
    used = [i for i in positions if names[i] in model.input_keys]
    value, gradients = core.lift_gradient([names[i] for i in used], connections)
    by_index = dict(zip(used, gradients, strict=True))
    return value, [by_index[i] if i in by_index else args[i] * 0.0 for i in positions]


def _merge(args: Sequence[Any], places: list[int], values: Sequence[Any]) -> list[Any]:
    merged = list(args)
    for i, value in zip(places, values, strict=True):
        merged[i] = value
    return merged


def _check_number(shape: Sequence[Any]) -> None:
    if tuple(shape) != ():
        raise InvalidValueError(
            f"the function returns shape {list(shape)}", hint="return one number, e.g. its reduce_sum"
        )
