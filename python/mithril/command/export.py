"""`mithril export`: a model as C, for the web, for Rust, as ONNX, with every option of the API."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._core import Model
from ..backends.with_manualgrad.c_backend import CBackend
from ..backends.with_manualgrad.numpy_backend import NumpyBackend
from ..checkpoints import weights
from ..compiled import internals
from ..compiled.compile import compile
from ..errors import ConflictingOptionError, InvalidValueError, UnresolvedShapeError
from ..generation.command import by_pattern
from ..generation.text import TextGenerator
from ..parallel.strategies import AXES
from ..quantization.calibration import METHODS
from ..suggestions import among
from ..tools.calibration import calibrate
from ..tools.export import TARGETS as FOLDERS
from ..tools.exported import RANDOM, Exported
from ..tools.onnx import to_onnx
from ..train.losses import LOSSES, add_loss
from .answer import Answer
from .layout import layout_of, strategy_of
from .optimizer import NAMES, optimizer_of
from .source import Source, shapes_of

__all__ = ["TARGETS", "add_arguments", "run"]

TARGETS = (*FOLDERS, "onnx")
#: Losses whose targets are numbers of classes.
_OF_CLASSES = ("cross_entropy", "token_cross_entropy")
_SCHEMA = "mithril.export/1"
#: Options that `PhysicalModel.export` takes as they are.
_PASSED_ON = ("lanes", "batch", "block", "memory_limit", "weights_inside", "autotune", "cc")
#: Options that only folders of C take, and what they are if they are not given.
_OF_FOLDERS: dict[str, Any] = {
    **dict.fromkeys(_PASSED_ON),
    "autotune": False,
    "prefix": None,
    "flags": None,
    "threads": None,
    "optimizer": None,
    "loss": None,
    "data": None,
    "mesh": None,
    "strategy": None,
    "calibrate": None,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to a parser."""
    parser.add_argument("folder", metavar="FOLDER", help="where the files go; for ONNX the file, usually *.onnx")
    text = "c, web for an npm package, rust for a Cargo package, or onnx (default: onnx for *.onnx, otherwise c)"
    target = parser.add_argument("--target", "--format", metavar="TARGET", help=text)
    vars(target)["names"] = TARGETS
    parser.add_argument("--dtype", default="float32", metavar="DTYPE", help="dtype of the model (default float32)")
    text = "compute products in float16 or bfloat16, where that is safe (mixed precision); weights keep --dtype"
    parser.add_argument("--precision", choices=("float16", "bfloat16"), help=text)
    text = "quantize weights: int8, int8_weights, int4_weights, or PATTERN=TYPE; may be given several times"
    parser.add_argument("--quantize", action="append", metavar="TYPE", help=text)
    text = "data of a typical call, *.npz or *.safetensors, for the ranges of int8 convolutions; several times for more"
    parser.add_argument("--calibrate", action="append", metavar="FILE", help=text)
    text = f"how --calibrate determines ranges: {', '.join(METHODS)} (default minmax)"
    parser.add_argument("--calibrate-method", metavar="NAME", help=text)
    text = "percentage of the values that the ranges of --calibrate-method percentile hold (default 99.99)"
    parser.add_argument("--calibrate-percentile", type=float, metavar="P", help=text)
    parser.add_argument("--gradients", action="store_true", help="also compute the gradients of all parameters")
    text = f"export a training step: {', '.join(NAMES)}, with options as in sgd:learning_rate=0.1,momentum=0.9"
    parser.add_argument("--optimizer", metavar="NAME[:OPTIONS]", help=text)
    text = f"the output that the optimizer minimizes, or a loss that is added: {', '.join(LOSSES)}"
    parser.add_argument("--loss", metavar="NAME", help=text)
    parser.add_argument(
        "--data", metavar="FILE", help="data to record, *.npz or *.safetensors (default: random numbers)"
    )
    parser.add_argument("--prefix", metavar="NAME", help="what C symbols and files start with (default model)")
    text = "write the weights into the C file (default: if they are small)"
    parser.add_argument("--weights-inside", action=argparse.BooleanOptionalAction, default=None, help=text)
    text = "a size of --shape that becomes an argument of the functions, e.g. batch with --shape input=batch,784"
    parser.add_argument("--batch", metavar="NAME", help=text)
    parser.add_argument("--block", type=int, metavar="N", help="rows that are computed at a time with --batch")
    text = "threads of the check and of the figures for memory (default 1); for the web 1 is without threads"
    parser.add_argument("--threads", type=int, metavar="N", help=text)
    text = "an error if packed weights and scratch memory need more, e.g. 256KB"
    parser.add_argument("--memory-limit", metavar="SIZE", help=text)
    text = "floats in a vector of the processor that it is for: 16, 8, 4, or 1 for plain C (default: this one's)"
    parser.add_argument("--lanes", type=int, metavar="N", help=text)
    parser.add_argument("--autotune", action="store_true", help="measure which kernels are the fastest on this machine")
    text = "the C compiler (default: $CC, cc, gcc, clang, ziglang); for the web that for WebAssembly"
    parser.add_argument("--cc", metavar="COMMAND", help=text)
    text = "further options of the C compiler, in quotes after an equals sign: --flags='-O2 -g'"
    parser.add_argument("--flags", metavar="FLAGS", help=text)
    text = "write the program of every rank of a mesh with these axes, for mpirun, e.g. data=2,model=4"
    parser.add_argument("--mesh", metavar="AXIS=N,...", help=text)
    text = f"what the axes of --mesh divide: {', '.join(AXES)}, or one for each axis (default: the first one the batch)"
    parser.add_argument("--strategy", metavar="NAME", help=text)
    text = "for the web: generate text, with the decoder and the tokenizer of a folder, up to so many tokens"
    parser.add_argument("--context", type=int, metavar="N", help=text)
    parser.add_argument("--opset", type=int, metavar="N", help="version of ONNX's ops, 17 to 24 (default 20)")
    text = "write the weights of a file of ONNX into a second one (default: if they are more than 2 GB)"
    parser.add_argument("--external-data", action="store_true", default=None, help=text)


