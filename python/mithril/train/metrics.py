"""How good a model is: numbers computed on the host from what it gives and what is wanted."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core import Model
from ..errors import InvalidValueError, ParameterError
from .batches import examples_of

if TYPE_CHECKING:
    from ..backends.backend import Backend

__all__ = [
    "Meter",
    "Metric",
    "accuracy",
    "cross_entropy",
    "mean_absolute_error",
    "mean_squared_error",
    "number_of",
    "read_metrics",
]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Metric:
    """A number that says how good a model is.

    Attributes
    ----------
    name : str
        What it is called in the history; there the validation has ``val_`` in front.
    function : callable
        Called as ``function(output, target)`` with NumPy arrays of a batch; returns the mean over its examples. A model
        with several outputs, or whose data have no ``target``, gives dicts of arrays by name.
    higher_is_better : bool
        Which of two values is the better one.
    finish : callable or None
        Applied to the mean over all examples, where the mean itself is not what is wanted.
    layer : Model or None
        A layer that measures the model as a part of it, instead of the function.

    Examples
    --------
    >>> import mithril as ml
    >>> ml.train.Metric("bias", lambda output, target: (output - target).mean())
    Metric('bias')
    """

    name: str
    function: Callable[[Any, Any], Any]
    higher_is_better: bool = False
    finish: Callable[[float], float] | None = None
    layer: Model | None = None

    @property
    def output(self) -> str:
        """The output that a layer becomes."""
        return f"mithril_metric_{self.name}"

    def __call__(self, output: Any, target: Any) -> float:
        """Compute it for a batch."""
        value = np.asarray(self.function(output, target))
        if value.shape != () or value.dtype.kind not in "biuf":
            raise InvalidValueError(
                f"the metric {self.name} of a batch is {value!r}", hint="return one number: a mean over the examples"
            )
        return float(value)

    def __repr__(self) -> str:
        return f"Metric({self.name!r})"


def accuracy(output: Array, target: Array, axis: int | None = -1, top: int = 1) -> float:
    """Return the share of the targets that are hit.

    Parameters
    ----------
    output : ndarray
        Logits or probabilities of classes; without an axis of classes, logits of something being true.
    target : ndarray
        Numbers of the right classes, or probabilities of the shape of the output; or booleans.
    axis : int or None, optional
        Axis of the classes; None if there are none.
    top : int, optional
        It is a hit if the right class is among so many of the most probable.

    Examples
    --------
    >>> import numpy as np
    >>> from mithril.train.metrics import accuracy
    >>> accuracy(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1]))
    0.5
    """
    if axis is None:
        if target.shape != output.shape:
            raise _do_not_fit(output, target)
        return float(np.mean((output > 0) == (target > 0.5)))
    logits, right = _classes(output, target, axis)
    if top == 1:
        return float(np.mean(logits.argmax(-1) == right))
    chosen = np.take_along_axis(logits, right.astype(np.int64)[..., None], -1)
    return float(np.mean((logits > chosen).sum(-1) < top))


def cross_entropy(output: Array, target: Array, axis: int | None = -1) -> float:
    """Return the mean cross entropy of logits and numbers of classes, in nats."""
    logits, right = _classes(output.astype(np.float64), target, -1 if axis is None else axis)
    logits = logits - logits.max(-1, keepdims=True)
    chosen = np.take_along_axis(logits, right.astype(np.int64)[..., None], -1)[..., 0]
    return float(np.mean(np.log(np.exp(logits).sum(-1)) - chosen))


def _classes(output: Array, target: Array, axis: int) -> tuple[Array, Array]:
    """Return the output with its classes along the last axis, and the numbers of the right ones."""
    logits = np.moveaxis(output, axis, -1) if output.ndim > 1 else output
    if output.ndim and target.shape == output.shape:
        return logits, np.asarray((np.moveaxis(target, axis, -1) if output.ndim > 1 else target).argmax(-1))
    if not output.ndim or logits.shape[:-1] != target.shape:
        raise _do_not_fit(output, target)
    return logits, target


def mean_squared_error(output: Array, target: Array) -> float:
    """Return the mean of the squared differences."""
    return float(np.mean(np.square(_difference(output, target))))


def mean_absolute_error(output: Array, target: Array) -> float:
    """Return the mean of the absolute differences."""
    return float(np.mean(np.abs(_difference(output, target))))


def _difference(output: Array, target: Array) -> Array:
    # Broadcasting [n, 1] against [n] would compare everything with everything, without a word.
    if output.shape != target.shape:
        raise _do_not_fit(output, target)
    difference: Array = output.astype(np.float64) - target
    return difference


def _do_not_fit(output: Array, target: Array) -> ParameterError:
    return ParameterError(
        f"an output of shape {list(output.shape)} does not fit a target of shape {list(target.shape)}",
        hint="pass a metric of your own: a function of output and target",
    )


def _perplexity(mean: float) -> float:
    return math.exp(mean) if mean < 700 else math.inf


def read_metrics(values: Any, loss: str) -> tuple[Metric, ...]:
    """Make metrics of what a user gives.

    Parameters
    ----------
    values : sequence or mapping
        Names, functions and `Metric`; or names with functions.
    loss : str
        What is minimized: says where the classes are.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidValueError(f"metrics is {values!r}", hint='give a list of them, e.g. ["accuracy"]')
    axis = {"cross_entropy": 1, "bce": None}.get(loss, -1)
    if isinstance(values, Mapping):
        values = [_called(str(name), entry, axis) for name, entry in values.items()]
    metrics = tuple(_metric(entry, axis) for entry in values)
    names = [metric.name for metric in metrics]
    taken = [name for name in names if names.count(name) > 1 or name in _TAKEN]
    if taken:
        raise InvalidValueError(f"a metric cannot be called {taken[0]!r}", hint="that name is taken; give another")
    return metrics


