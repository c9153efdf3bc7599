"""Writing files of GGUF: parameters as they are, or quantised, with the names and the metadata of llama.cpp."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from . import _core, files, weights
from ._core import Model
from .backends.exchange import to_host
from .errors import InvalidValueError, ParameterError
from .metadata import named_to_core
from .parameters import Parameters
from .physical import PhysicalModel
from .quantization import QuantizationReport, QuantizedArray, QuantizedParameters
from .quantization import quantize as _quantize

__all__ = ["ARCHITECTURES", "save_gguf", "write"]

#: The longest texts that a file of Llama states where the user states nothing.
_LLAMA_CONTEXT = 2048


def save_gguf(
    model: PhysicalModel | Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    params: Mapping[str, Any] | None = None,
    quantize: str | Mapping[str, str] | None = None,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] = (),
    strict: bool = False,
    metadata: Mapping[str, Any] | None = None,
    layout: str | None = "llama.cpp",
) -> QuantizationReport:
    """Write a file of GGUF. It is replaced as a whole, or not at all.

    A GPT or a Llama of `mithril.models` gets the names and the metadata that llama.cpp expects, if the compiled model
    is given and not its parameters alone; everything else keeps its names.

    Parameters
    ----------
    model : PhysicalModel or mapping
        A compiled model; or parameters by name, arrays of any backend, or those of `mithril.quantize`.
    path : path-like
        The file, usually ``*.gguf``.
    params : mapping, optional
        The parameters of a model. Default: those that it holds.
    quantize, include, exclude, strict
        As for `mithril.quantize`; patterns are of our names. Default: nothing is quantised.
    metadata : mapping, optional
        Values by name: texts, numbers, truth values, arrays, lists. They go before what is known of the model, as
        ``{"llama.context_length": 8192}`` does; a tokenizer is given here, as ``tokenizer.ggml.tokens`` and so on.
    layout : str or None
        ``None`` writes our names, for a model that llama.cpp knows, too.

    Returns
    -------
    QuantizationReport
        Sizes, and errors of what was quantised.

    Examples
    --------
    >>> import mithril as ml, numpy as np, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "model.gguf")
    >>> report = ml.save_gguf({"w": np.ones((2, 32), np.float32)}, path, quantize="q8_0")
    >>> ml.weights.open(path)["w"].shape
    (2, 32)
    """
    if layout not in (None, "llama.cpp"):
        raise InvalidValueError(
            f"there is no layout {layout!r} for GGUF", hint='take "llama.cpp", or None for our names'
        )
    made = _quantize(
        _parameters(model, params),
        quantize if quantize is not None else {},
        include=include,
        exclude=exclude,
        strict=strict,
    )
    arrays: Mapping[str, Any] = made
    values: dict[str, Any] = {"general.architecture": "mithril"}
    if isinstance(model, PhysicalModel) and layout is not None and model._model.kind in ARCHITECTURES:
        arrays, values = _published(model._model, made)
    if any(isinstance(value, QuantizedArray) for value in arrays.values()):
        values["general.quantization_version"] = 2
    write(arrays, path, {**values, **(metadata or {})})
    source = params if isinstance(model, PhysicalModel) else model
    return source.report if quantize is None and isinstance(source, QuantizedParameters) else made.report


def _parameters(model: Any, params: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if isinstance(model, PhysicalModel):
        # Integers are the state of random numbers, which no file of weights holds.
        state = {name: value for name, value in model.state.items() if "float" in str(value.dtype)}
        held = model.get_parameters() if params is None else params
        if isinstance(held, Parameters) and not held._resolved:
            raise ParameterError("the sizes of the parameters are not known yet", hint="compile with shapes=…")
        found = {**held, **state}
    elif not isinstance(model, Mapping):
        raise InvalidValueError(
            f"save_gguf takes a compiled model or parameters, not a {type(model).__name__}", hint="ml.compile it first"
        )
    elif params is not None:
        raise InvalidValueError("parameters are given twice", hint="give a model and params, or parameters alone")
    else:
        found = dict(model)
    for name in found:
        if not isinstance(name, str):
            raise ParameterError(f"the name {name!r} is a {type(name).__name__}", hint="names are strings")
    return found


def write(arrays: Mapping[str, Any], path: Any, metadata: Mapping[str, Any]) -> None:
    """Write arrays one after the other: one of them at a time is copied."""
    names = list(arrays)

    def stored(name: str) -> tuple[str, tuple[int, ...]]:
        value = arrays[name]
        return (value.format.name, value.shape) if isinstance(value, QuantizedArray) else files._type(name, value)

    types = {name: stored(name) for name in names}

    def chunks(place: int) -> Iterator[bytes]:
        name = names[place]
        value = arrays[name]
        host = value.blocks if isinstance(value, QuantizedArray) else files._bits(to_host(value), types[name][0])
        return files._pieces(host)

    entries = [(name, *types[name]) for name in names]
    _core.save_gguf(files._path(path), entries, named_to_core(metadata), chunks)


# --- llama.cpp --------------------------------------------------------------------------------------------------


def _published(model: Model, arrays: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tensors of a model by the names of llama.cpp, and what it has to know of the model."""
    metadata, head, further = ARCHITECTURES[model.kind](model.arguments)
    found: dict[str, Any] = {}
    for theirs, ours, _, _, _, paired in _core.publish_weights(list(arrays), "llama.cpp"):
        if theirs == ours:
            raise ParameterError(
                f"{ours!r} has no place in a file of llama.cpp", hint="layout=None writes the model with our names"
            )
        found[theirs] = _as_expected(ours, arrays[ours], head if paired else None)
    # Without a tokenizer its tools still load the model.
    return {**found, **further}, {**metadata, "tokenizer.ggml.model": "no_vocab"}


def _as_expected(name: str, value: Any, head: int | None) -> Any:
    """Give the rows of an array in pairs, if heads are given; and vectors as float32, as its kernels want them."""
    if isinstance(value, QuantizedArray):
        if value.ndim < 2:
            raise ParameterError(f"{name!r} is a vector, which llama.cpp wants as float32", hint="exclude it")
        return value if head is None else QuantizedArray(weights.pairs(value.blocks, head), value.format.name)
    is_narrow = files._type(name, value)[0] in ("float32", "float16", "bfloat16")
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
