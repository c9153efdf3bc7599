"""Tokenizers of published checkpoints, by the library ``tokenizers``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..errors import InvalidValueError, KeyNotFoundError, ModelFileError
from ..optional_packages import require

__all__ = ["TokenStream", "Tokenizer"]

#: How CLIP cuts text into words, as its authors published it.
_CLIP_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_SENTENCEPIECE = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model")
_TASK = "reading text"


class Tokenizer:
    """Text to tokens and back.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
        What does the work.

    Attributes
    ----------
    tokenizer : tokenizers.Tokenizer
        What was given.

    Examples
    --------
    >>> import tokenizers
    >>> from mithril.generation import Tokenizer
    >>> words = tokenizers.models.WordLevel({"a": 0, "cat": 1, "[UNK]": 2}, unk_token="[UNK]")
    >>> trained = tokenizers.Tokenizer(words)
    >>> trained.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    >>> tokenizer = Tokenizer(trained)
    >>> tokenizer.encode("a cat"), tokenizer.decode([0, 1])
    ([0, 1], 'a cat')
    """

    def __init__(self, tokenizer: Any) -> None:
        if not hasattr(tokenizer, "encode") or not hasattr(tokenizer, "id_to_token"):
            raise InvalidValueError(
                f"the tokenizer is a {type(tokenizer).__name__}", hint="pass a tokenizers.Tokenizer, or use from_folder"
            )
        self.tokenizer = tokenizer
        # Lengths are the business of who runs the model: a text cut without a word would be a wrong answer.
        tokenizer.no_truncation()
        tokenizer.no_padding()

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> Tokenizer:
        """Read the tokenizer of a checkpoint.

        Parameters
        ----------
        folder : path-like
            With ``tokenizer.json``; or ``vocab.json`` and ``merges.txt``, of GPT-2 or CLIP.

        Raises
        ------
        ModelFileError
            If there is none, or it is malformed.
        """
        path = Path(folder)
        if not path.is_dir():
            raise ModelFileError(f"{str(path)!r} is not a folder", code="M0802", hint="give the folder of a checkpoint")
        library = require("tokenizers", _TASK)
        whole, words, merges = (path / name for name in ("tokenizer.json", "vocab.json", "merges.txt"))
        # The library raises Exception itself.
        try:
            if whole.is_file():
                return cls(library.Tokenizer.from_file(str(whole)))
            if words.is_file() and merges.is_file():
                return cls(_byte_pairs(library, words, merges))
        except Exception as error:
            file = whole if whole.is_file() else words
            raise ModelFileError(f"{str(file)!r} is not a tokenizer: {error}", hint="fetch the file again") from error
        hint = "copy the files of the tokenizer there"
        files = [name for name in _SENTENCEPIECE if (path / name).is_file()]
        if files:
            hint = f"make a tokenizer.json of {files[0]}: transformers.AutoTokenizer.from_pretrained(folder) and "
            hint += "save_pretrained(folder)"
        missing = [file.name for file in (words, merges) if not file.is_file()]
        raise ModelFileError(
            f"{str(path)!r} has no tokenizer: looked for tokenizer.json, and for vocab.json with merges.txt "
            f"(not there: {', '.join(missing)})",
            code="M0802",
            hint=hint,
        )

    @property
    def vocab_size(self) -> int:
        """Number of tokens, the special ones among them."""
        return int(self.tokenizer.get_vocab_size())

    def token(self, text: str) -> int:
        """Return the number of a token.

        Raises
        ------
        KeyNotFoundError
            If there is no such token.
        """
        number = self.tokenizer.token_to_id(text)
        if number is None:
            raise KeyNotFoundError(f"there is no token {text!r}", hint="see tokenizer.tokenizer.get_vocab()")
        return int(number)

    def encode(self, text: str) -> list[int]:
        """Make tokens of a text, with the special ones that the tokenizer puts around it."""
        if not isinstance(text, str):
            raise InvalidValueError(f"the text is a {type(text).__name__}", hint="give a string")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidValueError(
                f"the text is not valid Unicode: {error}", hint="replace lone surrogates"
            ) from error
        return list(self.tokenizer.encode(text).ids)

    def decode(self, tokens: Iterable[int]) -> str:
        """Make text of tokens, without the special ones."""
        return str(self.tokenizer.decode([int(token) for token in tokens], skip_special_tokens=True))

    def padded(self, texts: str | Iterable[str], length: int, padding: int = 0) -> list[list[int]]:
        """Make rows of equal length of texts, padded at the right.

        Parameters
        ----------
        texts : str or iterable of str
            One text or several.
        length : int
            How many tokens each row gets.
        padding : int, optional
            The token that fills a row.

        Raises
        ------
        InvalidValueError
            If there are no texts, or one has more tokens.
        """
        rows = [self.encode(text) for text in ([texts] if isinstance(texts, str) else texts)]
        if not rows:
            raise InvalidValueError("there are no texts", hint="give at least one")
        for place, row in enumerate(rows):
            if len(row) > length:
                raise InvalidValueError(
                    f"text {place} has {len(row)} tokens, and the model reads at most {length}", hint="shorten it"
                )
        return [row + [padding] * (length - len(row)) for row in rows]

    def stream(self, prompt: Sequence[int] = ()) -> TokenStream:
        """Begin to make text of tokens that come one by one, after those of a prompt."""
        return TokenStream(self, prompt)


class TokenStream:
    """Makes text of tokens that come one by one; gives only whole characters."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._stream = require("tokenizers.decoders", _TASK).DecodeStream(skip_special_tokens=True)
        self._pending: list[int] = []
        # The prompt decides about the space before what follows, and may end with half a character.
        for token in prompt:
            self.push(token)
        self._pending.clear()

    def push(self, token: int) -> str:
        """Add a token; return the text that is complete now, which may be empty."""
        piece = self._stream.step(self._tokenizer.tokenizer, token)
        if piece is None:
            self._pending.append(token)
            return ""
        self._pending.clear()
        return str(piece)

    def end(self) -> str:
        """Return what is left: half a character is written as U+FFFD."""
        left, self._pending = self._pending, []
        return self._tokenizer.decode(left)


