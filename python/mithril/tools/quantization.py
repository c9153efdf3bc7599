"""`quantization_report`: what it costs and saves to keep the weights of a model in low precision."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..backends.exchange import to_host
from ..backends.quantized import QuantizedWeights, bytes_of
from ..backends.with_manualgrad.c_backend import CBackend
from ..backends.with_manualgrad.c_backend.quantization import rounded
from ..backends.with_manualgrad.ggml_backend import GGMLBackend
from ..backends.with_manualgrad.ggml_backend.quantization import ALIASES
from ..compiled import internals
from ..errors import InvalidValueError, ParameterError
from ..quantization.parameters import (
    OutputError,
    QuantizationReport,
    Quantized,
    QuantizedArray,
    Skipped,
    distance,
    in_few_bits,
    output_errors,
)

if TYPE_CHECKING:
    from ..compiled.physical_model import PhysicalModel
    from ..compiled.program import Program

__all__ = ["quantization_report"]


def quantization_report(
    model: PhysicalModel, params: Mapping[str, Any] | None = None, data: Mapping[str, Any] | None = None
) -> QuantizationReport:
    """Report what became of each weight of a model that was compiled with low-bit weights.

    That is, with ``quantize`` of its backend; or on GGML with weights that are given in
    few bits, such as those of a file of GGUF, which have no further error if they are kept as they are.

    Parameters
    ----------
    model : PhysicalModel
        The model.
    params : mapping, optional
        Parameters. Default: those that belong to the model.
    data : mapping, optional
        Data of a call; the outputs are then compared with those of the same model in float32.

    Returns
    -------
    QuantizationReport
        What is not quantized is in ``skipped``, with the reason. Where activations are quantized too, rows tell their
        range and the method of `mithril.calibrate` that determined it, or that it is computed at each call.

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> model = ml.Model()
    >>> model |= ml.Linear(64)(input="input", output="output")
    >>> backend = ml.CBackend(quantize="int8_weights", num_threads=1)
    >>> compiled = ml.compile(model, backend, shapes={"input": [1, 96]}, inference=True)
    >>> report = ml.quantization_report(compiled, compiled.randomize_params(seed=0))
    >>> [(row.path, row.type) for row in report.rows], [skip.path for skip in report.skipped]
    ([('linear.weight', 'int8_weights')], ['linear.bias'])
    """
    backend = model.backend
    params = model.get_parameters() if params is None else params
    has_blocks = isinstance(backend, GGMLBackend) and any(map(in_few_bits, params.values()))
    kinds = (CBackend, GGMLBackend, QuantizedWeights)
    if not isinstance(backend, kinds) or (backend.quantize is None and not has_blocks):
        raise InvalidValueError(
            "the model is not quantized",
            hint='compile it for a backend with quantize="int8", or on ml.GGMLBackend(...)',
        )
    outputs = () if data is None else _outputs(model, backend, params, data)
    program = internals.current_program(model)
    if program is None:
        raise InvalidValueError("the model has no sizes yet", hint="give data, or shapes when compiling")
    _check(program, params)
    if isinstance(backend, QuantizedWeights):
        return _of_bytes(program, params, outputs)
    if isinstance(backend, GGMLBackend):
        _prepare(program, params)
    decisions = {decision["weight"]: decision for decision in program.module.source.decisions}
    rows, skipped, before, after = [], [], 0, 0
    for name, value in params.items():
        host, decision = to_host(value), decisions.get(name)
        is_in_blocks = isinstance(backend, GGMLBackend) and in_few_bits(value)
        before += 4 * host.size if is_in_blocks else host.nbytes
        if decision is None or decision["scheme"] is None:
            reason = "no product or convolution has it as a factor" if decision is None else decision["reason"]
            skipped.append(Skipped(name, str(host.dtype), reason))
            after += host.nbytes
        elif is_in_blocks and _is_kept(value, decision):
            form, kept = decision["scheme"].lower(), decision["bytes"]
            rows.append(Quantized(name, form, 4 * host.size, kept, 8 * kept / host.size, 0.0, 1.0))
            after += kept
        else:
            if isinstance(backend, CBackend):
                rows.append(_row(name, host, decision, backend))
            else:
                rows.append(_row_of_ggml(name, host, decision))
            after += decision["bytes"]
    return QuantizationReport(tuple(rows), tuple(skipped), before, after, outputs)


def _of_bytes(program: Program, params: Mapping[str, Any], outputs: tuple[OutputError, ...]) -> QuantizationReport:
    """Report on weights in 8 bits of a backend of generated Python."""
    decisions = {name: (kept, reason) for name, kept, reason in program.weights.decisions} if program.weights else {}
    rows, skipped, before, after = [], [], 0, 0
    for name, value in params.items():
        host = to_host(value)
        kept, reason = decisions.get(name, (None, "no product or convolution has it as a factor, or it was left out"))
        before += host.nbytes
        if kept is None:
            skipped.append(Skipped(name, str(host.dtype), str(reason)))
            after += host.nbytes
            continue
        scheme, axis, names = kept
        numbers, scale = bytes_of(host, axis)
        spread = scale.reshape([-1 if i == axis else 1 for i in range(host.ndim)])
        size = numbers.nbytes + scale.nbytes * sum(name is not None for name in names[1:])
        rmse, cosine = distance(numbers * spread, host)
        rows.append(Quantized(name, scheme, host.nbytes, size, 8 * size / max(host.size, 1), rmse, cosine))
        after += size
    return QuantizationReport(tuple(rows), tuple(skipped), before, after, outputs)


def _check(program: Program, params: Mapping[str, Any]) -> None:
    """Refuse parameters that are not those of the model, whose elements are looked at where they should lie."""
    for name, _, shape in program.params:
        if name not in params:
            raise ParameterError(
                f"params has no {name!r}", hint="give all parameters of the model, or none for its own"
            )
        actual = tuple(np.shape(params[name]))
        if all(isinstance(size, int) for size in shape) and actual != tuple(shape):
            raise ParameterError(f"{name!r} is {list(actual)}, the model needs {list(shape)}")


def _prepare(program: Program, params: Mapping[str, Any]) -> None:
    """Make the plan for these parameters, some of which may be given in blocks, if all sizes are known."""
    shapes = {name: shape for name, _, shape in program.data}
    if all(isinstance(size, int) for shape in shapes.values() for size in shape):
        program.module.source.prepare({**shapes, **{name: np.shape(v) for name, v in params.items()}}, params)


def _is_kept(value: Any, decision: Mapping[str, Any]) -> bool:
    """Whether ggml reads what is given in low precision as it is."""
    if sorted(decision["axes"]) != decision["axes"]:
        return False
    form: str = value.format.name if isinstance(value, QuantizedArray) else value.dtype.name
    scheme: str = decision["scheme"]
    return ALIASES.get(form, form) == scheme.lower()


def _row_of_ggml(path: str, array: np.ndarray[Any, Any], decision: Mapping[str, Any]) -> Quantized:
    scheme, kept = decision["scheme"], decision["bytes"]
    matrix = np.ascontiguousarray(array.transpose(decision["axes"]), np.float32)
    rounded = np.frombuffer(_core.ggml_rounded(scheme, matrix.tobytes(), matrix.shape[-1]), np.float32)
    rmse, cosine = distance(rounded, matrix)
    return Quantized(path, scheme.lower(), array.nbytes, kept, 8 * kept / matrix.size, rmse, cosine)


def _row(path: str, array: np.ndarray[Any, Any], decision: Mapping[str, Any], backend: CBackend) -> Quantized:
    start, columns, column = decision["matrix"]
    flat = np.ascontiguousarray(array).reshape(-1)[start:]
    sizes, steps = zip(*decision["batch"], (columns, column), *decision["terms"], strict=True)
    strides = tuple(step * flat.itemsize for step in steps)
    terms = math.prod(size for size, _ in decision["terms"])
    matrix = np.lib.stride_tricks.as_strided(flat, sizes, strides, writeable=False).reshape(-1, terms)
    scheme, kept = decision["scheme"], decision["bytes"]
    rmse, cosine = distance(rounded(matrix, scheme), matrix)
    range, method = None, None
    if scheme == "int8":
        range = backend.quantize_ranges.get(path) if decision["is_convolution"] else None
        method = "each call" if range is None else backend.calibration or "quantize_ranges"
    return Quantized(path, scheme, array.nbytes, kept, 8 * kept / matrix.size, rmse, cosine, range, method)


def _outputs(model: PhysicalModel, backend: Any, params: Any, data: Any) -> tuple[OutputError, ...]:
    if isinstance(backend, QuantizedWeights):
        plain: Any = copy.copy(backend)
        plain.quantize = None
    else:
        settings: dict[str, Any] = {"dtype": backend.default_dtype, "num_threads": backend.num_threads or None}
        plain = CBackend(**settings, cc=backend.cc) if isinstance(backend, CBackend) else GGMLBackend(**settings)
    exact = internals.recompiled(model, plain)
    internals.update_state(exact, internals.state_for(model, params))
    before = internals.saved_state(model)
    floats = {name: np.asarray(value, "f4") if in_few_bits(value) else value for name, value in params.items()}
    actual, expected = model.evaluate(params, data), exact.evaluate(floats, data)
    internals.restore_state(model, before)
    to_numpy = backend.to_numpy
    return output_errors(*({name: to_numpy(value) for name, value in group.items()} for group in (actual, expected)))
