"""Weights from elsewhere: checkpoints of any kind, arrays moved between backends, dicts checked against a model."""

from __future__ import annotations

import bisect
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..backends.backend import Backend
from ..backends.exchange import narrow, numpy_dtype, to_host
from ..compiled import internals
from ..compiled.parameter_loading import converted, store
from ..errors import BackendUnavailableError, InvalidValueError, MithrilError, ParameterError
from ..parallel.stored import StoredArray
from ..quantization.parameters import FORMATS, QuantizedArray
from . import metadata
from .report import MisShaped, Report, misfit, report_of

if TYPE_CHECKING:
    from ..compiled.physical_model import PhysicalModel

__all__ = ["Checkpoint", "MisShaped", "Report", "load_weights", "open", "transfer"]

Array = np.ndarray[Any, Any]
#: Arrays of fewer bytes are copied where others are views of a file.
_SMALL = 1 << 16


# --- checkpoints ------------------------------------------------------------------------------------------------


class Checkpoint(Mapping[str, Array]):
    """The tensors of a checkpoint by name; see `open`.

    Attributes
    ----------
    path : str
        The file that was found.
    """

    def __init__(self, core: _core.Checkpoint) -> None:
        self._core = core
        self._shapes: dict[str, tuple[int, ...]] = {
            name: tuple(shape) for name, shape in zip(core.names, core.shapes, strict=True)
        }
        self.path = str(core.path)

    @functools.cached_property
    def metadata(self) -> dict[str, Any]:
        """What describes the file: texts by name, and in GGUF also numbers, which keep their types, and lists."""
        return {key: metadata.from_core(value) for key, value in self._core.metadata()}

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the sizes of a tensor."""
        return self._shapes[name]

    def quantized(self, name: str) -> QuantizedArray | None:
        """Return the blocks of a tensor of GGUF, which are a view of the file; None if it has elements instead."""
        weight = self._core.weight(name)
        return QuantizedArray(np.asarray(weight), weight.stored) if weight.stored in FORMATS else None

    def __getitem__(self, name: str) -> Array:
        weight = self._core.weight(name)
        if weight.stored in FORMATS:
            return QuantizedArray(np.asarray(weight), weight.stored).dequantize()
        # NumPy holds the object, and with it the map, as long as there is an array of it.
        result: Array = np.asarray(weight)
        if weight.stored == "bool":
            # Bytes may be anything, and booleans of NumPy are 0 or 1.
            return _converted(result, lambda array: np.asarray(array != 0))
        if not result.flags.aligned:
            result = _converted(result, lambda array: array.copy())
        return _bfloat16(result) if weight.stored == "bfloat16" else result

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def __repr__(self) -> str:
        return f"Checkpoint({self.path!r}, {len(self)} tensors)"


def open(path: str | os.PathLike[str], *, key: str | None = None) -> Checkpoint:
    """Open a checkpoint: nothing is read before it is used, nothing is copied, and no code in a file ever runs.

    Parameters
    ----------
    path : path-like
        A file of safetensors, of GGUF or of PyTorch (``.safetensors``, ``.gguf``, ``.pt``, ``.pth``, ``.bin``), the
        index of a checkpoint of several files (``*.index.json``), or a folder that holds one of these.
    key : str, optional
        Which dict of a file of PyTorch, if several hold tensors: ``"ema"``, ``"models.generator"``.

    Returns
    -------
    Checkpoint
        A mapping of names to NumPy arrays. They are views of the file in memory, but for quantized ones, which become
        arrays of float32; what is written to them stays in this process. A file must not be cut while it is open;
        `save` replaces files as a whole.

    Raises
    ------
    ModelFileError
        If the file is malformed, or wants to run code.

    Examples
    --------
    >>> import mithril as ml, numpy as np, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "params.safetensors")
    >>> ml.save({"bias": np.ones(3)}, path)
    >>> ml.weights.open(path)["bias"]
    array([1., 1., 1.])
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidValueError(f"the path is a {type(path).__name__}", hint='pass a path, e.g. "model.safetensors"')
    return Checkpoint(_core.Checkpoint.open(os.path.abspath(os.path.expanduser(path)), key))


def _converted(array: Array, convert: Callable[[Array], Array]) -> Array:
    """Convert the elements of an array; those that a view repeats are converted once, and repeated again."""
    repeated = [size > 1 and stride == 0 for size, stride in zip(array.shape, array.strides, strict=True)]
    if not any(repeated):
        return convert(array)
    once = convert(array[tuple(slice(0, 1) if again else slice(None) for again in repeated)])
    return np.broadcast_to(once, array.shape)


