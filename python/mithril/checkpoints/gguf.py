"""Writing files of GGUF: parameters as they are, or quantized; models of llama.cpp with its names and metadata."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _core
from ..backends.exchange import to_host
from ..compiled import internals
from ..compiled.parameters import Parameters
from ..compiled.physical_model import PhysicalModel
from ..errors import InvalidValueError, ParameterError
from ..quantization.mixtures import file_type
from ..quantization.parameters import QuantizationReport, QuantizedArray, QuantizedParameters
from ..quantization.parameters import quantize as _quantize
from ..tokenizers import llama_cpp as llama_tokenizer
from . import files, llama_cpp
from .metadata import named_to_core

__all__ = ["save_gguf", "write"]


def save_gguf(
    model: PhysicalModel | Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    params: Mapping[str, Any] | None = None,
    quantize: str | Mapping[str, str | None] | None = None,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] = (),
    strict: bool = False,
    metadata: Mapping[str, Any] | None = None,
    layout: str | None = "llama.cpp",
    tokenizer: str | os.PathLike[str] | None = None,
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
        As for `mithril.quantize`; patterns are of our names. Default: nothing is quantized.
    metadata : mapping, optional
        Values by name: texts, numbers, booleans, arrays, lists. They go before what is known of the model, as
        ``{"llama.context_length": 8192}`` does; a tokenizer that ``tokenizer`` does not read is given here, as
        ``tokenizer.ggml.tokens`` and so on.
    layout : str or None
        ``None`` writes our names, for a model that llama.cpp knows, too.
    tokenizer : path-like, optional
        A folder with the ``tokenizer.json`` of a model that llama.cpp knows, which is written as it reads it.

    Returns
    -------
    QuantizationReport
        Sizes, and errors of what was quantized.

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
    if not isinstance(metadata, Mapping | None):
        raise InvalidValueError(f"metadata is a {type(metadata).__name__}", hint="pass a dict of values by name")
    quantized = _quantize(
        _parameters(model, params),
        quantize if quantize is not None else {},
        include=include,
        exclude=exclude,
        strict=strict,
    )
    arrays: Mapping[str, Any] = quantized
    values: dict[str, Any] = {"general.architecture": "mithril"}
    logical = internals.logical_model(model) if isinstance(model, PhysicalModel) and layout is not None else None
    if logical is not None and logical.kind in llama_cpp.ARCHITECTURES:
        arrays, values = llama_cpp.published(logical, quantized)
    if tokenizer is not None:
        values |= llama_tokenizer.metadata(tokenizer, _vocabulary(values))
    if any(isinstance(value, QuantizedArray) for value in arrays.values()):
        values["general.quantization_version"] = 2
    source = params if isinstance(model, PhysicalModel) else model
    mixtures = source.mixtures if isinstance(source, QuantizedParameters) else ()
    number = file_type(_counts(arrays), quantized.mixtures or mixtures)
    if number is not None:
        values["general.file_type"] = number
    write(arrays, path, {**values, **(metadata or {})})
    return source.report if quantize is None and isinstance(source, QuantizedParameters) else quantized.report


def _counts(arrays: Mapping[str, Any]) -> dict[str, int]:
    """Count the values of matrices by their types."""
    counts: dict[str, int] = {}
    for name, value in arrays.items():
        if len(np.shape(value)) > 1:
            form = value.format.name if isinstance(value, QuantizedArray) else files.array_type(name, value)[0]
            counts[form] = counts.get(form, 0) + value.size
    return counts


def _vocabulary(values: Mapping[str, Any]) -> int:
    sizes = [value for name, value in values.items() if name.endswith(".vocab_size")]
    if not sizes:
        raise InvalidValueError(
            "a tokenizer is given for a model that llama.cpp does not know", hint="give a compiled GPT or Llama"
        )
    return int(sizes[0])


def _parameters(model: Any, params: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if isinstance(model, PhysicalModel):
        # Integers are the state of random numbers, which no file of weights holds.
        held = model.get_parameters() if params is None else params
        if isinstance(held, Parameters) and not held.is_resolved:
            raise ParameterError("the sizes of the parameters are not known yet", hint="compile with shapes=…")
        state = {name: value for name, value in internals.state_for(model, held).items() if "float" in str(value.dtype)}
        parameters = {**state, **held}
    elif not isinstance(model, Mapping):
        raise InvalidValueError(
            f"save_gguf takes a compiled model or parameters, not a {type(model).__name__}", hint="ml.compile it first"
        )
    elif params is not None:
        raise InvalidValueError("parameters are given twice", hint="give a model and params, or parameters alone")
    else:
        parameters = dict(model)
    for name in parameters:
        if not isinstance(name, str):
            raise ParameterError(f"the name {name!r} is a {type(name).__name__}", hint="names are strings")
    return parameters


def write(arrays: Mapping[str, Any], path: Any, metadata: Mapping[str, Any]) -> None:
    """Write arrays one after the other: one of them at a time is copied."""
    names = list(arrays)

    def stored(name: str) -> tuple[str, tuple[int, ...]]:
        value = arrays[name]
        return (value.format.name, value.shape) if isinstance(value, QuantizedArray) else files.array_type(name, value)

    types = {name: stored(name) for name in names}

    def chunks(place: int) -> Iterator[bytes]:
        name = names[place]
        value = arrays[name]
        host = (
            value.blocks if isinstance(value, QuantizedArray) else files.little_endian(to_host(value), types[name][0])
        )
        return files.byte_chunks(host)

    entries = [(name, *types[name]) for name in names]
    with files.written(files.file_path(path)) as target:
        _core.save_gguf(target, entries, named_to_core(metadata), chunks)
