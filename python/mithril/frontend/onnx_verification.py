"""What ONNX Runtime, or the reference evaluator of ONNX, computes of a file, to compare the model with."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._core import Model
from ..errors import BackendUnavailableError, InvalidValueError
from ..suggestions import did_you_mean
from .verification import verify

__all__ = ["verify_file"]

#: What sizes are taken where the file leaves them open.
_OPEN_SIZE = 2

Content = str | bytes
#: Name, dtype and sizes of an input.
Input = tuple[str, np.dtype[Any], Sequence[int | str | None]]
Run = Callable[[dict[str, Any]], dict[str, Any]]


def verify_file(
    model: Model,
    params: Mapping[str, Any],
    content: Content,
    data: Mapping[str, Any],
    shapes: Mapping[str, Any],
    constants: Mapping[str, Any],
) -> None:
    """Compare a model with what a runtime of ONNX computes of the file that it was made of.

    Parameters
    ----------
    model, params
        The model and its parameters.
    content : str or bytes
        The path of the file, or what is in it.
    data : mapping
        Inputs by name. Others are drawn: floats are normal, integers 0 or 1.
    shapes : mapping
        Sizes of inputs, in place of those in the file.
    constants : mapping
        Inputs that are constants of the model.

    Raises
    ------
    NumericsError
        If an output differs by more than rounding.
    BackendUnavailableError
        If there is neither ONNX Runtime nor ONNX.
    InvalidValueError
        If neither can run the file on this data.
    """
    reasons = []
    for make in (_runtime, _evaluator):
        try:
            name, inputs, run = make(content)
        except ImportError:
            continue
        except Exception as error:
            reasons.append(_line(error))
            continue
        feeds = _complete(inputs, data, shapes, constants)
        try:
            expected = run(feeds)
        except Exception as error:
            reasons.append(f"{name}: {_line(error)}")
            continue
        outputs = dict(zip(model.output_keys, expected.values(), strict=True))
        verify(model, params, feeds, outputs, name, _report, is_rounded=_is_quantized(content))
        return
    if not reasons:
        raise BackendUnavailableError(
            "verify=True compares with ONNX Runtime or ONNX, and neither is installed",
            hint="pip install onnxruntime, or leave verify out",
        )
    raise InvalidValueError(
        f"verify=True cannot run the file: {'; '.join(reasons)}",
        hint='give data that it takes, verify={"input": array}, or leave verify out',
    )


def _report() -> str:
    return "please report this with the file; mithril compare runs the model on several backends"


def _runtime(content: Content) -> tuple[str, list[Input], Run]:
    """Open the file with ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # What it says of the file is not for whoever imports a model.
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    inputs = [(i.name, _dtype(i.name, i.type[len("tensor(") : -1]), i.shape) for i in session.get_inputs()]
    return "ONNX Runtime", inputs, lambda feeds: dict(zip(outputs, session.run(outputs, feeds), strict=True))


def _evaluator(content: Content) -> tuple[str, list[Input], Run]:
    """Open the file with the reference evaluator of ONNX."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(content)
    graph = evaluator.proto_.graph
    # Old files list their weights among the inputs.
    weights = {entry.name for entry in graph.initializer}
    inputs: list[Input] = []
    for entry in graph.input:
        if entry.name not in weights:
            tensor = entry.type.tensor_type
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            sizes = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]
            inputs.append((entry.name, np.dtype(dtype), sizes))
    names = evaluator.output_names
    return "ONNX", inputs, lambda feeds: dict(zip(names, evaluator.run(None, feeds), strict=True))


def _dtype(name: str, of_runtime: str) -> np.dtype[Any]:
    known = {"float": "float32", "double": "float64"}
    try:
        return np.dtype(known.get(of_runtime, of_runtime))
    except TypeError as error:
        raise InvalidValueError(f"arrays of {of_runtime} cannot be given to the input {name!r}") from error


def _complete(
    inputs: Sequence[Input], data: Mapping[str, Any], shapes: Mapping[str, Any], constants: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an array for each input: what is given, or drawn; sizes of one name are equal."""
    names = [name for name, _, _ in inputs]
    for name in data:
        if name not in names:
            hint = did_you_mean(name, names, f"inputs: {', '.join(names) or 'none'}")
            raise InvalidValueError(f"verify names {name!r}, which is no input of the file", hint=hint)
    given = {**constants, **data}
    known = {**shapes, **{name: np.shape(array) for name, array in given.items()}}
    sizes: dict[str, int] = {}
    for name, _, shape in inputs:
        # Other numbers of axes are an error of whoever runs the file.
        named = zip(shape, known.get(name, ()), strict=False)
        sizes |= {size: number for size, number in named if isinstance(size, str) and isinstance(number, int)}
    random = np.random.default_rng(0)
    arrays = {}
    for name, dtype, shape in inputs:
        if name in given:
            arrays[name] = np.asarray(given[name]).astype(dtype)
            continue
        own = shapes.get(name, shape)
        numbers = [n if isinstance(n, int) else sizes.get(str(n), _OPEN_SIZE) for n in own]
        drawn = random.standard_normal(numbers) if dtype.kind == "f" else random.integers(0, 2, numbers)
        arrays[name] = drawn.astype(dtype)
    return arrays


def _is_quantized(content: Content) -> bool:
    """Whether the file rounds to few integers, which what is computed before it in another order may do otherwise."""
    # Names of ops stand in a file as they are.
    if isinstance(content, bytes):
        return b"QuantizeLinear" in content
    if not Path(content).stat().st_size:
        return False
    with Path(content).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return text.find(b"QuantizeLinear") >= 0


def _line(error: Exception) -> str:
    """Return the first line of what a runtime says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].strip()
