"""A physical model as a folder that needs nothing of Mithril: of C, for the web, or a package of Rust."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..backends.exchange import to_host
from ..backends.with_manualgrad.c_backend import CBackend
from ..backends.with_manualgrad.numpy_backend import NumpyBackend
from ..compiled import internals
from ..compiled.arguments import check_declared, missing
from ..errors import (
    BackendWarning,
    ConflictingOptionError,
    InvalidValueError,
    KeyNotFoundError,
    ParameterError,
    UnresolvedShapeError,
)
from ..optim import internals as optimizers
from ..optim.optimizer import Optimizer
from ..parallel.layout import Layout, Mesh
from ..parallel.strategies import Strategy
from ..suggestions import among
from . import rust, web
from .divided_export import export_layout, refuse_divided, with_layout, with_slots
from .exported import RANDOM, Exported
from .inputs import complete, others, refuse_unknown
from .inspection import gradient_names, minimized

if TYPE_CHECKING:
    from ..compiled.physical_model import PhysicalModel

__all__ = ["TARGETS", "Exported", "export"]


def export(
    model: PhysicalModel,
    folder: str | os.PathLike[str],
    *,
    target: str = "c",
    data: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    prefix: str = "model",
    weights_inside: bool | None = None,
    gradients: bool = False,
    optimizer: Optimizer | None = None,
    loss: str | None = None,
    lanes: int | None = None,
    autotune: bool = False,
    batch: str | None = None,
    block: int | None = None,
    threads: int | None = None,
    memory_limit: int | str | None = None,
    cc: str | None = None,
    flags: Any = (),
    quantize: str | Mapping[str, str | None] | None = None,
    layout: Layout | Mesh | None = None,
    strategy: Strategy | None = None,
) -> Exported:
    """Write a model as C that needs only libc and libm, for the web or for Rust, build it, run it, and compare.

    The reference outputs are NumPy's, whatever backend the model was compiled for. If that is
    ``CBackend(quantize=...)``, the code quantizes its weights too, and the reference is the model itself.

    Parameters
    ----------
    model : PhysicalModel
        The model; it is exported with the sizes that it was compiled for, and for inference unless ``gradients`` or an
        optimizer are requested.
    folder : path
        Folder for the files; it is created if it does not exist.
    target : {"c", "web", "rust"}, optional
        ``"web"`` writes an npm package: the model as WebAssembly with SIMD, its weights, and an interface in
        JavaScript for browsers and Node.js, where it is checked if that is installed. ``"rust"`` writes a Cargo
        package: the C in its folder ``c``, a ``build.rs`` that compiles it, a safe interface, and a test (default
        ``"c"``).
    data : mapping, optional
        Data to record, by name. Default: random numbers.
    params : mapping, optional
        Parameters. Default: those that belong to the model.
    prefix : str, optional
        Prefix of all C symbols and files, so that several models link together (default ``"model"``).
    weights_inside : bool, optional
        Write the weights into the C file, rather than into a separate file. Default: if they are small.
    gradients : bool, optional
        Also compute the gradients of all float parameters that are not frozen; the gradients of the outputs are
        additional data. Parameters are then not packed, so that a training loop in C may change them (default False).
    optimizer : Optimizer, optional
        Export a training step: a call computes the outputs, updates all float parameters, and keeps them, the optimizer
        state and the step count as states. ``learning_rate`` is an additional data input; groups with their own rate
        take ``learning_rate_1`` and so on.
    loss : str, optional
        The output whose sum the optimizer minimizes. Default: the only one.
    lanes : {16, 8, 4, 1}, optional
        Floats in a vector of the processor that the code is for: 16 for AVX-512, 8 for AVX2, 4 for SSE2, NEON and
        WebAssembly, 1 for plain C. It runs on others too, slower. Default: those of this processor.
    batch : str, optional
        A symbolic size of the model, such as ``"batch"``, which becomes an argument of ``..._run_batch`` and
        ``..._call_batch``: any number of rows, computed ``block`` at a time.
    threads : int, optional
        Threads of the check, and of the figures for memory (default 1). The code takes any number. For the web the
        default is 2, and 1 leaves out the form of the code that runs on several threads.
    memory_limit : int or str, optional
        Bytes that packed parameters and the scratch memory of a call may need together, e.g. ``"256KB"``; more is an
        error. Default: that of the model where it is compiled for C.
    quantize : str or mapping, optional
        Keep weights in 8 or 4 bits, as for `CBackend`. Default: as the model does.
    layout : Layout or Mesh, optional
        Write the program of every rank of a mesh, which processes run together: ``mpirun -n 4 ./check``. They exchange
        tensors by a struct of functions, of which ``..._mpi.c`` is an implementation for MPI; the check needs it
        (``pip install mpich``). Default: the layout that the model was compiled with.
    strategy : str or mapping of str to str, optional
        A strategy for a ``layout`` that is a mesh, as for `compile`.
    autotune, block, cc, flags : optional
        As for `CBackend`. By default block, compiler and flags are those of the model if it is compiled for C. For the
        web, compiler and flags are those for WebAssembly; by default clang, otherwise the package ``ziglang``.

    Returns
    -------
    Exported
        For the web an `ExportedWeb`.

    Examples
    --------
    >>> import mithril as ml, tempfile
    >>> model = ml.Model()
    >>> model |= ml.Linear(2)(input="input", output="output")
    >>> compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [1, 3]}, inference=True)
    >>> exported = compiled.export(tempfile.mkdtemp(), prefix="tiny")
    >>> [file.name for file in exported.files][:3], exported.check.splitlines()[-1]
    (['tiny.c', 'tiny.h', 'main.c'], 'ok')
    """
    if not isinstance(folder, (str, os.PathLike)):
        raise InvalidValueError(f"the folder is of type {type(folder).__name__}", hint='pass a path, e.g. "out/"')
    if not os.fspath(folder):
        raise InvalidValueError("the folder has no name", hint='pass a path, e.g. "out/", or "." for the current one')
    if target == "onnx":
        raise InvalidValueError("target is 'onnx', which is a file", hint='use ml.to_onnx(model, "model.onnx")')
    if target not in TARGETS:
        raise InvalidValueError(f"target is {target!r}", hint=f"{among(target, TARGETS)}; ml.to_onnx writes ONNX")
    is_web, is_rust = target == "web", target == "rust"
    if is_rust:
        rust.refuse_options(batch=batch)
        rust.refuse_foreign(Path(folder))
    if is_web:
        web.refuse_options({"lanes": lanes, "weights_inside": weights_inside, "autotune": autotune})
    if weights_inside not in (None, True, False):
        raise InvalidValueError(f"weights_inside is {weights_inside!r}", hint="pass True, False, or None for by size")
    if not isinstance(prefix, str):
        raise InvalidValueError(f"prefix is {prefix!r}", hint='pass a string, e.g. "classifier"')
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise InvalidValueError(f"optimizer is {optimizer!r}", hint="give one, e.g. ml.optim.Adam(0.001)")
    if isinstance(threads, bool) or not (threads is None or (isinstance(threads, int) and threads >= 1)):
        raise InvalidValueError(f"threads is {threads!r}", hint="give a positive number")
    if loss is not None and optimizer is None:
        raise InvalidValueError("a loss is minimized by an optimizer", hint="give one: optimizer=ml.optim.Adam(0.001)")
    divided = export_layout(model, layout, strategy)
    if divided is not None:
        refused = {"batch": batch, "block": block, "autotune": autotune, "quantize": quantize}
        refuse_divided(target, {**refused, "weights_inside": weights_inside})
    options = {**internals.compile_options(model), "training": bool(gradients) or optimizer is not None}
    logical, names_by_role = internals.logical_model(model), internals.names_by_role(model)
    dtype = str(model.backend.default_dtype)
    if quantize is not None and options["training"]:
        raise ConflictingOptionError(
            "quantize is given, and training changes weights", hint="leave out quantize, or gradients and optimizer"
        )
    rules = getattr(model.backend, "quantize", None) if not options["training"] else None
    if quantize is not None:
        rules = CBackend(quantize=quantize).quantize
    own = model.backend if isinstance(model.backend, CBackend) else None
    # What is packed for the web is packed here, by the compiler of this machine.
    web_cc, web_flags = cc, CBackend(flags=flags).flags
    if is_web:
        cc, flags, lanes, weights_inside = None, (), 4, False
    settings: dict[str, Any] = {"num_threads": threads or 1, "cc": cc, "flags": flags, "memory_limit": memory_limit}
    if own is not None:
        settings["memory_limit"] = own.memory_limit if memory_limit is None else memory_limit
        settings |= {"cc": cc or own.cc, "flags": flags or own.flags}
        if block is None and batch is None:
            block = own.block
    if rules:
        settings |= {"quantize": dict(rules), "quantize_ranges": getattr(model.backend, "quantize_ranges", None)}
        settings["quantize_strict"] = getattr(model.backend, "quantize_strict", None)
    backend = CBackend(dtype=dtype, autotune=autotune, batch=batch, block=block, **settings)
    reference = NumpyBackend(dtype=dtype)
    shapes = dict(options["shapes"])
    current = internals.current_program(model)
    if current is not None:
        known = {name: list(shape) for name, _, shape in current.data}
        shapes |= {name: shape for name, shape in known.items() if all(isinstance(n, int) for n in shape)}
    check_declared(shapes, {name: np.shape(value) for name, value in (data or {}).items()})
    sizes = dict(options["shapes"])
    if backend.batch is not None:
        shapes = _recorded(shapes, backend, gradients or optimizer is not None)
    try:
        inputs = complete(logical, reference, shapes, data, 0, lambda array: array, others(options))
    except UnresolvedShapeError as error:
        text = "compile it with numbers, give data={...} of the size that is wanted, or name a size: batch='batch'"
        raise UnresolvedShapeError(error.message, hint=text) from None
    is_random = params is None and internals.stored_parameters(model) is None and bool(names_by_role["param"])
    chosen = model.get_parameters() if params is None else params
    host = {name: to_host(value) for name, value in chosen.items()}
    shapes |= {name: list(array.shape) for name, array in inputs.items()}
    core = _core.compile(logical, dtype, {**options, "shapes": shapes})
    kept = {**{name: to_host(value) for name, value in internals.state_for(model, chosen).items()}, **host}
    names = {name: by_port for role in ("param", "data", "state") for name, by_port, _ in core.inputs(role)}
    absent = [name for name, _, _ in (*core.inputs("param"), *core.inputs("state")) if name not in kept]
    if params is not None:
        declared = core.inputs("param")
        refuse_unknown("params", params, [*(name for name, _, _ in declared), *names_by_role["state"]])
        for name, _, _ in declared:
            if name in absent:
                raise missing("params", name, declared, params)
    if absent:
        kept.update(core.initial(absent, model.backend.engine.seed))
    kept |= inputs
    # Evaluating changes no array: only those of another dtype are copied.
    is_shared = not options["training"] and not options.get("donate")
    values = {
        name: kept[name] if is_shared and kept[name].dtype.name == dtype else reference.tensor(kept[name], dtype)
        for name, dtype in names.items()
    }
    for name, _, shape in core.inputs("param"):
        if list(values[name].shape) != list(shape):
            actual_shape = list(values[name].shape)
            message = f"parameter {name!r} has shape {actual_shape}, but must be {list(shape)}"
            raise ParameterError(message, hint="check where it comes from")
    # WebAssembly runs on processors of few registers as well as of 32: what has to be spilled costs more.
    tool = backend.engine.c_options(prefix, lanes=lanes, registers=web.REGISTERS if is_web else None)
    calls = 1
    if optimizer is not None:
        program, expected, calls = _training(core, optimizer, loss, values, tool, reference, divided)
    elif gradients:
        program, expected = _gradients(core, values, tool, reference, divided)
    else:
        # What is donated is written over, and must be recorded as it was.
        called = {**values, **{name: values[name].copy() for name in options.get("donate") or () if name in values}}
        if rules:
            # With the same vectors: what is done in integers depends on the processor.
            quantized = backend.engine.c_options(
                "model", lanes=lanes, batch=None, block=None if batch else block, autotune=False
            )
            compiled_program = _core.c_program(core, quantized, is_lazy=True)
            results = compiled_program.call(*_groups(core, called))
            _warn_of_nothing(compiled_program.decisions)
        else:
            results = reference.engine.load(core).function("evaluate")(*_groups(core, called))
        expected = results[0] if core.updates else results
        if backend.batch is not None:
            core = _core.compile(logical, dtype, {**options, "shapes": sizes})
        program = _core.c_program(with_layout(core, divided), tool, is_lazy=True)
    expected = {name: np.array(value, order="C") for name, value in expected.items()}
    undefined = [name for name, value in expected.items() if value.dtype.kind not in "biu" and np.isnan(value).any()]
    if undefined:
        text = f"{', '.join(undefined)} of the recorded data holds NaN, which would hide what is wrong"
        raise InvalidValueError(text, hint=_undefined(values, inputs))
    title = f"A model in C, made by Mithril: {logical}" + (f". Its {RANDOM}." if is_random else "")
    if is_web:
        with tempfile.TemporaryDirectory() as work:
            report = program.export(Path(work), title, values, expected, False, calls)
            return web.package(
                Path(work),
                Path(folder),
                report,
                title=title.replace("in C, ", "for the web, "),
                prefix=prefix,
                is_random=is_random,
                parameters=[name for name, _, _ in core.inputs("param")],
                defaults={} if optimizer is None else _rates(optimizer),
                batch=backend.batch,
                rows=_rows(backend) if backend.batch is not None else 1,
                calls=calls,
                trains=optimizer is not None,
                is_quantized=bool(rules),
                threads=threads,
                cc=web_cc,
                flags=web_flags,
            )
    place = Path(folder) / "c" if is_rust else Path(folder)
    report = program.export(place, title, values, expected, weights_inside, calls)
    files = tuple(Path(file) for file in report["files"])
    figures = {name: report[name] for name in ("weight_bytes", "packed_bytes", "pack_bytes", "arena_bytes", "check")}
    exported = Exported(place, files, **figures, is_random=is_random)
    if not is_rust:
        return exported
    title = title.replace("in C, ", "in Rust, ")
    return rust.package(Path(folder), exported, report, title=title, prefix=prefix, calls=calls)


def _rates(optimizer: Optimizer) -> dict[str, float]:
    """Return the learning rates by the names of their data."""
    rates = optimizers.learning_rates(optimizer, first=True)
    return {f"learning_rate_{k}" if k else "learning_rate": float(rate) for k, rate in enumerate(rates)}


def _undefined(values: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """Return what to do about outputs that are NaN, by where NaN or an infinity comes in."""
    for name, value in values.items():
        if value.dtype.kind not in "biu" and not np.isfinite(value.astype(np.float32)).all():
            kind = "data" if name in data else "parameter"
            return f"{kind} {name!r} holds NaN or an infinity: give finite numbers"
    return "give data that the model is defined for: data={...}"


def _recorded(shapes: Mapping[str, Any], backend: CBackend, trains: bool) -> dict[str, Any]:
    """Put a number of rows that is not a multiple of what is computed at a time in the place of the size."""
    name = backend.batch
    symbols = {size for shape in shapes.values() for size in shape if isinstance(size, str)}
    if name not in symbols:
        known = f"available: {', '.join(sorted(symbols))}" if symbols else "compile the model with names in its shapes"
        raise KeyNotFoundError(f"the inputs have no size called {name!r}", hint=known)
    if trains:
        raise InvalidValueError("gradients add up all rows", hint="leave out batch: a training step has a fixed size")
    rows = _rows(backend)
    return {key: [rows if size == name else size for size in shape] for key, shape in shapes.items()}


def _rows(backend: CBackend) -> int:
    # Where it is estimated it divides 8.
    block = backend.block or 8
    return block + block // 2 + 1


def _warn_of_nothing(decisions: Any) -> None:
    """Warn if quantize keeps every weight as it is."""
    if any(decision["scheme"] is not None for decision in decisions):
        return
    why = "; ".join(f"{decision['weight']!r}: {decision['reason']}" for decision in decisions[:3])
    reason = why or "no product or convolution has a weight as a factor"
    warnings.warn(f"quantize keeps every weight as it is: {reason}", BackendWarning, stacklevel=3)


Values = dict[str, Any]
#: What a model is exported as in a folder.
TARGETS = ("c", "web", "rust")


def _groups(core: _core.Compiled, values: Values) -> list[Values]:
    """Parameters, data and states."""
    return [{name: values[name] for name, _, _ in core.inputs(role)} for role in ("param", "data", "state")]


def _gradients(
    core: _core.Compiled, values: Values, tool: Any, reference: NumpyBackend, divided: Layout | None
) -> tuple[Any, Values]:
    """Return the program with gradients and what it computes; gradients of the outputs join the values."""
    outputs, names = gradient_names(core)
    random = np.random.default_rng(0)
    cotangents = {}
    for name in outputs:
        kind, shape = core.output_type(name)
        cotangents[name] = reference.tensor(random.standard_normal(shape), kind)
    function = reference.engine.load_gradients(core, outputs, names).function("evaluate_gradients")
    result, by_name = function(*_groups(core, values), cotangents)[:2]
    values |= cotangents
    expected = {**result, **{f"gradient:{name}": gradient for name, gradient in by_name.items()}}
    return _core.c_program(with_layout(core, divided), tool, outputs, names, is_lazy=True), expected


#: Steps of the training whose outputs are recorded: a step that is wrong shows in the next one.
_STEPS = 3


def _training(
    core: _core.Compiled,
    optimizer: Optimizer,
    loss: str | None,
    values: Values,
    tool: Any,
    reference: NumpyBackend,
    divided: Layout | None,
) -> tuple[Any, Values, int]:
    """Return the program of a training step, and the outputs of the last of some steps; its states join the values."""
    name, names = minimized(core, optimizer, loss)
    params, data, state = _groups(core, values)
    trained = {n: params[n] for n in names}
    step = optimizers.step_program(optimizer, trained, dict.fromkeys(names, 1))
    slots = {n: step.start(n, trained[n]) for n in names}
    rates = optimizers.learning_rates(optimizer, first=True)
    scalar = optimizers.step_scalar(step)
    values |= {key: np.asarray(rate, scalar) for key, rate in _rates(optimizer).items()}
    values["step"] = np.ones((), scalar)
    values |= {f"{n}.{slot}": np.array(value) for n, kept in slots.items() for slot, value in kept.items()}
    trained_core = core.training_step(name, names, optimizers.step_core(step))
    if divided is not None:
        # What the optimizer remembers of a parameter is divided as that is.
        divided = with_slots(core, divided, {n: list(kept) for n, kept in slots.items()})
    program = _core.c_program(with_layout(trained_core, divided), tool, is_lazy=True)
    kind, shape = core.output_type(name)
    cotangents = {name: reference.ones(shape, dtype=kind)}
    function = reference.engine.load_gradients(core, [name], names).function("evaluate_gradients")
    arrays: Values = {}
    for number in range(1, _STEPS + 1):
        results = function({**params, **trained}, data, state, cotangents)
        arrays, by_name = results[:2]
        state = {**state, **(results[2] if core.updates else {})}
        trained, slots = step(trained, by_name, slots, rates, [number])
    return program, arrays, _STEPS
