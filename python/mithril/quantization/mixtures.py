"""Mixtures of types of weights, as users of llama.cpp know them: which matrices of a network get more bits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["FILE_TYPES", "MIXTURES", "Mixture", "assigned", "file_type"]

#: What a matrix is for, by the end of its name: those of published checkpoints, and those of llama.cpp.
_ROLES = {
    "output": r"(^|\.)(lm_head|output)\.weight$",
    "tokens": r"(^|\.)(embed_tokens|token_embd|wte)\.weight$",
    "positions": r"(^|\.)(wpe|position_embd)\.weight$",
    "values": r"\.(v_proj|attn_v)\.weight$",
    "queries, keys and values": r"\.(c_attn|attn_qkv)\.weight$",
    "attention": r"\.(o_proj|attn_output|attn\.c_proj)\.weight$",
    "down": r"\.(down_proj|ffn_down|mlp\.c_proj)\.weight$",
}
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blk)\.(\d+)\.")
#: Types of blocks of 256 values -> what rows get that hold whole blocks of 32 alone.
_OF_SHORT_ROWS = {"q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
_LONG, _SHORT = 256, 32

#: Whether a layer, of so many, is one that a type is for.
_Layers = Callable[[int, int], bool]


def _all(layer: int, layers: int) -> bool:
    return True


def _important(layer: int, layers: int) -> bool:
    """Whether a layer is of the first or the last eighth, or every third of the others."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _first(part: int) -> _Layers:
    return lambda layer, layers: layer < layers // part


@dataclass(frozen=True)
class Mixture:
    """A mixture.

    Attributes
    ----------
    base : str
        The type of everything that is not said to have another.
    number : int
        What ``general.file_type`` of a file of GGUF calls it.
    more : dict
        For what a matrix is -> types, and for which layers; the first that fits holds.
    """

    base: str
    number: int
    more: Mapping[str, tuple[tuple[_Layers, str], ...]]


_SIX = {"values": ((_important, "q6_k"),), "down": ((_important, "q6_k"),)}
_TOGETHER = "queries, keys and values"
#: Every mixture by its name.
MIXTURES: dict[str, Mixture] = {
    "q2_k_s": Mixture("q2_k", 21, {"down": ((_first(8), "q4_k"),)}),
    "q3_k_s": Mixture("q3_k", 11, {}),
    "q3_k_m": Mixture(
        "q3_k",
        12,
        {
            "values": ((lambda layer, layers: layer < 2, "q5_k"), (_all, "q4_k")),
            "down": ((_first(16), "q5_k"), (_all, "q4_k")),
            "attention": ((_all, "q4_k"),),
            _TOGETHER: ((_all, "q4_k"),),
        },
    ),
    "q3_k_l": Mixture(
        "q3_k",
        13,
        {role: ((_all, "q5_k"),) for role in ("values", "down", "attention")} | {_TOGETHER: ((_all, "q4_k"),)},
    ),
    "q4_k_s": Mixture(
        "q4_k", 14, {"values": ((lambda layer, layers: layer < 4, "q5_k"),), "down": ((_first(8), "q5_k"),)}
    ),
    "q4_k_m": Mixture("q4_k", 15, {**_SIX, _TOGETHER: ((_all, "q5_k"),)}),
    "q5_k_s": Mixture("q5_k", 16, {}),
    "q5_k_m": Mixture("q5_k", 17, {**_SIX, _TOGETHER: ((_all, "q6_k"),)}),
}

#: What ``general.file_type`` calls a file most of whose values are of a type.
FILE_TYPES = {"float32": 0, "float16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_k": 10, "q6_k": 18}
FILE_TYPES |= {
    mixture.base: mixture.number for name, mixture in MIXTURES.items() if name in ("q3_k_s", "q4_k_s", "q5_k_s")
}
FILE_TYPES |= {"iq2_xxs": 19, "iq2_xs": 20, "iq3_xxs": 23, "iq1_s": 24, "iq4_nl": 25, "iq3_s": 26, "iq2_s": 28}
FILE_TYPES |= {"iq4_xs": 30, "iq1_m": 31, "bfloat16": 32, "tq1_0": 36, "tq2_0": 37, "mxfp4": 38, "nvfp4": 39}
FILE_TYPES |= {"q1_0": 40, "q2_0": 41}


def assigned(name: str, shapes: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the types that a mixture gives to arrays; None: it stays as it is.

    Parameters
    ----------
    name : str
        One of `MIXTURES`.
    shapes : mapping
        The sizes of every array by its name, or None where they are not known.

    Examples
    --------
    >>> from mithril.quantization.mixtures import assigned
    >>> shapes = {f"blk.0.{name}.weight": (256, 256) for name in ("attn_q", "attn_v", "ffn_down")}
    >>> assigned("q4_k_m", {**shapes, "output.weight": (96, 256), "token_embd.weight": (96, 96)})
    ... # doctest: +NORMALIZE_WHITESPACE
    {'blk.0.attn_q.weight': 'q4_k', 'blk.0.attn_v.weight': 'q6_k', 'blk.0.ffn_down.weight': 'q6_k',
     'output.weight': 'q6_k', 'token_embd.weight': 'q5_0'}
    """
    mixture = MIXTURES[name]
    roles = {name: _role(name) for name in shapes}
    is_tied = "output" not in roles.values()
    layers = 1 + max((int(match[1]) for match in map(_LAYER.search, shapes) if match), default=0)

    def of(name: str, role: str | None) -> str | None:
        if role == "positions":
            return None
        if role == "output" or (role == "tokens" and is_tied):
            return "q6_k"
        match = _LAYER.search(name)
        layer = int(match[1]) if match else 0
        return next((form for fits, form in mixture.more.get(role or "", ()) if fits(layer, layers)), mixture.base)

    return {name: _fitting(of(name, role), shapes[name]) for name, role in roles.items()}


def _role(name: str) -> str | None:
    return next((role for role, pattern in _ROLES.items() if re.search(pattern, name)), None)


def _fitting(form: str | None, shape: Any) -> str | None:
    row = shape[-1] if shape else None
    is_short = isinstance(row, int) and row % _LONG != 0 and row % _SHORT == 0
    return _OF_SHORT_ROWS[form] if form is not None and is_short else form


def file_type(counts: Mapping[str, int], mixtures: Iterable[str] = ()) -> int | None:
    """Return what ``general.file_type`` calls a file; None if it has no number.

    Parameters
    ----------
    counts : mapping
        How many values are of each type.
    mixtures : iterable of str
        The mixtures that were asked for.

    Examples
    --------
    >>> from mithril.quantization.mixtures import file_type
    >>> file_type({"q8_0": 512, "float32": 16}), file_type({"q4_k": 512}, ["q4_k_m"])
    (7, 15)
    """
    asked = list(mixtures)
    if len(asked) == 1:
        return MIXTURES[asked[0]].number
    return FILE_TYPES.get(max(counts, key=lambda form: counts[form])) if counts else None
