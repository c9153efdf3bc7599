"""What llama.cpp calls the GPT and the Llama of the zoo: tensors and metadata of their files, both ways."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import _core
from .._core import Model
from ..backends.exchange import to_host
from ..errors import InvalidValueError, ModelFileError, ParameterError
from ..quantization.parameters import QuantizedArray
from . import files, weights

__all__ = ["ARCHITECTURES", "configuration", "published"]

#: The longest texts that a file of Llama states where the user states nothing.
_LLAMA_CONTEXT = 2048


#: Settings that the models of the zoo do not have, and what they are without.
_ACCEPTED: dict[str, tuple[Any, ...]] = {
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0.0, 1.0),
    "expert_count": (0,),
    "attention.sliding_window": (0,),
    "attention.causal": (True,),
}


# --- from a file ------------------------------------------------------------------------------------------------


def configuration(file: weights.Checkpoint) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a `config.json` would say of the model of a file, and arguments that it could not say."""
    kind = file.metadata.get("general.architecture")
    if kind not in ("gpt2", "llama", "qwen2"):
        raise InvalidValueError(
            f"{file.path!r} is of the architecture {kind!r}, which the zoo does not support",
            hint="it has gpt2, llama and qwen2; build others with Model()",
        )

    def value(key: str, default: Any = None) -> Any:
        entry = file.metadata.get(f"{kind}.{key}", default)
        if entry is None:
            raise ModelFileError(f"{file.path!r} does not say {kind}.{key}", hint="write it with a current tool")
        if isinstance(entry, list) or np.ndim(entry):
            raise InvalidValueError(
                f"{kind}.{key} of {file.path!r} has a value for each layer", hint="layers of the zoo are all alike"
            )
        if isinstance(entry, np.floating) and not (np.isfinite(entry) and entry >= 0):
            raise ModelFileError(f"{kind}.{key} of {file.path!r} is {entry}", hint="fetch the file again")
        # The shortest decimal number is the one that was meant: 1e-5, not what float32 makes of it.
        return (
            float(str(entry)) if isinstance(entry, np.floating) else entry.item() if hasattr(entry, "item") else entry
        )

    for key, accepted in _ACCEPTED.items():
        if value(key, accepted[0]) not in accepted:
            raise InvalidValueError(f"{kind}.{key} is {value(key)!r}", hint="the model of the zoo does not have that")
    if "token_embd.weight" not in file:
        raise ModelFileError(f"{file.path!r} holds no token_embd.weight", hint="it is not a complete model")
    entries = {"vocab_size": file.shape("token_embd.weight")[0], "tie_word_embeddings": "output.weight" not in file}
    if kind == "gpt2":
        names = {"n_positions": "context_length", "n_embd": "embedding_length", "n_inner": "feed_forward_length"}
        names |= {"n_head": "attention.head_count", "n_layer": "block_count"}
        names |= {"layer_norm_epsilon": "attention.layer_norm_epsilon"}
        return {"model_type": kind, **entries, **{name: value(key) for name, key in names.items()}}, {}
    head = {"head_dim": value("attention.key_length")} if f"{kind}.attention.key_length" in file.metadata else {}
    return {"model_type": kind, **entries, **head, **_llama_sizes(value)}, _llama_arguments(file)


def _llama_sizes(value: Any) -> dict[str, Any]:
    heads = value("attention.head_count")
    usual = value("embedding_length") // heads if heads else 0
    each = value("attention.key_length", usual)
    for key in ("attention.value_length", "rope.dimension_count"):
        if value(key, each) != each:
            raise InvalidValueError(f"{key} is {value(key)}, and keys have {each}", hint="in the zoo they are the same")
    return {
        "hidden_size": value("embedding_length"),
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("attention.head_count_kv", heads),
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "rope_theta": value("rope.freq_base", 10000.0),
    }


def _llama_arguments(file: weights.Checkpoint) -> dict[str, Any]:
    """Read from the tensors that are there which layers have biases, and whether the rotary embedding is slowed."""
    arguments: dict[str, Any] = {}
    if "rope_freqs.weight" in file:
        # By what, no value says, and the model wants its four numbers.
        arguments["rope_factor"] = None
    ends = {"ffn_up": "all", "attn_output": "attention", "attn_q": "qkv"}
    biases = [kind for end, kind in ends.items() if f"blk.0.{end}.bias" in file]
    return arguments | ({"biases": biases[0]} if biases else {})


