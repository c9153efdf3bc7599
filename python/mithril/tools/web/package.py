"""The files of the web target: what describes the model is filled into modules that are the same for all models."""

from __future__ import annotations

import html
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import InvalidValueError
from ..exported import Exported
from .compiler import CODE, THREADS_CODE, Code, build
from .files import ARRAYS, HERE, check, fill, manifest, marks, package_name, refuse_foreign

__all__ = ["ExportedWeb", "package", "refuse_options"]


Ports = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ExportedWeb(Exported):
    """What was exported for the web.

    Attributes
    ----------
    code_bytes : int
        Bytes of ``model.wasm``.
    threads_code_bytes : int or None
        Bytes of ``model-threads.wasm``; None: the model runs on one thread.
    compiler : str
        The command of the compiler that made them.
    compile_seconds : float
        How long that took.
    threads_problem : str
        Why the compiler did not make the form with threads, if it failed.
    """

    code_bytes: int
    threads_code_bytes: int | None
    compiler: str
    compile_seconds: float
    threads_problem: str = ""

    def __str__(self) -> str:
        sizes = f"{CODE} has {self.code_bytes} bytes"
        if self.threads_code_bytes is not None:
            sizes += f", {THREADS_CODE} {self.threads_code_bytes}"
        built = f"{sizes}, compiled by {self.compiler} in {self.compile_seconds:.1f} s"
        if self.threads_problem:
            built += f"\nthere is no form with threads: the compiler stopped {self.threads_problem}"
        first, _, rest = super().__str__().partition("\n")
        return f"{first}\n{built}\n{rest}"


def package(
    source: Path,
    folder: Path,
    report: Mapping[str, Any],
    *,
    title: str,
    prefix: str,
    is_random: bool,
    parameters: Sequence[str],
    defaults: Mapping[str, float],
    batch: str | None,
    rows: int,
    calls: int,
    trains: bool,
    is_quantized: bool,
    threads: int | None,
    cc: str | None,
    flags: Sequence[str],
) -> ExportedWeb:
    """Make the folder of a model that was exported as C.

    Parameters
    ----------
    source : Path
        The folder of the C files.
    folder : Path
        The folder to make.
    report : mapping
        What the export as C reported.
    title, prefix : str
        What the model is called, and what C symbols start with.
    is_random : bool
        Whether its weights are random numbers.
    parameters : sequence of str
        Names of the parameters, which are states where the model trains.
    defaults : mapping
        Values of data that may be left out.
    batch, rows
        The size that a call chooses, if any, and how many rows were recorded.
    calls : int
        After how many calls the outputs were recorded.
    trains, is_quantized : bool
        What kind of model it is.
    threads : int or None
        Threads of the check; 1 leaves out the form with threads. Default: 2.
    cc, flags
        The compiler for WebAssembly, and more flags for it.

    Returns
    -------
    ExportedWeb
    """
    refuse_foreign(folder, (*_TEMPLATES, "package.json"), (*_BINARIES, THREADS_CODE))
    weights = source / f"{prefix}.weights"
    head, whole = marks(weights)
    described: dict[str, Any] = {
        "title": title,
        "prefix": prefix,
        "trains": trains,
        "batch": batch,
        "weights": {
            "bytes": weights.stat().st_size,
            "hash": whole,
            "head": head,
            "isPacked": report["is_packed"],
        },
        "inputs": [
            {
                **_port(port, batch, rows),
                "isData": port["role"] in ("data", "cotangent"),
                "isParameter": port["name"] in parameters,
                "offset": port["offset"],
                **({"value": defaults[port["name"]]} if port["name"] in defaults else {}),
            }
            for port in report["inputs"]
        ],
        "outputs": [{**_port(port, batch, rows), "replaces": port["replaces"]} for port in report["outputs"]],
    }
    data = [port for port in described["inputs"] if port["isData"]]
    results = [port for port in described["outputs"] if port["replaces"] is None]
    # A number between two steps of a quantization may fall to the other side where sums are rounded otherwise.
    least = 3e-2 if is_quantized else 0.0
    allowed = {port["name"]: max(port["allowed"], least) if port["allowed"] else 0.0 for port in report["outputs"]}
    recorded = {
        "calls": calls,
        "data": [_recorded(port, rows) for port in data],
        "outputs": [{**_recorded(port, rows), "allowed": allowed[port["name"]]} for port in results],
    }
    functions = ["run", "arena_bytes", "error", *(["run_batch", "batch_arena_bytes"] if batch else [])]
    folder.mkdir(parents=True, exist_ok=True)
    exported = [f"{prefix}_{name}" for name in functions]
    code = build([source / f"{prefix}.c"], source, exported, [*report["flags"], *flags], cc, threads)
    described["code"] = code_description(code)
    recorded["threads"] = check_threads(code, threads)
    words = {
        "html_title": html.escape(" ".join(title.split())),
        "title": " ".join(title.replace("*/", "").split()),
        "description": json.dumps(described, indent=1),
        "recorded": json.dumps(recorded),
        "inputs": _types(data, are_inputs=True),
        "outputs": _types(results, are_inputs=False),
        "method": "step" if trains else "run",
        "call": ", ".join(f"{json.dumps(p['name'])}: …" for p in data if "value" not in p),
        "name": package_name(prefix),
        **code_words(code),
        "rows": "\n".join(_row("input", port) for port in data) + "\n" + "\n".join(_row("output", p) for p in results),
    }
    files = {name: fill((HERE / name).read_text("utf-8"), words) for name in _TEMPLATES}
    names = ("package.json", *code.names, *_BINARIES[1:], *_TEMPLATES)
    files["package.json"] = manifest(prefix, words["title"], names)
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
    binaries = {
        **{name: source / name for name in code.names},
        "weights.bin": weights,
        "check.bin": source / f"{prefix}.check",
    }
    for name, path in binaries.items():
        shutil.move(path, folder / name)
    remove_other_forms(folder, code)
    return ExportedWeb(
        folder,
        tuple(folder / name for name in names),
        report["weight_bytes"],
        report["packed_bytes"],
        report["pack_bytes"],
        report["arena_bytes"],
        check(folder),
        is_random,
        **code_figures(folder, code),
    )


