"""Running a decoder token by token: with a cache of keys and values, or anew over the whole text.

Prompts of a batch differ in length. With a cache they are padded on the left, and the model is told by how much;
without one they are padded on the right, which a causal model does not see.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from typing_extensions import Unpack

from ..backends.keywords import LoadOptions, passes_on
from ..compiled import internals
from ..compiled.compile import compile
from ..errors import InvalidValueError, NumericsError, ParameterError

if TYPE_CHECKING:
    from .._core import Model
    from ..backends.backend import Backend
    from ..compiled.physical_model import PhysicalModel

__all__ = ["Run", "compile_decoder", "start"]

#: Capacity that a cache has at least: growing it costs a copy, and for compilers a program.
LEAST_CAPACITY = 64
_Numbers = np.ndarray[Any, Any]


@passes_on(compile, without=("shapes", "inference"))
def compile_decoder(model: Model, backend: Backend, **options: Unpack[LoadOptions]) -> PhysicalModel:
    """Compile a decoder so that one program serves every batch, length of text and capacity of the cache.

    Parameters
    ----------
    model : Model
        From ``input``, tokens ``[batch, length]``, to ``output``, logits ``[batch, length, vocabulary]``; with a
        cache (``cache=True`` of the models in `mithril.models`) or without.
    backend : Backend
        Where it runs.
    **options
        Further options of `compile`, e.g. ``jit``.

    Returns
    -------
    PhysicalModel
        For inference. The caches are given away (``donate`` of `compile`): a call may write the new keys and values
        into the memory of the old ones.

    Examples
    --------
    >>> import mithril as ml
    >>> from mithril.generation import compile_decoder
    >>> from mithril.models import create_gpt
    >>> gpt = create_gpt(block_size=16, dims=8, num_heads=2, num_layers=1, vocab_size=10)
    >>> compile_decoder(gpt, ml.NumpyBackend()).input_keys
    ('input',)
    """
    shapes: dict[str, list[Any]] = {"input": ["batch", "length"]}
    symbols: dict[str, list[Any]] = {
        "padding": ["batch"],
        "memory": ["batch", "source", None],
        "memory_mask": ["batch", "source"],
    }
    for name in model.input_keys:
        if name in symbols:
            shapes[name] = symbols[name]
        elif name.startswith(("past_key_", "past_value_")):
            _, heads, _, features = model.shape_of(name)
            shapes[name] = ["batch", heads, "capacity", features]
        elif name.startswith(("memory_key_", "memory_value_")):
            _, heads, _, features = model.shape_of(name)
            shapes[name] = ["batch", heads, "source", features]
    caches = [name for name in shapes if name.startswith("past_")]
    if "memory" in shapes:
        shapes["memory"][2] = model.shape_of("memory")[2]
    options.setdefault("donate", caches)
    return compile(model, backend, shapes=shapes, inference=True, **options)


@passes_on(compile, without=("shapes", "inference"))
def compile_encoder(model: Model, backend: Backend, **options: Unpack[LoadOptions]) -> PhysicalModel:
    """Compile the encoder of a decoder, or what makes keys and values of its features, for all batches and lengths.

    Parameters
    ----------
    model : Model
        From ``input``, tokens ``[batch, length]``, and ``mask``, true where these are not padding, to features; or from
        ``memory``, the features.
    backend : Backend
        Where it runs.
    **options
        Further options of `compile`, e.g. ``jit``.

    Returns
    -------
    PhysicalModel
        For inference.
    """
    shapes: dict[str, list[Any]] = {name: ["batch", "length"] for name in ("input", "mask") if name in model.input_keys}
    if "memory" in model.input_keys:
        shapes["memory"] = ["batch", "length", model.shape_of("memory")[2]]
    return compile(model, backend, shapes=shapes, inference=True, **options)


class Run(Protocol):
    """One run of a decoder over a batch of texts."""

    def step(self, tokens: Sequence[int], active: Sequence[bool]) -> _Numbers:
        """Append a token to each text that is active; return the logits of what follows, ``[batch, vocabulary]``."""


def start(
    model: PhysicalModel, prompts: Sequence[Sequence[int]], further: Mapping[str, Any], context: int | None
) -> tuple[Run, _Numbers]:
    """Begin a run of a decoder.

    Parameters
    ----------
    model : PhysicalModel
        See `compile_decoder`.
    prompts : sequence of sequences of int
        The texts so far, none of them empty.
    further : mapping
        Further data that each call is given, such as the ``memory`` of an encoder.
    context : int, optional
        Largest number of tokens of a text.

    Returns
    -------
    (Run, ndarray)
        The run, and the logits of what follows each text, ``[batch, vocabulary]``.
    """
    if any(name.startswith("past_key_") for name in model.input_keys):
        cached = CachedRun(model, prompts, further)
        return cached, cached.begin(prompts)
    plain = PlainRun(model, prompts, further, context)
    return plain, plain.logits()


class PlainRun:
    """Computes the whole texts anew for each token."""

    def __init__(
        self, model: PhysicalModel, prompts: Sequence[Sequence[int]], further: Mapping[str, Any], context: int | None
    ) -> None:
        self._model = model
        self._texts = [list(prompt) for prompt in prompts]
        self._further = dict(further)
        self._context = context

    def step(self, tokens: Sequence[int], active: Sequence[bool]) -> _Numbers:
        """Append a token to each text that is active; return the logits of what follows."""
        for text, token, is_active in zip(self._texts, tokens, active, strict=True):
            if is_active:
                text.append(token)
        return self.logits()

    def logits(self) -> _Numbers:
        """Return the logits of what follows each text."""
        longest = max(map(len, self._texts))
        length = padded_length(self._model, longest)
        if self._context is not None:
            length = min(length, max(self._context, longest))
        tokens = np.zeros((len(self._texts), length), np.int64)
        for row, text in zip(tokens, self._texts, strict=True):
            row[: len(text)] = text
        outputs = evaluate(self._model, {"input": tokens, **self._further})
        logits = outputs["output"]
        if logits.shape[1] != length:
            raise ParameterError(
                f"the decoder gives logits of {logits.shape[1]} tokens of {length}",
                hint="build it without last_only, or with cache=True",
            )
        ends = np.array([len(text) - 1 for text in self._texts])
        # Only those that are wanted come to the host, where the framework lets them be chosen before.
        if len(ends) == 1:
            return to_host(self._model, logits[:, int(ends[0])])
        rows: _Numbers = to_host(self._model, logits)[np.arange(len(ends)), ends]
        return rows


class CachedRun:
    """Computes only what is new; keys and values of the texts so far are kept."""

    def __init__(self, model: PhysicalModel, prompts: Sequence[Sequence[int]], further: Mapping[str, Any]) -> None:
        self._model = model
        self._further = dict(further)
        names = [name for name in model.input_keys if name.startswith(("past_key_", "past_value_"))]
        #: Name of the input -> name of the output that replaces it.
        self._names = {name: name.removeprefix("past_") for name in names}
        absent = [name for name in (*self._names.values(), "output") if name not in model.output_keys]
        absent += [name for name in ("input", "position", "padding") if name not in model.input_keys]
        if absent:
            raise ParameterError(
                f"the decoder has past keys, but no {', '.join(absent[:5])}", hint="build it with cache=True"
            )
        self._length = padded_length(model, max(map(len, prompts)))
        self._padding = np.array([self._length - len(prompt) for prompt in prompts], np.int64)
        self._capacity = _power_of_two(max(LEAST_CAPACITY, self._length + 1))
        backend = model.backend
        self._caches = {}
        for name in names:
            _, heads, _, features = model._model.shape_of(name)
            self._caches[name] = backend.zeros(len(prompts), heads, self._capacity, features)

    def begin(self, prompts: Sequence[Sequence[int]]) -> _Numbers:
        """Fill the cache with the prompts; return the logits of what follows."""
        tokens = np.zeros((len(prompts), self._length), np.int64)
        for row, prompt, padding in zip(tokens, prompts, self._padding, strict=True):
            row[padding:] = prompt
        return self._call(tokens, 0)

    def step(self, tokens: Sequence[int], active: Sequence[bool]) -> _Numbers:
        """Append a token to each text that is active; return the logits of what follows."""
        if self._length == self._capacity:
            self._grow()
        # A text that has ended stays as long as it is, so that it does not run out of positions.
        self._padding = self._padding + ~np.array(active, bool)
        logits = self._call(np.array(tokens, np.int64)[:, None], self._length)
        self._length += 1
        return logits

    def _call(self, tokens: _Numbers, position: int) -> _Numbers:
        data = {"input": tokens, "position": np.array(position, np.int64), "padding": self._padding}
        outputs = evaluate(self._model, {**data, **self._caches, **self._further})
        self._caches = {past: outputs[name] for past, name in self._names.items()}
        return to_host(self._model, outputs["output"][:, -1])

    def _grow(self) -> None:
        backend: Any = self._model.backend
        for name, cache in self._caches.items():
            self._caches[name] = backend.concat(cache, backend.zeros_like(cache), axis=2)
        self._capacity *= 2


def evaluate(model: PhysicalModel, data: dict[str, Any]) -> dict[str, Any]:
    """Run a model with the parameters that belong to it."""
    outputs: dict[str, Any] = model.evaluate(model.get_parameters(), data)
    return outputs


def to_host(model: PhysicalModel, logits: Any) -> _Numbers:
    """Bring logits to the host, as float32 or wider."""
    host = model.backend.to_numpy(logits)
    host = host if host.dtype in (np.float32, np.float64) else host.astype(np.float32)
    # NaN is the largest number for NumPy.
    highest = host.max(axis=-1)
    if not np.isfinite(highest).all():
        raise NumericsError(
            "the logits of the model are not finite",
            hint="check the weights, or use a wider dtype; model.find_nans finds the op",
        )
    return host


def check_tokens(prompts: Iterable[Sequence[int]], vocabulary: int | None, context: int | None) -> None:
    """Raise if there are no prompts, or one is empty, too long, or holds what is not a token."""
    several = list(prompts)
    if not several:
        raise InvalidValueError("there are no prompts", hint="give at least one")
    for place, prompt in enumerate(several):
        label = f"prompt {place}" if len(several) > 1 else "the prompt"
        if not len(prompt):
            raise InvalidValueError(f"{label} is empty", hint="begin it with a token, e.g. that of the begin of a text")
        for token in prompt:
            if isinstance(token, bool) or not hasattr(token, "__index__"):
                raise InvalidValueError(f"{label} holds {token!r}, which is not a token", hint="give integers")
            if token < 0 or (vocabulary is not None and token >= vocabulary):
                known = "" if vocabulary is None else f"; the model knows 0 to {vocabulary - 1}"
                raise InvalidValueError(
                    f"{label} holds the token {int(token)}{known}", hint="use the tokenizer of the model"
                )
        if context is not None and len(prompt) > context:
            raise InvalidValueError(
                f"{label} has {len(prompt)} tokens, and the model reads at most {context}",
                hint="shorten it, e.g. leave out its beginning",
            )


def vocabulary_of(model: PhysicalModel) -> int | None:
    """Return the number of tokens that a decoder knows, if it says so before it runs."""
    program = internals.current_program(model)
    shape = program.output_types["output"][1] if program is not None and "output" in model.output_keys else ()
    return shape[-1] if shape and isinstance(shape[-1], int) else None


def padded_length(model: PhysicalModel, length: int) -> int:
    """Return the length that texts are padded to: few different ones, if a compiler makes a program for each."""
    return _power_of_two(length) if internals.program_settings(model).jit else length


def _power_of_two(least: int) -> int:
    return next(1 << n for n in itertools.count() if 1 << n >= least)