def _bfloat16(bits: Array) -> Array:
    try:
        return bits.view(numpy_dtype("bfloat16"))
    except BackendUnavailableError:
        # The upper half of a float32 holds the same number.
        return _converted(bits, lambda array: narrow((array.astype(np.uint32) << 16).view(np.float32)))


# --- into a model -----------------------------------------------------------------------------------------------


def load_weights(
    model: PhysicalModel,
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    layout: str | None = None,
    strict: bool = True,
    key: str | None = None,
    prefix: str | None = None,
    names: Mapping[str, str] | None = None,
) -> Report:
    """Load a published checkpoint, or a state dict, into a compiled model; all of it or, after an error, nothing.

    Parameters
    ----------
    model : PhysicalModel
        The model that receives parameters and running statistics.
    source : path-like or mapping
        What `open` takes; or arrays by name, of any framework.
    layout : str, optional
        Whose names the source uses: ``"torchvision"``, ``"transformers"``, ``"openai"`` … Default: the layout that
        matches best; the report says which.
    strict : bool
        Whether everything must match. Otherwise the matching arrays are loaded, and the others keep their values.
    key : str, optional
        As for `open`.
    prefix : str, optional
        Name of the part of the model that the weights belong to, e.g. ``"backbone"``: only that is loaded. Default: the
        whole model, or the part that the names of the source match, if there is one.
    names : mapping, optional
        Names of parameters, or parts of the model, in the source, where no layout defines them: ``{"linear": "0",
        "linear_1.weight": "2.weight"}``. A part stands for all names below it; the longest match counts, and names
        without an entry are unchanged. Arrays with other names are never matched by guessing.

    Returns
    -------
    Report
        What was loaded and what not.

    Raises
    ------
    ParameterError
        If something is missing, superfluous or of the wrong shape; without ``strict``, if nothing fits.
    ModelFileError
        If the file is malformed, or wants to run code.

    Examples
    --------
    >>> import mithril as ml, numpy as np
    >>> compiled = ml.compile(ml.Linear(2, name="fc"), ml.NumpyBackend(), shapes={"input": [1, 3]})
    >>> print(ml.load_weights(compiled, {"module.weight": np.ones((2, 3)), "module.bias": np.zeros(2)}))
    2 arrays loaded from a mapping, with names as they are

    >>> theirs = {"0.weight": np.ones((2, 3)), "0.bias": np.zeros(2)}  # torch.nn.Sequential
    >>> model = ml.Model()
    >>> model |= ml.Linear(2, name="fc")(input="input", output="output")
    >>> compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [1, 3]})
    >>> print(ml.load_weights(compiled, theirs, names={"fc": "0"}))
    2 arrays loaded from a mapping, with the names given
    """
    assignment, report = plan(model, source, layout=layout, strict=strict, key=key, prefix=prefix, names=names)
    values = dict(assignment)
    known = internals.names_by_role(model)["state"]
    params = {name: value for name, value in values.items() if name not in known}
    store(model, params, {name: value for name, value in values.items() if name in known})
    return report


class Planned(Mapping[str, Any]):
    """Parameters and statistics of a model, each made of a source when it is asked for, and not kept.

    With ``shared``, arrays of a file that was opened for this alone are views of it, even if several are of the same
    memory: for those who only read.
    """

    def __init__(
        self,
        model: PhysicalModel,
        arrays: Mapping[str, Any],
        file: Checkpoint | None,
        steps: Sequence[tuple[str, list[str], bool, bool]],
        shared: bool,
    ) -> None:
        self._arrays, self._file, self._backend = arrays, file, model.backend
        self._steps = {name: (theirs, transposed, paired) for name, theirs, transposed, paired in steps}
        self._types = _types(model)
        self._memory = _Memory(shared) if isinstance(arrays, Checkpoint) else None
        # What trains has to go on from its own files with the same rounding, which the order of elements decides.
        trains = internals.compile_options(model)["training"]
        self._as_stored = not trains and model.backend.engine.has_strides
        self._keeps_blocks = not trains and model.backend.engine.reads_blocks

    def __getitem__(self, name: str) -> Any:
        theirs, transposed, paired = self._steps[name]
        try:
            head = _pairs(self._file) if paired else None
            if self._keeps_blocks and not transposed:
                few = _few_bits(self._arrays, self._file, theirs, head)
                if few is not None:
                    return few
            return _value(
                self._backend,
                self._arrays,
                theirs,
                transposed,
                head,
                self._types[name][0],
                self._memory,
                self._as_stored,
            )
        except (TypeError, ValueError) as error:
            reason = error.message if isinstance(error, MithrilError) else error
            raise ParameterError(f"{theirs[0]!r} cannot be loaded: {reason}", hint="give arrays of numbers") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    def _release(self, name: str) -> None:
        """Give back the memory of the pages that one is read from; they are read again when they are needed."""
        if self._file is not None:
            for theirs in self._steps[name][0]:
                self._file._core.release(theirs)


