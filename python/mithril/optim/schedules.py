"""Schedules: learning rates as functions of the number of the step.

The first step is 1, and has the rate that the schedule starts from. A schedule is a plain callable, so that it may be
the ``learning_rate`` of any optimizer; any function of one's own will do as well.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidValueError, ParameterError
from .checks import between, positive, whole

__all__ = ["Constant", "Cosine", "Exponential", "Linear", "OneCycle", "Plateau", "Polynomial", "Step", "WarmUp"]


@dataclass(frozen=True)
class Constant:
    """The same rate always.

    Parameters
    ----------
    rate : float
        The rate.

    Examples
    --------
    >>> import mithril as ml
    >>> ml.optim.schedules.Constant(0.1)(7)
    0.1
    """

    rate: float

    def __post_init__(self) -> None:
        between("rate", self.rate, 0.0)

    def __call__(self, step: int) -> float:
        """Return the rate of a step."""
        return float(self.rate)


@dataclass(frozen=True)
class Linear:
    """From one rate to another along a line, and there to stay.

    Parameters
    ----------
    start, end : float
        The rates.
    steps : int
        After so many steps the end is reached.

    Examples
    --------
    >>> import mithril as ml
    >>> schedule = ml.optim.schedules.Linear(1.0, 0.0, steps=4)
    >>> [schedule(step) for step in range(1, 7)]
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        between("start", self.start, 0.0)
        between("end", self.end, 0.0)
        whole("steps", self.steps, 1)

    def __call__(self, step: int) -> float:
        """Return the rate of a step."""
        return self.start + (self.end - self.start) * _share(step, self.steps)


@dataclass(frozen=True)
class Cosine:
    """From a rate to the end along half a cosine, and there to stay (Loshchilov and Hutter 2016).

    Parameters
    ----------
    rate : float
        The first rate.
    steps : int
        After so many steps the end is reached.
    end : float, optional
        The last rate.

    Examples
    --------
    >>> import mithril as ml
    >>> schedule = ml.optim.schedules.Cosine(0.2, steps=10)
    >>> [round(schedule(step), 3) for step in (1, 6, 11, 100)]
    [0.2, 0.1, 0.0, 0.0]
    """

    rate: float
    steps: int
    end: float = 0.0

    def __post_init__(self) -> None:
        between("rate", self.rate, 0.0)
        whole("steps", self.steps, 1)
        between("end", self.end, 0.0)

    def __call__(self, step: int) -> float:
        """Return the rate of a step."""
        return _cosine(self.rate, self.end, _share(step, self.steps))


@dataclass(frozen=True)
class Polynomial:
    """From a rate to the end as a power of what is left, and there to stay.

    Parameters
    ----------
    rate : float
        The first rate.
    steps : int
        After so many steps the end is reached.
    power : float, optional
        The exponent; 1 is a line.
    end : float, optional
        The last rate.

    Examples
    --------
    >>> import mithril as ml
    >>> ml.optim.schedules.Polynomial(1.0, steps=4, power=2.0)(3)
    0.25
    """

    rate: float
    steps: int
    power: float = 1.0
    end: float = 0.0

    def __post_init__(self) -> None:
        between("rate", self.rate, 0.0)
        whole("steps", self.steps, 1)
        positive("power", self.power)
        between("end", self.end, 0.0)

    def __call__(self, step: int) -> float:
        """Return the rate of a step."""
        left: float = (1.0 - _share(step, self.steps)) ** self.power
        return self.end + (self.rate - self.end) * left


@dataclass(frozen=True)
class Exponential:
    """Times a factor in every step.

    Parameters
    ----------
    rate : float
        The first rate.
    factor : float
        Of the next rate and the one before.

    Examples
    --------
    >>> import mithril as ml
    >>> ml.optim.schedules.Exponential(1.0, factor=0.5)(4)
    0.125
    """

    rate: float
    factor: float

    def __post_init__(self) -> None:
        between("rate", self.rate, 0.0)
        positive("factor", self.factor)

    def __call__(self, step: int) -> float:
        """Return the rate of a step."""
        return float(self.rate * self.factor ** (step - 1))


@dataclass(frozen=True)
class Step:
    """Times a factor now and then.

    Parameters
    ----------
    rate : float
        The first rate.
    every : int or sequence of int
        The number of steps of one rate; or after which steps it changes.
    factor : float, optional
        Of the next rate and the one before.

    Examples
    --------
    >>> import mithril as ml
    >>> schedule = ml.optim.schedules.Step(1.0, every=2, factor=0.5)
    >>> [schedule(step) for step in range(1, 6)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    >>> ml.optim.schedules.Step(1.0, every=[2, 10], factor=0.5)(11)
    0.25
    """

    rate: float
    every: int | Sequence[int]
    factor: float = 0.1

    def __post_init__(self) -> None:
        between("rate", self.rate, 0.0)
        positive("factor", self.factor)
        if not isinstance(self.every, Sequence) or isinstance(self.every, str):
            whole("every", self.every, 1)
            return
        for step in self.every:
            whole("every", step, 1)
        if list(self.every) != sorted(self.every):
            raise InvalidValueError(f"every is {self.every!r}", hint="give the steps in order")

    def __call__(self, step: int) -> float:
        """Return the rate of a step."""
        done = step - 1
        changes = bisect_right(self.every, done) if isinstance(self.every, Sequence) else done // self.every
        return float(self.rate * self.factor**changes)


