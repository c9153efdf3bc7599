"""Which compiler makes WebAssembly of C, and how."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ...errors import BackendUnavailableError, CompilerError
from ...optional_packages import install

__all__ = ["build", "find"]

_HINT = (
    f"{install('c')}, or on Debian: apt-get install clang lld wasi-libc libclang-rt-dev-wasm32; "
    "cc=... names another one"
)
#: It calls nothing of a system, so that a page has nothing to provide. Of the C library only mathematics is linked.
_TARGET = ("--target=wasm32-wasi", "-msimd128", "-DMITHRIL_NO_MALLOC", "-DMITHRIL_SINGLE_THREAD")
_LINKING = ("-mexec-model=reactor", "-nostartfiles", "-Wl,--no-entry", "-Wl,--strip-all", "-Wl,-z,stack-size=1048576")
#: What says whether a compiler can do it: mathematics, and vectors.
_PROBE = (
    "#include <math.h>\n#include <string.h>\n"
    "float probe(float x, char *to, const char *from) { memcpy(to, from, 99); return expf(x); }\n"
)


def build(sources: Sequence[Path], target: Path, functions: Sequence[str], flags: Sequence[str], cc: str | None) -> str:
    """Compile files of C into one of WebAssembly.

    Parameters
    ----------
    sources : sequence of Path
        The files.
    target : Path
        What is written.
    functions : sequence of str
        The functions that can be called from outside.
    flags : sequence of str
        Flags of the compiler.
    cc : str or None
        The compiler's command. Default: the first that can do it of ``clang`` and ``ziglang``.

    Returns
    -------
    str
        The command of the compiler.
    """
    command = find(cc)
    completed = _run(command, sources, target, functions, flags)
    if completed.returncode or not target.is_file():
        lines = [line for line in completed.stderr.splitlines() if "error" in line] or completed.stderr.splitlines()
        text = (
            f"the compiler for WebAssembly stopped ({completed.returncode}): {lines[0] if lines else 'it says nothing'}"
        )
        raise CompilerError(text, hint="try without flags, or another compiler: cc='clang'")
    return shlex.join(command)


def _run(
    command: Sequence[str], sources: Sequence[Path], target: Path, functions: Sequence[str], flags: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    exports = [f"-Wl,--export={name}" for name in ("__heap_base", *functions)]
    words = [*command, *_TARGET, *flags, *_LINKING, *exports, "-o", str(target), *map(str, sources), "-lm"]
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
