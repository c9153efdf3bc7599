"""From tokens to tokens: the loop of text generation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InvalidValueError
from .decoders import check_tokens, start, vocabulary_of
from .sampling import Sampling

if TYPE_CHECKING:
    from ..compiled.physical_model import PhysicalModel

__all__ = ["Continuation", "generate_tokens"]


class Continuation(Iterator["list[int | None]"]):
    """Tokens that follow a batch of texts, one of each text per step. Made by `generate_tokens`.

    Attributes
    ----------
    tokens : list of list of int
        What followed each text so far.
    finish_reasons : list of str or None
        Why each text ended: ``"stop"``, a stop token came, or `stop` was called; ``"length"``, it has
        ``max_new_tokens``; ``"context"``, the model reads no longer texts. None: it has not ended.
    """

    def __init__(
        self,
        model: PhysicalModel,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        max_new_tokens: int,
        stop_tokens: frozenset[int],
        context: int | None,
        further: Mapping[str, Any],
    ) -> None:
        self._prompts = [[int(token) for token in prompt] for prompt in prompts]
        self._seen = [list(prompt) for prompt in self._prompts]
        self._choosers = [sampling.chooser(row) for row in range(len(prompts))]
        self._stop_tokens = stop_tokens
        self._max_new_tokens = max_new_tokens
        self._context = context
        self._model, self._further = model, further
        self._run: Any = None
        self.tokens: list[list[int]] = [[] for _ in prompts]
        self.finish_reasons: list[str | None] = [None for _ in prompts]

    def stop(self, row: int) -> None:
        """End a text, with the reason ``"stop"``."""
        self.finish_reasons[row] = "stop"

    def __iter__(self) -> Continuation:
        return self

    def __next__(self) -> list[int | None]:
        """Return the next token of each text; None for those that have ended before."""
        active = [reason is None for reason in self.finish_reasons]
        if not any(active):
            raise StopIteration
        if self._run is None:
            self._run, logits = start(self._model, self._prompts, self._further, self._context)
        else:
            logits = self._run.step([seen[-1] for seen in self._seen], active)
        tokens: list[int | None] = []
        for row, is_active in enumerate(active):
            token = self._choosers[row](logits[row], self._seen[row]) if is_active else None
            tokens.append(token)
            if token is not None:
                self._append(row, token)
        return tokens

    def _append(self, row: int, token: int) -> None:
        self._seen[row].append(token)
        self.tokens[row].append(token)
        if token in self._stop_tokens:
            self.finish_reasons[row] = "stop"
        elif len(self.tokens[row]) == self._max_new_tokens:
            self.finish_reasons[row] = "length"
        # The last token is never read by the model.
        elif self._context is not None and len(self._seen[row]) > self._context:
            self.finish_reasons[row] = "context"


def generate_tokens(
    model: PhysicalModel,
    prompts: Iterable[Sequence[int]],
    max_new_tokens: int = 128,
    *,
    sampling: Sampling | None = None,
    stop_tokens: Iterable[int] = (),
    context: int | None = None,
    further: Mapping[str, Any] | None = None,
) -> Continuation:
    """Continue texts token by token.

    Parameters
    ----------
    model : PhysicalModel
        A decoder with its parameters; see `compile_decoder`. With a cache, each token costs the same; without, the
        whole text is computed anew for each.
    prompts : iterable of sequences of int
        The texts, of any lengths.
    max_new_tokens : int, optional
        How many tokens are appended at most.
    sampling : Sampling, optional
        How tokens are chosen. Default: the likeliest.
    stop_tokens : iterable of int, optional
        A text ends after such a token.
    context : int, optional
        Largest number of tokens that the model reads. Default: without limit.
    further : mapping, optional
        Further data of the model, such as the ``memory`` of an encoder.

    Returns
    -------
    Continuation
        An iterator of lists with the next token of each text, None for texts that have ended.

    Raises
    ------
    InvalidValueError
        If there are no prompts, or one is empty, longer than ``context``, or holds what is not a token.

    Examples
    --------
    >>> import mithril as ml
    >>> from mithril.generation import compile_decoder, generate_tokens
    >>> from mithril.models import create_gpt
    >>> gpt = create_gpt(block_size=16, dims=8, num_heads=2, num_layers=1, vocab_size=10)
    >>> result = generate_tokens(compile_decoder(gpt, ml.NumpyBackend()), [[1, 2], [3]], 4, context=16)
    >>> len(list(result)), [len(tokens) for tokens in result.tokens], result.finish_reasons
    (4, [4, 4], ['length', 'length'])
    """
    for name, number in (("max_new_tokens", max_new_tokens), ("context", context)):
        if number is not None and (not hasattr(number, "__index__") or isinstance(number, bool) or number < 1):
            raise InvalidValueError(f"{name} is {number!r}", hint="give a positive integer")
    several = [_listed(prompt) for prompt in prompts]
    check_tokens(several, vocabulary_of(model), context)
    stops = frozenset(int(token) for token in stop_tokens)
    return Continuation(model, several, sampling or Sampling(), max_new_tokens, stops, context, further or {})


def _listed(prompt: Any) -> list[Any]:
    if isinstance(prompt, (str, bytes)) or not hasattr(prompt, "__iter__"):
        raise InvalidValueError(f"a prompt is {prompt!r}", hint="give a list of tokens for each text")
    return list(prompt)
