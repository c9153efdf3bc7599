"""The arguments of the command line, with guesses for what is misspelled."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import __version__
from ..generation import command as generation
from ..parallel.hardware import HARDWARE
from ..parallel.pipeline import SCHEDULES
from ..parallel.strategies import AUTO, AXES, PIPELINE
from ..suggestions import nearest
from ..viewer.views import PICTURES
from ..vision import command as vision
from . import bench, export
from . import launch as launching
from .backends import add_device
from .completions import SHELLS
from .optimizer import NAMES
from .spelling import rows

__all__ = ["parse", "table"]

_TEXTS = {
    "generate": "answer a text by the model of a local checkpoint",
    "classify": "say what images show, by the model of a local checkpoint",
    "new-backend": "write the files of a backend of your own, with a test",
    "doctor": "versions, devices and compilers of this machine, and advice",
    "backends": "what each backend can do",
    "summary": "table of the layers of a model",
    "view": "a page that shows a model: graph, stages of the compiler, source, memory plan, times",
    "plan": "what each of several devices exchanges and holds, if a model is divided over them",
    "launch": "run a script in several processes on this machine, one for each device of a mesh",
    "check": "how a backend runs every op of a model; fails if it does not",
    "compare": "run a model on several backends; fails beyond rounding",
    "bench": "time a model on several backends, or published models on all of them",
    "profile": "time each step of a model in C, against what this machine can do",
    "export": "write a model as a folder of C, for the web or for Rust, built and checked, or as a file of ONNX",
    "quantize": "write quantized weights as GGUF, and report what that costs",
    "ops": "all ops, or the documentation of one",
    "completions": "completions for a shell, e.g. source <(mithril completions bash)",
    "version": "version of Mithril",
    "help": "this help, or that of a command",
}
#: Commands that print tables, which Markdown has too.
_TABLES = ("doctor", "backends", "plan", "check", "compare", "bench", "profile", "quantize")
#: Commands whose answer is also to be had as JSON.
_JSON = (*_TABLES, "summary", "view", "export", "ops", "version", "new-backend")


class _Parser(argparse.ArgumentParser):
    """A parser that knows its options, and guesses what was meant by a value that is not one of its choices."""

    def options(self) -> list[str]:
        """Return all spellings of options."""
        return [option for action in self._actions for option in action.option_strings]

    def actions(self) -> list[argparse.Action]:
        """Return the arguments and options."""
        return list(self._actions)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            name = action.option_strings[0] if action.option_strings else action.metavar or action.dest
            self.error(f"{name} is {str(value)!r}; {_guess(str(value), [str(choice) for choice in action.choices])}")


class _Names(argparse.Action):
    """Names that are given several times, or with commas between them."""

    is_repeated = True

    def __init__(self, *, choices: Sequence[str] | None = None, **options: Any) -> None:
        # The parser would compare the whole text with them.
        self.names = choices
        super().__init__(choices=None, **options)

    def __call__(
        self, parser: argparse.ArgumentParser, args: argparse.Namespace, values: Any, flag: str | None = None
    ) -> None:
        names = [name.strip() for name in str(values).split(",") if name.strip()]
        if not names:
            parser.error(f"{flag} is {str(values)!r}, which holds no name")
        for name in names:
            if self.names is not None and name not in self.names:
                parser.error(f"{flag} is {name!r}; {_guess(name, self.names)}")
        setattr(args, self.dest, [*(getattr(args, self.dest) or ()), *names])


def parse(arguments: Sequence[str]) -> argparse.Namespace | None:
    """Read arguments; print the help and return None if there are none.

    Raises
    ------
    SystemExit
        For arguments that make no sense (2), or after ``--help`` and ``--version`` (0).
    """
    parser, commands = _parser()
    if not arguments:
        parser.print_help()
        return None
    first = arguments[0]
    if not first.startswith("-") and first not in commands:
        parser.error(f"there is no command {first!r}; {_guess(first, commands)}")
    if first == "help":
        chosen = commands.get(arguments[1], parser) if len(arguments) > 1 else parser
        if len(arguments) > 1 and arguments[1] not in ("-h", "--help", *commands):
            parser.error(f"there is no command {arguments[1]!r}; {_guess(arguments[1], commands)}")
        chosen.print_help()
        return None
    args, left = parser.parse_known_args(arguments)
    if left:
        chosen = commands[args.command]
        unknown = next((word for word in left if word.startswith("-")), left[0])
        if unknown.startswith("-"):
            option = unknown.partition("=")[0]
            chosen.error(f"there is no option {option}; {_guess_option(option, chosen.options())}")
        chosen.error(f"what is {unknown!r}? See {chosen.prog} --help")
    return args


def table() -> list[dict[str, Any]]:
    """Return the table of commands and options, see `mithril.command.spelling`."""
    return rows({name: parser.actions() for name, parser in _parser()[1].items()}, _TEXTS)


#: Options of other commands that mean the same.
_SYNONYMS = ({"--gradients", "--training"}, {"--backend", "--backends"}, {"--target", "--format"})


def _guess_option(option: str, known: Sequence[str]) -> str:
    """Say which option may be meant: one that another command calls so, or one that is written like it."""
    meant = next((o for same in _SYNONYMS if option in same for o in known if o in same), None)
    if meant is None:
        # The dashes in front make all of them alike.
        near = nearest(option.lstrip("-"), [o.lstrip("-") for o in known if o.startswith("--")])
        meant = f"--{near}" if near else None
    everything = f"available: {', '.join(known)}"
    return f"did you mean {meant}? {everything[0].upper()}{everything[1:]}" if meant else everything


def _guess(word: str, known: Iterable[str]) -> str:
    near = nearest(word, list(known))
    everything = f"available: {', '.join(known)}"
    return f"did you mean {near}? {everything[0].upper()}{everything[1:]}" if near else everything


def _parser() -> tuple[_Parser, Mapping[str, _Parser]]:
    parser = _Parser(prog="mithril", description="Define a model once, compile it for every target.")
    parser.add_argument("--version", action="version", version=f"mithril {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command", parser_class=_Parser)
    parsers: dict[str, _Parser] = {}
    for name, text in _TEXTS.items():
        parsers[name] = commands.add_parser(name, help=text, description=text)
        if name in _TABLES:
            parsers[name].add_argument("--markdown", action="store_true", help="print tables of Markdown")
        if name in _JSON:
            parsers[name].add_argument("--json", action="store_true", help="print JSON, of a form that does not change")
    text = "folder with config.json, weights, and what else the model needs"
    for name, add_arguments in (("generate", generation.add_arguments), ("classify", vision.add_arguments)):
        either = ", or a file of GGUF" if name == "generate" else ""
        parsers[name].add_argument("weights", metavar="FOLDER", help=text + either)
        add_arguments(parsers[name])
    scaffold = parsers["new-backend"]
    scaffold.add_argument("name", metavar="NAME", help="name of the package and of the backend, e.g. my_backend")
    scaffold.add_argument("--autograd", action="store_true", help="a backend with gradients of its own framework")
    scaffold.add_argument("--folder", default=".", help="where the folder NAME is made (default: here)")
    for name in ("summary", "view", "plan", "check", "compare", "bench", "profile", "export"):
        _model_arguments(parsers[name], is_required=name != "bench")
    for name in ("check", "compare", "bench"):
        text = "name of a backend; several with commas, or given several times"
        if name == "bench":
            text += " (default of --table: all that are installed)"
        parsers[name].add_argument(
            "--backend", "--backends", action=_Names, required=name != "bench", metavar="NAME", help=text
        )
        add_device(parsers[name])
        text = "compile without gradients, dropout and statistics of the batch"
        parsers[name].add_argument("--inference", action="store_true", help=text)
    for name in ("compare", "bench", "profile", "export"):
        _weights_arguments(parsers[name])
    parsers["check"].add_argument("--gradients", action="store_true", help="look at the gradients too")
    parsers["compare"].add_argument("--dtype", metavar="DTYPE", help="dtype of the backends")
    for name in ("compare", "bench"):
        parsers[name].add_argument("--jit", action="store_true", help="compile by the framework's compiler")
    bench.add_arguments(parsers["bench"], _Names)
    parsers["profile"].add_argument("--threads", type=int, metavar="N", help="threads of a run (default: all)")
    parsers["profile"].add_argument("--num-runs", type=int, default=20, metavar="N", help="number of runs (default 20)")
    _view_arguments(parsers["view"])
    _plan_arguments(parsers["plan"])
    export.add_arguments(parsers["export"])
    _quantize_arguments(parsers["quantize"])
    launching.add_arguments(parsers["launch"])
    parsers["ops"].add_argument("op", nargs="?", metavar="NAME", help="an op (default: list all)")
    parsers["completions"].add_argument("shell", choices=tuple(SHELLS), metavar="SHELL", help=", ".join(SHELLS))
    parsers["help"].add_argument("topic", nargs="?", choices=tuple(_TEXTS), metavar="COMMAND", help="a command")
    return parser, parsers


def _model_arguments(parser: argparse.ArgumentParser, is_required: bool) -> None:
    text = "file of ml.save, .pt2, .onnx or GGUF, folder with a config.json, or name of a model of mithril.models"
    parser.add_argument("model", metavar="MODEL", nargs=None if is_required else "?", help=text)
    text = "shape of an input, e.g. input=1,3,224,224; may be given several times"
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=SIZES", help=text)


def _weights_arguments(parser: argparse.ArgumentParser) -> None:
    text = "checkpoint: a file or a folder (default: the weights that MODEL holds)"
    parser.add_argument("--weights", metavar="PATH", help=text)
    parser.add_argument("--random-weights", action="store_true", help="draw the weights, whatever MODEL holds")
    text = "what a part of the model is called in the weights, e.g. linear=0; may be given several times"
    parser.add_argument("--name", action="append", default=[], metavar="OURS=THEIRS", help=text)


def _view_arguments(parser: argparse.ArgumentParser) -> None:
    text = "the file to write (default: NAME.html in this folder; pictures and diagrams are printed)"
    parser.add_argument("--output", metavar="PATH", help=text)
    text = "html, svg or mermaid (default: by the ending of --output, or html)"
    parser.add_argument("--format", choices=("html", "svg", "mermaid"), metavar="FORMAT", help=text)
    text = "backend of the source (default numpy, with --profile c)"
    parser.add_argument("--backend", metavar="NAME", help=text)
    text = "the stage that is shown first, e.g. legalize (default: the model as it was written)"
    parser.add_argument("--stage", metavar="STAGE", help=text)
    parser.add_argument(
        "--depth", type=int, default=1, metavar="N", help="how deep svg and mermaid show the parts (default 1)"
    )
    parser.add_argument("--gradients", action="store_true", help="show how the gradients are computed")
    text = "time each step in C, with random data and the weights that it starts with, and show that too"
    parser.add_argument("--profile", action="store_true", help=text)
    text = "what svg shows: graph, or with --profile flame_graph or roofline (default graph)"
    pictures = [picture for picture in PICTURES if picture != "plan"]
    parser.add_argument("--picture", choices=pictures, default="graph", metavar="PICTURE", help=text)


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    text = "axes of the mesh and their sizes, e.g. data=2,model=4"
    parser.add_argument("--mesh", required=True, metavar="AXIS=N,...", help=text)
    text = "axis of the mesh that divides the batch (default: the first one, if nothing else is divided)"
    parser.add_argument("--batch", metavar="AXIS", help=text)
    text = "axis of the mesh that divides all other parameters, each along its longest axis"
    parser.add_argument("--parameters", metavar="AXIS", help=text)
    text = "axis of the mesh for each axis of the tensors of that name, e.g. 'down.weight=,model'; several times"
    parser.add_argument("--divide", action="append", default=[], metavar="PATTERN=AXES", help=text)
    names = ", ".join([*AXES, PIPELINE, AUTO])
    text = f"{names}, or one for each axis of the mesh, e.g. data=data_parallel,model=tensor_parallel"
    parser.add_argument("--strategy", metavar="NAME", help=text)
    text = f"order of the micro-batches of a pipeline: {', '.join(SCHEDULES)} (default {SCHEDULES[1]})"
    parser.add_argument("--schedule", choices=SCHEDULES, metavar="NAME", help=text)
    text = "parts of a batch in a pipeline (default: the most that divide it, up to two for each device)"
    parser.add_argument("--micro-batches", type=int, metavar="N", help=text)
    text = f"estimate times: {', '.join(HARDWARE)}, also with other figures, e.g. a100:link_bandwidth=1e10,memory=4e10"
    parser.add_argument("--hardware", metavar="NAME[:FIGURES]", help=text)
    text = f"count the gradients, and what an optimizer keeps: {', '.join(NAMES)}"
    parser.add_argument("--optimizer", metavar="NAME[:OPTIONS]", help=text)
    parser.add_argument("--gradients", action="store_true", help="also compute the gradients of all parameters")
    text = (
        "also write FILE.svg, a picture of memory, times and the layouts that were compared, or FILE.html, the page of "
    )
    text += "the model with it"
    parser.add_argument("--output", metavar="FILE", help=text)


def _quantize_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="IN", help="a checkpoint, or a folder with one and a config.json")
    parser.add_argument("target", metavar="OUT", help="the file, usually *.gguf")
    text = "q8_0, q4_k, q4_k_m …, or PATTERN=TYPE for some names; may be given several times"
    parser.add_argument("--type", action="append", required=True, metavar="TYPE", help=text)
    parser.add_argument("--include", action="append", metavar="PATTERN", help="names that are quantized")
    parser.add_argument("--exclude", action="append", default=[], metavar="PATTERN", help="names that stay as they are")
    parser.add_argument("--strict", action="store_true", help="fail if something cannot be quantized")