def run(args: argparse.Namespace) -> Answer:
    """Export the model that the arguments name."""
    target = args.target or ("onnx" if args.folder.lower().endswith(".onnx") else "c")
    if target not in TARGETS:
        raise InvalidValueError(f"--target is {target!r}", hint=among(target, TARGETS))
    _refuse(args, target)
    if args.context is not None:
        return _decoder(args)
    layout = None if args.mesh is None else layout_of(args.mesh, ())
    if layout is None and args.strategy is not None:
        raise InvalidValueError(f"--strategy {args.strategy} needs a mesh", hint="add one: --mesh data=2,model=4")
    strategy = None if layout is None else strategy_of(args.strategy, layout)
    # Before a large model is read.
    optimizer = None if args.optimizer is None else optimizer_of(args.optimizer)
    source = Source.of(args)
    backend: Any = NumpyBackend(dtype=args.dtype)
    if args.quantize:
        backend = CBackend(dtype=args.dtype, quantize=by_pattern(args.quantize), num_threads=1)
    shapes, loss = shapes_of(args.shape), args.loss
    model = source.model
    if optimizer is not None and loss is not None:
        model, loss = _with_loss(model, loss, shapes, args)
    is_trained = args.gradients or optimizer is not None
    # Targets that are classes are integers; by themselves they would be floats, as probabilities are.
    dtypes = {"target": "int64"} if model is not source.model and args.loss in _OF_CLASSES else {}
    options: dict[str, Any] = {"shapes": shapes, "dtypes": dtypes, "inference": not is_trained}
    compiled = compile(model, backend, **options, precision=args.precision)
    if source.weights is not None or target == "onnx" or args.calibrate:
        source.load_into(compiled)
    if args.calibrate:
        method = METHODS[0] if args.calibrate_method is None else args.calibrate_method
        samples = (_data(path, "--calibrate") for path in args.calibrate)
        compiled = calibrate(compiled, samples=samples, method=method, percentile=args.calibrate_percentile)
    if target == "onnx":
        options = {"opset": args.opset, "external_data": args.external_data, "gradients": args.gradients}
        if source.is_random:
            options["description"] = f"Its {RANDOM}."
        to_onnx(compiled, args.folder, **options)
        beside = f", with its weights in {Path(args.folder).name}.data" if args.external_data else ""
        names = [args.folder, *([f"{args.folder}.data"] if args.external_data else [])]
        facts = {"target": target, "folder": None, "files": names, "is_random": source.is_random}
        return Answer.noted(f"wrote {args.folder}{beside}", _SCHEMA, facts, source.note)
    data = None if args.data is None else _data(args.data)
    export = compiled.export if target == "rust" else _with_open_sizes(compiled.export, shapes)
    exported = export(
        args.folder,
        target=target,
        data=data,
        gradients=args.gradients,
        optimizer=optimizer,
        loss=loss,
        layout=layout,
        strategy=strategy,
        prefix="model" if args.prefix is None else args.prefix,
        threads=args.threads,
        flags=() if args.flags is None else tuple(shlex.split(args.flags)),
        **{name: getattr(args, name) for name in _PASSED_ON},
    )
    note = "" if source.weights is None else source.note
    return Answer.noted(str(exported), _SCHEMA, {"target": target, **_facts(exported)}, note)


