"""The step of an optimizer in a training, which writes into parameters where they are the training's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..backends.backend import Backend
from ..compiled.donation import Known, alone
from ..compiled.parameters import like
from ..optim import Optimizer
from ..optim import internals as optimizers

__all__ = ["Update"]


class Update:
    """Updates the parameters of a training.

    Parameters
    ----------
    optimizer : Optimizer
        Takes the steps; another object with ``update`` gets no parameters to write into.
    backend : Backend
        Where the parameters are.
    """

    def __init__(self, optimizer: Any, backend: Backend) -> None:
        self._optimizer, self._backend = optimizer, backend
        self._donates = isinstance(optimizer, Optimizer) and optimizers.writes_params(optimizer, backend)
        #: The parameters as the last step left them: all others may be somebody else's, and are copied first.
        self._own: dict[str, Any] = {}
        self._known = Known()

    def __call__(
        self, params: Mapping[str, Any], gradients: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the new parameters; outputs keep their values, also where they are views of parameters."""
        engine = self._backend.engine
        arrays = {name: params[name] for name in gradients if name in params}
        if not self._donates or not all(isinstance(array, engine.array_type) for array in arrays.values()):
            updated: Mapping[str, Any] = self._optimizer.update(params, gradients)
            return updated
        own = self._own
        arrays = {name: x if own.get(name) is x else engine.copy(x) for name, x in arrays.items()}
        others = {f"gradient of {name}": array for name, array in gradients.items()}
        others |= {f"output {name}": array for name, array in outputs.items() if engine.is_own(array)}
        whole = alone(self._backend, {**arrays, **others}, tuple(arrays), self._known)
        arrays = {name: whole[name] for name in arrays}
        new: Mapping[str, Any] = self._optimizer.update(like(params, {**params, **arrays}), gradients, donate=True)
        self._own = {name: new[name] for name in arrays}
        return new
