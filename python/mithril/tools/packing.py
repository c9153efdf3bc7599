"""Parameters in the order in which generated C reads them, without the arrays that they came from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from .. import _core
from ..backends.quantized import ByteParameters
from ..checkpoints import weights
from ..compiled import internals
from ..errors import InvalidValueError, UnsupportedOpError

if TYPE_CHECKING:
    from ..compiled.physical_model import PhysicalModel
    from ..compiled.program import Program

__all__ = ["pack"]


def pack(
    model: PhysicalModel,
    params: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    layout: str | None = None,
    names: Mapping[str, str] | None = None,
    state: Mapping[str, Any] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> _core.Packed | ByteParameters:
    """Pack parameters in the order in which generated C reads them, so that the arrays may be released.

    The result replaces the parameters in calls of this model, and holds only what the code reads. It is valid for this
    model, these sizes, and the current states of the model.

    From a file, arrays are read one at a time and released once they are packed: besides the result, only the largest
    of them is in memory. Large embedding tables, of which calls read a few rows, stay in the file, and rows are read
    when they are used. Arrays that you pass stay alive as long as you hold them: ``packed = model.pack(params); del
    params``.

    Parameters
    ----------
    model : PhysicalModel
        A model compiled with `CBackend` or `GGMLBackend`, or with ``quantize`` of another backend, and
        ``inference=True``.
    params : mapping or path-like, optional
        Name to array; those of `get_parameters` by default. Or a file or folder of weights as `weights.open` takes it.
        Running statistics among them become the state of the model.
    layout : str, optional
        Whose names the file has, as for `load_weights`.
    names : mapping, optional
        What parameters of the model, or parts of it, are called in the file, as for `load_weights`.
    state : mapping, optional
        States that replace those of the model, such as running statistics.
    shapes : mapping, optional
        Data name to shape, where sizes were left open when compiling (and are not the ``batch`` of the backend).

    Returns
    -------
    Packed or ByteParameters
        The parameters, packed; ``bytes`` says how much memory they take.

    Raises
    ------
    UnsupportedOpError
        If the model runs elsewhere, or is not for inference.
    InvalidValueError
        If a size is not known.

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> model = ml.Model()
    >>> model |= ml.Linear(16)(input="input", output="output")
    >>> compiled = ml.compile(model, ml.CBackend(num_threads=1), shapes={"input": [2, 8]}, inference=True)
    >>> packed = compiled.pack(compiled.randomize_params())
    >>> compiled.evaluate(packed, {"input": np.ones((2, 8), np.float32)})["output"].shape
    (2, 16)
    """
    program: Program = internals.known_program(model)
    source = getattr(program.module, "source", None)
    is_native = isinstance(source, (_core.CProgram, _core.GgmlProgram))
    if not (is_native or program.weights is not None) or internals.compile_options(model)["training"]:
        raise UnsupportedOpError(
            "only models for inference in C or on ggml, or with weights in 8 bits, pack their parameters",
            hint='compile with CBackend or GGMLBackend, or with quantize="int8", and inference=True',
        )
    if program.weights is not None:
        return program.weights.pack(_with_state(model, program, params, layout, names, state))
    sizes = {**{name: shape for name, _, shape in program.data}, **(shapes or {})}
    # A size that is an argument may be any.
    counted = model.backend.batch
    sizes = {name: tuple(1 if size == counted else size for size in shape) for name, shape in sizes.items()}
    unknown = [name for name, shape in sizes.items() if not all(isinstance(n, int) for n in shape)]
    if unknown:
        raise InvalidValueError(
            f"the shape of {', '.join(unknown)} is not known", hint="give it: pack(params, shapes={...})"
        )
    arrays = _with_state(model, program, params, layout, names, state)
    packed: _core.Packed = cast("Any", source).pack(
        arrays, model.state, {name: tuple(shape) for name, shape in sizes.items()}
    )
    return packed


def _with_state(
    model: PhysicalModel, program: Program, params: Any, layout: Any, names: Any, state: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return the parameters to pack, whose statistics become those of the model."""
    if state is not None:
        with internals.state_lock(model):
            internals.update_state(model, state)
    if isinstance(params, (str, os.PathLike)):
        arrays: Mapping[str, Any] = _planned(model, params, layout, names)
    else:
        arrays = model.get_parameters() if params is None else params
        internals.check_params(model, program, arrays)
        if internals.has_own_statistics(model, arrays):
            with internals.state_lock(model):
                internals.update_state(model, {**internals.state_for(model, arrays), **(state or {})})
        else:
            internals.state_for(model, arrays)
    return arrays


def _planned(
    model: PhysicalModel, path: str | os.PathLike[str], layout: str | None, names: Mapping[str, str] | None
) -> Mapping[str, Any]:
    """Return the parameters in a file, each made when it is asked for; its statistics become those of the model."""
    planned, _ = weights.plan(model, path, layout=layout, names=names, shared=True)
    state_values = {name: planned[name] for name in planned if name in internals.names_by_role(model)["state"]}
    with internals.state_lock(model):
        internals.update_state(model, state_values)
    return planned
