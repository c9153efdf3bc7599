"""Models as files of ONNX, which are written in Rust (``crates/mithril-onnx``): their parameters and options."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import _core
from .. import dtypes as _dtypes
from .._core import Model
from ..backends.exchange import to_host
from ..backends.with_manualgrad.numpy_backend import NumpyBackend
from ..checkpoints import files
from ..compiled import internals
from ..compiled.arguments import missing
from ..compiled.compile import compile
from ..compiled.physical_model import PhysicalModel
from ..errors import ConflictingOptionError, InvalidValueError, KeyNotFoundError, ParameterError, UnsupportedOpError
from ..optim import internals as optimizers
from ..optim.optimizer import Optimizer
from .inputs import refuse_unknown
from .inspection import gradient_names, minimized

__all__ = ["to_onnx"]

Values = dict[str, Any]


def to_onnx(
    model: Model | PhysicalModel,
    path: str | os.PathLike[str] | None = None,
    *,
    params: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Any] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    data_keys: Iterable[str] | None = None,
    constant_keys: Mapping[str, Any] | None = None,
    trainable_keys: Iterable[str] | None = None,
    discard_keys: Iterable[str] | None = None,
    dtype: Any = None,
    inference: bool | None = None,
    opset: int | None = None,
    external_data: bool | None = None,
    gradients: bool = False,
    optimizer: Optimizer | None = None,
    loss: str | None = None,
    description: str | None = None,
) -> Path | bytes:
    """Write a model as a file of ONNX.

    Inputs, outputs and parameters keep their names; sizes that are symbols become names of dimensions (``dim_param``),
    so that the file takes any size there. Ops that ONNX has at the opset that is chosen are written as such; others
    are expanded into them. The package ``onnx`` is not needed.

    States that change at a call (statistics of a batch norm in training, the counter of random numbers) are inputs, of
    which the file holds the first values, so that they may be left out; ``<name>.new`` are outputs, to be given to
    the next call. The parameters and the memory of an optimizer are such states, too.

    Parameters
    ----------
    model : Model or PhysicalModel
        The model. One that is compiled is written with its shapes, its options, and the parameters that belong to it.
    path : path-like, optional
        The file, usually ``*.onnx``. It is replaced as a whole, or not at all. Default: the file is returned as bytes.
    params : mapping, optional
        Parameters, and running statistics, by name: arrays of any backend.
    shapes, dtypes, data_keys, constant_keys, trainable_keys, discard_keys : optional
        As for `compile`; for a `Model` only.
    dtype : dtype, optional
        The dtype of floats, in which parameters are written (default float32, or that of the backend of a compiled
        model).
    inference : bool, optional
        Without dropout, with running statistics. Default: unless gradients or a training step are asked for.
    opset : int, optional
        The version of ONNX's ops, from 17 to 24 (default 20).
    external_data : bool, optional
        Write the parameters into a second file, ``<path>.data``, which has to stay beside the first one. Default: if
        they are more than the 2 GB that one file may have.
    gradients : bool, optional
        Also compute the gradients of all float parameters that are not frozen: outputs ``gradient:<name>``. Inputs
        ``cotangent:<output>`` are the gradients of the outputs, unless ``loss`` is given.
    optimizer : Optimizer, optional
        Write a training step: a call computes the outputs and new parameters. ``learning_rate`` is an input.
    loss : str, optional
        With ``gradients``, the output whose sum is differentiated. With an optimizer, the output whose sum it
        minimizes (default: the only one).
    description : str, optional
        What the file says of itself (``doc_string``), behind the name of the model.

    Returns
    -------
    Path or bytes
        The file that was written, or its contents.

    Raises
    ------
    UnsupportedOpError
        If ops cannot be written at this opset. The error lists all of them, with their places in the model.
    ParameterError
        If parameters are missing or have other shapes.
    UnresolvedShapeError
        If shapes are not known.

    Examples
    --------
    >>> import mithril as ml
    >>> model = ml.Model()
    >>> model |= ml.Linear(2)(input="input", output="output")
    >>> compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": ["batch", 3]}, inference=True)
    >>> again, params = ml.from_onnx(ml.to_onnx(compiled, params=compiled.randomize_params(seed=0)))
    >>> {name: array.shape for name, array in params.items()}
    {'linear.weight': (2, 3), 'linear.bias': (2,)}
    """
    trains = gradients or optimizer is not None
    _check(opset, path, external_data, gradients, optimizer, loss)
    if description is not None and not isinstance(description, str):
        raise InvalidValueError(f"description is {description!r}", hint="pass a text")
    own = {
        "shapes": shapes,
        "dtypes": dtypes,
        "data_keys": data_keys,
        "constant_keys": constant_keys,
        "trainable_keys": trainable_keys,
        "discard_keys": discard_keys,
    }
    compiled = _compiled(model, own, dtype, inference, trains)
    options = dict(internals.compile_options(compiled))
    options["training"] = trains if inference is None else not inference
    options |= {"donate": [], "keep_formulas": False}
    if getattr(compiled.backend, "quantize", None):
        raise UnsupportedOpError(
            "the model is compiled with quantized weights, which are not written as ONNX",
            hint="compile it without quantize; ONNX Runtime quantizes the file: onnxruntime.quantization",
        )
    core = _core.compile(internals.logical_model(compiled), str(compiled.backend.default_dtype), options)
    values = _values(compiled, core, params)
    title = str(internals.logical_model(compiled))
    if description is not None:
        title += f". {description}"
    chosen, is_loss = None, False
    if optimizer is not None:
        core, values = _training(core, optimizer, loss, values)
    elif gradients:
        outputs, names = gradient_names(core)
        chosen, is_loss = ([_output(loss, outputs)] if loss is not None else outputs, names), loss is not None
    file = _core.onnx_file(core, opset, title, chosen, is_loss)
    parameters = file.parameters

    def chunks(place: int) -> Iterator[bytes]:
        name, kind, _ = parameters[place]
        return files.byte_chunks(files.little_endian(_as(values[name], kind), kind))

    if path is None:
        contents: bytes = file.bytes(chunks)
        return contents
    target = Path(files.file_path(path))
    if files.is_special(target) and external_data:
        raise ConflictingOptionError(
            f"{os.fspath(path)!r} is not a regular file, so there is no file beside it",
            hint="give the path of a file, or leave out external_data",
        )
    with files.written(target) as place:
        file.save(place, chunks, external_data if place == target else False)
    return target


def _check(opset: Any, path: Any, external: Any, gradients: Any, optimizer: Any, loss: Any) -> None:
    if opset is not None and (isinstance(opset, bool) or not isinstance(opset, int)):
        raise InvalidValueError(f"opset is {opset!r}", hint="give a number, e.g. opset=18")
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise InvalidValueError(f"the path is of type {type(path).__name__}", hint='pass a path, e.g. "model.onnx"')
    if path is not None and not os.fspath(path):
        raise InvalidValueError("the path is empty", hint='pass a path, e.g. "model.onnx"')
    if external not in (None, True, False):
        raise InvalidValueError(f"external_data is {external!r}", hint="pass True, False, or None for by size")
    if path is None and external:
        raise ConflictingOptionError("bytes have no file beside them", hint="give a path, or leave out external_data")
    if not isinstance(gradients, (bool, np.bool_)):
        raise InvalidValueError(f"gradients is {gradients!r}", hint="pass True or False; loss='...' names an output")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise InvalidValueError(f"optimizer is {optimizer!r}", hint="give one, e.g. ml.optim.Adam(0.001)")
    if loss is not None and optimizer is None and not gradients:
        raise ConflictingOptionError(
            "loss says what is differentiated", hint="add gradients=True, or optimizer=ml.optim.Adam(0.001)"
        )


def _compiled(model: Any, own: Mapping[str, Any], dtype: Any, inference: bool | None, trains: bool) -> PhysicalModel:
    conflicting = {name: value for name, value in own.items() if value is not None}
    if isinstance(model, PhysicalModel):
        if conflicting or dtype is not None:
            name = next(iter(conflicting), "dtype")
            raise ConflictingOptionError(
                f"{name} is an option of compiling",
                hint="give it to ml.compile, or give the model that is not compiled",
            )
        return model
    if not isinstance(model, Model):
        raise InvalidValueError(f"the model is a {type(model).__name__}", hint="pass an ml.Model, or a compiled one")
    backend = NumpyBackend() if dtype is None else NumpyBackend(dtype=_dtypes.normalize(dtype))
    return compile(model, backend, inference=not trains if inference is None else inference, **conflicting)


def _values(compiled: PhysicalModel, core: Any, params: Mapping[str, Any] | None) -> Values:
    """Parameters and states by name, as they were given or belong to the model."""
    declared = core.inputs("param")
    stored = internals.stored_parameters(compiled)
    if params is None and stored is None and declared:
        raise ParameterError(
            f"the model has {len(declared)} parameters, and no values for them",
            hint="give params={...}; for random ones: compile it, and give compiled.randomize_params(seed=0)",
        )
    chosen = stored if params is None else params
    if chosen is not None and not isinstance(chosen, Mapping):
        raise InvalidValueError(f"params is a {type(chosen).__name__}", hint="pass names with arrays")
    arrays = {} if chosen is None else dict(chosen)
    values = {**internals.state_for(compiled, {} if chosen is None else chosen), **arrays}
    if params is not None:
        refuse_unknown("params", params, [*(n for n, _, _ in declared), *internals.names_by_role(compiled)["state"]])
    for name, _, shape in declared:
        if name not in values:
            raise missing("params", name, declared, arrays)
        if all(isinstance(n, int) for n in shape) and list(np.shape(values[name])) != list(shape):
            actual = list(np.shape(values[name]))
            raise ParameterError(
                f"parameter {name!r} has shape {actual}, but must be {list(shape)}", hint="check where it comes from"
            )
    absent = [name for name, _, _ in core.inputs("state") if name not in values]
    return {**values, **core.initial(absent, compiled.backend.engine.seed)}


def _output(loss: str, outputs: list[str]) -> str:
    if loss not in outputs:
        raise KeyNotFoundError(f"there is no output {loss!r}", hint=f"available: {', '.join(outputs)}")
    return loss


def _training(core: Any, optimizer: Optimizer, loss: str | None, values: Values) -> tuple[Any, Values]:
    """Return the program of a training step; what the optimizer remembers joins the values."""
    name, names = minimized(core, optimizer, loss)
    kinds = {n: kind for n, kind, _ in core.inputs("param")}
    trained = {n: _as(values[n], kinds[n]) for n in names}
    step = optimizers.step_program(optimizer, trained, dict.fromkeys(names, 1))
    slots = {n: step.start(n, trained[n]) for n in names}
    kept = {f"{n}.{slot}": np.array(value) for n, by_name in slots.items() for slot, value in by_name.items()}
    first = {"step": np.ones((), optimizers.step_scalar(step))}
    return core.training_step(name, names, optimizers.step_core(step)), {**values, **kept, **first}


def _as(value: Any, kind: str) -> np.ndarray[Any, Any]:
    """Return an array of NumPy of that dtype; of bfloat16 as NumPy has to hold it."""
    host = to_host(value)
    if kind == "bfloat16" and host.dtype.name != "bfloat16":
        return np.asarray(NumpyBackend(dtype="bfloat16").tensor(host, "bfloat16"))
    return host if host.dtype.name == kind or kind == "bfloat16" else host.astype(kind)