@dataclass(frozen=True)
class OneCycle:
    """Up to a rate and down again, both along half a cosine (Smith and Topin 2017).

    Parameters
    ----------
    rate : float
        The largest rate.
    steps : int
        The number of all steps.
    rising : float, optional
        The share of the steps in which the rate rises.
    start_factor : float, optional
        What the largest rate is divided by for the first one.
    end_factor : float, optional
        What the first rate is divided by for the last one.

    Examples
    --------
    >>> import mithril as ml
    >>> schedule = ml.optim.schedules.OneCycle(1.0, steps=10, rising=0.5)
    >>> [round(schedule(step), 3) for step in (1, 5, 10)]
    [0.04, 1.0, 0.0]
    """

    rate: float
    steps: int
    rising: float = 0.3
    start_factor: float = 25.0
    end_factor: float = 1e4

    def __post_init__(self) -> None:
        between("rate", self.rate, 0.0)
        whole("steps", self.steps, 2)
        between("rising", self.rising, 0.0, 1.0)
        positive("start_factor", self.start_factor)
        positive("end_factor", self.end_factor)

    def __call__(self, step: int) -> float:
        """Return the rate of a step."""
        start = self.rate / self.start_factor
        top, last, done = self.rising * self.steps - 1, self.steps - 1, min(step - 1, self.steps - 1)
        if done <= top:
            return _cosine(start, self.rate, done / top if top > 0 else 1.0)
        return _cosine(self.rate, start / self.end_factor, (done - top) / (last - top))


@dataclass(frozen=True)
class WarmUp:
    """Another schedule, after a rise to its first rate along a line.

    Parameters
    ----------
    schedule : callable
        What follows; its step 1 comes after the rise.
    steps : int
        The number of steps of the rise.
    start : float, optional
        The first rate.

    Examples
    --------
    >>> import mithril as ml
    >>> schedules = ml.optim.schedules
    >>> schedule = schedules.WarmUp(schedules.Cosine(1.0, steps=8), steps=2)
    >>> [round(schedule(step), 3) for step in (1, 2, 3, 7, 11)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    schedule: Callable[[int], float]
    steps: int
    start: float = 0.0

    def __post_init__(self) -> None:
        if not callable(self.schedule):
            raise InvalidValueError(f"the schedule is {self.schedule!r}", hint="pass e.g. schedules.Constant(0.1)")
        whole("steps", self.steps, 1)
        between("start", self.start, 0.0)

    def __call__(self, step: int) -> float:
        """Return the rate of a step."""
        if step > self.steps:
            return self.schedule(step - self.steps)
        return self.start + (self.schedule(1) - self.start) * _share(step, self.steps)


@dataclass
class Plateau:
    """Times a factor whenever a measure stops getting better: tell it by `observe`.

    What it remembers is part of the state of the optimizer that has it.

    Parameters
    ----------
    rate : float
        The first rate.
    factor : float, optional
        Of the next rate and the one before.
    patience : int, optional
        So many measures in a row may be no better.
    threshold : float, optional
        The share by which a measure must be better to count.
    cooldown : int, optional
        After a change so many measures are not counted.
    least : float, optional
        The smallest rate.
    largest : bool, optional
        Whether larger is better (default False).

    Examples
    --------
    >>> import mithril as ml
    >>> schedule = ml.optim.schedules.Plateau(1.0, factor=0.5, patience=1)
    >>> for loss in (3.0, 2.0, 2.0, 2.0):
    ...     schedule.observe(loss)
    >>> schedule(1)
    0.5
    """

    rate: float
    factor: float = 0.1
    patience: int = 10
    threshold: float = 1e-4
    cooldown: int = 0
    least: float = 0.0
    largest: bool = False
    _best: float = field(default=math.inf, init=False, repr=False)
    _bad: int = field(default=0, init=False, repr=False)
    _cooling: int = field(default=0, init=False, repr=False)
    _current: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        between("rate", self.rate, 0.0)
        positive("factor", self.factor)
        between("factor", self.factor, 0.0, 1.0)
        whole("patience", self.patience, 0)
        between("threshold", self.threshold, 0.0)
        whole("cooldown", self.cooldown, 0)
        between("least", self.least, 0.0)
        self._current = float(self.rate)
        self._best = -math.inf if self.largest else math.inf

    def __call__(self, step: int) -> float:
        """Return the rate of a step."""
        return self._current

    def observe(self, measure: float) -> None:
        """Take a measure, such as the loss of an epoch."""
        measure = float(measure)
        sign = 1.0 if self.largest else -1.0
        bound = self._best * (1.0 + sign * self.threshold)
        # A measure that is not a number is never better.
        if (measure > bound) if self.largest else (measure < bound):
            self._best, self._bad = measure, 0
        else:
            self._bad += 1
        if self._cooling:
            self._cooling, self._bad = self._cooling - 1, 0
        if self._bad > self.patience:
            self._current = max(self._current * self.factor, self.least)
            self._cooling, self._bad = self.cooldown, 0

    def state_dict(self) -> dict[str, float]:
        """Return what it remembers."""
        return {"rate": self._current, "best": self._best, "bad": self._bad, "cooling": self._cooling}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; nothing starts anew."""
        if not state:
            self.__post_init__()
            self._bad = self._cooling = 0
            return
        if set(state) != {"rate", "best", "bad", "cooling"}:
            raise ParameterError(
                f"the state of the schedule holds {', '.join(sorted(state))}", hint="it belongs to another schedule"
            )
        self._current, self._best = float(state["rate"]), float(state["best"])
        self._bad, self._cooling = int(state["bad"]), int(state["cooling"])


def _share(step: int, steps: int) -> float:
    """Share of the way that is done before a step."""
    return min(max(step - 1, 0), steps) / steps


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1.0 + math.cos(math.pi * share)) / 2.0
