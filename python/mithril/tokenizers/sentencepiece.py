"""Tokenizers of SentencePiece (Llama 2, Mistral, T5): pieces of text with scores, of `tokenizer.model` or JSON."""

from __future__ import annotations

import base64
import binascii
import itertools
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import ModelFileError

__all__ = ["FILES", "Pieces", "Unwritten", "of_file", "of_json"]

#: Names of files of SentencePiece.
FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
#: Kinds of pieces, by the numbers of SentencePiece, which are those of GGUF.
USUAL, UNKNOWN, CONTROL, ADDED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_SPACE = "▁"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
#: How models cut texts, by the numbers of SentencePiece: what llama.cpp calls them.
_KINDS = {1: "t5", 2: "llama"}


class Unwritten(Exception):
    """Why a tokenizer cannot be said in a file of GGUF."""


@dataclass(frozen=True)
class Pieces:
    """A tokenizer.

    Attributes
    ----------
    kind : str
        What llama.cpp calls it: ``"llama"`` joins pieces by their scores, ``"t5"`` looks for the likeliest ones.
    entries : list of (str, float, int)
        Text, score and kind of each piece, by their numbers.
    begins_with_space : bool
        Whether a space is put before texts.
    merges_spaces : bool
        Whether several spaces are one.
    table : bytes
        What characters become before texts are cut, as SentencePiece compiles it.
    ends : dict
        Numbers of ``bos``, ``eos``, ``unknown`` and ``padding``, where they are known.
    """

    kind: str
    entries: list[tuple[str, float, int]]
    begins_with_space: bool = True
    merges_spaces: bool = False
    table: bytes = b""
    ends: Mapping[str, int] = field(default_factory=dict)

    def checked(self) -> Pieces:
        """Return it, if llama.cpp reads texts with it as SentencePiece does; else `Unwritten` says why not."""
        has_bytes = sum(kind == BYTE for _, _, kind in self.entries) == 256
        if self.kind == "llama":
            if not has_bytes:
                raise Unwritten("it has no pieces for single bytes")
            if self.table or self.merges_spaces:
                raise Unwritten("it changes characters or spaces before it joins pieces")
        elif has_bytes:
            raise Unwritten("it searches for the most likely pieces and falls back to bytes")
        return self


# --- tokenizer.model --------------------------------------------------------------------------------------------


