"""From text to text: a decoder and its tokenizer; or an encoder, a decoder and their tokenizer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import Unpack

from ..backends.keywords import LoadOptions, passes_on
from ..checkpoints import weights
from ..checkpoints.folders import Folder, backend_of, load
from ..errors import InvalidValueError
from ..models import from_config
from ..suggestions import nearest
from ..tokenizers.gguf import tokenizer_of
from ..tokenizers.tokenizer import Tokenizer
from ..tools.web.decoder import export_decoder
from .decoders import check_tokens, compile_decoder, compile_encoder, evaluate, padded_length
from .sampling import Sampling
from .tokens import Continuation, generate_tokens

if TYPE_CHECKING:
    from ..backends.backend import Backend
    from ..compiled.physical_model import PhysicalModel
    from ..tools.web.package import ExportedWeb

__all__ = ["EncoderDecoder", "Generated", "TextGenerator"]


@dataclass(frozen=True)
class Generated:
    """What a model wrote.

    Attributes
    ----------
    text : str
        What follows the prompt, without special tokens, up to a stop string.
    tokens : tuple of int
        The tokens, with the one that stopped it.
    finish_reason : str
        ``"stop"``: a stop token or a stop string came; ``"length"``: there are ``max_new_tokens``; ``"context"``:
        the model reads no longer texts.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: str


class _Generator:
    """What both kinds of generators share: options, stops, texts that come piece by piece."""

    def __init__(
        self, tokenizer: Tokenizer, context: int | None, stop_tokens: Iterable[int], start_token: int | None
    ) -> None:
        self.tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer(tokenizer)
        self.context = context
        self.stop_tokens = frozenset(int(token) for token in stop_tokens)
        self.start_token = start_token

    def generate(
        self,
        prompts: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]],
        max_new_tokens: int = 128,
        *,
        stop_tokens: Iterable[int] | None = None,
        stop_strings: str | Iterable[str] = (),
        **sampling: Any,
    ) -> Any:
        """Answer prompts.

        Parameters
        ----------
        prompts : str, sequence of int, or sequence of these
            One text, or its tokens; or several, which are answered at once.
        max_new_tokens : int, optional
            How many tokens are written at most.
        stop_tokens : iterable of int, optional
            A text ends after such a token. Default: those of the checkpoint.
        stop_strings : str or iterable of str, optional
            A text ends before such a string.
        **sampling
            How tokens are chosen: the parameters of `Sampling`, e.g. ``temperature=0.8, top_p=0.95, seed=1``.
            Default: the likeliest.

        Returns
        -------
        Generated or list of Generated
            A list if several prompts are given.

        Raises
        ------
        InvalidValueError
            If there are no prompts, or one is longer than the model reads, or holds what is not a token.
        """
        several, is_one = _several(prompts)
        streams = _Streams(self, several, max_new_tokens, stop_tokens, stop_strings, sampling)
        texts = [""] * len(several)
        for pieces in streams:
            for row, piece in enumerate(pieces):
                texts[row] += piece
        results = [
            Generated(text, tuple(tokens), str(reason))
            for text, tokens, reason in zip(texts, streams.run.tokens, streams.run.finish_reasons, strict=True)
        ]
        return results[0] if is_one else results

    def stream(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int = 128,
        *,
        stop_tokens: Iterable[int] | None = None,
        stop_strings: str | Iterable[str] = (),
        **sampling: Any,
    ) -> Iterator[str]:
        """Answer a prompt, piece by piece; see `generate`.

        Together the pieces are the text that `generate` gives. A piece holds whole characters, and never the
        beginning of a stop string.

        Returns
        -------
        iterator of str
        """
        several, is_one = _several(prompt)
        if not is_one:
            raise InvalidValueError("a stream answers one prompt", hint="call it for each, or use generate")
        # Made here, so that what is wrong is said before the first piece is asked for.
        streams = _Streams(self, several, max_new_tokens, stop_tokens, stop_strings, sampling)
        return (piece for [piece] in streams if piece)

    def _begin(self, prompts: list[list[int]], max_new_tokens: int, **options: Any) -> Continuation:
        raise NotImplementedError

    def _shown(self, tokens: list[int]) -> list[int]:
        """Tokens before the first that is generated, as far as they are part of the same text."""
        raise NotImplementedError

    def _encoded(self, prompt: str | Sequence[int], place: int) -> list[int]:
        if isinstance(prompt, bytes) or not hasattr(prompt, "__iter__"):
            raise InvalidValueError(f"prompt {place} is {prompt!r}", hint="give text, or a list of tokens")
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if tokens:
            return tokens
        if self.start_token is None:
            raise InvalidValueError(
                f"prompt {place} is empty, and the model has no token that begins a text", hint="write something"
            )
        return [self.start_token]