_TEMPLATES = (
    "model.mjs",
    "model.d.ts",
    "runtime.mjs",
    "program.mjs",
    "worker.mjs",
    "thread.mjs",
    "check.mjs",
    "index.html",
    "README.md",
)
_BINARIES = (CODE, "weights.bin", "check.bin")


def code_description(code: Code) -> dict[str, Any]:
    """Describe the code for `program.mjs`."""
    return {"threads": None if code.pages is None else {"pages": code.pages}}


_THREADS_NOTE = """
The model runs on several threads in Node.js, and in pages whose server sends the headers
`Cross-Origin-Opener-Policy: same-origin` and `Cross-Origin-Embedder-Policy: require-corp`; elsewhere it runs on one.
"""


def code_words(code: Code) -> dict[str, str]:
    """Return what the readme says about the code."""
    has_threads = code.pages is not None
    return {
        "threads": _THREADS_NOTE if has_threads else "",
        "threads_row": f"| `{THREADS_CODE}` | the same for several threads |\n" if has_threads else "",
    }


def check_threads(code: Code, threads: int | None) -> int:
    """Return how many threads a check runs on, beside one."""
    return 1 if code.pages is None else threads or 2


def code_figures(folder: Path, code: Code) -> dict[str, Any]:
    """Return what an `ExportedWeb` says about its code."""
    sizes = [(folder / name).stat().st_size for name in code.names]
    return {
        "code_bytes": sizes[0],
        "threads_code_bytes": sizes[1] if len(sizes) > 1 else None,
        "compiler": code.compiler,
        "compile_seconds": code.seconds,
        "threads_problem": code.problem,
    }


def remove_other_forms(folder: Path, code: Code) -> None:
    """Remove the form with threads of a former export."""
    if THREADS_CODE not in code.names:
        (folder / THREADS_CODE).unlink(missing_ok=True)


def _port(port: Mapping[str, Any], batch: str | None, rows: int) -> dict[str, Any]:
    """Describe an input or output; ``rows``: how many elements of the first axis belong to a row of the batch."""
    shape: list[Any] = list(port["shape"])
    entry = {"name": port["name"], "dtype": port["dtype"], "shape": shape}
    if port["has_rows"]:
        each = shape[0] // rows
        shape[0] = batch if each == 1 else f"{each} {batch}"
        entry["rows"] = each
    return entry


def _recorded(port: Mapping[str, Any], rows: int) -> dict[str, Any]:
    sizes = [port["rows"] * rows, *port["shape"][1:]] if port.get("rows") else port["shape"]
    return {"name": port["name"], "dtype": port["dtype"], "count": math.prod(sizes)}


def _types(ports: Ports, *, are_inputs: bool) -> str:
    """Return the members of an interface of TypeScript."""
    lines = []
    for port in ports:
        kind = ARRAYS[port["dtype"]]
        is_number = are_inputs and not port.get("rows") and math.prod(port["shape"]) == 1 and "16" not in port["dtype"]
        mark = "?" if "value" in port else ""
        value = f"; {port['value']} by default" if "value" in port else ""
        comment = f"{port['dtype']} of shape [{', '.join(map(str, port['shape']))}]{value}".replace("*/", "")
        number = " | bigint" if "64" in kind and "Big" in kind else " | number"
        lines.append(f"  /** {comment} */\n  {json.dumps(port['name'])}{mark}: {kind}{number if is_number else ''};")
    return "\n".join(lines)


def _row(what: str, port: Mapping[str, Any]) -> str:
    shape = ", ".join(map(str, port["shape"]))
    return f"| {what} | `{port['name']}` | {port['dtype']} | [{shape}] | `{ARRAYS[port['dtype']]}` |"


def refuse_options(options: Mapping[str, Any]) -> None:
    """Refuse what the web target cannot do.

    Parameters
    ----------
    options : mapping
        Options of `export`.
    """
    if options["lanes"] not in (None, 4):
        text = f"lanes is {options['lanes']!r}, but vectors of WebAssembly hold 4 floats"
        raise InvalidValueError(text, hint="leave lanes out")
    if options["weights_inside"]:
        raise InvalidValueError("weights of the web target are a file beside the code", hint="leave weights_inside out")
    if options["autotune"]:
        text = "autotune measures kernels on this machine, not in WebAssembly"
        raise InvalidValueError(text, hint="leave autotune out")