def _with_open_sizes(export: Callable[..., Exported], shapes: Mapping[str, Any]) -> Callable[..., Exported]:
    """Return a function that says what to do about sizes that are names."""

    def called(*args: Any, **options: Any) -> Exported:
        try:
            return export(*args, **options)
        except UnresolvedShapeError as error:
            names = [size for shape in shapes.values() for size in shape if isinstance(size, str)]
            if not names or options.get("batch") is not None:
                raise
            numbers = " ".join(
                f"--shape {name}={','.join('1' if isinstance(size, str) else str(size) for size in shape)}"
                for name, shape in shapes.items()
            )
            hint = f"give numbers: {numbers}; or let the code take any number of rows: --batch {names[0]}"
            raise InvalidValueError(error.message, code=error.code, hint=hint) from error

    return called


#: Options that a decoder that generates text takes too.
_OF_DECODERS = ("prefix", "threads", "cc", "flags")


def _decoder(args: argparse.Namespace) -> Answer:
    """Export the decoder and the tokenizer of a checkpoint, which generate text."""
    backend: Any = NumpyBackend(dtype=args.dtype)
    if args.quantize:
        backend = CBackend(dtype=args.dtype, quantize=by_pattern(args.quantize), num_threads=1)
    generator = TextGenerator.from_folder(args.model, backend, progress=True)
    exported = generator.export(
        args.folder,
        context=args.context,
        prefix="model" if args.prefix is None else args.prefix,
        threads=args.threads,
        cc=args.cc,
        flags=() if args.flags is None else tuple(shlex.split(args.flags)),
    )
    facts = {"target": "web", **_facts(exported)}
    return Answer.noted(str(exported), _SCHEMA, facts, f"weights: {args.model}")


def _facts(exported: Exported) -> dict[str, Any]:
    return {
        "folder": exported.folder,
        "files": [str(file) for file in exported.files],
        "weight_bytes": exported.weight_bytes,
        "packed_bytes": exported.packed_bytes,
        "pack_bytes": exported.pack_bytes,
        "arena_bytes": exported.arena_bytes,
        "check": exported.check,
        "is_random": exported.is_random,
    }


def _refuse(args: argparse.Namespace, target: str) -> None:
    """Raise an error for options that another target has."""
    if target == "onnx":
        for name, usual in _OF_FOLDERS.items():
            if getattr(args, name) != usual:
                hint = "write the name in the shape: --shape input=batch,784" if name == "batch" else "leave it out"
                raise ConflictingOptionError(f"{_flag(name)} is for C, and the target is onnx", hint=hint)
        return
    if args.context is not None:
        if target != "web":
            raise ConflictingOptionError(
                f"--context is for the web, and the target is {target}", hint="add --target web"
            )
        own = {**_OF_FOLDERS, "shape": [], "name": [], "weights": None, "random_weights": False, "gradients": False}
        for name, usual in own.items():
            if name not in _OF_DECODERS and (getattr(args, name, None) or usual) != usual:
                hint = "leave it out; mithril.generation.export_decoder takes models and parameters of one's own"
                raise ConflictingOptionError(f"{_flag(name)} does not go with --context", hint=hint)
    for name in ("opset", "external_data"):
        if getattr(args, name) is not None:
            raise ConflictingOptionError(
                f"{_flag(name)} is for files of ONNX", hint="add --format onnx, or leave it out"
            )
    further = [name for name in ("calibrate_method", "calibrate_percentile") if getattr(args, name) is not None]
    if further and not args.calibrate:
        hint = "add --calibrate FILE with the data of a typical call, or leave it out"
        raise ConflictingOptionError(f"{_flag(further[0])} has no effect without --calibrate", hint=hint)
    if args.calibrate and not args.quantize:
        raise ConflictingOptionError("--calibrate determines ranges for int8", hint="add --quantize int8")
    if args.loss is not None and args.optimizer is None:
        raise ConflictingOptionError(
            "--loss is minimized by an optimizer", hint="add --optimizer adam, or leave it out"
        )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _with_loss(model: Model, loss: str, shapes: Mapping[str, Any], args: argparse.Namespace) -> tuple[Model, str]:
    """Return the model with a loss by name, unless that is one of its outputs, and the name of the output."""
    compiled = compile(model, NumpyBackend(dtype=args.dtype))
    if loss in compiled.output_keys:
        return model, loss
    trained, output, _ = add_loss(compiled, loss)
    if "target" in trained.input_keys and "target" not in shapes and args.data is None:
        text = f"the loss {loss} compares the output with an input `target`, whose shape is not known"
        raise InvalidValueError(text, hint="add it: --shape target=SIZES")
    return internals.logical_model(trained), output


def _data(path: str, option: str = "--data") -> dict[str, Any]:
    """Read the arrays of a file that an option names."""
    if Path(path).suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as archive:
                return dict(archive)
        except ValueError as error:
            raise InvalidValueError(
                f"{option} {path} cannot be read: {error}", hint="write it by numpy.savez"
            ) from error
    if Path(path).suffix == ".safetensors":
        opened = weights.open(path)
        return {name: opened[name] for name in opened}
    raise InvalidValueError(f"{option} is {path!r}", hint="give a file *.npz or *.safetensors")
