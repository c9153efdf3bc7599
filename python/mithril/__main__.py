"""The command line: ``python -m mithril`` or ``mithril``."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mithril as ml
from mithril import models
from mithril.backends import table as overview
from mithril.checkpoints import llama_cpp
from mithril.command.ending import guarded
from mithril.command.launch import launch
from mithril.command.layout import layout_of
from mithril.command.parser import parse
from mithril.command.source import Source, model_of, shapes_of
from mithril.errors import ConflictingOptionError, ModelFileError
from mithril.frontend.opening import open_foreign
from mithril.generation import command as generation
from mithril.tokenizers import llama_cpp as llama_tokenizer
from mithril.tools.overview import doctor
from mithril.tools.scaffold import new_backend
from mithril.viewer.views import FORMATS
from mithril.vision import command as vision

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    arguments : sequence of str, optional
        Default: what the program was called with.

    Returns
    -------
    int
        0 if all is well, 1 if the answer is no or there was an error, 2 for a call that makes no sense, 130 if it was
        interrupted.
    """
    return guarded(lambda: _run(sys.argv[1:] if arguments is None else list(arguments)))


def _run(arguments: Sequence[str]) -> int:
    given = parse(arguments)
    if given is None:
        return 0
    if given.command == "launch":
        return launch(given)
    text, is_well = _RUN[given.command](given)
    print(text, flush=True)
    return 0 if is_well else 1


def _printed(found: Any, given: argparse.Namespace) -> str:
    return str(found.to_markdown() if given.markdown else found)


def _with_note(text: str, note: str) -> str:
    return f"{text}\n{note}" if note else text


def _generate(given: argparse.Namespace) -> tuple[str, bool]:
    return generation.generate(given), True


def _classify(given: argparse.Namespace) -> tuple[str, bool]:
    return vision.classify(given), True


def _new_backend(given: argparse.Namespace) -> tuple[str, bool]:
    files = new_backend(given.name, given.folder, given.autograd)
    lines = [f"wrote {path}" for path in files]
    project = files[0].parent
    return "\n".join([*lines, f"try it: cd {project} && pip install -e . && pytest"]), True


def _doctor(given: argparse.Namespace) -> tuple[str, bool]:
    return _printed(doctor(), given), True


def _backends(given: argparse.Namespace) -> tuple[str, bool]:
    return _printed(overview(), given), True


def _summary(given: argparse.Namespace) -> tuple[str, bool]:
    model, shapes = model_of(given.model, given.shape), shapes_of(given.shape)
    return (
        ml.compile(model, ml.NumpyBackend(), shapes=shapes, inference=True).summary() if shapes else model.summary()
    ), True


def _view(given: argparse.Namespace) -> tuple[str, bool]:
    name = Path(given.model).stem if Path(given.model).suffix or Path(given.model).exists() else given.model
    backend = ml.get_backend(given.backend)
    found = ml.view(
        model_of(given.model, given.shape),
        shapes=shapes_of(given.shape) or None,
        backend=backend,
        stage=given.stage,
        title=name,
        depth=given.depth,
    )
    output = given.output
    if output is None and given.format in ("svg", "mermaid"):
        return FORMATS[given.format][1](found, given.depth).rstrip("\n"), True
    if output is None:
        output = f"{Path(name).name or 'model'}.html"
    found.save(output, format=given.format, depth=given.depth)
    return f"wrote {output}", True


def _plan(given: argparse.Namespace) -> tuple[str, bool]:
    model, shapes = model_of(given.model, given.shape), shapes_of(given.shape)
    layout = layout_of(given.mesh, given.divide, batch=given.batch, parameters=given.parameters)
    return _printed(ml.plan(model, layout, shapes=shapes, gradients=given.gradients), given), True


def _quantize(given: argparse.Namespace) -> tuple[str, bool]:
    options: dict[str, Any] = {
        "quantize": generation.by_pattern(given.type),
        "include": given.include,
        "exclude": given.exclude,
        "strict": given.strict,
    }
    folder = Path(given.source)
    if (folder / "config.json").is_file():
        model = models.from_config(folder)
        if model.kind in llama_cpp.ARCHITECTURES:
            compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [1, 1]}, inference=True)
            ml.load_weights(compiled, folder)
            entries, lacking = {}, ""
            try:
                if llama_tokenizer.is_there(folder):
                    entries = llama_tokenizer.metadata(folder, model.arguments["vocab_size"])
            except (llama_tokenizer.UnwrittenTokenizerError, ModelFileError) as error:
                lacking = f"\nno tokenizer is written: {error.message}"
            report = ml.save_gguf(compiled, given.target, metadata=entries, **options)
            return _printed(report, given) + lacking, True
    foreign = open_foreign(folder) if folder.is_file() else None
    if foreign is not None and foreign.params is not None:
        made = ml.quantize(foreign.params, options.pop("quantize"), **options)
        return _printed(ml.save_gguf(made, given.target), given), True
    opened = ml.weights.open(given.source)
    blocks = {name: opened.quantized(name) for name in opened}
    arrays = {name: opened[name] if found is None else found for name, found in blocks.items()}
    made = ml.quantize(arrays, options.pop("quantize"), **options)
    # What a file said that it is made of is no longer true.
    entries = {name: v for name, v in opened.metadata.items() if name != "general.file_type" or not made.report.rows}
    return _printed(ml.save_gguf(made, given.target, metadata=entries), given), True


