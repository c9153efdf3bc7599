"""A decoder with a cache for the web: one program for chunks of a prompt, one for single tokens, on the same weights.

Both read the weights in one order, so that the package holds them once. The cache of keys and values stays in the
memory of the model, and the programs write into it in place.
"""

from __future__ import annotations

import html
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _core
from ...backends.exchange import to_host
from ...backends.with_manualgrad.c_backend import CBackend
from ...backends.with_manualgrad.numpy_backend import NumpyBackend
from ...compiled import internals
from ...compiled.arguments import missing
from ...errors import InvalidValueError, NumericsError, ParameterError
from ..exported import RANDOM
from ..inputs import refuse_unknown
from .compiler import CODE, THREADS_CODE, build
from .files import HERE, REGISTERS, check, fill, manifest, marks, package_name, refuse_foreign
from .package import ExportedWeb, check_threads, code_description, code_figures, code_words, remove_other_forms

if TYPE_CHECKING:
    from ...compiled.physical_model import PhysicalModel
    from ...tokenizers.tokenizer import Tokenizer

__all__ = ["export_decoder"]

_TEMPLATES = ("model.mjs", "model.d.ts", "check.mjs", "index.html", "README.md")
_SHARED = ("runtime.mjs", "program.mjs", "worker.mjs", "thread.mjs")
_WEIGHTS = "weights.bin"
#: Tokens after the recorded prompt, and logits that are recorded: each says as much as all of them.
_NEXT, _LOGITS = 8, 2048
#: What tokenizers disagree about: spaces, digits, contractions, scripts, signs of several bytes, newlines.
_TEXTS = (
    "Hello world",
    "  It's 12345.67 — don't, we'll\n\n\tsee… ",
    "été Straße 日本語 русский 😀👩‍👩‍👧 ½ \u00a0end",
    "def f(x):\n    return x**2  # a_b",
    "",
)

Values = dict[str, Any]


