"""The command line: ``python -m mithril`` or ``mithril``."""

from __future__ import annotations

import argparse
import io
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mithril as ml
from mithril import models, tables
from mithril.backends import table as overview
from mithril.checkpoints import llama_cpp
from mithril.command import bench, export, ops
from mithril.command.answer import Answer
from mithril.command.backends import on_device
from mithril.command.completions import completions
from mithril.command.ending import guarded
from mithril.command.launch import launch
from mithril.command.layout import hardware_of, layout_of, pipeline_of, strategy_of
from mithril.command.optimizer import optimizer_of
from mithril.command.parser import parse, table
from mithril.command.source import Source, model_of, shapes_of, title_of
from mithril.command.summary import summary_facts
from mithril.command.terminal import waiting
from mithril.errors import ConflictingOptionError, InvalidValueError, ModelFileError
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
    parsed = parse(arguments)
    if parsed is None:
        return 0
    if parsed.command == "launch":
        return launch(parsed)
    # These show their own progress, and text as it comes.
    stream = io.StringIO() if parsed.command in ("generate", "classify") else sys.stderr
    with waiting(parsed.command, stream) as shown:
        parsed.waiting = shown
        answer = _RUN[parsed.command](parsed)
    text = answer if isinstance(answer, str) else answer.printed(parsed)
    print(text, flush=True)
    return 0 if isinstance(answer, str) or answer.is_well else 1


def _new_backend(args: argparse.Namespace) -> Answer:
    files = new_backend(args.name, args.folder, args.autograd)
    lines = [f"wrote {path}" for path in files]
    project = files[0].parent
    text = "\n".join([*lines, f"try it: cd {project} && pip install -e . && pytest"])
    return Answer.noted(text, "mithril.new-backend/1", {"folder": str(project), "files": [str(path) for path in files]})


def _doctor(args: argparse.Namespace) -> Answer:
    return Answer.of(doctor(), args)


def _backends(args: argparse.Namespace) -> Answer:
    return Answer.of(overview(), args)


def _summary(args: argparse.Namespace) -> Answer:
    model, shapes = model_of(args.model, args.shape), shapes_of(args.shape)
    chosen: Any = ml.compile(model, ml.NumpyBackend(), shapes=shapes, inference=True) if shapes else model
    return Answer.noted(chosen.summary(), *summary_facts(model, chosen.summary_rows()))


def _view(args: argparse.Namespace) -> Answer:
    name = title_of(args.model)
    view = ml.view(
        model_of(args.model, args.shape),
        shapes=shapes_of(args.shape) or None,
        backend=None if args.backend is None else ml.get_backend(args.backend),
        stage=args.stage,
        title=name,
        depth=args.depth,
        profile=args.profile,
        gradients=args.gradients,
    )
    output = args.output
    format = "svg" if args.format is None and output is None and args.picture != "graph" else args.format
    if output is None and format in ("svg", "mermaid"):
        text = view.text(format, args.depth, args.picture).rstrip("\n")
        return Answer.noted(text, "mithril.view/1", {"format": format, "text": text, "files": []})
    if output is None:
        output = f"{Path(name).name or 'model'}.html"
    view.save(output, format=format, depth=args.depth, picture=args.picture)
    return Answer.noted(f"wrote {output}", "mithril.view/1", {"format": format, "text": None, "files": [output]})


def _plan(args: argparse.Namespace) -> Answer:
    pages = FORMATS["html"][0]
    if args.output is not None:
        tables.check_path(args.output, "a plan is", [".svg", *pages])
    model, shapes = model_of(args.model, args.shape), shapes_of(args.shape)
    layout = layout_of(args.mesh, args.divide, batch=args.batch, parameters=args.parameters)
    strategy = strategy_of(args.strategy, layout)
    if args.schedule is not None or args.micro_batches is not None:
        layout, strategy = pipeline_of(layout, strategy, args.schedule, args.micro_batches), None
    optimizer = None if args.optimizer is None else optimizer_of(args.optimizer)
    hardware = None if args.hardware is None else hardware_of(args.hardware)
    plan = ml.plan(
        model,
        layout,
        shapes=shapes,
        gradients=args.gradients or optimizer is not None,
        hardware=hardware,
        optimizer=optimizer,
        strategy=strategy,
    )
    if args.output is None:
        return Answer.of(plan, args)
    if Path(args.output).suffix.lower() in pages:
        ml.view(model, args.output, shapes=shapes or None, title=title_of(args.model), plan=plan)
    else:
        plan.save(args.output)
    return Answer.of(plan, args, note=f"wrote {args.output}")


