"""Which compiler makes WebAssembly of C, and how."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ...errors import BackendUnavailableError, CompilerError
from ...optional_packages import install
from .files import HERE

__all__ = ["CODE", "THREADS_CODE", "Code", "build", "find"]

#: The forms of the code, on one thread and on several.
CODE, THREADS_CODE = "model.wasm", "model-threads.wasm"

_HINT = (
    f"{install('c')}, or on Debian: apt-get install clang lld wasi-libc libclang-rt-dev-wasm32; "
    "cc=... names another one"
)
#: It calls nothing of a system, so that a page has nothing to provide. Of the C library only mathematics is linked.
_TARGET = ("--target=wasm32-wasi", "-msimd128", "-DMITHRIL_NO_MALLOC", "-DMITHRIL_SINGLE_THREAD")
#: Without optimization ziglang adds checks of undefined behavior, which print, and so need a system.
_CHECKS = ("-fno-sanitize=undefined",)
#: Loops that LLVM rewrites for its strength reduction add a constant to the address of each element, since offsets in
#: WebAssembly are not negative: products of matrices take 4 to 7 % longer.
_LOOPS = ("-mllvm", "-disable-lsr")
_LINKING = ("-mexec-model=reactor", "-nostartfiles", "-Wl,--no-entry", "-Wl,--strip-all", "-Wl,-z,stack-size=1048576")
#: The form with threads shares its memory, which comes from outside.
_THREADS = ("-matomics", "-mbulk-memory")
_SHARING = ("-Wl,--import-memory", "-Wl,--shared-memory", "-Wl,--max-memory=4294901760")
#: Debian's C library is compiled for one thread; what is used of it are functions of their arguments. ziglang compiles
#: its library for the code, and has no such option.
_MIXED = "--no-check-features"
_THREADS_EXPORTS = ("__stack_pointer", "mithril_threads", "mithril_thread", "mithril_failure", "mithril_fail")
#: What the driver of a program writes whose work is divided among threads.
_DIVIDES = "pool->run("
#: What says whether a compiler can do it: mathematics, and vectors.
_PROBE = (
    "#include <math.h>\n#include <string.h>\n"
    "float probe(float x, char *to, const char *from) { memcpy(to, from, 99); return expf(x); }\n"
)


@dataclass(frozen=True)
class Code:
    """The compiled code of a model.

    Attributes
    ----------
    compiler : str
        The command of the compiler.
    seconds : float
        How long it took.
    pages : int or None
        Pages of memory that the form with threads needs before anything is loaded; None: there is no such form.
    problem : str
        Why there is none, where the compiler cannot make it.
    """

    compiler: str
    seconds: float
    pages: int | None
    problem: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The files."""
        return (CODE,) if self.pages is None else (CODE, THREADS_CODE)


def build(
    sources: Sequence[Path],
    folder: Path,
    functions: Sequence[str],
    flags: Sequence[str],
    cc: str | None,
    threads: int | None,
) -> Code:
    """Compile the C files of a model into WebAssembly: for one thread, and where it divides its work for several.

    Parameters
    ----------
    sources : sequence of Path
        The files, each beside its header.
    folder : Path
        Where the code is written.
    functions : sequence of str
        The functions that can be called from outside.
    flags : sequence of str
        Flags of the compiler.
    cc : str or None
        The compiler's command. Default: the first that can do it of ``clang`` and ``ziglang``.
    threads : int or None
        1: only for one thread; more: the compiler has to be able to make the form with threads.

    Returns
    -------
    Code
    """
    command = find(cc)
    start = time.perf_counter()
    divides = threads != 1 and any(_DIVIDES in source.read_text("utf-8") for source in sources)
    with ThreadPoolExecutor(2) as pool:
        forms = [pool.submit(_form, command, sources, folder / CODE, functions, flags, False)]
        if divides:
            forms.append(pool.submit(_form, command, sources, folder / THREADS_CODE, functions, flags, True))
        problems = [form.result() for form in forms]
    if problems[0] or (threads is not None and any(problems)):
        text = f"the compiler for WebAssembly stopped {next(filter(None, problems))}"
        raise CompilerError(text, hint="try without flags, or another compiler: cc='clang'")
    pages = _shared_pages((folder / THREADS_CODE).read_bytes()) if divides and not problems[1] else None
    problem = problems[1] if divides else ""
    return Code(shlex.join(command), time.perf_counter() - start, pages, problem)


