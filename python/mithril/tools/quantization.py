"""`quantization_report`: what it costs and saves to keep the weights of a model in few bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends.exchange import to_host
from ..backends.with_manualgrad.c_backend import CBackend
from ..backends.with_manualgrad.c_backend.quantization import rounded
from ..errors import InvalidValueError

if TYPE_CHECKING:
    from ..physical import PhysicalModel

__all__ = ["OutputError", "QuantizedModelReport", "QuantizedWeight", "quantization_report"]

Matrix = np.ndarray[Any, Any]


@dataclass(frozen=True)
class QuantizedWeight:
    """What became of a parameter.

    Attributes
    ----------
    path : str
        Its name.
    type : str
        How it is kept: ``"int8"``, ``"int8_weights"``, ``"int4_weights"``, or its dtype.
    reason : str
        Why it is kept in its dtype.
    bytes_before, bytes_after : int
        Size as it was given, and as it is kept for calls.
    bits : float
        Bits for each weight as it is kept, with scales and what fills the last block.
    rmse, cosine : float
        Root of the mean squared difference to the given weight, and the cosine of the angle between the two.
    """

    path: str
    type: str
    reason: str
    bytes_before: int
    bytes_after: int
    bits: float
    rmse: float
    cosine: float


@dataclass(frozen=True)
class OutputError:
    """How far an output is from that of the same model in float32.

    Attributes
    ----------
    name : str
        The output.
    largest : float
        The largest difference, in parts of the largest number.
    rmse : float
        Root of the mean squared difference.
    cosine : float
        Cosine of the angle between the two.
    """

    name: str
    largest: float
    rmse: float
    cosine: float


@dataclass(frozen=True)
class QuantizedModelReport:
    """Sizes and errors of a model whose weights are kept in few bits; printed as tables.

    Attributes
    ----------
    weights : tuple of QuantizedWeight
        The parameters.
    outputs : tuple of OutputError
        The outputs, if data was given.
    """

    weights: tuple[QuantizedWeight, ...]
    outputs: tuple[OutputError, ...]

    @property
    def bytes_before(self) -> int:
        """Bytes of all parameters as they were given."""
        return sum(weight.bytes_before for weight in self.weights)

    @property
    def bytes_after(self) -> int:
        """Bytes of all parameters as they are kept for calls."""
        return sum(weight.bytes_after for weight in self.weights)

    def __str__(self) -> str:
        width = max([len(weight.path) for weight in self.weights] + [6])
        lines = [f"{'weight':{width}}  {'type':12}  bits    bytes before → after     RMSE  cosine"]
        for w in self.weights:
            sizes = f"{w.bytes_before:>12} → {w.bytes_after:<10}"
            lines.append(f"{w.path:{width}}  {w.type:12} {w.bits:5.2f} {sizes} {w.rmse:.1e} {w.cosine:.6f} {w.reason}")
        lines.append(f"all weights: {self.bytes_before} → {self.bytes_after} bytes")
        for o in self.outputs:
            error = f"largest {o.largest:.1e} of the largest number, RMSE {o.rmse:.1e}"
            lines.append(f"output {o.name}: {error}, cosine {o.cosine:.6f}")
        return "\n".join(lines)


def quantization_report(
    model: PhysicalModel, params: Mapping[str, Any] | None = None, data: Mapping[str, Any] | None = None
) -> QuantizedModelReport:
    """Report what became of each weight of a model that was compiled with ``CBackend(quantize=...)``.

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
    QuantizedModelReport

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> model = ml.Model()
    >>> model |= ml.Linear(64)(input="input", output="output")
    >>> backend = ml.CBackend(quantize="int8_weights", num_threads=1)
    >>> compiled = ml.compile(model, backend, shapes={"input": [1, 96]}, inference=True)
    >>> report = ml.quantization_report(compiled, compiled.randomize_params(seed=0))
    >>> [(w.path, w.type) for w in report.weights]
    [('linear.weight', 'int8_weights'), ('linear.bias', 'float32')]
    """
    backend = model.backend
    if not isinstance(backend, CBackend) or backend.quantize is None:
        raise InvalidValueError("the model is not quantised", hint='compile it for ml.CBackend(quantize="int8")')
    params = model.get_parameters() if params is None else params
    outputs = () if data is None else _outputs(model, backend, params, data)
    if model._current is None:
        raise InvalidValueError("the model has no sizes yet", hint="give data, or shapes when compiling")
    decisions = {found["weight"]: found for found in model._current.module.source.decisions}
    weights = tuple(_weight(name, to_host(value), decisions.get(name)) for name, value in params.items())
    return QuantizedModelReport(weights, outputs)


def _weight(path: str, given: Matrix, decision: Mapping[str, Any] | None) -> QuantizedWeight:
    if decision is None or decision["scheme"] is None:
        reason = "no matrix product has it as a factor" if decision is None else decision["reason"]
        size, bits = given.nbytes, 8.0 * given.itemsize
        return QuantizedWeight(path, str(given.dtype), reason, size, size, bits, 0.0, 1.0)
    start, columns, terms, column, term = decision["matrix"]
    flat = np.ascontiguousarray(given).reshape(-1)[start:]
    sizes, steps = zip(*decision["batch"], (columns, column), (terms, term), strict=True)
    strides = tuple(step * flat.itemsize for step in steps)
    matrix = np.lib.stride_tricks.as_strided(flat, sizes, strides, writeable=False).reshape(-1, terms)
    scheme, kept = decision["scheme"], decision["bytes"]
    rmse, cosine = _distance(rounded(matrix, scheme), matrix)
    return QuantizedWeight(path, scheme, "", given.nbytes, kept, 8 * kept / matrix.size, rmse, cosine)


def _outputs(model: PhysicalModel, backend: CBackend, params: Any, data: Any) -> tuple[OutputError, ...]:
    plain = CBackend(dtype=backend.default_dtype, num_threads=backend.num_threads or None, cc=backend.cc)
    exact = type(model)(model._model, plain, model._options, model._settings)
    exact.state = dict(model.state)
    before = dict(model.state)
    found, wanted = model.evaluate(params, data), exact.evaluate(params, data)
    model.state = before
    errors = []
    for name, value in wanted.items():
        if value.dtype.kind != "f" or not value.size:
            continue
        rmse, cosine = _distance(found[name], value)
        size = float(np.abs(value).max())
        largest = float(np.abs(found[name] - value).max()) / size if size else 0.0
        errors.append(OutputError(name, largest, rmse, cosine))
    return tuple(errors)


def _distance(found: Matrix, wanted: Matrix) -> tuple[float, float]:
    """RMSE, and the cosine of the angle."""
    a, b = found.astype(np.float64).reshape(-1), wanted.astype(np.float64).reshape(-1)
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.sqrt(np.mean((a - b) ** 2))), float(a @ b) / norm if norm else 1.0
