"""The arguments of the command line, with guesses for what is misspelled."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence

from .. import __version__
from ..generation import command as generation
from ..suggestions import nearest
from ..vision import command as vision
from . import launch as launching

__all__ = ["parse"]

_TEXTS = {
    "generate": "answer a text by the model of a local checkpoint",
    "classify": "say what images show, by the model of a local checkpoint",
    "new-backend": "write the files of a backend of your own, with a test",
    "doctor": "versions, devices and compilers of this machine, and advice",
    "backends": "what each backend can do",
    "summary": "table of the layers of a model",
    "view": "a page that shows a model: graph, stages of the compiler, source, memory plan",
    "plan": "what each of several devices exchanges and holds, if a model is divided over them",
    "launch": "run a script in several processes on this machine, one for each device of a mesh",
    "check": "how a backend runs every op of a model; fails if it does not",
    "compare": "run a model on several backends; fails beyond rounding",
    "bench": "time a model on several backends",
    "profile": "time each step of a model in C, against what this machine can do",
    "export": "write a model as a folder of C or for the web, built and checked, or as a file of ONNX",
    "quantize": "write quantized weights as GGUF, and report what that costs",
}
#: Commands that print tables.
_TABLES = ("doctor", "backends", "plan", "check", "compare", "bench", "profile", "quantize")


class _Parser(argparse.ArgumentParser):
    """A parser that knows its options."""

    def options(self) -> list[str]:
        """Return all spellings of options."""
        return [option for action in self._actions for option in action.option_strings]


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
    given, left = parser.parse_known_args(arguments)
    if left:
        chosen = commands[given.command]
        unknown = next((word for word in left if word.startswith("-")), left[0])
        if unknown.startswith("-"):
            option = unknown.partition("=")[0]
            chosen.error(f"there is no option {option}; {_guess(option, chosen.options())}")
        chosen.error(f"what is {unknown!r}? See {chosen.prog} --help")
    return given


def _guess(word: str, known: Iterable[str]) -> str:
    near = nearest(word, list(known))
    return f"did you mean {near}?" if near else f"available: {', '.join(known)}"


def _parser() -> tuple[_Parser, Mapping[str, _Parser]]:
    parser = _Parser(prog="mithril", description="Define a model once, compile it for every target.")
    parser.add_argument("--version", action="version", version=f"mithril {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command", parser_class=_Parser)
    made: dict[str, _Parser] = {}
    for name, text in _TEXTS.items():
        made[name] = commands.add_parser(name, help=text, description=text)
        if name in _TABLES:
            made[name].add_argument("--markdown", action="store_true", help="print tables of Markdown")
    text = "folder with config.json, weights, and what else the model needs"
    for name, add_arguments in (("generate", generation.add_arguments), ("classify", vision.add_arguments)):
        either = ", or a file of GGUF" if name == "generate" else ""
        made[name].add_argument("weights", metavar="FOLDER", help=text + either)
        add_arguments(made[name])
    scaffold = made["new-backend"]
    scaffold.add_argument("name", metavar="NAME", help="name of the package and of the backend, e.g. my_backend")
    scaffold.add_argument("--autograd", action="store_true", help="a backend with gradients of its own framework")
    scaffold.add_argument("--folder", default=".", help="where the folder NAME is made (default: here)")
    for name in ("summary", "view", "plan", "check", "compare", "bench", "profile", "export"):
        _model_arguments(made[name])
    for name in ("check", "compare", "bench"):
        text = "name of a backend; may be given several times"
        made[name].add_argument("--backend", action="append", required=True, metavar="NAME", help=text)
        text = "compile without gradients, dropout and statistics of the batch"
        made[name].add_argument("--inference", action="store_true", help=text)
    for name in ("compare", "bench", "profile", "export"):
        _weights_arguments(made[name])
    made["check"].add_argument("--gradients", action="store_true", help="look at the gradients too")
    made["compare"].add_argument("--dtype", help="dtype of the backends")
    for name in ("compare", "bench"):
        made[name].add_argument("--jit", action="store_true", help="compile by the framework's compiler")
    made["bench"].add_argument("--training", action="store_true", help="outputs and gradients together")
    made["bench"].add_argument("--num-runs", type=int, default=100, help="number of calls (default 100)")
    made["profile"].add_argument("--threads", type=int, help="threads of a run (default: all)")
    made["profile"].add_argument("--num-runs", type=int, default=20, help="number of runs (default 20)")
    _view_arguments(made["view"])
    _plan_arguments(made["plan"])
    _export_arguments(made["export"])
    _quantize_arguments(made["quantize"])
    launching.add_arguments(made["launch"])
    return parser, made


def _model_arguments(parser: argparse.ArgumentParser) -> None:
    text = "file of ml.save, .pt2, .onnx or GGUF, folder with a config.json, or name of a model of mithril.models"
    parser.add_argument("model", metavar="MODEL", help=text)
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
    parser.add_argument("--format", choices=("html", "svg", "mermaid"), help=text)
    parser.add_argument("--backend", default="numpy", metavar="NAME", help="backend of the source (default numpy)")
    text = "the stage that is shown first, e.g. legalize (default: the model as it was written)"
    parser.add_argument("--stage", metavar="STAGE", help=text)
    parser.add_argument("--depth", type=int, default=1, help="how deep svg and mermaid show the parts (default 1)")


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    text = "axes of the mesh and their sizes, e.g. data=2,model=4"
    parser.add_argument("--mesh", required=True, metavar="AXIS=N,...", help=text)
    text = "axis of the mesh that divides the batch (default: the first one, if nothing else is divided)"
    parser.add_argument("--batch", metavar="AXIS", help=text)
    text = "axis of the mesh that divides all other parameters, each along its longest axis"
    parser.add_argument("--parameters", metavar="AXIS", help=text)
    text = "axis of the mesh for each axis of the tensors of that name, e.g. 'down.weight=,model'; several times"
    parser.add_argument("--divide", action="append", default=[], metavar="PATTERN=AXES", help=text)
    parser.add_argument("--gradients", action="store_true", help="also compute the gradients of all parameters")


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="where the files go; for ONNX the file, usually *.onnx")
    text = "c, web for an npm package with WebAssembly, or onnx (default: onnx for *.onnx, otherwise c)"
    parser.add_argument("--target", "--format", metavar="TARGET", help=text)
    parser.add_argument("--opset", type=int, metavar="N", help="version of ONNX's ops, 17 to 24 (default 20)")
    text = "write the weights of a file of ONNX into a second one (default: if they are more than 2 GB)"
    parser.add_argument("--external-data", action="store_true", default=None, help=text)
    parser.add_argument("--prefix", default="model", help="what C symbols and files start with (default model)")
    text = "the C compiler (default: $CC, cc, gcc, clang, ziglang); for the web that for WebAssembly"
    parser.add_argument("--cc", help=text)
    parser.add_argument("--dtype", default="float32", help="dtype of the model (default float32)")
    text = "quantize weights: int8, int8_weights, int4_weights, or PATTERN=TYPE; may be given several times"
    parser.add_argument("--quantize", action="append", metavar="TYPE", help=text)
    text = "floats in a vector of the processor that it is for: 16, 8, 4, or 1 for plain C (default: this one's)"
    parser.add_argument("--lanes", type=int, metavar="N", help=text)
    text = "a size of --shape that becomes an argument of the functions, e.g. batch with --shape input=batch,784"
    parser.add_argument("--batch", metavar="NAME", help=text)
    text = "threads of the check and of the figures for memory (default 1); the code takes any number"
    parser.add_argument("--threads", type=int, default=1, metavar="N", help=text)
    text = "an error if packed weights and scratch memory need more, e.g. 256KB"
    parser.add_argument("--memory-limit", metavar="SIZE", help=text)
    parser.add_argument("--gradients", action="store_true", help="also compute the gradients of all parameters")


def _quantize_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="IN", help="a checkpoint, or a folder with one and a config.json")
    parser.add_argument("target", metavar="OUT", help="the file, usually *.gguf")
    text = "q8_0, q4_k, q4_k_m …, or PATTERN=TYPE for some names; may be given several times"
    parser.add_argument("--type", action="append", required=True, metavar="TYPE", help=text)
    parser.add_argument("--include", action="append", metavar="PATTERN", help="names that are quantized")
    parser.add_argument("--exclude", action="append", default=[], metavar="PATTERN", help="names that stay as they are")
    parser.add_argument("--strict", action="store_true", help="fail if something cannot be quantized")
