"""What is minimized: an output of the model, or a loss that is added to it: by name, as a layer, or as a function."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._core import Connection, IOKey, Model
from .._generated import layers
from ..compiled import internals
from ..compiled.physical_model import PhysicalModel
from ..errors import InvalidValueError
from ..suggestions import did_you_mean

__all__ = ["LOSSES", "LOSS_OUTPUT", "add_loss", "check_number", "for_validation", "title_of"]

#: What a loss that was added is called among the outputs.
LOSS_OUTPUT = "mithril_loss"


def _token_cross_entropy() -> Model:
    """Build the cross entropy with the classes along the last axis, and a target for every place before it."""
    logits, target = IOKey("input"), IOKey("target")
    flat = logits.reshape((-1, logits.shape[-1]))
    loss = Model.create(output=layers.CrossEntropy()(input=flat, target=target.reshape((-1,))))
    loss.name = "token_cross_entropy"
    return loss


#: Name of a loss -> what makes its layer.
LOSSES: dict[str, Callable[[], Model]] = {
    "cross_entropy": layers.CrossEntropy,
    "token_cross_entropy": _token_cross_entropy,
    "mse": layers.MSELoss,
    "l1": layers.L1Loss,
    "bce": layers.BinaryCrossEntropyWithLogits,
}


def add_loss(
    model: PhysicalModel, loss: Any, freeze: Iterable[str] | None = None, metrics: Mapping[str, Model] | None = None
) -> tuple[PhysicalModel, str, str]:
    """Return the model with its loss as an output.

    Parameters
    ----------
    model : PhysicalModel
        What is trained.
    loss : str, Model, callable or None
        An output, one of `LOSSES`, a layer, or a function of connections. Default: the output ``loss`` if there is one,
        else the cross entropy.
    freeze : iterable of str, optional
        Patterns of parameters that stay as they are.
    metrics : mapping, optional
        Layers that measure the model, by the names of the outputs that they become.

    Returns
    -------
    (PhysicalModel, str, str)
        The model to be trained, the name of its output that is the loss, and what was chosen.
    """
    outputs = model.output_keys
    chosen = loss if loss is not None else "loss" if "loss" in outputs else "cross_entropy"
    logical, name = internals.logical_model(model), chosen
    added: dict[str, Any] = dict(metrics or {})
    if not isinstance(chosen, str) or chosen not in outputs:
        added = {LOSS_OUTPUT: chosen, **added}
        name = LOSS_OUTPUT
    if added:
        logical = copy.copy(logical)
    for output, value in added.items():
        layer, ports = _layer(model, value)
        connected = _connected(model, ports, "loss" if output == LOSS_OUTPUT else "metric", isinstance(value, str))
        logical |= layer(**connected, **{layer.output_keys[0]: IOKey(output, expose=True)})
    if not added and freeze is None:
        return model, name, title_of(chosen)
    trained = internals.recompiled(model, logical=logical, freeze=freeze)
    return trained, name, title_of(chosen)


def title_of(loss: Any) -> str:
    """Return what tells a loss apart from others, also in another process: its name, or its layer with its options."""
    if isinstance(loss, str):
        return loss
    if isinstance(loss, Model):
        arguments = getattr(loss, "arguments", None) or {}
        text = ", ".join(f"{key}={value!r}" for key, value in dict(arguments).items())
        return f"{loss.kind}({text})"
    return str(getattr(loss, "__name__", type(loss).__name__))


def _layer(model: PhysicalModel, loss: Any) -> tuple[Model, list[str]]:
    """Return the layer that computes a loss, and its inputs in order."""
    if isinstance(loss, Model) or (isinstance(loss, str) and loss in LOSSES):
        layer = LOSSES[loss]() if isinstance(loss, str) else loss
        if len(layer.output_keys) != 1:
            outputs = ", ".join(layer.output_keys) or "none"
            raise InvalidValueError(f"the loss has not one output but these: {outputs}", hint="give it one")
        learned = set(layer.parameter_keys)
        ports = [name for name in layer.input_keys if name not in learned]
        return layer, ports
    if isinstance(loss, str):
        known = (*LOSSES, *model.output_keys)
        all_known = f"give one of {', '.join(map(repr, known))}, a layer or a function"
        raise InvalidValueError(f"loss is {loss!r}", hint=did_you_mean(loss, known, all_known))
    if isinstance(loss, PhysicalModel):
        raise InvalidValueError("the loss is a compiled model", hint="pass the model that it was compiled from")
    if isinstance(loss, type) and issubclass(loss, Model):
        raise InvalidValueError(f"the loss is the class {loss.__name__}", hint=f"pass a layer: {loss.__name__}()")
    if isinstance(loss, Connection) or not callable(loss):
        raise InvalidValueError(
            f"the loss is a {type(loss).__name__}",
            hint="give a name, a layer such as ml.MSELoss(), or a function of the output and the target",
        )
    return _traced(loss)


def _traced(function: Callable[..., Any]) -> tuple[Model, list[str]]:
    """Build a layer of a function of connections; its parameters are the names of its inputs."""
    title = getattr(function, "__name__", type(function).__name__)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f"the loss {title} does not say what it takes", hint=_FUNCTION) from error
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    required = [p for p in parameters if p.default is inspect.Parameter.empty]
    if not required or any(p.kind not in kinds for p in required):
        raise InvalidValueError(f"the loss {title} does not say by name what it takes", hint=_FUNCTION)
    try:
        keys = {p.name: IOKey(p.name) for p in required}
        output = function(**keys)
    except (TypeError, AttributeError) as error:
        raise InvalidValueError(
            f"the loss {title} cannot be called with connections of a model: {error}", hint=_FUNCTION
        ) from error
    if not isinstance(output, Connection):
        raise InvalidValueError(f"the loss {title} returns a {type(output).__name__}", hint=_FUNCTION)
    if any(output is connection for connection in keys.values()):
        raise InvalidValueError(
            f"the loss {title} returns its argument as it is",
            hint='minimize an output of the model by its name, loss="output", or compute a number of it',
        )
    layer = Model.create(**{LOSS_OUTPUT: output})
    unused = [p.name for p in required if p.name not in layer.input_keys]
    if unused:
        raise InvalidValueError(
            f"the loss {title} does not use {', '.join(map(repr, unused))}", hint="leave out what is not used"
        )
    return layer, [p.name for p in required]


_FUNCTION = "give a function such as lambda output, target: (output - target).abs().mean()"


def _connected(model: PhysicalModel, ports: list[str], what: str, is_named: bool) -> dict[str, Any]:
    """Say what the inputs of a loss read: outputs of the model, its inputs, and further data."""
    outputs, inputs = model.output_keys, set(model.input_keys)
    read = [] if is_named else [name for name in ports if name in outputs and (name != "target" or len(outputs) > 1)]
    connected: dict[str, Any] = {name: IOKey(name, expose=True) for name in read}
    if not read:
        # The first input is what the model gives; inputs called as those of the model are these, if others are left.
        others = [name for name in ports if name != "target"]
        free = [name for name in others if name not in inputs] or others or ports
        if len(outputs) != 1:
            example = f"{what}=lambda {outputs[-1]}, target: ({outputs[-1]} - target).abs().mean()"
            hint = f"call the inputs of the {what} as the outputs that it reads: {example}"
            if is_named:
                hint = f"say which it reads: {example}; or minimize one of them by its name: loss={outputs[-1]!r}"
            raise InvalidValueError(
                f"the model has {len(outputs)} outputs ({', '.join(outputs)}), and the {what} reads one", hint=hint
            )
        if not free:
            raise InvalidValueError(f"the {what} has no input for the output of the model", hint=_FUNCTION)
        connected[free[0]] = IOKey(outputs[0], expose=True)
    left = [name for name in ports if name not in connected and name not in inputs]
    # Whatever a function calls its one further argument, data call it target.
    renamed = {left[0]: "target"} if len(left) == 1 and "target" not in ports else {}
    return {name: connected.get(name, renamed.get(name, name)) for name in ports}


def check_number(trained: PhysicalModel, loss: str) -> None:
    """Raise if what is to be minimized is not one number."""
    shape = internals.known_program(trained).output_types[loss][1]
    if shape != ():
        what = "the loss" if loss == LOSS_OUTPUT else f"the loss {loss!r}"
        raise InvalidValueError(
            f"{what} has shape {list(shape)}, but must be one number",
            hint='take the mean: .mean() of a connection, or reduction="mean" of a layer',
        )


def for_validation(trained: PhysicalModel) -> PhysicalModel:
    """Return the same model compiled for inference: nothing is dropped, running statistics are used."""
    return internals.recompiled(trained, training=False, freeze=None)
