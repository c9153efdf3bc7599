"""Optimizers: from parameters and gradients to better parameters, on the arrays of any backend.

They use nothing but the operators of arrays. An optimizer keeps what it remembers (momenta) by parameter name.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .errors import InvalidValueError, ParameterError

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "from_mlx"]


class Optimizer(ABC):
    """Common part of the optimizers.

    Attributes
    ----------
    learning_rate : float or callable
        Size of a step; a callable is given the number of the step, from 1 on.
    steps : int
        Steps taken so far.
    state : dict
        Parameter name to what is remembered of it.
    """

    def __init__(self, learning_rate: float | Callable[[int], float], weight_decay: float = 0.0) -> None:
        if not callable(learning_rate):
            _between("learning_rate", learning_rate, 0.0)
        _between("weight_decay", weight_decay, 0.0)
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.steps = 0
        self.state: dict[str, Any] = {}

    def update(self, params: Mapping[str, Any], gradients: Mapping[str, Any]) -> dict[str, Any]:
        """Take a step.

        Parameters
        ----------
        params : mapping
            Parameter name to array; not changed.
        gradients : mapping
            Parameter name to the gradient of what is minimised; parameters without one stay as they are.

        Returns
        -------
        dict
            The new parameters.

        Examples
        --------
        >>> import mithril as ml
        >>> import numpy as np
        >>> optimizer = ml.optim.SGD(learning_rate=0.5)
        >>> optimizer.update({"w": np.array([1.0, 2.0])}, {"w": np.array([1.0, -1.0])})
        {'w': array([0.5, 2.5])}
        """
        _check(params, gradients)
        rate = self.learning_rate(self.steps + 1) if callable(self.learning_rate) else self.learning_rate
        # All of the new state first: an error leaves the optimizer as it was.
        found = {name: self._step(p, gradients, name, float(rate)) for name, p in params.items() if name in gradients}
        self.steps += 1
        self.state.update({name: kept for name, (_, kept) in found.items()})
        return {name: found[name][0] if name in found else value for name, value in params.items()}

    def apply_gradients(self, gradients: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        """As `update`, with the arguments in the order of ``mlx.optimizers``."""
        return self.update(params, gradients)

    def _step(self, param: Any, gradients: Mapping[str, Any], name: str, rate: float) -> tuple[Any, Any]:
        return self._new(param, gradients[name], self.state.get(name), rate)

    @abstractmethod
    def _new(self, param: Any, gradient: Any, kept: Any, rate: float) -> tuple[Any, Any]:
        """Return the new parameter, and what is to be remembered of it; ``kept`` is None at first."""


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
        _between("momentum", momentum, 0.0, 1.0)
        if nesterov and momentum == 0.0:
            raise InvalidValueError("nesterov needs a momentum", hint="e.g. momentum=0.9")
        self.momentum = momentum
        self.nesterov = nesterov

    def _new(self, param: Any, gradient: Any, kept: Any, rate: float) -> tuple[Any, Any]:
        if self.weight_decay:
            gradient = gradient + self.weight_decay * param
        if not self.momentum:
            return param - rate * gradient, None
        velocity = gradient if kept is None else self.momentum * kept + gradient
        direction = gradient + self.momentum * velocity if self.nesterov else velocity
        return param - rate * direction, velocity


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
            _between("betas", beta, 0.0, 1.0)
        _between("eps", eps, 0.0)
        self.betas = betas
        self.eps = eps

    def _new(self, param: Any, gradient: Any, kept: Any, rate: float) -> tuple[Any, Any]:
        if self.weight_decay:
            gradient = gradient + self.weight_decay * param
        return self._adapted(param, gradient, kept, rate)

    def _adapted(self, param: Any, gradient: Any, kept: Any, rate: float) -> tuple[Any, Any]:
        first, second = self.betas
        # The number of this parameter's own steps: it may have got no gradient in some.
        mean, square, steps = (0.0 * gradient, 0.0 * gradient, 0) if kept is None else kept
        steps += 1
        mean = first * mean + (1.0 - first) * gradient
        square = second * square + (1.0 - second) * (gradient * gradient)
        root = (square / (1.0 - second**steps)) ** 0.5
        return param - (rate / (1.0 - first**steps)) * mean / (root + self.eps), (mean, square, steps)


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

    def _new(self, param: Any, gradient: Any, kept: Any, rate: float) -> tuple[Any, Any]:
        return self._adapted((1.0 - rate * self.weight_decay) * param, gradient, kept, rate)


class _FromMlx:
    """An optimizer of MLX that returns the new parameters; see `from_mlx`."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def update(self, params: Mapping[str, Any], gradients: Mapping[str, Any]) -> dict[str, Any]:
        """Take a step; see `Optimizer.update`."""
        _check(params, gradients)
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


def _between(name: str, value: Any, low: float, high: float | None = None) -> None:
    """Refuse what is no finite number from ``low`` on, and below ``high``."""
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not number or not np.isfinite(value) or value < low or (high is not None and value >= high):
        span = f"from {low:g} on" if high is None else f"from {low:g} to below {high:g}"
        raise InvalidValueError(f"{name} is {value!r}", hint=f"give a number {span}")


def _check(params: Mapping[str, Any], gradients: Mapping[str, Any]) -> None:
    for label, given in (("params", params), ("gradients", gradients)):
        if not isinstance(given, Mapping):
            raise ParameterError(f"{label} is a {type(given).__name__}", hint="pass a dict of arrays by name")
    for name, gradient in gradients.items():
        if name not in params:
            near = difflib.get_close_matches(str(name), params, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "the order is update(params, gradients)"
            raise ParameterError(f"there is a gradient of {name!r}, which is no parameter", hint=hint)
        param = params[name]
        shapes = [list(getattr(array, "shape", ())) for array in (param, gradient)]
        # Broadcasting would make the parameter larger, without a word.
        if shapes[0] != shapes[1]:
            raise ParameterError(f"parameter {name!r} has shape {shapes[0]}, its gradient {shapes[1]}")
        kinds = [isinstance(array, (np.ndarray, np.generic)) for array in (param, gradient)]
        if kinds[0] != kinds[1]:
            raise ParameterError(
                f"parameter {name!r} is a {type(param).__name__}, its gradient a {type(gradient).__name__}",
                hint="both come from one backend; see ml.transfer",
            )
