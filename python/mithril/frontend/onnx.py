"""Models of ONNX files. They are read in Rust (``crates/mithril-onnx``); here their weights become arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import _core
from .._core import Model
from ..checkpoints.weights import Checkpoint
from ..errors import InvalidValueError
from .onnx_verification import verify_file

__all__ = ["from_onnx"]


def from_onnx(
    source: str | os.PathLike[str] | bytes | Any,
    *,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    constants: Mapping[str, Any] | None = None,
    verify: bool | Mapping[str, Any] = False,
) -> tuple[Model, dict[str, Any]]:
    """Make a model of an ONNX file, and take its parameters along.

    Opsets 7 to 28 of the default domain are read, with functions of the file; ``If``, ``Loop`` and ``Scan`` whose
    conditions and numbers of turns are known are written out. The package ``onnx`` is not needed.

    Parameters
    ----------
    source : path-like, bytes or onnx.ModelProto
        The file, or its contents, also as ``torch.onnx.export`` returns them. Weights in other files (external data)
        need the path.
    shapes : mapping, optional
        Shapes of inputs, where those of the file shall not be taken: numbers, names of symbols, or None for a size that
        stays open.
    constants : mapping, optional
        Arrays for inputs that always have this value: they become constants of the model. Inputs that shapes depend on,
        such as the second one of ``Reshape``, need one.
    verify : bool or mapping, optional
        Compare what the model computes on NumPy with what ONNX Runtime computes of the file, or the reference evaluator
        of ``onnx`` where that is not installed or cannot. A mapping holds arrays for inputs; for others they are drawn:
        floats are normal, integers 0 or 1, and sizes that are open are 2.

    Returns
    -------
    model : Model
        Its inputs and outputs are those of the graph, by name and in their order. Sizes that the file gives names
        (``dim_param``) are symbols.
    params : dict
        NumPy arrays of the parameters by name: the initializers of floats with at least one axis. They are views of the
        file where it keeps them aligned, and copies elsewhere. Other initializers are constants of the model.

    Raises
    ------
    UnsupportedOpError
        If ops, attributes or dtypes have no counterpart. The error lists all of them, with their nodes.
    ModelFileError
        If a file cannot be read, is not one of ONNX, contradicts itself, or wants to read what lies outside of its
        folder.
    NumericsError
        If ``verify`` finds an output that differs by more than 0.001 of its largest element (0.1 with 16 bits, or where
        the file quantizes).
    BackendUnavailableError
        If ``verify`` finds neither ``onnxruntime`` nor ``onnx``.

    Examples
    --------
    >>> import mithril as ml
    >>> from onnx import parser
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... net (float[batch, 3] x) => (float[batch, 2] y) <float[2, 3] weight = {1, 2, 3, 4, 5, 6}> {
    ...   y = Gemm <transB = 1> (x, weight)
    ... }'''
    >>> model, params = ml.from_onnx(parser.parse_model(text).SerializeToString())
    >>> list(params)
    ['weight']
    >>> ml.compile(model, ml.NumpyBackend()).evaluate(params, {"x": [[1.0, 0.0, 0.0]]})["y"].tolist()
    [[1.0, 4.0]]
    """
    content = _content(source)
    arrays = {name: np.asarray(value) for name, value in (constants or {}).items()}
    model, parameters = _core.read_onnx(content, shapes, arrays)
    params = dict(Checkpoint(parameters))
    if verify is not False:
        data = {} if verify is True else _given(verify)
        verify_file(model, params, content, data, shapes or {}, arrays)
    return model, params


def _content(source: Any) -> str | bytes:
    """Give the path of a file, or its contents."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    # `torch.onnx.export` returns a program that holds the file.
    file = getattr(source, "model_proto", source)
    if hasattr(file, "SerializeToString"):
        return bytes(file.SerializeToString())
    try:
        path: str | bytes = os.fspath(source)
    except TypeError:
        raise InvalidValueError(
            f"a {type(source).__name__} is no ONNX file", hint="give a path, the bytes of a file, or an onnx.ModelProto"
        ) from None
    return path


def _given(verify: Any) -> Mapping[str, Any]:
    if not isinstance(verify, Mapping):
        raise InvalidValueError(f"verify is {verify!r}", hint='give True or inputs, such as {"input": array}')
    return verify
