"""The command line: ``python -m mithril`` or ``mithril``."""

from __future__ import annotations

import argparse
import difflib
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mithril as ml
from mithril import llama_cpp, llama_tokenizer, models
from mithril._generated import zoo
from mithril.backends import table as overview
from mithril.errors import (
    InvalidValueError,
    KeyNotFoundError,
    MithrilError,
    ModelFileError,
    UnresolvedShapeError,
)
from mithril.generation import command as generation
from mithril.tools.overview import doctor
from mithril.tools.scaffold import new_backend
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
        0 if all is well, 1 if the answer is no or there was an error, 2 for a call that makes no sense.
    """
    given = _parser().parse_args(arguments)
    try:
        text, is_well = given.run(given)
    except (MithrilError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(text)
    return 0 if is_well else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mithril", description="Define a model once, compile it for every target.")
    parser.add_argument("--version", action="version", version=f"mithril {ml.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        found = commands.add_parser(name, help=text, description=text)
        found.set_defaults(run=run)
        if name not in ("summary", "completions", "new-backend", "generate", "classify", "export", "quantize"):
            found.add_argument("--markdown", action="store_true", help="print tables of Markdown")
        return found

    texts = command("generate", _generate, "answer a text by the model of a local checkpoint")
    pictures = command("classify", _classify, "say what images show, by the model of a local checkpoint")
    for found, add_arguments in ((texts, generation.add_arguments), (pictures, vision.add_arguments)):
        found.add_argument("weights", metavar="FOLDER", help="config.json, weights, and what else the model needs")
        add_arguments(found)
    scaffold = command("new-backend", _new_backend, "write the files of a backend of your own, with a test")
    scaffold.add_argument("name", metavar="NAME", help="name of the package and of the backend, e.g. my_backend")
    scaffold.add_argument("--autograd", action="store_true", help="a backend with gradients of its own framework")
    scaffold.add_argument("--folder", default=".", help="where the folder NAME is made (default: here)")
    command("doctor", _doctor, "versions, devices and compilers of this machine, and advice")
    command("backends", _backends, "what each backend can do")
    _model_arguments(command("summary", _summary, "table of the layers of a model"))
    check = command("check", _check, "how a backend runs every op of a model; fails if it does not")
    compare = command("compare", _compare, "run a model on several backends; fails beyond rounding")
    bench = command("bench", _bench, "time a model on several backends")
    for found in (check, compare, bench):
        _model_arguments(found)
        text = "name of a backend; may be given several times"
        found.add_argument("--backend", action="append", required=True, metavar="NAME", help=text)
    profiled = command("profile", _profile, "time each step of a model in C, against what this machine can do")
    _model_arguments(profiled)
    profiled.add_argument("--threads", type=int, help="threads of a run (default: all)")
    profiled.add_argument("--num-runs", type=int, default=20, help="number of runs (default 20)")
    export = command("export", _export, "write a model as a folder of C, built and checked")
    _model_arguments(export)
    export.add_argument("folder", metavar="FOLDER", help="where the files go")
    export.add_argument("--weights", metavar="FILE", help="checkpoint; without one the parameters are drawn")
    text = "what a part of the model is called in the weights, e.g. linear=0; may be given several times"
    export.add_argument("--name", action="append", default=[], metavar="OURS=THEIRS", help=text)
    export.add_argument("--prefix", default="model", help="what C symbols and files start with (default model)")
    export.add_argument("--cc", help="the C compiler (default: $CC, cc, gcc, clang, ziglang)")
    _quantize_arguments(command("quantize", _quantize, "write weights of few bits as GGUF, and what that costs"))
    check.add_argument("--gradients", action="store_true", help="look at the gradients too")
    compare.add_argument("--dtype", help="dtype of the backends")
    for found in (compare, bench):
        found.add_argument("--jit", action="store_true", help="compile by the framework's compiler")
    bench.add_argument("--training", action="store_true", help="outputs and gradients together")
    bench.add_argument("--num-runs", type=int, default=100, help="number of calls (default 100)")
    return parser


def _quantize_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="IN", help="a checkpoint, or a folder with one and a config.json")
    parser.add_argument("target", metavar="OUT", help="the file, usually *.gguf")
    text = "q8_0, q4_k, q4_k_m …, or PATTERN=TYPE for some names; may be given several times"
    parser.add_argument("--type", action="append", required=True, metavar="TYPE", help=text)
    parser.add_argument("--include", action="append", metavar="PATTERN", help="names that are quantised")
    parser.add_argument("--exclude", action="append", default=[], metavar="PATTERN", help="names that stay as they are")
    parser.add_argument("--strict", action="store_true", help="fail if something cannot be quantised")
    parser.add_argument("--markdown", action="store_true", help="print tables of Markdown")


def _model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="file of ml.save, folder with a config.json, file of GGUF, or the name of a model of mithril.models",
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=SIZES",
        help="shape of an input, e.g. input=1,3,224,224; may be given several times",
    )


def _model(name: str) -> ml.Model:
    path = Path(name)
    if path.is_dir() or path.name == "config.json" or path.suffix == ".gguf":
        return models.from_config(path)
    if path.suffix or path.exists():
        found = ml.load(name)
        if not isinstance(found, ml.Model):
            raise InvalidValueError(f"{name!r} holds parameters", hint="give the file of a model")
        return found
    if name not in zoo.__all__:
        near = difflib.get_close_matches(name, zoo.__all__, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"give a file of ml.save, or one of {', '.join(zoo.__all__)}"
        raise KeyNotFoundError(f"there is no file and no model called {name!r}", hint=hint)
    made: ml.Model = getattr(zoo, name)()
    return made


def _shapes(given: Sequence[str]) -> dict[str, list[int | str]]:
    shapes: dict[str, list[int | str]] = {}
    for entry in given:
        name, equals, sizes = entry.partition("=")
        if not equals:
            raise InvalidValueError(f"--shape is {entry!r}", hint="write it as input=1,3,224,224")
        words = [size.strip() for size in sizes.split(",") if size.strip()]
        shapes[name] = [int(word) if word.isdigit() else word for word in words]
    return shapes


def _names(given: Sequence[str]) -> dict[str, str]:
    for entry in given:
        if "=" not in entry:
            raise InvalidValueError(f"--name is {entry!r}", hint="write it as OURS=THEIRS, e.g. linear=0")
    return dict((ours, theirs) for ours, _, theirs in (entry.partition("=") for entry in given))


def _printed(found: Any, given: argparse.Namespace) -> str:
    return str(found.to_markdown() if given.markdown else found)


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
    model, shapes = _model(given.model), _shapes(given.shape)
    return (
        ml.compile(model, ml.NumpyBackend(), shapes=shapes, inference=True).summary() if shapes else model.summary()
    ), True


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
    opened = ml.weights.open(given.source)
    blocks = {name: opened.quantized(name) for name in opened}
    arrays = {name: opened[name] if found is None else found for name, found in blocks.items()}
    made = ml.quantize(arrays, options.pop("quantize"), **options)
    # What a file said that it is made of is no longer true.
    entries = {name: v for name, v in opened.metadata.items() if name != "general.file_type" or not made.report.rows}
    return _printed(ml.save_gguf(made, given.target, metadata=entries), given), True


def _export(given: argparse.Namespace) -> tuple[str, bool]:
    compiled = ml.compile(_model(given.model), ml.NumpyBackend(), shapes=_shapes(given.shape), inference=True)
    if given.weights is not None:
        ml.load_weights(compiled, given.weights, names=_names(given.name))
    try:
        return str(compiled.export(given.folder, prefix=given.prefix, cc=given.cc)), True
    except UnresolvedShapeError as error:
        raise UnresolvedShapeError(error.message, hint="give numbers: --shape input=1,3,224,224") from None


def _check(given: argparse.Namespace) -> tuple[str, bool]:
    model, shapes = _model(given.model), _shapes(given.shape)
    found = [ml.check(model, name, shapes, gradients=given.gradients) for name in given.backend]
    return "\n\n".join(_printed(result, given) for result in found), all(result.ok for result in found)


def _compare(given: argparse.Namespace) -> tuple[str, bool]:
    found = ml.compare(_model(given.model), given.backend, _shapes(given.shape), dtype=given.dtype, jit=given.jit)
    return _printed(found, given), found.agree


def _profile(given: argparse.Namespace) -> tuple[str, bool]:
    backend = ml.CBackend(num_threads=given.threads)
    model = _model(given.model)
    compiled = ml.compile(model, backend, shapes=_shapes(given.shape), inference=True)
    return _printed(compiled.profile(runs=given.num_runs), given), True


def _bench(given: argparse.Namespace) -> tuple[str, bool]:
    options = {"jit": given.jit, "training": given.training}
    found = ml.benchmark(_model(given.model), _shapes(given.shape), given.backend, given.num_runs, **options)
    return _printed(found, given), bool(found)


if __name__ == "__main__":
    # Warnings of frameworks while they are imported are not the answer to what was asked.
    warnings.simplefilter("ignore", DeprecationWarning)
    sys.exit(main())