#: What the rows of the history have already.
_TAKEN = ("epoch", "batch", "loss", "learning_rate", "seconds", "examples")


def _called(name: str, entry: Any, axis: int | None) -> Any:
    """Make a metric of that name."""
    if isinstance(entry, Metric):
        return replace(entry, name=name)
    if isinstance(entry, str):
        return replace(_metric(entry, axis), name=name)
    if isinstance(entry, Model):
        return _of_layer(name, entry)
    return Metric(name, entry)


def _of_layer(name: str, layer: Model) -> Metric:
    return Metric(name, lambda output, target: math.nan, layer=layer)


def _metric(entry: Any, axis: int | None) -> Metric:
    if isinstance(entry, Metric):
        return entry
    if isinstance(entry, type) and issubclass(entry, (Model, Metric)):
        raise InvalidValueError(
            f"a metric is the class {entry.__name__}", hint=f"make one of it: {entry.__name__}(...)"
        )
    if isinstance(entry, Model):
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", str(entry.name or entry.kind))
        return _of_layer(words.lower(), entry)
    if callable(entry):
        return Metric(getattr(entry, "__name__", type(entry).__name__), entry)
    if top := re.fullmatch(r"top_([1-9]\d*)", str(entry)):
        return Metric(entry, partial(accuracy, axis=axis, top=int(top[1])), higher_is_better=True)
    known = {
        "accuracy": Metric("accuracy", partial(accuracy, axis=axis), higher_is_better=True),
        "mse": Metric("mse", mean_squared_error),
        "mae": Metric("mae", mean_absolute_error),
        "perplexity": Metric("perplexity", partial(cross_entropy, axis=axis), finish=_perplexity),
    }
    if not isinstance(entry, str) or entry not in known:
        raise InvalidValueError(
            f"there is no metric {entry!r}",
            hint=f"give a layer, a function, top_5 and the like, or one of {', '.join(known)}",
        )
    return known[entry]


def number_of(backend: Backend, name: str, value: Any) -> float:
    """Return the number that an output of a model is."""
    host = backend.engine.to_host(value)
    if host.size != 1:
        raise InvalidValueError(
            f"{name} of a batch has shape {list(host.shape)}",
            hint='it must be one number: a mean over the examples, such as reduction="mean"',
        )
    return float(host.reshape(()))


class Meter:
    """Collects the losses and metrics of batches.

    Attributes
    ----------
    values : dict of list
        Per batch: ``examples``, ``loss``, and the metrics by name.
    """

    def __init__(self, metrics: tuple[Metric, ...], loss: str, backend: Backend) -> None:
        self._metrics, self._loss, self._backend = metrics, loss, backend
        #: Outputs that are not results of the model.
        self._added = {loss, *(metric.output for metric in metrics if metric.layer is not None)}
        self.values: dict[str, list[float]] = {name: [] for name in ("examples", "loss", *(m.name for m in metrics))}

    def __len__(self) -> int:
        return len(self.values["loss"])

    def add(self, outputs: Mapping[str, Any], batch: Mapping[str, Any], loss: float) -> None:
        """Note a batch."""
        self.values["examples"].append(examples_of(batch))
        self.values["loss"].append(loss)
        functions = [metric for metric in self._metrics if metric.layer is None]
        for metric in self._metrics:
            if metric.layer is not None:
                self.values[metric.name].append(number_of(self._backend, metric.name, outputs[metric.output]))
        if not functions:
            return
        to_host = self._backend.engine.to_host
        values: Any = {name: to_host(value) for name, value in outputs.items() if name not in self._added}
        values = next(iter(values.values())) if len(values) == 1 else values
        arrays = {name: to_host(value) for name, value in batch.items()}
        for metric in functions:
            self.values[metric.name].append(metric(values, arrays.get("target", arrays)))

    def row(self, prefix: str = "") -> dict[str, float]:
        """Return the means over all examples, by name."""
        weights = self.values["examples"]
        means = {n: float(np.average(v, weights=weights)) for n, v in self.values.items() if n != "examples"}
        means |= {m.name: m.finish(means[m.name]) for m in self._metrics if m.finish is not None}
        return {prefix + name: mean for name, mean in means.items()}
