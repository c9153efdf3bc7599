"""A physical model as a folder of C that needs nothing of Mithril."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..backends.exchange import to_host
from ..backends.with_manualgrad.c_backend import CBackend
from ..backends.with_manualgrad.numpy_backend import NumpyBackend
from ..errors import InvalidValueError
from .inputs import complete
from .inspection import gradient_names

if TYPE_CHECKING:
    from ..physical import PhysicalModel

__all__ = ["Exported", "export"]


@dataclass(frozen=True)
class Exported:
    """What was exported, after it was built, run and compared.

    Attributes
    ----------
    folder : Path
        Where it lies.
    files : tuple of Path
        The files.
    weight_bytes, packed_bytes, arena_bytes : int
        Memory: the weights, the same in the order of the kernels, scratch memory of a call on one thread.
    check : str
        What the program printed that compares the model with the recorded outputs.
    """

    folder: Path
    files: tuple[Path, ...]
    weight_bytes: int
    packed_bytes: int
    arena_bytes: int
    check: str

    def __str__(self) -> str:
        names = ", ".join(file.name for file in self.files)
        memory = f"weights {self.weight_bytes}, packed {self.packed_bytes}, arena {self.arena_bytes} bytes"
        return f"wrote {names} to {self.folder}\n{memory}\n{self.check.rstrip()}"


def export(
    model: PhysicalModel,
    folder: str | os.PathLike[str],
    *,
    data: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    prefix: str = "model",
    weights_inside: bool | None = None,
    gradients: bool = False,
    cc: str | None = None,
    flags: Any = (),
) -> Exported:
    """Write a model as C that needs nothing but libc and libm, build it, run it, and compare what it computes.

    The outputs that it is compared with are NumPy's, whatever backend the model was compiled for.

    Parameters
    ----------
    model : PhysicalModel
        The model; it is exported at the sizes that it was compiled for, and for evaluation unless ``gradients``.
    folder : path
        Where the files go; made if it is not there.
    data : mapping, optional
        Data to record, by name. Default: random numbers.
    params : mapping, optional
        Parameters. Default: those that belong to the model.
    prefix : str, optional
        What all C symbols and files start with, so that two models link together (default ``"model"``).
    weights_inside : bool, optional
        Write the weights into the C file, rather than into a file of their own. Default: where they are small.
    gradients : bool, optional
        Also compute the gradients of all float parameters; the gradients of the outputs are further data. Parameters
        are then not packed, so that a training loop in C may change them (default False).
    cc, flags : optional
        The C compiler; see `CBackend`.

    Returns
    -------
    Exported
    """
    if not isinstance(folder, (str, os.PathLike)):
        raise InvalidValueError(f"the folder is a {type(folder).__name__}", hint='pass a path, e.g. "out/"')
    options = {**model._options, "training": bool(gradients)}
    dtype = str(model.backend.default_dtype)
    backend = CBackend(dtype=dtype, num_threads=1, cc=cc, flags=flags)
    reference = NumpyBackend(dtype=dtype)
    shapes = dict(options["shapes"])
    if model._current is not None:
        known = {name: list(shape) for name, _, shape in model._current.data}
        shapes |= {name: shape for name, shape in known.items() if all(isinstance(n, int) for n in shape)}
    given = complete(model._model, reference, shapes, data, 0, lambda array: array, _others(options))
    host = {name: to_host(value) for name, value in (params or model.get_parameters()).items()}
    shapes |= {name: list(array.shape) for name, array in given.items()}
    core = _core.compile(model._model, dtype, {**options, "shapes": shapes})
    kept = {**host, **{name: to_host(value) for name, value in model.state.items()}}
    names = {name: found for role in ("param", "data", "state") for name, found, _ in core.inputs(role)}
    missing = [name for name, _, _ in (*core.inputs("param"), *core.inputs("state")) if name not in kept]
    if missing:
        kept.update(core.initial(missing, model.backend._seed))
    values = {name: reference.tensor({**kept, **given}[name], dtype) for name, dtype in names.items()}
    groups = [{name: values[name] for name, _, _ in core.inputs(role)} for role in ("param", "data", "state")]
    tool = backend._tool(prefix)
    if gradients:
        outputs, names_of_params = gradient_names(core)
        random = np.random.default_rng(0)
        cotangents = {}
        for name in outputs:
            kind, shape = core.output_type(name)
            cotangents[name] = reference.tensor(random.standard_normal(shape), kind)
        values |= cotangents
        function = reference._load_gradients(core, outputs, names_of_params).function("evaluate_gradients")
        found, by_name = function(*groups, cotangents)[:2]
        expected = {**found, **{f"gradient:{name}": gradient for name, gradient in by_name.items()}}
        program = _core.c_program(core, tool, outputs, names_of_params, is_lazy=True)
    else:
        found = reference._load(core).function("evaluate")(*groups)
        expected = found[0] if core.updates else found
        program = _core.c_program(core, tool, is_lazy=True)
    expected = {name: np.ascontiguousarray(value) for name, value in expected.items()}
    title = f"A model in C, made by Mithril: {model._model}"
    report = program.export(Path(folder), title, values, expected, weights_inside)
    return Exported(Path(folder), tuple(Path(file) for file in report.pop("files")), **report)


def _others(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the core as those of `compile`, for drawing data."""
    names = {"dtypes": "dtypes", "data_keys": "data_keys", "constants": "constant_keys"}
    names |= {"trainable_keys": "trainable_keys", "discard_keys": "discard_keys"}
    return {names[name]: value for name, value in options.items() if name in names and value}