def _byte_pairs(library: Any, words: Path, merges: Path) -> Any:
    """Make the tokenizer of GPT-2 or CLIP of its list of tokens and its list of merges."""
    known = json.loads(words.read_text(encoding="utf-8"))
    is_clip = "<|startoftext|>" in known
    end = "<|endoftext|>"
    # What is unknown cannot occur: every byte is a token.
    options = {"end_of_word_suffix": "</w>", "unk_token": end} if is_clip else {}
    tokenizer = library.Tokenizer(library.models.BPE.from_file(str(words), str(merges), **options))
    bytes_of = library.pre_tokenizers.ByteLevel
    if not is_clip:
        tokenizer.pre_tokenizer = bytes_of(add_prefix_space=False)
        tokenizer.decoder = library.decoders.ByteLevel()
        tokenizer.add_special_tokens([end] if end in known else [])
        return tokenizer
    start = "<|startoftext|>"
    forms, pattern = library.normalizers, library.Regex(_CLIP_WORDS)
    tokenizer.normalizer = forms.Sequence([forms.NFC(), forms.Replace(library.Regex(r"\s+"), " "), forms.Lowercase()])
    split = library.pre_tokenizers.Split(pattern, behavior="removed", invert=True)
    tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence([split, bytes_of(add_prefix_space=False)])
    tokenizer.decoder = library.decoders.ByteLevel()
    tokenizer.post_processor = library.processors.TemplateProcessing(
        single=f"{start} $A {end}", special_tokens=[(start, known[start]), (end, known[end])]
    )
    tokenizer.add_special_tokens([start, end])
    return tokenizer
