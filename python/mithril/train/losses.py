"""What is minimised: an output of the model, or a loss by name that is added to it."""

from __future__ import annotations

import copy
from collections.abc import Callable

from .._core import IOKey, Model
from .._generated import layers
from ..errors import InvalidValueError
from ..physical import PhysicalModel

__all__ = ["LOSSES", "add_loss", "for_validation"]


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


def add_loss(model: PhysicalModel, loss: str | None) -> tuple[PhysicalModel, str, str]:
    """Return the model with its loss as an output.

    Parameters
    ----------
    model : PhysicalModel
        What is trained.
    loss : str or None
        An output, or one of `LOSSES`. Default: the output ``loss`` if there is one, else the cross entropy.

    Returns
    -------
    (PhysicalModel, str, str)
        The model to be trained, the name of its output that is the loss, and what was chosen.
    """
    outputs = model.output_keys
    wanted = loss if loss is not None else "loss" if "loss" in outputs else "cross_entropy"
    if wanted in outputs:
        return model, wanted, wanted
    if wanted not in LOSSES:
        known = ", ".join(map(repr, (*LOSSES, *outputs)))
        raise InvalidValueError(f"loss is {wanted!r}", hint=f"give one of {known}")
    if len(outputs) != 1:
        raise InvalidValueError(
            f"the model has the outputs {', '.join(outputs)}", hint="add the loss to the model, as an output `loss`"
        )
    logical = copy.copy(model._model)
    logical |= LOSSES[wanted]()(input=IOKey(outputs[0], expose=True), target="target", output="mithril_loss")
    return _like(model, logical, training=model._options["training"]), "mithril_loss", wanted


def for_validation(trained: PhysicalModel) -> PhysicalModel:
    """Return the same model compiled for inference: nothing is dropped, running statistics are used."""
    return _like(trained, trained._model, training=False)


def _like(model: PhysicalModel, logical: Model, *, training: bool) -> PhysicalModel:
    options = {**model._options, "tolerated": tuple(model._tolerated), "training": training}
    return PhysicalModel(logical, model.backend, options, model._settings)
