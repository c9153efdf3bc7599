"""Optimizers of the frameworks with the interface of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidValueError
from .checks import check_arrays

__all__ = ["from_mlx"]


class _FromMlx:
    """An optimizer of MLX that returns the new parameters; see `from_mlx`."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def update(self, params: Mapping[str, Any], gradients: Mapping[str, Any]) -> dict[str, Any]:
        """Take a step; see `Optimizer.update`."""
        check_arrays(params, gradients)
        trained = {name: value for name, value in params.items() if name in gradients}
        found = self.optimizer.apply_gradients({name: gradients[name] for name in trained}, trained)
        return {name: found.get(name, value) for name, value in params.items()}

    def apply_gradients(self, gradients: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        """As `update`, with the arguments in the order of ``mlx.optimizers``."""
        return self.update(params, gradients)


def from_mlx(optimizer: Any) -> _FromMlx:
    """Wrap an optimizer of ``mlx.optimizers``, so that `update` returns the new parameters.

    Parameters
    ----------
    optimizer : mlx.optimizers.Optimizer
        Its own ``update`` changes the dict that it is given and returns None.

    Returns
    -------
    object
        With ``update(params, gradients)`` and ``apply_gradients(gradients, params)``, as `Optimizer`.
    """
    if not callable(getattr(optimizer, "apply_gradients", None)) or isinstance(optimizer, type):
        raise InvalidValueError(
            f"{optimizer!r} is no optimizer of MLX", hint="pass e.g. mlx.optimizers.Adam(learning_rate=0.001)"
        )
    return _FromMlx(optimizer)
