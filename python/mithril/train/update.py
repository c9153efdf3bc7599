"""The step of an optimizer in a training, which writes into parameters where they are the training's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..compiled import internals
from ..compiled.donation import Known, alone
from ..compiled.parameters import like
from ..compiled.physical_model import PhysicalModel
from ..optim import Optimizer
from ..optim import internals as optimizers

__all__ = ["Update"]


class Update:
    """Updates the parameters of a training.

    Parameters
    ----------
    optimizer : Optimizer
        Takes the steps; another object with ``update`` gets no parameters to write into.
    model : PhysicalModel
        Whose parameters they are.
    """

    def __init__(self, optimizer: Any, model: PhysicalModel) -> None:
        self._optimizer, self._backend = optimizer, model.backend
        is_whole = internals.program_settings(model).layout is None
        self._donates = (
            is_whole and isinstance(optimizer, Optimizer) and optimizers.writes_params(optimizer, model.backend)
        )
        #: The parameters as the last step left them: all others may be somebody else's, and are copied first.
        self._own: dict[str, Any] = {}
        self._known = Known()

    def __call__(
        self, params: Mapping[str, Any], gradients: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the new parameters; outputs keep their values, also where they are views of parameters."""
        engine = self._backend.engine
        arrays = {name: params[name] for name in gradients if name in params}
        # Other kinds of tensors, such as those that wait for other devices, may have no memory of their own.
        is_plain = all(isinstance(array, engine.array_type) for array in arrays.values()) and all(
            type(gradient) is engine.array_type for gradient in gradients.values()
        )
        if not self._donates or not is_plain:
            updated: Mapping[str, Any] = self._optimizer.update(params, gradients)
            return updated
        own = self._own
        arrays = {name: x if own.get(name) is x else engine.copy(x) for name, x in arrays.items()}
        others = {f"gradient of {name}": array for name, array in gradients.items()}
        others |= {f"output {name}": array for name, array in outputs.items() if type(array) is engine.array_type}
        whole = alone(self._backend, {**arrays, **others}, tuple(arrays), self._known)
        arrays = {name: whole[name] for name in arrays}
        new: Mapping[str, Any] = self._optimizer.update(like(params, {**params, **arrays}), gradients, donate=True)
        self._own = {name: new[name] for name in arrays}
        return new
