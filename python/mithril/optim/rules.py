"""The optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import InvalidValueError
from .checks import between
from .optimizer import Optimizer

__all__ = ["SGD", "Adam", "AdamW"]


class SGD(Optimizer):
    """Stochastic gradient descent.

    Parameters
    ----------
    learning_rate : float or callable
        Size of a step, or a function of the number of the step.
    momentum : float, optional
        Share of the last step's direction that is kept.
    nesterov : bool, optional
        Look ahead along the momentum (Nesterov 1983).
    weight_decay : float, optional
        Times the parameter, added to the gradient.
    """

    def __init__(
        self,
        learning_rate: float | Callable[[int], float] = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(learning_rate, weight_decay)
        between("momentum", momentum, 0.0, 1.0)
        if nesterov and momentum == 0.0:
            raise InvalidValueError("nesterov needs a momentum", hint="e.g. momentum=0.9")
        self.momentum = momentum
        self.nesterov = nesterov

    def _slots(self, param: Any) -> dict[str, Any]:
        return {"momentum": 0.0 * param} if self.momentum else {}

    def _new(
        self, param: Any, gradient: Any, slots: dict[str, Any], step: int, rate: float
    ) -> tuple[Any, dict[str, Any]]:
        if self.weight_decay:
            gradient = gradient + self.weight_decay * param
        if not self.momentum:
            return param - rate * gradient, slots
        velocity = self.momentum * slots["momentum"] + gradient
        direction = gradient + self.momentum * velocity if self.nesterov else velocity
        return param - rate * direction, {"momentum": velocity}


class Adam(Optimizer):
    """Adaptive moments (Kingma and Ba 2014), with corrected bias.

    Parameters
    ----------
    learning_rate : float or callable
        Size of a step, or a function of the number of the step.
    betas : (float, float), optional
        Shares of the running means of the gradient and of its square that are kept.
    eps : float, optional
        Added to the root of the mean square.
    weight_decay : float, optional
        Times the parameter, added to the gradient.
    """

    def __init__(
        self,
        learning_rate: float | Callable[[int], float] = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(learning_rate, weight_decay)
        if len(betas) != 2:
            raise InvalidValueError(f"betas is {betas!r}", hint="give two numbers, e.g. (0.9, 0.999)")
        for beta in betas:
            between("betas", beta, 0.0, 1.0)
        between("eps", eps, 0.0)
        self.betas = betas
        self.eps = eps

    def _slots(self, param: Any) -> dict[str, Any]:
        return {"mean": 0.0 * param, "square": 0.0 * param}

    def _new(
        self, param: Any, gradient: Any, slots: dict[str, Any], step: int, rate: float
    ) -> tuple[Any, dict[str, Any]]:
        if self.weight_decay:
            gradient = gradient + self.weight_decay * param
        return self._adapted(param, gradient, slots, step, rate)

    def _adapted(
        self, param: Any, gradient: Any, slots: dict[str, Any], step: int, rate: float
    ) -> tuple[Any, dict[str, Any]]:
        first, second = self.betas
        mean = first * slots["mean"] + (1.0 - first) * gradient
        square = second * slots["square"] + (1.0 - second) * (gradient * gradient)
        root = (square / (1.0 - second**step)) ** 0.5
        return param - (rate / (1.0 - first**step)) * mean / (root + self.eps), {"mean": mean, "square": square}


class AdamW(Adam):
    """Adam with weight decay of its own (Loshchilov and Hutter 2017): parameters shrink whatever the gradient is.

    Parameters
    ----------
    learning_rate : float or callable
        Size of a step, or a function of the number of the step.
    betas : (float, float), optional
        As for `Adam`.
    eps : float, optional
        As for `Adam`.
    weight_decay : float, optional
        Share of a parameter, times the learning rate, that it loses in a step.
    """

    def __init__(
        self,
        learning_rate: float | Callable[[int], float] = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(learning_rate, betas, eps, weight_decay)

    def _new(
        self, param: Any, gradient: Any, slots: dict[str, Any], step: int, rate: float
    ) -> tuple[Any, dict[str, Any]]:
        return self._adapted((1.0 - rate * self.weight_decay) * param, gradient, slots, step, rate)