class TextGenerator(_Generator):
    """Continue texts.

    Parameters
    ----------
    model : PhysicalModel
        A decoder with its parameters; see `compile_decoder`.
    tokenizer : Tokenizer
        That of the model.
    context : int, optional
        Largest number of tokens that the model reads. Default: without limit.
    stop_tokens : iterable of int, optional
        A text ends after such a token.
    start_token : int, optional
        What begins a text, for empty prompts.

    Examples
    --------
    >>> import mithril as ml
    >>> import tokenizers
    >>> from mithril.generation import TextGenerator, compile_decoder
    >>> from mithril.models import create_gpt
    >>> letters = tokenizers.models.WordLevel({letter: i for i, letter in enumerate("abcdefgh")}, unk_token="a")
    >>> tokenizer = tokenizers.Tokenizer(letters)
    >>> tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    >>> tokenizer.decoder = tokenizers.decoders.Fuse()
    >>> gpt = create_gpt(block_size=16, dims=8, num_heads=2, num_layers=1, vocab_size=8)
    >>> generator = TextGenerator(compile_decoder(gpt, ml.NumpyBackend()), tokenizer, context=16)
    >>> result = generator.generate("abc", 5, temperature=1.0, seed=1)
    >>> len(result.text), len(result.tokens), result.finish_reason
    (5, 5, 'length')
    >>> "".join(generator.stream("abc", 5, temperature=1.0, seed=1)) == result.text
    True
    """

    def __init__(
        self,
        model: PhysicalModel,
        tokenizer: Tokenizer,
        *,
        context: int | None = None,
        stop_tokens: Iterable[int] = (),
        start_token: int | None = None,
    ) -> None:
        super().__init__(tokenizer, context, stop_tokens, start_token)
        self.model = model

    @classmethod
    @passes_on(compile_decoder)
    def from_folder(
        cls,
        folder: str | os.PathLike[str],
        backend: Backend | str,
        *,
        cache: bool = True,
        progress: bool = False,
        **options: Unpack[LoadOptions],
    ) -> TextGenerator:
        """Load a decoder and its tokenizer from the folder of a checkpoint, or from a file of GGUF.

        Parameters
        ----------
        folder : path-like
            With ``config.json``, weights and a tokenizer; or a file of GGUF, which holds all of these.
        backend : Backend or str
            Where it runs.
        cache : bool, optional
            Keep keys and values of what is written (default).
        progress : bool, optional
            Show a progress bar.
        **options
            Further options of `compile`, e.g. ``jit``.

        Raises
        ------
        ModelFileError
            If a file is missing or malformed.
        """
        where = backend_of(backend)
        arguments: dict[str, Any] = {"cache": True, "last_only": True} if cache else {}
        if Path(folder).suffix == ".gguf":
            return cls._from_gguf(folder, where, progress, arguments, options)
        source = Folder(folder)
        # A model that there is not is the reason that matters, whatever else is missing.
        logical = from_config(source.path, **arguments)
        tokenizer = Tokenizer.from_folder(folder)
        model = load(lambda: compile_decoder(logical, where, **options), source.path, progress)
        return cls(
            model,
            tokenizer,
            context=source.integer("n_positions", "max_position_embeddings"),
            stop_tokens=source.integers("eos_token_id"),
            start_token=source.integer("bos_token_id"),
        )

    @passes_on(export_decoder)
    def export(self, folder: str | os.PathLike[str], *, context: int | None = None, **options: Any) -> ExportedWeb:
        """Write model and tokenizer as an npm package that generates text in browsers and in Node.js.

        Parameters
        ----------
        folder : path-like
            Folder for the files; it is created if it does not exist.
        context : int, optional
            Largest number of tokens of a text, for which the cache has places. Default: what the model reads.
        **options
            Further options of `export_decoder`, e.g. ``prefix`` or ``params``.

        Returns
        -------
        ExportedWeb

        Raises
        ------
        InvalidValueError
            If the context is not known, or larger than that of the model.
        """
        size = self.context if context is None else context
        if size is None:
            raise InvalidValueError(
                "the model does not say how long its texts may be", hint="give context=..., a number of tokens"
            )
        if self.context is not None and size > self.context:
            raise InvalidValueError(f"context is {size}, and the model reads at most {self.context} tokens")
        usual = {"tokenizer": self.tokenizer, "stop_tokens": self.stop_tokens, "start_token": self.start_token}
        return export_decoder(self.model, folder, context=size, **{**usual, **options})

    @classmethod
    def _from_gguf(
        cls, path: Any, backend: Backend, progress: bool, arguments: Mapping[str, Any], options: Mapping[str, Any]
    ) -> TextGenerator:
        logical = from_config(path, **arguments)
        metadata = weights.open(path).metadata
        tokenizer = Tokenizer(tokenizer_of(metadata, str(path)))
        model = load(lambda: compile_decoder(logical, backend, **options), path, progress)
        entries = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot")}
        numbers = {name: int(number) for name, number in entries.items() if number is not None}
        context = metadata.get(f"{metadata['general.architecture']}.context_length")
        return cls(
            model,
            tokenizer,
            context=None if context is None else int(context),
            stop_tokens=[numbers[name] for name in ("eos", "eot") if name in numbers],
            start_token=numbers.get("bos"),
        )

    def _begin(self, prompts: list[list[int]], max_new_tokens: int, **options: Any) -> Continuation:
        return generate_tokens(self.model, prompts, max_new_tokens, context=self.context, **options)

    def _shown(self, tokens: list[int]) -> list[int]:
        return tokens


