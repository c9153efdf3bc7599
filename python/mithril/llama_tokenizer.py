"""What llama.cpp has to know of a tokenizer, read from a `tokenizer.json`: BPE of bytes, of GPT-2, Llama 3, Qwen2."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from .errors import InvalidValueError, ModelFileError
from .folders import Folder, read_json

__all__ = ["metadata"]

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: How texts are cut into words -> what llama.cpp calls that.
_CUTS = {_WORDS % "{1,3}": "llama-bpe", _WORDS % "": "qwen2"}
#: Kinds of tokens in GGUF.
_USUAL, _CONTROL, _ADDED, _UNUSED = 1, 3, 4, 5


def metadata(folder: str | os.PathLike[str], size: int) -> dict[str, Any]:
    """Return the entries of a file of GGUF that describe the tokenizer of a folder.

    Parameters
    ----------
    folder : path-like
        With ``tokenizer.json``; numbers of the first and the last token of a text come from ``config.json``.
    size : int
        Tokens that the model has; those that the tokenizer lacks are marked as unused.

    Raises
    ------
    ModelFileError
        If there is no ``tokenizer.json``.
    InvalidValueError
        If it is of a kind that is not written here.
    """
    path = Path(folder) / "tokenizer.json"
    found = read_json(path)
    if not found:
        raise ModelFileError(f"there is no {str(path)!r}", code="M0802", hint="give a folder with a tokenizer")
    model = found.get("model", {})
    cut = _cut(found.get("pre_tokenizer") or {})
    if model.get("type") != "BPE" or cut is None:
        raise InvalidValueError(
            f"the tokenizer of {str(path)!r} is none that is written to GGUF",
            hint="byte-level BPE of GPT-2, Llama 3 and Qwen2 is; give the entries tokenizer.ggml.* as metadata",
        )
    names, kinds = _tokens(model["vocab"], found.get("added_tokens") or [], size)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model.get("merges", [])]
    entries: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": cut,
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": merges,
    }
    return entries | _ends(Path(folder), found.get("post_processor") or {})


def _cut(given: dict[str, Any]) -> str | None:
    """Return what llama.cpp calls the way in which texts are cut into words."""
    if given.get("type") == "ByteLevel":
        return "gpt-2" if given.get("use_regex", True) and not given.get("add_prefix_space") else None
    steps = given.get("pretokenizers", [])
    patterns = [step.get("pattern", {}).get("Regex") for step in steps if step.get("type") == "Split"]
    return _CUTS.get(patterns[0]) if len(patterns) == 1 and patterns[0] else None


def _tokens(vocabulary: dict[str, int], added: list[dict[str, Any]], size: int) -> tuple[list[str], list[int]]:
    names, kinds = [f"[PAD{i}]" for i in range(size)], [_UNUSED] * size
    entries = [(text, place, _USUAL) for text, place in vocabulary.items()]
    entries += [(entry["content"], entry["id"], _CONTROL if entry.get("special") else _ADDED) for entry in added]
    for text, place, kind in entries:
        if not 0 <= place < size:
            raise InvalidValueError(
                f"token {text!r} is number {place}, and the model has {size} tokens",
                hint="it is the tokenizer of another model",
            )
        names[place], kinds[place] = text, kind
    return names, kinds


def _ends(folder: Path, after: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of the first and last tokens of texts, and whether texts begin with that by themselves."""
    if not (folder / "config.json").is_file():
        return {}
    config = Folder(folder)
    found: dict[str, Any] = {}
    for name, ours in (("bos", "bos_token_id"), ("eos", "eos_token_id"), ("padding", "pad_token_id")):
        number = config.integer(ours)
        if number is not None:
            found[f"tokenizer.ggml.{name}_token_id"] = np.uint32(number)
    templates = [after, *after.get("processors", [])]
    first = [template["single"][0] for template in templates if template.get("single")]
    return found | {"tokenizer.ggml.add_bos_token": any("SpecialToken" in piece for piece in first)}