def _export(given: argparse.Namespace) -> tuple[str, bool]:
    source = Source.of(given)
    backend: Any = ml.NumpyBackend(dtype=given.dtype)
    if given.quantize:
        backend = ml.CBackend(dtype=given.dtype, quantize=generation.by_pattern(given.quantize), num_threads=1)
    compiled = ml.compile(source.model, backend, shapes=shapes_of(given.shape), inference=not given.gradients)
    target = given.target or ("onnx" if given.folder.lower().endswith(".onnx") else "c")
    if source.weights is not None or target == "onnx":
        source.load_into(compiled)
    if target == "onnx":
        return _with_note(_export_onnx(compiled, given), source.note), True
    for name in ("opset", "external_data"):
        if getattr(given, name) is not None:
            text = f"--{name.replace('_', '-')} is for files of ONNX"
            raise ConflictingOptionError(text, hint="add --format onnx, or leave it out")
    names = ("prefix", "cc", "lanes", "batch", "threads", "memory_limit")
    options = {name: getattr(given, name) for name in names}
    found = compiled.export(given.folder, target=target, gradients=given.gradients, **options)
    return _with_note(str(found), "" if source.weights is None else source.note), True


def _export_onnx(compiled: ml.PhysicalModel, given: argparse.Namespace) -> str:
    usual = {"prefix": "model", "cc": None, "lanes": None, "batch": None, "threads": 1, "memory_limit": None}
    for name, value in usual.items():
        if getattr(given, name) != value:
            text = f"--{name.replace('_', '-')} is for C, and the target is onnx"
            hint = "write the name in the shape: --shape input=batch,784" if name == "batch" else "leave it out"
            raise ConflictingOptionError(text, hint=hint)
    options = {"opset": given.opset, "external_data": given.external_data, "gradients": given.gradients}
    ml.to_onnx(compiled, given.folder, **options)
    beside = f", with its weights in {Path(given.folder).name}.data" if given.external_data else ""
    return f"wrote {given.folder}{beside}"


def _check(given: argparse.Namespace) -> tuple[str, bool]:
    if given.inference and given.gradients:
        raise ConflictingOptionError("--inference has no --gradients", hint="leave one of them out")
    model, shapes = model_of(given.model, given.shape), shapes_of(given.shape)
    options = {"gradients": given.gradients, "inference": given.inference}
    found = [ml.check(model, name, shapes, **options) for name in given.backend]
    return "\n\n".join(_printed(result, given) for result in found), all(result.ok for result in found)


def _compare(given: argparse.Namespace) -> tuple[str, bool]:
    source, shapes = Source.of(given), shapes_of(given.shape)
    options = {"dtype": given.dtype, "jit": given.jit, "inference": given.inference}
    found = ml.compare(source.model, given.backend, shapes, params=source.arrays(shapes), **options)
    return _with_note(_printed(found, given), source.note), found.agree


def _profile(given: argparse.Namespace) -> tuple[str, bool]:
    backend = ml.CBackend(num_threads=given.threads)
    source = Source.of(given)
    compiled = ml.compile(source.model, backend, shapes=shapes_of(given.shape), inference=True)
    source.load_into(compiled)
    return _with_note(_printed(compiled.profile(runs=given.num_runs), given), source.note), True


def _bench(given: argparse.Namespace) -> tuple[str, bool]:
    if given.inference and given.training:
        raise ConflictingOptionError("--inference and --training contradict each other", hint="leave one of them out")
    source, shapes = Source.of(given), shapes_of(given.shape)
    options = {"jit": given.jit, "training": given.training, "params": source.arrays(shapes)}
    found = ml.benchmark(source.model, shapes, given.backend, given.num_runs, **options)
    return _with_note(_printed(found, given), source.note), bool(found)


_RUN: dict[str, Callable[[argparse.Namespace], tuple[str, bool]]] = {
    "generate": _generate,
    "classify": _classify,
    "new-backend": _new_backend,
    "doctor": _doctor,
    "backends": _backends,
    "summary": _summary,
    "view": _view,
    "plan": _plan,
    "check": _check,
    "compare": _compare,
    "bench": _bench,
    "profile": _profile,
    "export": _export,
    "quantize": _quantize,
}


if __name__ == "__main__":
    # Warnings of frameworks while they are imported are not the answer to what was asked.
    warnings.simplefilter("ignore", DeprecationWarning)
    sys.exit(main())