def plan(
    model: PhysicalModel,
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    layout: str | None = None,
    strict: bool = True,
    key: str | None = None,
    prefix: str | None = None,
    names: Mapping[str, str] | None = None,
    shared: bool = False,
) -> tuple[Planned, Report]:
    """Find what becomes of the arrays of a source in a model, as `load_weights` does, without making anything yet."""
    if not hasattr(model, "_current"):
        is_swapped = hasattr(source, "_current")
        hint = "give the model first: ml.load_weights(model, source)" if is_swapped else "ml.compile it first"
        raise InvalidValueError(f"weights go into a compiled model, not a {_kind(model)}", hint=hint)
    pairs = _named(names)
    arrays, label, file = _source(source, key)
    # An open checkpoint may be written to by who opened it.
    shared = shared and isinstance(arrays, Checkpoint)
    types = _types(model)
    ours = [(n, shape, is_optional) for n, (_, shape, is_optional) in types.items()]
    ours += [(name, None, True) for name in internals.names_by_role(model)["unneeded"]]
    assignment = _core.plan_weights(ours, [(name, _shape(name, arrays)) for name in arrays], layout, prefix, pairs)
    _set_unneeded_aside(assignment, types)
    _set_copies_aside(assignment, arrays)
    _set_constants_aside(assignment, arrays, internals.logical_model(model), strict)
    report = report_of(label, assignment, dict(pairs))
    if not assignment["steps"] or (strict and not report.is_complete):
        raise misfit(report, assignment["steps"], list(types), list(arrays))
    if shared and file is not None:
        # Some may have been compared.
        for name in file:
            file._core.release(name)
    return Planned(model, arrays, file, assignment["steps"], shared), report


def _named(names: Mapping[str, str] | None) -> list[tuple[str, str]]:
    """Return the names that were given, as pairs."""
    if names is None:
        return []
    if not isinstance(names, Mapping):
        hint = 'pass a dict of names of the model to those of the weights: names={"linear": "0"}'
        raise InvalidValueError(f"names is a {_kind(names)}", hint=hint)
    for ours, theirs in names.items():
        if not (isinstance(ours, str) and isinstance(theirs, str)):
            hint = 'a name of the model, and what it is called in the weights: names={"linear": "0"}'
            raise InvalidValueError(f"names has the entry {ours!r}: {theirs!r}", hint=hint)
    return list(names.items())


def _source(source: Any, key: str | None) -> tuple[Mapping[str, Any], str, Checkpoint | None]:
    """Return arrays by name, what to call them, and the file that they are of."""
    if isinstance(source, Checkpoint):
        # The user may hold arrays of it: what is loaded must not share their memory.
        return {name: _copied(source, name) for name in source}, source.path, source
    if isinstance(source, Mapping):
        for name in source:
            if not isinstance(name, str):
                raise ParameterError(f"the name {name!r} is a {_kind(name)}", hint="names are strings")
        return source, "a mapping", None
    if not isinstance(source, (str, os.PathLike)):
        hint = "pass a file, a folder, or a state dict: a dict of arrays"
        if callable(getattr(source, "state_dict", None)):
            hint = "pass its dict of arrays: source.state_dict()"
        raise InvalidValueError(f"the source is a {_kind(source)}", hint=hint)
    stored = of_training(source)
    if stored is not None:
        return stored, os.fspath(source), None
    opened = open(source, key=key)
    return opened, opened.path, opened


def of_training(source: str | os.PathLike[str]) -> dict[str, StoredArray] | None:
    """Return the arrays of a checkpoint that `mithril.train.fit` has written."""
    # It reads weights itself.
    from ..train.checkpoints import stored_arrays

    return stored_arrays(source)


def _copied(file: Checkpoint, name: str) -> Any:
    quantized = file.quantized(name)
    return file[name] if quantized is None else QuantizedArray(quantized.blocks.copy(), quantized.format.name)


def _pairs(file: Checkpoint | None) -> int | None:
    """Return the rows of a head of queries and keys, if the file has them as pairs of a rotary embedding."""
    if file is None:
        raise ParameterError(
            "names of llama.cpp do not say how the rows of queries and keys are ordered", hint="load the file itself"
        )
    number: int | None = file._core.pairs()
    return number


