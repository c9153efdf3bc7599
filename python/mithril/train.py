"""Training a compiled model on data: a plain loop over batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ._core import IOKey
from ._generated import layers
from .backends.backend import Backend
from .backends.exchange import to_host
from .errors import InvalidValueError, NumericsError, ParameterError
from .optim import SGD
from .parameters import Parameters
from .physical import PhysicalModel

__all__ = ["train_model"]

#: Name of a loss -> layer.
LOSSES = {"cross_entropy": "CrossEntropy", "mse": "MSELoss", "l1": "L1Loss", "bce": "BinaryCrossEntropyWithLogits"}


def train_model(
    model: PhysicalModel,
    backend: Backend,
    data: Any,
    *,
    loss: str | None = None,
    optimizer: Any = None,
    learning_rate: float = 0.01,
    epochs: int = 1,
    batch_size: int = 32,
    seed: int = 0,
    on_epoch: Callable[[int, float], None] | None = None,
) -> Parameters:
    """Train a model.

    Parameters
    ----------
    model : PhysicalModel
        Compiled for training. Its own parameters (`PhysicalModel.get_parameters`) and state are trained.
    backend : Backend
        The backend that it is compiled for.
    data : mapping or iterable
        Name to array with all examples along the first axis, which are shuffled and cut into batches; or batches:
        mappings, or pairs of input and target. Targets are called ``target``.
    loss : str, optional
        What is minimised: the name of an output that is one number; or ``"cross_entropy"``, ``"mse"``, ``"l1"`` or
        ``"bce"`` of the one output and the target. Default: the output ``loss`` if there is one, else the cross
        entropy.
    optimizer : Optimizer, optional
        Takes the steps; default `SGD` with momentum 0.9.
    learning_rate : float, optional
        That of the default optimizer.
    epochs : int, optional
        How many times all data is used.
    batch_size : int, optional
        Examples per batch, where ``data`` is a mapping; what is left over in the end is left out.
    seed : int, optional
        Seed of the order of the examples.
    on_epoch : callable, optional
        Called after each epoch with its number, from 1 on, and the mean loss of its batches.

    Returns
    -------
    dict
        The trained parameters, those of the model.

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> backend = ml.NumpyBackend()
    >>> model = ml.Model()
    >>> model |= ml.Linear(1)(input="input", output="output")
    >>> compiled = ml.compile(model, backend)
    >>> x = np.linspace(-1, 1, 64)[:, None]
    >>> data = {"input": x, "target": 2 * x + 1}
    >>> params = ml.train.train_model(compiled, backend, data, loss="mse", epochs=100)
    >>> print(params["linear.bias"].round(2))
    [1.]
    """
    _check(model, backend, epochs, batch_size)
    trained, name = _with_loss(model, loss)
    optimizer = SGD(learning_rate, momentum=0.9) if optimizer is None else optimizer
    params: Any = model.get_parameters()
    trained.state = model.state
    for epoch in range(1, epochs + 1):
        losses = []
        for batch in _batches(data, batch_size, np.random.default_rng([seed, epoch])):
            outputs, gradients = trained.evaluate(params, _named(batch, trained), {name: 1.0})
            params = optimizer.update(params, gradients)
            losses.append(float(backend.to_numpy(outputs[name])))
            if not np.isfinite(losses[-1]):
                raise NumericsError(
                    f"the loss of batch {len(losses)} of epoch {epoch} is {losses[-1]}",
                    hint="a smaller learning_rate may help; so may data of mean 0 and variance 1",
                )
        if not losses:
            raise InvalidValueError(f"the data of epoch {epoch} holds no batch", hint=_EMPTY)
        if on_epoch is not None:
            on_epoch(epoch, float(np.mean(losses)))
    return model.load_params({**trained.state, **params})


_EMPTY = "give batch_size examples or more; batches that can be read once only serve one epoch: pass a list"


def _check(model: Any, backend: Any, epochs: Any, batch_size: Any) -> None:
    if not isinstance(model, PhysicalModel):
        raise InvalidValueError(f"the model is a {type(model).__name__}", hint="compile it first: ml.compile(...)")
    if model.backend is not backend:
        raise InvalidValueError(f"the model is compiled for another backend, {model.backend}", hint="pass that")
    for name, value in (("epochs", epochs), ("batch_size", batch_size)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise InvalidValueError(f"{name} is {value!r}", hint="give a positive integer")


def _with_loss(model: PhysicalModel, loss: str | None) -> tuple[PhysicalModel, str]:
    """Return the model with its loss as an output, and the name of that."""
    outputs = model.output_keys
    wanted = loss if loss is not None else "loss" if "loss" in outputs else "cross_entropy"
    if wanted in outputs:
        return model, wanted
    if wanted not in LOSSES:
        known = ", ".join(map(repr, (*LOSSES, *outputs)))
        raise InvalidValueError(f"loss is {wanted!r}", hint=f"give one of {known}")
    if len(outputs) != 1:
        raise InvalidValueError(
            f"the model has the outputs {', '.join(outputs)}", hint="add the loss to the model, as an output `loss`"
        )
    logical = copy.copy(model._model)
    logical |= getattr(layers, LOSSES[wanted])()(
        input=IOKey(outputs[0], expose=True), target="target", output="mithril_loss"
    )
    options = {**model._options, "tolerated": tuple(model._tolerated)}
    return PhysicalModel(logical, model.backend, options, model._settings), "mithril_loss"


def _batches(data: Any, size: int, rng: np.random.Generator) -> Iterator[Any]:
    if not isinstance(data, Mapping):
        if not isinstance(data, Iterable):
            raise ParameterError(f"data is a {type(data).__name__}", hint="pass a dict of arrays, or a list of batches")
        yield from data
        return
    arrays = {name: to_host(value) for name, value in data.items()}
    lengths = {name: len(value) if value.ndim else 0 for name, value in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ParameterError(f"data holds different numbers of examples: {lengths}")
    order = rng.permutation(next(iter(lengths.values()), 0))
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield {name: value[chosen] for name, value in arrays.items()}


def _named(batch: Any, model: PhysicalModel) -> Mapping[str, Any]:
    """Return a batch as a mapping; a pair is the one input and the target."""
    if isinstance(batch, Mapping):
        return batch
    names = [name for name in model.input_keys if name != "target"]
    if not isinstance(batch, (tuple, list)) or len(batch) != 2 or len(names) != 1:
        raise ParameterError(
            f"a batch is a {type(batch).__name__}", hint=f"give dicts with {', '.join(model.input_keys)}"
        )
    return {names[0]: batch[0], "target": batch[1]}
