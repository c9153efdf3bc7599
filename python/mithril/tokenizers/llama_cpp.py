"""What llama.cpp has to know of a tokenizer: BPE of bytes (GPT-2, Llama 3, Qwen2), and SentencePiece (Llama 2, T5)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoints.folders import Folder, read_json
from ..errors import InvalidValueError, MithrilError, ModelFileError
from . import sentencepiece
from .sentencepiece import ADDED, BYTE, CONTROL, UNKNOWN, UNUSED, USUAL, Pieces, Unwritten

__all__ = ["CUTS", "UnwrittenTokenizerError", "is_there", "metadata"]

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: How texts are cut into words -> what llama.cpp calls that.
CUTS = {_WORDS % "{1,3}": "llama-bpe", _WORDS % "": "qwen2"}


class UnwrittenTokenizerError(InvalidValueError):
    """A tokenizer is of a kind that is not written to GGUF."""


def is_there(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a file of a tokenizer."""
    return any((Path(folder) / name).is_file() for name in ("tokenizer.json", *sentencepiece.FILES))


def metadata(folder: str | os.PathLike[str], size: int) -> dict[str, Any]:
    """Return the entries of a file of GGUF that describe the tokenizer of a folder.

    Parameters
    ----------
    folder : path-like
        With ``tokenizer.json``, or a file of SentencePiece; numbers of the first and the last token of a text come from
        ``config.json``.
    size : int
        Tokens that the model has; those that the tokenizer lacks are marked as unused.

    Raises
    ------
    ModelFileError
        If there is no tokenizer, or its file is damaged.
    UnwrittenTokenizerError
        If it is of a kind that is not written here.
    """
    path = Path(folder)
    if not is_there(path):
        raise ModelFileError(
            f"{str(folder)!r} holds no tokenizer", code="M0802", hint="give a folder with a tokenizer.json"
        )
    content = read_json(path / "tokenizer.json")
    try:
        entries = _entries(path, content, size)
    except Unwritten as reason:
        raise UnwrittenTokenizerError(
            f"the tokenizer of {str(path)!r} cannot be written to GGUF: {reason}",
            hint="BPE of GPT-2, Llama 3 and Qwen2 and SentencePiece are; give the entries tokenizer.ggml.* as metadata",
        ) from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, MithrilError):
            raise
        raise ModelFileError(f"the tokenizer of {str(path)!r} is damaged", hint="fetch its files again") from error
    return entries | _ends(path, content)


def _entries(folder: Path, content: dict[str, Any], size: int) -> dict[str, Any]:
    model, added = content.get("model", {}), content.get("added_tokens") or []
    cut = _cut(content.get("pre_tokenizer") or {})
    if model.get("type") == "BPE" and cut is not None:
        names, kinds, _ = _tokens([(text, place, USUAL, 0.0) for text, place in model["vocab"].items()], added, size)
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model.get("merges", [])]
        return {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": cut,
            "tokenizer.ggml.tokens": names,
            "tokenizer.ggml.token_type": np.array(kinds, np.int32),
            "tokenizer.ggml.merges": merges,
        }
    file = next((folder / name for name in sentencepiece.FILES if (folder / name).is_file()), None)
    pieces = sentencepiece.of_json(content) if file is None else sentencepiece.of_file(file)
    return _of_pieces(pieces, added, size) | ({} if content else _usual_ends(folder, pieces))


def _of_pieces(pieces: Pieces, added: list[dict[str, Any]], size: int) -> dict[str, Any]:
    entries = [(text, place, kind, score) for place, (text, score, kind) in enumerate(pieces.entries)]
    own = {place: kind for _, place, kind, _ in entries}
    # What is known of a piece by itself says more than that it was added.
    added = [entry for entry in added if own.get(entry["id"]) not in (UNKNOWN, CONTROL, BYTE)]
    names, kinds, scores = _tokens(entries, added, size)
    table = {"tokenizer.ggml.precompiled_charsmap": np.frombuffer(pieces.table, np.uint8)} if pieces.table else {}
    numbers = {f"tokenizer.ggml.{name}_token_id": np.uint32(number) for name, number in pieces.ends.items()}
    return {
        "tokenizer.ggml.model": pieces.kind,
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.add_space_prefix": pieces.begins_with_space,
        "tokenizer.ggml.remove_extra_whitespaces": pieces.merges_spaces,
        **table,
        **numbers,
    }


def _usual_ends(folder: Path, pieces: Pieces) -> dict[str, Any]:
    """Where no `tokenizer.json` says it: Llama begins texts with a token and T5 ends them with one."""
    told = read_json(folder / "tokenizer_config.json")
    begins = bool(told.get("add_bos_token", pieces.kind == "llama")) and "bos" in pieces.ends
    ends = bool(told.get("add_eos_token", pieces.kind == "t5")) and "eos" in pieces.ends
    return {"tokenizer.ggml.add_bos_token": begins, "tokenizer.ggml.add_eos_token": ends}


def _cut(pre_tokenizer: dict[str, Any]) -> str | None:
    """Return what llama.cpp calls the way in which texts are cut into words."""
    if pre_tokenizer.get("type") == "ByteLevel":
        return "gpt-2" if pre_tokenizer.get("use_regex", True) and not pre_tokenizer.get("add_prefix_space") else None
    steps = pre_tokenizer.get("pretokenizers", [])
    patterns = [step.get("pattern", {}).get("Regex") for step in steps if step.get("type") == "Split"]
    return CUTS.get(patterns[0]) if len(patterns) == 1 and patterns[0] else None


def _tokens(
    vocabulary: list[tuple[str, int, int, float]], added: list[dict[str, Any]], size: int
) -> tuple[list[str], list[int], list[float]]:
    """Return texts, kinds and scores by the numbers of tokens, of (text, number, kind, score)."""
    names, kinds, scores = [f"[PAD{i}]" for i in range(size)], [UNUSED] * size, [-1000.0] * size
    entries = [(entry["content"], entry["id"], CONTROL if entry.get("special") else ADDED, -1000.0) for entry in added]
    for text, place, kind, score in [*vocabulary, *entries]:
        if not 0 <= place < size:
            raise InvalidValueError(
                f"token {text!r} is number {place}, and the model has {size} tokens",
                hint="it is the tokenizer of another model",
            )
        names[place], kinds[place], scores[place] = text, kind, score
    return names, kinds, scores


def _ends(folder: Path, tokenizer: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of the first and last tokens of texts, and whether texts begin with that by themselves."""
    entries: dict[str, Any] = {}
    if tokenizer:
        after = tokenizer.get("post_processor") or {}
        templates = [after, *after.get("processors", [])]
        whole = [template["single"] for template in templates if template.get("single")]
        entries["tokenizer.ggml.add_bos_token"] = any("SpecialToken" in pieces[0] for pieces in whole)
        entries["tokenizer.ggml.add_eos_token"] = any("SpecialToken" in pieces[-1] for pieces in whole)
    if not (folder / "config.json").is_file():
        return entries
    config = Folder(folder)
    for name, ours in (("bos", "bos_token_id"), ("eos", "eos_token_id"), ("padding", "pad_token_id")):
        number = config.integer(ours)
        if number is not None:
            entries[f"tokenizer.ggml.{name}_token_id"] = np.uint32(number)
    return entries
