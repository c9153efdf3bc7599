"""From logits to the next token: on the host, with NumPy, so that every backend draws the same tokens.

The steps and their order are those of transformers: repetition penalty, temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ConflictingOptionError, InvalidValueError

__all__ = ["Sampling"]

_Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Parameters
    ----------
    temperature : float, optional
        What logits are divided by before a token is drawn: below 1 likely tokens become likelier. 0 (default):
        the likeliest token is taken, nothing is drawn.
    top_k : int, optional
        Only the ``top_k`` likeliest tokens may be drawn.
    top_p : float, optional
        Only the likeliest tokens that together have at least this probability may be drawn.
    min_p : float, optional
        Only tokens with at least this probability, relative to the likeliest, may be drawn.
    repetition_penalty : float, optional
        Logits of tokens that the text already holds are divided by it (multiplied, if negative); 1: no penalty.
    seed : int, optional
        The same seed draws the same tokens, on every backend. Default: 0.

    Examples
    --------
    >>> import numpy as np
    >>> from mithril.generation import Sampling
    >>> Sampling(temperature=1.0, top_k=2).probabilities(np.array([0.0, 1.0, 1.0]))
    array([0. , 0.5, 0.5])
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, lambda x: 0 <= x < math.inf, "give 0 or more")
        _check("repetition_penalty", self.repetition_penalty, lambda x: 0 < x < math.inf, "give more than 0")
        _check("top_p", self.top_p, lambda x: 0 < x <= 1, "give more than 0, and at most 1")
        _check("min_p", self.min_p, lambda x: 0 <= x <= 1, "give 0 to 1")
        for name, least in (("top_k", 1), ("seed", 0)):
            value = getattr(self, name)
            whole = value is None or (hasattr(value, "__index__") and not isinstance(value, bool))
            if not whole or (value is not None and value < least):
                raise InvalidValueError(f"{name} is {value!r}", hint=f"give an integer from {least}")
        narrowing = [name for name in ("top_k", "top_p", "min_p") if getattr(self, name) is not None]
        if self.temperature == 0 and narrowing:
            raise ConflictingOptionError(
                f"{narrowing[0]} is given, but nothing is drawn with a temperature of 0",
                hint="give a temperature, e.g. temperature=1.0",
            )

    def processed(self, logits: _Numbers, seen: Sequence[int] | _Numbers = ()) -> _Numbers:
        """Return what the next token is chosen by: logits, minus infinity for tokens that may not be drawn.

        Parameters
        ----------
        logits : ndarray
            ``[vocabulary]``; not changed.
        seen : sequence of int, optional
            The tokens of the text so far, for the repetition penalty.
        """
        result = np.array(logits, np.float64)
        if self.repetition_penalty != 1 and len(seen):
            tokens = np.unique(np.asarray(seen))
            scores = result[tokens]
            result[tokens] = np.where(scores < 0, scores * self.repetition_penalty, scores / self.repetition_penalty)
        if self.temperature == 0:
            return result
        result /= self.temperature
        if self.top_k is not None and self.top_k < len(result):
            result[result < np.partition(result, -self.top_k)[-self.top_k]] = -np.inf
        if self.top_p is not None and self.top_p < 1:
            self._keep_top_p(result)
        if self.min_p:
            result[result < result.max() + math.log(self.min_p)] = -np.inf
        return result

    def _keep_top_p(self, scores: _Numbers) -> None:
        assert self.top_p is not None
        # Only what top-k left is sorted.
        alive = np.flatnonzero(scores > -np.inf)
        order = alive[np.argsort(scores[alive], kind="stable")]
        below = np.cumsum(_softmax(scores[order]))
        dropped = order[:-1][below[:-1] <= 1 - self.top_p]
        scores[dropped] = -np.inf

    def probabilities(self, logits: _Numbers, seen: Sequence[int] | _Numbers = ()) -> _Numbers:
        """Return the probability that each token is drawn; with a temperature of 0, one is certain.

        Parameters
        ----------
        logits : ndarray
            ``[vocabulary]``; not changed.
        seen : sequence of int, optional
            The tokens of the text so far.
        """
        scores = self.processed(logits, seen)
        if self.temperature == 0:
            certain = np.zeros(len(scores))
            certain[int(np.argmax(scores))] = 1
            return certain
        return _softmax(scores)

    def chooser(self, row: int = 0) -> Callable[[_Numbers, Sequence[int]], int]:
        """Return a function of logits and seen tokens that chooses the next token.

        Parameters
        ----------
        row : int, optional
            Which text of a batch it is for. Each draws from random numbers of its own, so that its tokens do not
            depend on how long the others are.
        """
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, row])))

        def choose(logits: _Numbers, seen: Sequence[int]) -> int:
            if self.temperature == 0:
                # Without a penalty the likeliest is found without a copy.
                plain = self.repetition_penalty == 1
                return int(np.argmax(logits if plain else self.processed(logits, seen)))
            below = np.cumsum(self.probabilities(logits, seen))
            # Never beyond the last token that has a probability, however the sum is rounded.
            index = int(np.searchsorted(below, random.random() * below[-1], side="right"))
            return min(index, int(np.searchsorted(below, below[-1], side="left")))

        return choose


def _softmax(scores: _Numbers) -> _Numbers:
    exponentials = np.exp(scores - scores.max())
    probabilities: _Numbers = exponentials / exponentials.sum()
    return probabilities


def _check(name: str, value: Any, allowed: Callable[[float], bool], hint: str) -> None:
    if value is None:
        return
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not is_number or not allowed(float(value)):
        raise InvalidValueError(f"{name} is {value!r}", hint=hint)