def of_file(path: Path) -> Pieces:
    """Read a file of SentencePiece."""
    entries: list[tuple[str, float, int]] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    try:
        for number, value in _fields(path.read_bytes()):
            if number == 1:
                piece = dict(_fields(value))
                [score] = struct.unpack("<f", piece.get(2, bytes(4)))
                entries.append((piece[1].decode(), score, piece.get(3, USUAL)))
            elif number in (2, 3):
                (trainer if number == 2 else normalizer).update(_fields(value))
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ModelFileError(f"{str(path)!r} is not a SentencePiece model", hint="fetch it again") from error
    if not entries:
        raise ModelFileError(f"{str(path)!r} holds no pieces", hint="fetch it again")
    kind = _KINDS.get(trainer.get(3, 1))
    if kind is None or trainer.get(24):
        raise Unwritten("it splits text into words or characters" if kind is None else "it appends spaces to words")
    names = {"unknown": (40, 0), "bos": (41, 1), "eos": (42, 2), "padding": (43, -1)}
    settings = {name: trainer.get(number, usual) for name, (number, usual) in names.items()}
    ends = {name: number for name, number in settings.items() if 0 <= number < len(entries)}
    return Pieces(
        kind,
        entries,
        begins_with_space=bool(normalizer.get(3, 1)),
        merges_spaces=bool(normalizer.get(4, 1)),
        table=normalizer.get(2, b""),
        ends=ends,
    ).checked()


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Go through the fields of a message of protobuf: numbers, and integers or bytes."""
    at = 0

    def integer() -> int:
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise ValueError("no number")
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(data):
        number, wire = divmod(integer(), 8)
        if wire == 0:
            yield number, integer()
            continue
        size = {1: 8, 5: 4}.get(wire) or (integer() if wire == 2 else None)
        if size is None or at + size > len(data):
            raise ValueError("no field")
        at += size
        yield number, data[at - size : at]


# --- tokenizer.json ---------------------------------------------------------------------------------------------


def of_json(content: Mapping[str, Any]) -> Pieces:
    """Read what the library `tokenizers` made of a file of SentencePiece."""
    model = content["model"]
    steps = [*_steps(content.get("normalizer"), "normalizers"), *_steps(content.get("pre_tokenizer"), "pretokenizers")]
    pieces = _joined(model) if model.get("type") == "BPE" else _likeliest(model)
    return _with_steps(pieces, steps).checked()


def _steps(normalizer: Any, inner: str) -> list[Mapping[str, Any]]:
    if not normalizer:
        return []
    return list(normalizer.get(inner, [])) if normalizer.get("type") == "Sequence" else [normalizer]


def _with_steps(pieces: Pieces, steps: Sequence[Mapping[str, Any]]) -> Pieces:
    """Read from the steps before texts are cut what happens to spaces and characters."""
    pieces = replace(pieces, begins_with_space=False)
    for step in steps:
        kind = step.get("type")
        text = step.get("pattern", {}).get("String") if isinstance(step.get("pattern"), Mapping) else None
        if kind == "Prepend" and step.get("prepend") == _SPACE:
            pieces = replace(pieces, begins_with_space=True)
        elif kind == "Metaspace" and step.get("replacement") == _SPACE:
            scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
            pieces = replace(pieces, begins_with_space=scheme != "never")
            if pieces.kind == "llama" and step.get("split", True):
                raise Unwritten("it merges pieces only within words")
        elif kind == "Precompiled":
            try:
                table = base64.b64decode(step["precompiled_charsmap"])
            except (KeyError, TypeError, binascii.Error) as error:
                raise Unwritten("its table of characters is damaged") from error
            pieces = replace(pieces, table=table)
        elif kind in ("WhitespaceSplit", "Strip") or (kind == "Replace" and text is None):
            pieces = replace(pieces, merges_spaces=True)
        elif not (kind == "Replace" and text == " " and step.get("content") == _SPACE):
            raise Unwritten(f"it has the step {kind!r}")
    return pieces


def _joined(model: Mapping[str, Any]) -> Pieces:
    """Pieces that are joined, in the order of a list: their scores say that order."""
    if not model.get("byte_fallback"):
        raise Unwritten("its pieces are neither bytes nor fall back to them")
    vocabulary: Mapping[str, int] = model["vocab"]
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    pairs = set()
    for rank, merge in enumerate(model.get("merges", [])):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        pairs.add((left, right))
        first.setdefault(left + right, rank)
        last[left + right] = rank
    unknown = model.get("unk_token")
    for text in first:
        halves = ((text[:i], text[i:]) for i in range(1, len(text)))
        if any(pair not in pairs and pair[0] in vocabulary and pair[1] in vocabulary for pair in halves):
            raise Unwritten(f"it merges some pairs of pieces into {text!r} but not all of them")
    order = sorted(first, key=lambda text: first[text])
    if any(last[text] > first[after] for text, after in itertools.pairwise(order)):
        raise Unwritten("its merges have no order consistent with the vocabulary")
    entries: dict[int, tuple[str, float, int]] = {}
    for text, number in vocabulary.items():
        kind = UNKNOWN if text == unknown else BYTE if _BYTE.fullmatch(text) else USUAL
        # A piece that nothing is joined to is never looked up by its score.
        entries[number] = (text, -float(first.get(text, len(pairs))), kind)
    return _numbered("llama", entries, {} if unknown is None else {"unknown": vocabulary[unknown]})


def _likeliest(model: Mapping[str, Any]) -> Pieces:
    if model.get("type") != "Unigram":
        raise Unwritten(f"its model is {model.get('type')!r}")
    unknown = model.get("unk_id")
    entries = {}
    for number, (text, score) in enumerate(model["vocab"]):
        kind = UNKNOWN if number == unknown else BYTE if _BYTE.fullmatch(text) else USUAL
        entries[number] = (text, float(score), kind)
    return _numbered("t5", entries, {} if unknown is None else {"unknown": unknown})


def _numbered(kind: str, entries: Mapping[int, tuple[str, float, int]], ends: Mapping[str, int]) -> Pieces:
    # What is added to a vocabulary may have numbers within it.
    size = max(entries, default=-1) + 1
    return Pieces(kind, [entries.get(i, (f"[PAD{i}]", 0.0, UNUSED)) for i in range(size)], ends=ends)