# --- to a file --------------------------------------------------------------------------------------------------


def published(model: Model, arrays: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tensors of a model by the names of llama.cpp, and what it has to know of the model."""
    metadata, head, further = ARCHITECTURES[model.kind](model.arguments)
    published_arrays: dict[str, Any] = {}
    for theirs, ours, _, _, _, paired in _core.publish_weights(list(arrays), "llama.cpp"):
        if theirs == ours:
            raise ParameterError(
                f"{ours!r} has no counterpart in a llama.cpp file", hint="layout=None writes the model with our names"
            )
        published_arrays[theirs] = _as_expected(ours, arrays[ours], head if paired else None)
    # Without a tokenizer its tools still load the model.
    return {**published_arrays, **further}, {**metadata, "tokenizer.ggml.model": "no_vocab"}


def _as_expected(name: str, value: Any, head: int | None) -> Any:
    """Give the rows of an array in pairs, if heads are given; and vectors as float32, as its kernels want them."""
    if isinstance(value, QuantizedArray):
        if value.ndim < 2:
            raise ParameterError(f"{name!r} is a vector, which llama.cpp requires in float32", hint="exclude it")
        return value if head is None else QuantizedArray(weights.pairs(value.blocks, head), value.format.name)
    is_narrow = files.array_type(name, value)[0] in ("float32", "float16", "bfloat16")
    if not is_narrow or len(value.shape) < 2:
        value = to_host(value).astype(np.float32)
    return value if head is None else weights.pairs(to_host(value), head)


#: What is known of an architecture: metadata, rows of a head that are written in pairs, further tensors.
_Known = tuple[dict[str, Any], "int | None", dict[str, Any]]


def _gpt(a: Mapping[str, Any]) -> _Known:
    if not a["bias"]:
        raise ParameterError(
            "llama.cpp knows GPT with biases alone", hint="layout=None writes the model with our names"
        )
    return _named("gpt2", a, a["block_size"], 4 * a["dims"]) | {"gpt2.attention.layer_norm_epsilon": 1e-5}, None, {}


def _llama(a: Mapping[str, Any]) -> _Known:
    name = "qwen2" if a["biases"] == "qkv" else "llama"
    heads = a["num_heads"]
    each = a["head_dim"] or a["dims"] // heads
    metadata = _named(name, a, _LLAMA_CONTEXT, a["hidden"]) | {
        f"{name}.attention.head_count_kv": a["num_kv_heads"] or heads,
        f"{name}.attention.key_length": each,
        f"{name}.attention.value_length": each,
        f"{name}.attention.layer_norm_rms_epsilon": float(a["eps"]),
        f"{name}.rope.dimension_count": each,
        f"{name}.rope.freq_base": float(a["rope_base"]),
    }
    further = {} if a["rope_factor"] is None else {"rope_freqs.weight": _slower(a, each)}
    return metadata, each if name == "llama" else None, further


def _named(name: str, a: Mapping[str, Any], context: int, hidden: int) -> dict[str, Any]:
    return {
        "general.architecture": name,
        f"{name}.vocab_size": a["vocab_size"],
        f"{name}.context_length": context,
        f"{name}.embedding_length": a["dims"],
        f"{name}.block_count": a["num_layers"],
        f"{name}.feed_forward_length": hidden,
        f"{name}.attention.head_count": a["num_heads"],
    }


def _slower(a: Mapping[str, Any], each: int) -> np.ndarray[Any, Any]:
    """By what llama.cpp divides the speed of each pair of the rotary embedding, as in Llama 3.1."""
    low, high = a["rope_low_frequency"], a["rope_high_frequency"]
    speeds = a["rope_base"] ** (-np.arange(0, each, 2) / each)
    turns = a["rope_length"] * speeds / (2 * math.pi)
    share = np.clip((turns - low) / (high - low), 0, 1)
    return np.asarray(1 / (share + (1 - share) / a["rope_factor"]), np.float32)


#: The models of the zoo that llama.cpp knows.
ARCHITECTURES = {"create_gpt": _gpt, "create_llama": _llama}