def _form(
    command: Sequence[str],
    sources: Sequence[Path],
    target: Path,
    functions: Sequence[str],
    flags: Sequence[str],
    has_threads: bool,
) -> str:
    """Compile one form of the code; return what went wrong."""
    if has_threads:
        headers = [sources[0].with_suffix(".h"), HERE / "threads.h"]
        includes = [word for header in headers for word in ("-include", str(header))]
        flags = [*_THREADS, *includes, *flags, *_SHARING]
        sources, functions = [*sources, HERE / "threads.c"], [*functions, *_THREADS_EXPORTS]
    mixed = [f"-Wl,{_MIXED}"] if has_threads else []
    completed = _run(command, sources, target, functions, [*flags, *mixed])
    if completed.returncode and mixed and _MIXED in completed.stderr:
        completed = _run(command, sources, target, functions, flags)
    if not completed.returncode and target.is_file():
        return ""
    lines = [line for line in completed.stderr.splitlines() if "error" in line] or completed.stderr.splitlines()
    return f"({completed.returncode}): {lines[0] if lines else 'it says nothing'}"


def _shared_pages(code: bytes) -> int:
    """Return the pages of 64 KiB that the memory has at first which a module imports."""

    def number(at: int) -> tuple[int, int]:
        value, shift = 0, 0
        while True:
            byte = code[at]
            value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                return value, at

    at, imports, memory = 8, 2, 2
    while code[at] != imports:
        size, start = number(at + 1)
        at = start + size
    _, at = number(at + 1)
    count, at = number(at)
    if count != 1:
        raise CompilerError(f"the code for WebAssembly imports {count} things, not its memory alone")
    for _ in range(2):
        length, at = number(at)
        at += length
    if code[at] != memory:
        raise CompilerError("the code for WebAssembly imports something other than its memory")
    return number(at + 2)[0]


def _run(
    command: Sequence[str], sources: Sequence[Path], target: Path, functions: Sequence[str], flags: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    exports = [f"-Wl,--export={name}" for name in ("__heap_base", *functions)]
    words = [
        *command,
        *_TARGET,
        *_CHECKS,
        *_LOOPS,
        *flags,
        *_LINKING,
        *exports,
        "-o",
        str(target),
        *map(str, sources),
        "-lm",
    ]
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(
        words, capture_output=True, text=True, errors="replace", env=environment, stdin=subprocess.DEVNULL
    )


@functools.cache
def find(cc: str | None) -> tuple[str, ...]:
    """Find a compiler that makes WebAssembly.

    Parameters
    ----------
    cc : str or None
        The only command to try. Default: ``clang``, of whatever version, and ``ziglang``.

    Returns
    -------
    tuple of str
        The command.

    Raises
    ------
    BackendUnavailableError
        If none of them makes a small library.
    """
    commands: list[tuple[str, ...]]
    if cc is not None:
        commands = [(cc,) if Path(cc).is_file() else tuple(shlex.split(cc))]
    else:
        commands = [("clang",), *((f"clang-{number}",) for number in range(24, 13, -1))]
        commands = [command for command in commands if shutil.which(command[0])][:3]
        if find_spec("ziglang") is not None:
            commands.append((sys.executable, "-m", "ziglang", "cc"))
    problems = []
    for command in commands:
        problem = _problem(command)
        if not problem:
            return command
        problems.append(f"{shlex.join(command)}: {problem}")
    text = "; ".join(problems) if problems else "there is no clang"
    raise BackendUnavailableError(f"no compiler for WebAssembly was found: {text}", hint=_HINT)


def _problem(command: tuple[str, ...]) -> str:
    """Return why a compiler makes no WebAssembly; empty if it does."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "probe.c", Path(folder) / "probe.wasm"
        source.write_text(_PROBE)
        try:
            completed = _run(command, [source], target, ["probe"], ["-O1"])
        except OSError as error:
            return str(error)
        if not completed.returncode and target.is_file():
            return ""
        return next((line for line in completed.stderr.splitlines() if "error" in line), "it made nothing")
