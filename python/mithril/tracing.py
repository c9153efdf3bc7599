"""Tracing: functions over backend ops become models, for `Lambda` and for the gradients of functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import _core
from .errors import InvalidValueError

if TYPE_CHECKING:
    from .backends.backend import Backend

__all__ = ["Lambda", "trace", "value_and_grad"]


def trace(function: Callable[..., Any], names: Sequence[str]) -> Any:
    """Call a function on connections; what it returns is connections too."""
    inputs = [_core.Connection.input(name) for name in names]
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


def Lambda(function: Callable[..., Any], name: str | None = None) -> _core.Model:
    """Make a layer of a function over backend ops.

    The function is traced once, into ordinary ops: the layer is differentiable, runs on every backend and can
    be saved.

    Parameters
    ----------
    function : callable
        Takes one connection per input and returns one, or a tuple of them.
    name : str, optional
        Name of the layer.

    Returns
    -------
    Model
        Its inputs are called like the parameters of the function (one alone: ``input``), its outputs
        ``output`` or ``output_0``, ``output_1`` …

    Examples
    --------
    >>> import mithril as ml
    >>> backend = ml.NumpyBackend()
    >>> model = ml.Model()
    >>> model |= ml.Lambda(lambda x: backend.maximum(0.01 * x, x))(input="input", output="output")
    >>> ml.compile(model, backend, shapes={"input": [2]})([-1.0, 2.0])
    array([-0.01,  2.  ], dtype=float32)
    """
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds]
    names = ["input"] if len(parameters) == 1 else parameters
    result = trace(function, names)
    outputs = result if isinstance(result, (tuple, list)) else (result,)
    for output in outputs:
        if not isinstance(output, _core.Connection):
            raise InvalidValueError(
                f"the function returns a {type(output).__name__}", hint="return what backend ops return"
            )
    keys = ["output"] if len(outputs) == 1 else [f"output_{i}" for i in range(len(outputs))]
    model = _core.Model.create(**dict(zip(keys, outputs, strict=True)))
    if name is not None:
        model.name = name
    return model


def value_and_grad(backend: Backend, function: Callable[..., Any], argnums: int | Sequence[int]) -> Callable[..., Any]:
    """Trace a function into a model and differentiate that."""
    from .compiling import compile

    single = isinstance(argnums, int)
    wanted = [argnums] if isinstance(argnums, int) else list(argnums)

    def with_gradient(*args: Any) -> tuple[Any, Any]:
        arrays = [backend.array(a) for a in args]
        names = [f"x{i}" for i in range(len(arrays))]
        result = trace(function, names)
        if not isinstance(result, _core.Connection):
            raise InvalidValueError(
                f"the function returns a {type(result).__name__}", hint="return one number, made by ops of the backend"
            )
        model = _core.Model.create(output=result)
        used = set(model.input_keys)
        trainable = [names[i] for i in wanted if names[i] in used]
        compiled = compile(
            model,
            backend,
            shapes={n: a.shape for n, a in zip(names, arrays, strict=True) if n in used},
            dtypes={n: str(a.dtype) for n, a in zip(names, arrays, strict=True) if n in used},
            trainable_keys=trainable,
        )
        by_name = dict(zip(names, arrays, strict=True))
        params = {n: by_name[n] for n in trainable}
        data = {n: a for n, a in by_name.items() if n in used and n not in params}
        if not trainable:
            value = compiled.evaluate(params, data)["output"]
            gradients: dict[str, Any] = {}
        else:
            outputs, gradients = compiled.evaluate(params, data, True)
            value = outputs["output"]
        if value.shape != ():
            raise InvalidValueError(
                f"the function returns shape {list(value.shape)}", hint="return one number, e.g. its reduce_sum"
            )
        found = [gradients.get(names[i], backend.zeros(arrays[i].shape)) for i in wanted]
        return value, found[0] if single else tuple(found)

    return with_gradient