class EncoderDecoder(_Generator):
    """Answer texts by an encoder, which reads them once, and a decoder, as T5 does.

    Parameters
    ----------
    encoder : PhysicalModel
        From ``input``, tokens ``[batch, length]``, and ``mask``, true where these are not padding, to features. Without
        that input, prompts of one batch must be of one length.
    decoder : PhysicalModel
        A decoder that also takes ``memory``, the features, or what the model of that name makes of them; see
        `compile_decoder`.
    tokenizer : Tokenizer
        That of both.
    start_token : int
        The token before the answer.
    memory : PhysicalModel, optional
        What is computed of the features once for each answer and given to the decoder: keys and values of all layers
        (`mithril.models.t5_memory`).
    context : int, optional
        Largest number of tokens that the models read. Default: without limit.
    stop_tokens : iterable of int, optional
        An answer ends after such a token.
    """

    def __init__(
        self,
        encoder: PhysicalModel,
        decoder: PhysicalModel,
        tokenizer: Tokenizer,
        *,
        start_token: int = 0,
        memory: PhysicalModel | None = None,
        context: int | None = None,
        stop_tokens: Iterable[int] = (),
    ) -> None:
        super().__init__(tokenizer, context, stop_tokens, start_token)
        self.encoder = encoder
        self.decoder = decoder
        self.memory = memory

    @classmethod
    @passes_on(compile_decoder)
    def from_folder(
        cls,
        folder: str | os.PathLike[str],
        backend: Backend | str,
        *,
        cache: bool = True,
        progress: bool = False,
        **options: Unpack[LoadOptions],
    ) -> EncoderDecoder:
        """Load encoder, decoder and tokenizer from the folder of a checkpoint.

        Parameters
        ----------
        folder : path-like
            With ``config.json``, weights and a tokenizer.
        backend : Backend or str
            Where they run.
        cache : bool, optional
            Keep keys and values of what is read and of what is written (default).
        progress : bool, optional
            Show progress bars.
        **options
            Further options of `compile`, e.g. ``jit``.

        Raises
        ------
        ModelFileError
            If a file is missing or malformed.
        """
        source, where = Folder(folder), backend_of(backend)
        arguments: dict[str, Any] = {"cache": True, "last_only": True, "memory_cache": True} if cache else {}
        # A model that there is not is the reason that matters, whatever else is missing.
        from_config(source.path, part="encoder", mask=True)
        tokenizer = Tokenizer.from_folder(folder)
        encoder = source.model(
            lambda m: compile_encoder(m, where, **options), part="encoder", progress=progress, mask=True
        )
        decoder = source.model(
            lambda m: compile_decoder(m, where, **options),
            part="decoder",
            progress=progress,
            memory_mask=True,
            **arguments,
        )
        memory = None
        if cache:
            memory = source.model(lambda m: compile_encoder(m, where, **options), part="memory", progress=progress)
        start = source.integer("decoder_start_token_id", "pad_token_id")
        return cls(
            encoder,
            decoder,
            tokenizer,
            start_token=0 if start is None else start,
            memory=memory,
            stop_tokens=source.integers("eos_token_id"),
        )

    def _begin(self, prompts: list[list[int]], max_new_tokens: int, **options: Any) -> Continuation:
        check_tokens(prompts, None, self.context)
        length = max(map(len, prompts))
        if "mask" in self.encoder.input_keys:
            length = padded_length(self.encoder, length)
        tokens = np.zeros((len(prompts), length), np.int64)
        mask = np.zeros((len(prompts), length), bool)
        if "mask" not in self.encoder.input_keys and min(map(len, prompts)) < length:
            raise InvalidValueError(
                "the prompts differ in length, and the encoder has no mask", hint="build it with mask=True"
            )
        for i, prompt in enumerate(prompts):
            tokens[i, : len(prompt)] = prompt
            mask[i, : len(prompt)] = True
        data = {"input": tokens, "mask": mask}
        [memory] = evaluate(self.encoder, {name: data[name] for name in self.encoder.input_keys}).values()
        known = {"memory": memory, "memory_mask": mask}
        if self.memory is not None:
            known |= evaluate(self.memory, {"memory": memory})
        further = {name: value for name, value in known.items() if name in self.decoder.input_keys}
        starts = [[self.start_token] for _ in prompts]
        return generate_tokens(self.decoder, starts, max_new_tokens, further=further, **options)  # type: ignore[arg-type]

    def _shown(self, tokens: list[int]) -> list[int]:
        return []