def _types(model: PhysicalModel) -> dict[str, tuple[Any, list[int] | None, bool]]:
    """Per name of a parameter or statistic its dtype and shape, if known, and whether it may stay as it is."""
    program = internals.current_program(model)
    if program is None:
        names = internals.names_by_role(model)
        return {n: (None, None, role == "state") for role in ("param", "state") for n in names[role]}
    # Integers are the state of random numbers, which no checkpoint holds.
    types = {n: (dtype, list(shape), False) for n, dtype, shape in program.params}
    return types | {n: (dtype, list(shape), "float" not in dtype) for n, dtype, shape in program.state}


def _shape(name: str, arrays: Mapping[str, Any]) -> tuple[int, ...]:
    if isinstance(arrays, Checkpoint):
        return arrays._shapes[name]
    value = arrays[name]
    try:
        return tuple(int(n) for n in (value if hasattr(value, "shape") else to_host(value)).shape)
    except (TypeError, ValueError) as error:
        reason = error.message if isinstance(error, MithrilError) else error
        hint = f"pass that alone: source[{name!r}]" if isinstance(value, Mapping) else "pass a dict of arrays by name"
        raise ParameterError(f"{name!r} is not an array: {reason}", hint=hint) from error


def _set_unneeded_aside(plan: dict[str, Any], types: Mapping[str, Any]) -> None:
    """Ignore what belongs to outputs that are not computed."""
    used = {name for ours, theirs, *_ in plan["steps"] if ours in types for name in theirs}
    unused = [name for ours, theirs, *_ in plan["steps"] if ours not in types for name in theirs if name not in used]
    plan["steps"] = [step for step in plan["steps"] if step[0] in types]
    plan["ignored"] = [*plan["ignored"], *unused]


def _set_copies_aside(plan: dict[str, Any], arrays: Mapping[str, Any]) -> None:
    """Ignore what is a copy of something that is loaded: files hold tied arrays, which are one of ours, twice."""
    if not plan["unexpected"]:
        return
    used: dict[tuple[int, ...], list[str]] = {}
    for _, theirs, *_ in plan["steps"]:
        for name in theirs:
            used.setdefault(_shape(name, arrays), []).append(name)

    def is_copy(name: str) -> bool:
        # Scalars and the like are equal by chance.
        shape = _shape(name, arrays)
        return len(shape) > 1 and any(_are_equal(arrays[name], arrays[other]) for other in used.get(shape, ()))

    copies = [name for name in plan["unexpected"] if is_copy(name)]
    plan["unexpected"] = [name for name in plan["unexpected"] if name not in set(copies)]
    plan["ignored"] = [*plan["ignored"], *copies]


def _set_constants_aside(plan: dict[str, Any], arrays: Mapping[str, Any], model: _core.Model, strict: bool) -> None:
    """Ignore what the model has as constants, such as buffers of integers of an imported module, if it is the same."""
    constants = {}
    for name in plan["unexpected"]:
        value = model.constant(f"{plan['prefix']}.{name}" if plan["prefix"] else name)
        if value is not None:
            constants[name] = value
    for name, value in list(constants.items()):
        theirs = to_host(arrays[name])
        if np.shape(value) != theirs.shape or not np.array_equal(np.asarray(value), theirs):
            del constants[name]
            if not strict:
                continue
            raise ParameterError(
                f"{name!r} is a constant of the model, and has another value in the weights",
                hint="import the module again after its weights were loaded: shapes and indices may depend on it",
            )
    plan["unexpected"] = [name for name in plan["unexpected"] if name not in constants]
    plan["ignored"] = [*plan["ignored"], *constants]


def _are_equal(one: Any, other: Any) -> bool:
    left, right = to_host(one), to_host(other)
    # What differs does so in its first row, mostly.
    return left.dtype == right.dtype and np.array_equal(left[:1], right[:1]) and np.array_equal(left, right)


class _Memory:
    """What is given away of a file's memory: a part of it goes to one array alone, unless they may share it."""

    def __init__(self, shared: bool) -> None:
        self._ends: list[tuple[int, int]] = []
        self._shared = shared

    def take(self, array: Array) -> Array:
        if self._shared:
            # Small ones would keep pages of their neighbors.
            return array.copy() if array.nbytes < _SMALL else array
        start = array.__array_interface__["data"][0]
        part = (start, start + array.nbytes)
        place = bisect.bisect(self._ends, part)
        neighbors = self._ends[max(place - 1, 0) : place + 1]
        is_free = array.flags.c_contiguous and array.flags.writeable and array.flags.aligned
        if not is_free or any(start < end and begin < part[1] for begin, end in neighbors):
            return np.array(array, order="C")
        self._ends.insert(place, part)
        return array


