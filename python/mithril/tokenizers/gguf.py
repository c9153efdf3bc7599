"""Tokenizers of files of GGUF, as objects of the library ``tokenizers``: BPE of bytes, and SentencePiece of Llama."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidValueError, ModelFileError
from ..optional_packages import require
from .llama_cpp import CUTS
from .sentencepiece import ADDED, CONTROL, UNKNOWN, USUAL

__all__ = ["tokenizer_of"]

_SPACE = "▁"
_OTHER = "give a folder with a config.json, the weights and a tokenizer.json"


def tokenizer_of(metadata: Mapping[str, Any], path: str) -> Any:
    """Make the tokenizer that a file of GGUF describes.

    Parameters
    ----------
    metadata : mapping
        What describes the file; see `mithril.weights.open`.
    path : str
        The file, for messages.

    Returns
    -------
    tokenizers.Tokenizer

    Raises
    ------
    ModelFileError
        If the file holds no tokenizer, or a damaged one.
    InvalidValueError
        If it is of a kind that is not read here.
    """
    library = require("tokenizers", "reading text")
    kind = metadata.get("tokenizer.ggml.model")
    if kind in (None, "no_vocab", "none"):
        raise ModelFileError(f"{path!r} holds no tokenizer", hint=_OTHER)
    makers = {"gpt2": _byte_pairs, "llama": _sentence_pieces}
    if kind not in makers:
        raise InvalidValueError(f"the tokenizer of {path!r} is of the kind {kind!r}, which is not read", hint=_OTHER)
    texts = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts) or len(set(texts)) < len(texts):
        raise ModelFileError(f"the tokens of {path!r} are not a list of distinct strings", hint="fetch the file again")
    kinds = [int(number) for number in metadata.get("tokenizer.ggml.token_type", [USUAL] * len(texts))]
    if len(kinds) != len(texts):
        raise ModelFileError(f"{path!r} has {len(texts)} tokens and {len(kinds)} kinds", hint="fetch the file again")
    try:
        tokenizer = makers[kind](library, metadata, texts, kinds, path)
        _add(library, tokenizer, metadata, texts, kinds)
    except (InvalidValueError, ModelFileError):
        raise
    except Exception as error:
        # The library raises Exception itself.
        raise ModelFileError(f"the tokenizer of {path!r} is damaged: {error}", hint="fetch the file again") from error
    return tokenizer


def _byte_pairs(
    library: Any, metadata: Mapping[str, Any], texts: Sequence[str], kinds: Sequence[int], path: str
) -> Any:
    cut = str(metadata.get("tokenizer.ggml.pre", "default"))
    patterns = {name: pattern for pattern, name in CUTS.items()}
    if cut not in ("gpt-2", "default", *patterns):
        known = ", ".join(["gpt-2", *patterns])
        raise InvalidValueError(
            f"the tokenizer of {path!r} splits text into words as {cut!r}; known are {known}", hint=_OTHER
        )
    pairs = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges", [])]
    vocabulary = {text: number for number, text in enumerate(texts)}
    # Words that are tokens as they are need no merges in Llama 3.
    tokenizer = library.Tokenizer(library.models.BPE(vocabulary, pairs, ignore_merges=cut == "llama-bpe"))
    words = library.pre_tokenizers
    if cut in patterns:
        split = words.Split(library.Regex(patterns[cut]), behavior="isolated")
        tokenizer.pre_tokenizer = words.Sequence([split, words.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        tokenizer.pre_tokenizer = words.ByteLevel(add_prefix_space=False)
    if cut == "qwen2":
        tokenizer.normalizer = library.normalizers.NFC()
    tokenizer.decoder = library.decoders.ByteLevel()
    return tokenizer


def _sentence_pieces(
    library: Any, metadata: Mapping[str, Any], texts: Sequence[str], kinds: Sequence[int], path: str
) -> Any:
    scores = [float(score) for score in metadata.get("tokenizer.ggml.scores", ())]
    if len(scores) != len(texts):
        raise ModelFileError(f"{path!r} has {len(texts)} tokens and {len(scores)} scores", hint="fetch the file again")
    vocabulary = {text: number for number, text in enumerate(texts)}
    merges = []
    for number, text in enumerate(texts):
        if kinds[number] == USUAL:
            splits = ((text[:i], text[i:]) for i in range(1, len(text)))
            merges += [(-scores[number], number, pair) for pair in splits if set(pair) <= vocabulary.keys()]
    unknown = next((text for text, kind in zip(texts, kinds, strict=True) if kind == UNKNOWN), None)
    pairs = [pair for *_, pair in sorted(merges)]
    tokenizer = library.Tokenizer(
        library.models.BPE(vocabulary, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    forms, parts = library.normalizers, library.decoders
    begins = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    steps: list[Any] = []
    if metadata.get("tokenizer.ggml.remove_extra_whitespaces", False):
        steps += [forms.Strip(), forms.Replace(library.Regex(" {2,}"), " ")]
    steps += [forms.Prepend(_SPACE)] if begins else []
    tokenizer.normalizer = forms.Sequence([*steps, forms.Replace(" ", _SPACE)])
    ends = [parts.Strip(" ", 1, 0)] if begins else []
    tokenizer.decoder = parts.Sequence([parts.Replace(_SPACE, " "), parts.ByteFallback(), parts.Fuse(), *ends])
    return tokenizer


def _add(library: Any, tokenizer: Any, metadata: Mapping[str, Any], texts: Sequence[str], kinds: Sequence[int]) -> None:
    """Add tokens that are found in texts as they are, and those that stand around each text."""
    named = list(zip(texts, kinds, strict=True))
    special = [text for text, kind in named if kind in (CONTROL, UNKNOWN)]
    tokenizer.add_special_tokens([library.AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.add_tokens([library.AddedToken(text, normalized=False) for text, kind in named if kind == ADDED])
    around = ["$A"]
    used = []
    for name, place in (("bos", 0), ("eos", 2)):
        number = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if number is not None and metadata.get(f"tokenizer.ggml.add_{name}_token", False):
            text = texts[int(number)]
            around.insert(place, text)
            used.append((text, int(number)))
    if used:
        tokenizer.post_processor = library.processors.TemplateProcessing(single=around, special_tokens=used)