def export_decoder(
    model: PhysicalModel,
    folder: str | os.PathLike[str],
    *,
    context: int,
    tokenizer: Tokenizer | None = None,
    stop_tokens: Iterable[int] = (),
    start_token: int | None = None,
    params: Mapping[str, Any] | None = None,
    prefix: str = "model",
    chunk: int = 16,
    prompt: str = "Once upon a time",
    threads: int | None = None,
    cc: str | None = None,
    flags: Any = (),
) -> ExportedWeb:
    """Write a decoder with a cache as an npm package that generates text in browsers and in Node.js.

    The package is compared with NumPy before this returns, or for ``CBackend(quantize=...)``, whose weights stay in low
    bits, with the same C on this machine: logits, the likeliest tokens and the tokenizer, in Node.js, where that is
    installed.

    Parameters
    ----------
    model : PhysicalModel
        A decoder with ``cache=True``; see `mithril.generation.compile_decoder`. ``last_only=True`` saves logits.
    folder : path
        Folder for the files; it is created if it does not exist.
    context : int
        Largest number of tokens of a text, for which the cache has places.
    tokenizer : Tokenizer, optional
        That of the model. Default: the package takes tokens and returns tokens.
    stop_tokens : iterable of int, optional
        A text ends after such a token, unless a call names others.
    start_token : int, optional
        What begins a text, for empty prompts.
    params : mapping, optional
        Parameters. Default: those that belong to the model.
    prefix : str, optional
        Name of the package, and prefix of all C symbols (default ``"model"``).
    chunk : int, optional
        So many tokens of a prompt are read at once (default 16); 1: one by one, which makes the code smaller.
    prompt : str, optional
        What the example page begins with.
    threads : int, optional
        Threads of the check (default 2); 1 leaves out the form of the code that runs on several threads.
    cc : str, optional
        The compiler for WebAssembly. Default: clang, otherwise the package ``ziglang``.
    flags : sequence of str, optional
        Further flags for it.

    Returns
    -------
    ExportedWeb
        What was written.

    Raises
    ------
    ParameterError
        If the model is not a decoder with a cache, or parameters are missing.
    BackendUnavailableError
        If there is no compiler for WebAssembly.
    NumericsError
        If the package does not reproduce what was recorded, e.g. since the tokenizer has parts that its library lacks.

    Examples
    --------
    >>> import mithril as ml
    >>> from mithril.generation import compile_decoder, export_decoder
    >>> from mithril.models import create_gpt
    >>> sizes = {"block_size": 16, "dims": 8, "num_heads": 2, "num_layers": 1, "vocab_size": 10}
    >>> model = compile_decoder(create_gpt(**sizes, cache=True, last_only=True), ml.NumpyBackend())
    >>> exported = export_decoder(model, "writer", context=16)  # doctest: +SKIP
    """
    core = _core.compile(
        internals.logical_model(model), str(model.backend.default_dtype), internals.compile_options(model)
    )
    caches = _caches(core)
    _refuse(context, chunk, prefix, threads)
    place = Path(folder)
    names = [*_TEMPLATES, *_SHARED, "generation.mjs", "package.json"]
    others = [CODE, THREADS_CODE, _WEIGHTS]
    others += ["tokenizer.json", "tokenizers.LICENSE"] if tokenizer is not None else []
    refuse_foreign(place, [*names, *(["tokenizers.mjs"] if tokenizer is not None else [])], others)
    values, is_random = _parameters(model, core, params)
    web_flags = CBackend(flags=flags).flags
    lengths = [1] if chunk == 1 else [1, chunk]
    engine = _Reference(model, core, values, caches, context + (chunk if chunk > 1 else 0))
    vocabulary = engine.vocabulary
    recorded = _recorded(engine, lengths[-1], context, vocabulary, core.allowed_distance("output"))
    recorded["texts"] = [] if tokenizer is None else [_text(tokenizer, text) for text in _TEXTS]
    # Its many inputs and outputs, the caches, say nothing to readers.
    name = str(internals.logical_model(model)).partition("(")[0]
    title = f"A decoder for the web, made by Mithril: {name}, which reads up to {context} tokens."
    title += f" Its {RANDOM}." if is_random else ""
    with tempfile.TemporaryDirectory() as work:
        reports = {}
        for length in lengths:
            at = Path(work) / str(length)
            inputs, expected = engine.example(length)
            reports[length] = engine.program(f"{prefix}_{length}").export(at, title, inputs, expected, False, 1)
        lengths = _sharing(Path(work), reports, prefix)
        report, weights = reports[1], Path(work) / "1" / f"{prefix}_1.weights"
        head, whole = marks(weights)
        described = {
            "title": title,
            "context": context,
            "vocabulary": vocabulary,
            "stopTokens": sorted({int(token) for token in stop_tokens}),
            "startToken": start_token,
            "hasTokenizer": tokenizer is not None,
            "weights": {
                "bytes": weights.stat().st_size,
                "hash": whole,
                "head": head,
                "isPacked": report["is_packed"],
            },
            "programs": [{"prefix": f"{prefix}_{length}", "length": length} for length in lengths],
            **_ports(report, caches, reports[lengths[-1]]),
        }
        place.mkdir(parents=True, exist_ok=True)
        code = build(
            [Path(work) / str(length) / f"{prefix}_{length}.c" for length in lengths],
            Path(work),
            [f"{prefix}_{length}_{name}" for length in lengths for name in ("run", "arena_bytes", "error")],
            [*report["flags"], *web_flags],
            cc,
            threads,
        )
        described["code"] = code_description(code)
        recorded["threads"] = check_threads(code, threads)
        for name in code.names:
            shutil.move(Path(work) / name, place / name)
        shutil.move(weights, place / _WEIGHTS)
        remove_other_forms(place, code)
        arena = max(reports[length]["arena_bytes"] for length in lengths)
    # Without a tokenizer a prompt is a list of tokens.
    shown = prompt if tokenizer is not None else ", ".join(map(str, recorded["prompt"][:4]))
    words = {
        "title": " ".join(title.replace("*/", "").split()),
        "html_title": html.escape(" ".join(title.split())),
        "html_prompt": html.escape(shown),
        "prompt": json.dumps(prompt) if tokenizer is not None else f"[{shown}]",
        "name": package_name(prefix),
        **code_words(code),
        "description": json.dumps(described, indent=1),
        "recorded": json.dumps(recorded),
        "tokenizer_row": _TOKENIZER_ROW if tokenizer is not None else "",
    }
    written = _write(place, words, tokenizer, [*code.names, _WEIGHTS])
    (place / "package.json").write_text(manifest(prefix, words["title"], written), "utf-8")
    figures = (report["weight_bytes"], report["packed_bytes"], report["pack_bytes"], arena)
    files = tuple(place / name for name in written)
    return ExportedWeb(place, files, *figures, check(place), is_random, **code_figures(place, code))