class _Streams(Iterator[list[str]]):
    """Pieces of text of a batch, one of each text per step; empty where nothing is complete yet."""

    def __init__(
        self,
        generator: _Generator,
        prompts: list[Any],
        max_new_tokens: int,
        stop_tokens: Iterable[int] | None,
        stop_strings: str | Iterable[str],
        sampling: dict[str, Any],
    ) -> None:
        encoded = [generator._encoded(prompt, place) for place, prompt in enumerate(prompts)]
        stops = generator.stop_tokens if stop_tokens is None else frozenset(stop_tokens)
        strings = _strings(stop_strings)
        self.run = generator._begin(encoded, max_new_tokens, sampling=_sampling(sampling), stop_tokens=stops)
        self._stops = stops
        self._streams = [generator.tokenizer.stream(generator._shown(tokens)) for tokens in encoded]
        self._held = [Held(strings) for _ in encoded]

    def __next__(self) -> list[str]:
        return [self._piece(row, token) for row, token in enumerate(next(self.run))]

    def _piece(self, row: int, token: int | None) -> str:
        if token is None:
            return ""
        held, stream = self._held[row], self._streams[row]
        # A stop token is not a part of the text, whether the tokenizer calls it special or not.
        text = "" if token in self._stops else stream.push(token)
        piece = held.push(text)
        if not held.is_stopped and self.run.finish_reasons[row] is not None:
            piece += held.push(stream.end())
            piece += held.end()
        if held.is_stopped:
            self.run.stop(row)
        return piece


class Held:
    """Holds text back as long as it may be the beginning of a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._text = ""
        self.is_stopped = False

    def push(self, text: str) -> str:
        """Add text; return what is not a part of a stop string."""
        if self.is_stopped:
            return ""
        self._text += text
        places = [place for place in map(self._text.find, self._stops) if place >= 0]
        self.is_stopped = bool(places)
        length = min(places) if self.is_stopped else len(self._text) - self._beginning()
        piece, self._text = self._text[:length], self._text[length:]
        return piece

    def _beginning(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        ends = (self._text[-n:] for n in range(min(longest, len(self._text)), 0, -1))
        return next((len(end) for end in ends if any(stop.startswith(end) for stop in self._stops)), 0)

    def end(self) -> str:
        """Return what was held back."""
        text, self._text = ("" if self.is_stopped else self._text), ""
        return text


def _several(prompts: Any) -> tuple[list[Any], bool]:
    """Return a list of prompts, and whether it was one."""
    if isinstance(prompts, str):
        return [prompts], True
    if isinstance(prompts, bytes) or not isinstance(prompts, Iterable):
        raise InvalidValueError(f"the prompt is a {type(prompts).__name__}", hint="give text, or a list of tokens")
    several = list(prompts)
    if not several:
        raise InvalidValueError("there are no prompts", hint="give at least one")
    return ([several], True) if all(hasattr(token, "__index__") for token in several) else (several, False)


def _strings(value: str | Iterable[str]) -> list[str]:
    strings = [value] if isinstance(value, str) else list(value)
    if not all(isinstance(string, str) and string for string in strings):
        raise InvalidValueError(f"stop_strings is {value!r}", hint="give strings that are not empty")
    return strings


def _sampling(options: dict[str, Any]) -> Sampling:
    known = [entry.name for entry in fields(Sampling)]
    for name in options:
        if name not in known:
            near = nearest(name, known)
            guess = f"; did you mean `{near}`?" if near else ""
            raise TypeError(f"there is no option `{name}`{guess} It takes: {', '.join(known)}")
    return Sampling(**options)