def _value(
    backend: Backend,
    arrays: Mapping[str, Any],
    theirs: list[str],
    transposed: bool,
    head: int | None,
    dtype: Any,
    memory: _Memory | None,
    as_stored: bool,
) -> Any:
    """Make an array of ours of one or several; ``as_stored`` lets a transposed one be a view of what it was."""
    if head is not None:
        return backend.engine.wrap_host(halves(to_host(arrays[theirs[0]]), head), dtype)
    if len(theirs) == 1 and (as_stored or not transposed):
        if memory is None and not transposed:
            return backend.array(arrays[theirs[0]], dtype)
        array = to_host(arrays[theirs[0]])
        array = np.array(array) if memory is None else memory.take(array)
        return backend.engine.wrap_host(array.T if transposed else array, dtype)
    parts = [to_host(arrays[name]).T if transposed else to_host(arrays[name]) for name in theirs]
    joined = np.concatenate(parts) if len(parts) > 1 else np.array(parts[0], order="C")
    return backend.engine.wrap_host(joined, dtype)


def _few_bits(
    arrays: Mapping[str, Any], file: Checkpoint | None, theirs: list[str], head: int | None
) -> QuantizedArray | Array | None:
    """Return the blocks of a source, or the matrices in 16 bits of a file of GGUF; None unless all are of one form."""
    stored = [_stored(arrays, name) for name in theirs]
    forms = {part.format.name if isinstance(part, QuantizedArray) else _dtype(part) for part in stored}
    in_blocks = all(isinstance(part, QuantizedArray) for part in stored)
    is_gguf = file is not None and file.path.endswith(".gguf")
    in_halves = is_gguf and forms <= {"float16", "bfloat16"} and all(part.ndim > 1 for part in stored)
    if len(forms) > 1 or not (in_blocks or in_halves):
        return None
    # What is of an open file may be the user's, too; its blocks were copied before.
    if head is None and len(stored) == 1 and (in_blocks or isinstance(arrays, Checkpoint)):
        one: QuantizedArray | Array = stored[0]
        return one
    rows: Array = np.concatenate([part.blocks if in_blocks else part for part in stored])
    rows = rows if head is None else halves(rows, head)
    return QuantizedArray(rows, forms.pop()) if in_blocks else rows


def _stored(arrays: Mapping[str, Any], name: str) -> Any:
    blocks = arrays.quantized(name) if isinstance(arrays, Checkpoint) else None
    return arrays[name] if blocks is None else blocks


def _dtype(value: Any) -> str:
    return value.dtype.name if isinstance(value, np.ndarray) else ""


def halves(rows: Array, head: int) -> Array:
    """Reorder the rows of each head: pairs become the first halves of all pairs, then the second."""
    if rows.shape[0] % head:
        raise ValueError(f"{rows.shape[0]} rows cannot be split into heads of {head}")
    paired = rows.reshape(-1, head // 2, 2, *rows.shape[1:])
    array: Array = np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(rows.shape)
    return array


def pairs(rows: Array, head: int) -> Array:
    """Reorder the rows of each head the other way round than `halves`."""
    halved = rows.reshape(-1, 2, head // 2, *rows.shape[1:])
    array: Array = np.ascontiguousarray(halved.swapaxes(1, 2)).reshape(rows.shape)
    return array


# --- arrays and dicts of them -----------------------------------------------------------------------------------


def transfer(params: Any, to: Backend) -> Any:
    """Copy arrays to another backend.

    Parameters
    ----------
    params : mapping or array
        Name to array, of any backend or of NumPy; or one array.
    to : Backend
        Where they go. Floats become its dtype, as with `Backend.array`.

    Returns
    -------
    dict or array
        The same, as arrays of that backend.

    Examples
    --------
    >>> import mithril as ml
    >>> params = {"weight": ml.NumpyBackend().ones(2)}
    >>> ml.transfer(params, to=ml.NumpyBackend(dtype="float64"))
    {'weight': array([1., 1.])}
    """
    if not isinstance(to, Backend):
        raise InvalidValueError(f"parameters go to a backend, not a {_kind(to)}", hint="pass e.g. to=ml.NumpyBackend()")
    if isinstance(params, Mapping):
        return {name: converted(f"parameter {name!r}", value, to, None) for name, value in params.items()}
    return converted("the array", params, to, None)


def _kind(value: object) -> str:
    return value.__name__ if isinstance(value, type) else type(value).__name__