_TOKENIZER_ROW = """| `tokenizer.json` | the tokenizer |
| `tokenizers.mjs`, `tokenizers.LICENSE` | the library that reads it, `@huggingface/tokenizers` of npm |
"""


def _write(place: Path, words: Mapping[str, str], tokenizer: Tokenizer | None, binaries: Sequence[str]) -> list[str]:
    """Write what is not compiled; return the names of all files."""
    for name in _TEMPLATES:
        (place / name).write_text(fill((HERE / "decoder" / name).read_text("utf-8"), words), "utf-8")
    for name in _SHARED:
        shutil.copyfile(HERE / name, place / name)
    shutil.copyfile(HERE / "decoder" / "generation.mjs", place / "generation.mjs")
    names = ["package.json", *binaries, *_TEMPLATES, *_SHARED, "generation.mjs"]
    if tokenizer is not None:
        for name in ("tokenizers.mjs", "tokenizers.LICENSE"):
            shutil.copyfile(HERE / "vendor" / name, place / name)
        (place / "tokenizer.json").write_text(tokenizer.tokenizer.to_str(), "utf-8")
        names += ["tokenizer.json", "tokenizers.mjs", "tokenizers.LICENSE"]
    return names


def _refuse(context: Any, chunk: Any, prefix: Any, threads: Any) -> None:
    for name, value in (("context", context), ("chunk", chunk), ("threads", 1 if threads is None else threads)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidValueError(f"{name} is {value!r}", hint="give a positive integer")
    if not isinstance(prefix, str):
        raise InvalidValueError(f"prefix is {prefix!r}", hint='pass a string, e.g. "writer"')


def _caches(core: _core.Compiled) -> dict[str, str]:
    """Return the outputs by the names of the caches that they replace."""
    data = [name for name, _, _ in core.inputs("data")]
    caches = {name: name.removeprefix("past_") for name in data if name.startswith(("past_key_", "past_value_"))}
    absent = [name for name in ("input", "position", "padding") if name not in data]
    absent += [name for name in (*caches.values(), "output") if name not in core.output_names]
    if not caches or absent:
        text = f"the model is not a decoder with a cache: it has no {', '.join(absent[:5]) or 'past keys and values'}"
        raise ParameterError(
            text, hint="build it with cache=True, and compile it by mithril.generation.compile_decoder"
        )
    further = [name for name in data if name not in caches and name not in ("input", "position", "padding")]
    if further:
        text = f"the decoder also reads {', '.join(further[:5])}, which a web page does not have"
        raise ParameterError(text, hint="export decoders without an encoder")
    if core.inputs("state"):
        raise ParameterError("the decoder keeps a state", hint="compile it with inference=True")
    shape = next(shape for name, _, shape in core.inputs("data") if name in caches)
    if isinstance(shape[2], int):
        raise ParameterError(
            f"the cache has a fixed capacity, {shape[2]}", hint="compile it by mithril.generation.compile_decoder"
        )
    return caches


def _parameters(model: PhysicalModel, core: _core.Compiled, params: Mapping[str, Any] | None) -> tuple[Values, bool]:
    """Return the parameters as arrays, and whether they are random."""
    declared = core.inputs("param")
    is_random = params is None and internals.stored_parameters(model) is None and bool(declared)
    chosen = model.get_parameters() if params is None else params
    if params is not None:
        refuse_unknown("params", params, [name for name, _, _ in declared])
    reference = NumpyBackend(dtype=str(model.backend.default_dtype))
    values = {}
    for name, dtype, shape in declared:
        if name not in chosen:
            raise missing("params", name, declared, chosen)
        array = to_host(chosen[name])
        values[name] = array if array.dtype.name == dtype else reference.tensor(array, dtype)
        if list(values[name].shape) != list(shape):
            text = f"parameter {name!r} has shape {list(values[name].shape)}, but must be {list(shape)}"
            raise ParameterError(text, hint="check where it comes from")
    return values, is_random


class _Reference:
    """What the programs are compared with: NumPy, or for quantized weights the same C on this machine."""

    def __init__(
        self, model: PhysicalModel, core: _core.Compiled, params: Values, caches: Mapping[str, str], capacity: int
    ) -> None:
        dtype = str(model.backend.default_dtype)
        rules = getattr(model.backend, "quantize", None)
        settings: dict[str, Any] = {"num_threads": 1}
        if rules:
            settings |= {"quantize": dict(rules), "quantize_ranges": model.backend.quantize_ranges}
            settings["quantize_strict"] = model.backend.quantize_strict
        self.is_quantized, self.dtype = bool(rules), dtype
        self._core, self._params, self._caches = core, params, dict(caches)
        self._tool = CBackend(dtype=dtype, **settings).engine
        self._data = {name: (kind, list(shape)) for name, kind, shape in core.inputs("data")}
        self._capacity = capacity
        self._run: Callable[..., Any]
        if rules:
            self._run = self.program("model").call
        else:
            reference = NumpyBackend(dtype=dtype)
            self._run = reference.engine.load(core).function("evaluate")
        # What decides the length of the prompt's first step: any, since NumPy takes all.
        self._examples: dict[int, tuple[Values, Values]] = {}
        self.vocabulary = int(core.output_type("output")[1][-1])

    def program(self, prefix: str) -> Any:
        """Return the program in C, for any sizes."""
        options = self._tool.c_options(prefix, lanes=4, packs_alike=True, registers=REGISTERS)
        return _core.c_program(self._core, options, is_lazy=True)

    def empty(self) -> Values:
        """Return caches that hold nothing."""
        return {
            name: self._array(name, 0, [1, self._data[name][1][1], self._capacity, self._data[name][1][3]])
            for name in self._caches
        }

    def step(self, tokens: Sequence[int], position: int, caches: Values) -> tuple[Values, Values]:
        """Run some tokens; return the data that were given and the outputs."""
        data = {
            "input": self._array("input", list(tokens), [1, len(tokens)]),
            "position": self._array("position", position, []),
            "padding": self._array("padding", 0, [1]),
            **caches,
        }
        # What is donated is written over.
        called = {**data, **{name: data[name].copy() for name in self._caches}}
        results = self._run(self._params, called, {})
        outputs = {name: np.array(value, order="C") for name, value in results.items()}
        self._examples.setdefault(len(tokens), ({**self._params, **data}, outputs))
        return data, outputs

    def after(self, outputs: Values) -> Values:
        """Return the caches that the outputs are."""
        return {name: outputs[output] for name, output in self._caches.items()}

    def example(self, length: int) -> tuple[Values, Values]:
        """Values of all inputs and outputs of the first run of so many tokens."""
        return self._examples[length]

    def _array(self, name: str, value: Any, shape: Sequence[int]) -> Any:
        kind = self._data[name][0]
        array = NumpyBackend(dtype=self.dtype).tensor(np.zeros(shape), kind)
        array[...] = np.reshape(value, shape) if np.ndim(value) else value
        return array


def _recorded(engine: _Reference, chunk: int, context: int, vocabulary: int, allowed: float) -> dict[str, Any]:
    """Generate a few of the likeliest tokens; what the package is compared with, up to the distance `allowed`."""
    length = min(chunk + chunk // 4 + 2, context)
    prompt = [int(token) for token in np.random.default_rng(0).integers(0, vocabulary, length)]
    outputs: Values = {}
    caches, at = engine.empty(), 0
    while at < len(prompt):
        count = chunk if len(prompt) - at >= chunk else 1
        _, outputs = engine.step(prompt[at : at + count], at, caches)
        caches, at = engine.after(outputs), at + count
    # Each length is to be recorded, whatever the prompt.
    for count in {1, chunk}:
        if count <= context:
            engine.step(prompt[:1] * count, 0, engine.empty())
    # A number between two steps of a quantization may fall to the other side where sums are rounded otherwise.
    allowed = max(allowed, 3e-2) if engine.is_quantized else allowed
    following: list[int] = []
    sure: int | None = None
    first = None
    while True:
        logits = np.asarray(outputs["output"][0, -1], np.float32)
        if not np.isfinite(logits).all():
            raise NumericsError(
                "the logits of the model are not finite", hint="check the weights, or use a wider dtype"
            )
        first = logits if first is None else first
        best = int(np.argmax(logits))
        # From a token on that rounding may decide, others may follow.
        second = np.partition(logits, -2)[-2] if len(logits) > 1 else -np.inf
        if sure is None and logits[best] - second <= 2 * allowed * float(np.abs(logits).max()):
            sure = len(following)
        following.append(best)
        if len(following) == _NEXT or len(prompt) + len(following) > context:
            break
        _, outputs = engine.step([best], len(prompt) + len(following) - 1, engine.after(outputs))
    assert first is not None
    return {
        "prompt": prompt,
        "next": following,
        "sure": len(following) if sure is None else sure,
        "logits": [float(np.float32(x)) for x in first[:_LOGITS]],
        "allowed": allowed,
    }


def _text(tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    tokens = tokenizer.encode(text)
    return {"text": text, "tokens": tokens, "decoded": tokenizer.decode(tokens) if tokens else ""}


def _sharing(work: Path, reports: dict[int, Any], prefix: str) -> list[int]:
    """Return the lengths whose programs read the same weights as that of one token: others are left out."""
    lengths = []
    known = work / "1" / f"{prefix}_1.weights"
    expected = [(port["name"], port["offset"]) for port in reports[1]["inputs"]]
    for length, report in reports.items():
        weights = work / str(length) / f"{prefix}_{length}.weights"
        ports = [(port["name"], port["offset"]) for port in report["inputs"]]
        if ports == expected and report["is_packed"] == reports[1]["is_packed"] and _same(known, weights):
            lengths.append(length)
    return lengths


def _same(first: Path, second: Path) -> bool:
    """Whether two files of weights hold the same behind the mark of their code."""
    if first.stat().st_size != second.stat().st_size:
        return False
    one, two = (np.memmap(path, np.uint8, "r")[64:] for path in (first, second))
    step = 1 << 24
    return all(np.array_equal(one[at : at + step], two[at : at + step]) for at in range(0, len(one), step))


def _ports(report: Mapping[str, Any], caches: Mapping[str, str], longest: Mapping[str, Any]) -> dict[str, Any]:
    """Describe inputs and outputs for `model.mjs`; shapes are those of one token."""
    names = [port["name"] for port in report["inputs"]]
    uses = {"input": "tokens", "position": "position", "padding": "padding", **dict.fromkeys(caches, "cache")}
    inputs = [
        {
            "name": port["name"],
            "dtype": port["dtype"],
            "shape": list(port["shape"]),
            "use": uses.get(port["name"], "weight"),
            "offset": port["offset"],
        }
        for port in report["inputs"]
    ]
    past = {output: names.index(name) for name, output in caches.items()}
    last = next(port for port in longest["outputs"] if port["name"] == "output")
    outputs = [
        {
            "name": port["name"],
            "dtype": port["dtype"],
            "shape": list(port["shape"]),
            "cache": past.get(port["name"]),
            # A decoder may give the logits of the last token alone.
            **({"rows": "last" if last["shape"][1] == 1 else "all"} if port["name"] == "output" else {}),
        }
        for port in report["outputs"]
    ]
    return {"inputs": inputs, "outputs": outputs}