def _quantize(args: argparse.Namespace) -> Answer:
    options: dict[str, Any] = {
        "quantize": generation.by_pattern(args.type),
        "include": args.include,
        "exclude": args.exclude,
        "strict": args.strict,
    }
    folder, note = Path(args.source), ""
    if (folder / "config.json").is_file():
        model, note = _zoo_model(folder)
        if model is not None and model.kind in llama_cpp.ARCHITECTURES:
            compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [1, 1]}, inference=True)
            ml.load_weights(compiled, folder)
            entries, lacking = {}, ""
            try:
                if llama_tokenizer.is_there(folder):
                    entries = llama_tokenizer.metadata(folder, model.arguments["vocab_size"])
            except (llama_tokenizer.UnwrittenTokenizerError, ModelFileError) as error:
                lacking = f"no tokenizer is written: {error.message}"
            report = ml.save_gguf(compiled, args.target, metadata=entries, **options)
            return Answer.of(report, args, note=lacking)
    foreign = open_foreign(folder) if folder.is_file() else None
    if foreign is not None and foreign.params is not None:
        quantized = ml.quantize(foreign.params, options.pop("quantize"), **options)
        return Answer.of(ml.save_gguf(quantized, args.target), args)
    opened = ml.weights.open(args.source)
    blocks = {name: opened.quantized(name) for name in opened}
    arrays = {name: opened[name] if packed is None else packed for name, packed in blocks.items()}
    quantized = ml.quantize(arrays, options.pop("quantize"), **options)
    # What a file said that it is made of is no longer true.
    entries = {
        name: v for name, v in opened.metadata.items() if name != "general.file_type" or not quantized.report.rows
    }
    return Answer.of(ml.save_gguf(quantized, args.target, metadata=entries), args, note=note)


def _zoo_model(folder: Path) -> tuple[ml.Model | None, str]:
    """Build the model of a folder if the zoo knows its architecture; what else the answer says."""
    try:
        return models.from_config(folder), ""
    except InvalidValueError as error:
        try:
            entries = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except ValueError:
            raise error from None
        kind = entries.get("model_type") if isinstance(entries, dict) else None
        if kind is not None and "not in the zoo" not in error.message:
            raise
        what = "no architecture" if kind is None else f"the architecture {kind!r}, which is not in the zoo"
        return None, f"config.json names {what}: the arrays keep their names, and llama.cpp does not run the file"


def _check(args: argparse.Namespace) -> Answer:
    if args.inference and args.gradients:
        raise ConflictingOptionError("--inference has no --gradients", hint="leave one of them out")
    model, shapes = model_of(args.model, args.shape), shapes_of(args.shape)
    options = {"gradients": args.gradients, "inference": args.inference}
    reports = [ml.check(model, name, shapes, **options) for name in on_device(args.backend, args.device)]
    return Answer.several("mithril.checks/1", reports, args, is_well=all(result.ok for result in reports))


def _compare(args: argparse.Namespace) -> Answer:
    source, shapes = Source.of(args), shapes_of(args.shape)
    options = {"dtype": args.dtype, "jit": args.jit, "inference": args.inference}
    backends = on_device(args.backend, args.device, dtype=args.dtype)
    comparison = ml.compare(source.model, backends, shapes, params=source.arrays(shapes), **options)
    return Answer.of(comparison, args, note=source.note, is_well=comparison.agree)


def _profile(args: argparse.Namespace) -> Answer:
    backend = ml.CBackend(num_threads=args.threads)
    source = Source.of(args)
    compiled = ml.compile(source.model, backend, shapes=shapes_of(args.shape), inference=True)
    source.load_into(compiled)
    return Answer.of(compiled.profile(runs=args.num_runs), args, note=source.note)


def _ops(args: argparse.Namespace) -> Answer:
    if args.op is None:
        families = ops.families()
        text = "\n".join(f"{family}: {' '.join(names)}" for family, names in families.items())
        return Answer.noted(text, "mithril.ops/1", {"families": families})
    description = ops.describe(args.op)
    head = f"{description['name']}({', '.join(description['inputs'])}) -> {', '.join(description['outputs'])}"
    return Answer.noted(f"{head}\n\n{description['doc']}", "mithril.op/1", description)


def _completions(args: argparse.Namespace) -> str:
    return completions(args.shell, table())


def _version(args: argparse.Namespace) -> Answer:
    return Answer.noted(f"mithril {ml.__version__}", "mithril.version/1", {"version": ml.__version__})


_RUN: dict[str, Callable[[argparse.Namespace], str | Answer]] = {
    "generate": generation.generate,
    "classify": vision.classify,
    "new-backend": _new_backend,
    "doctor": _doctor,
    "backends": _backends,
    "summary": _summary,
    "view": _view,
    "plan": _plan,
    "check": _check,
    "compare": _compare,
    "bench": bench.run,
    "profile": _profile,
    "export": export.run,
    "quantize": _quantize,
    "ops": _ops,
    "completions": _completions,
    "version": _version,
}


if __name__ == "__main__":
    # Warnings of frameworks while they are imported are not the answer to what was asked.
    warnings.simplefilter("ignore", DeprecationWarning)
    sys.exit(main())
