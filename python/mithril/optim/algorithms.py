"""The optimizers. Their formulas are the rows of the core; see `docs/optimizers.md`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import InvalidValueError
from .checks import between
from .optimizer import LearningRate, Optimizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .optimizer import Common

__all__ = ["SGD", "Adafactor", "Adam", "AdamW", "Lion", "RMSprop"]


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
    dampening : float, optional
        What a gradient lacks in the momentum, from the second step on.
    **common
        As for `Optimizer`.

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> optimizer = ml.optim.SGD(0.5, momentum=0.9)
    >>> print(optimizer.update({"w": np.array([1.0, 2.0])}, {"w": np.array([1.0, -1.0])})["w"].round(3))
    [0.5 2.5]
    """

    _rule_name = "SGD"

    def __init__(
        self,
        learning_rate: LearningRate = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        dampening: float = 0.0,
        **common: Unpack[Common],
    ) -> None:
        options = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay, "dampening": dampening}
        super().__init__(learning_rate, options, **common)


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
    amsgrad : bool, optional
        Divide by the largest mean square so far (Reddi et al. 2018).
    **common
        As for `Optimizer`.

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> optimizer = ml.optim.Adam(0.1)
    >>> print(optimizer.update({"w": np.array([1.0, 2.0])}, {"w": np.array([1.0, -1.0])})["w"].round(3))
    [0.9 2.1]
    """

    _rule_name = "Adam"

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        **common: Unpack[Common],
    ) -> None:
        options = {**_pair("beta", betas), "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        super().__init__(learning_rate, options, **common)


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
    amsgrad : bool, optional
        As for `Adam`.
    **common
        As for `Optimizer`.

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> optimizer = ml.optim.AdamW(0.1, weight_decay=0.5)
    >>> print(optimizer.update({"w": np.array([1.0, 2.0])}, {"w": np.array([1.0, -1.0])})["w"].round(3))
    [0.85 2.  ]
    """

    _rule_name = "AdamW"

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate, betas, eps, weight_decay, amsgrad, **common)


class RMSprop(Optimizer):
    """Gradients divided by their running root mean square (Hinton 2012).

    Parameters
    ----------
    learning_rate : float or callable
        Size of a step, or a function of the number of the step.
    alpha : float, optional
        Share of the mean square that is kept.
    eps : float, optional
        Added to the root.
    weight_decay : float, optional
        Times the parameter, added to the gradient.
    momentum : float, optional
        Share of the last step's direction that is kept.
    centered : bool, optional
        Divide by the standard deviation instead (Graves 2013).
    **common
        As for `Optimizer`.

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> optimizer = ml.optim.RMSprop(0.01)
    >>> print(optimizer.update({"w": np.array([1.0, 2.0])}, {"w": np.array([1.0, -1.0])})["w"].round(3))
    [0.9 2.1]
    """

    _rule_name = "RMSprop"

    def __init__(
        self,
        learning_rate: LearningRate = 0.01,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        **common: Unpack[Common],
    ) -> None:
        options = {"alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum, "centered": centered}
        super().__init__(learning_rate, options, **common)


class Adafactor(Optimizer):
    """Adaptive moments in little memory (Shazeer and Stern 2018): of a matrix, the means of rows and columns.

    Parameters
    ----------
    learning_rate : float or callable
        The largest step relative to the size of a parameter; ``1/√step`` bounds it too.
    decay : float, optional
        Exponent of what the running means lose: ``step**decay``.
    eps : (float, float), optional
        The least root mean square of a gradient, and the least size of a parameter.
    clip : float, optional
        The largest root mean square of a step, before it is scaled.
    weight_decay : float, optional
        Share of a parameter, times the learning rate, that it loses in a step.
    factored : bool, optional
        Remember rows and columns only (default), or all elements.
    **common
        As for `Optimizer`.

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> optimizer = ml.optim.Adafactor(0.1)
    >>> print(optimizer.update({"w": np.array([1.0, 2.0])}, {"w": np.array([1.0, -1.0])})["w"].round(3))
    [0.842 2.158]
    """

    _rule_name = "Adafactor"

    def __init__(
        self,
        learning_rate: LearningRate = 0.01,
        decay: float = -0.8,
        eps: tuple[float, float] = (2.0**-23, 1e-3),
        clip: float = 1.0,
        weight_decay: float = 0.0,
        factored: bool = True,
        **common: Unpack[Common],
    ) -> None:
        options = {"decay": decay, **_pair("eps", eps), "clip": clip, "weight_decay": weight_decay}
        super().__init__(learning_rate, {**options, "factored": factored}, **common)


class Lion(Optimizer):
    """Evolved sign momentum (Chen et al. 2023): every element moves by the learning rate.

    Parameters
    ----------
    learning_rate : float or callable
        Size of a step, or a function of the number of the step.
    betas : (float, float), optional
        Shares of the momentum in the direction, and of the momentum that is kept.
    weight_decay : float, optional
        Share of a parameter, times the learning rate, that it loses in a step.
    **common
        As for `Optimizer`.

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> optimizer = ml.optim.Lion(0.1)
    >>> print(optimizer.update({"w": np.array([1.0, 2.0])}, {"w": np.array([1.0, -1.0])})["w"].round(3))
    [0.9 2.1]
    """

    _rule_name = "Lion"

    def __init__(
        self,
        learning_rate: LearningRate = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate, {**_pair("beta", betas), "weight_decay": weight_decay}, **common)


def _pair(name: str, pair: Any) -> dict[str, Any]:
    plural = "betas" if name == "beta" else name
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise InvalidValueError(f"{plural} is {pair!r}", hint="give two numbers")
    for value in pair:
        between(plural, value, 0.0, 1.0 if name == "beta" else None)
    return {f"{name}1": pair[0], f"{name}2": pair[1]}
