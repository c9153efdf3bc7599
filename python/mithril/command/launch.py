"""``mithril launch``: a script in several processes on this machine, one for each device of a mesh."""

from __future__ import annotations

import argparse
import ast
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ..errors import BackendUnavailableError, InvalidValueError
from .engines import ENGINES, Rank
from .watcher import Watcher

__all__ = ["add_arguments", "engine_of", "launch"]

#: Seconds that processes have to end by themselves after a signal, and in which others may fail of the same cause.
_GRACE, _ECHO = 5.0, 1.0
#: Lines of each process that are kept to show why it failed.
_KEPT = 200
#: What an error says that follows from one in another process.
_FOLLOWS = ("another process of the mesh", "Connection closed by peer", "Connection reset by peer")
#: Names in a script that say which engine it needs.
_NAMES = {
    "TorchBackend": "torch",
    "JaxBackend": "jax",
    "MlxBackend": "mlx",
    "NumpyBackend": "mpi",
    "torch": "torch",
    "jax": "jax",
    "mlx": "mlx",
    "numpy": "mpi",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``mithril launch``."""
    text = "number of processes; each is a device of the mesh"
    parser.add_argument("-n", "--processes", type=int, required=True, metavar="N", help=text)
    text = (
        "what connects them: torch, jax, mlx or mpi (for NumpyBackend); default: of the backend that the script names"
    )
    parser.add_argument("--engine", choices=tuple(ENGINES), help=text)
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is the name of a module, as for python -m")
    parser.add_argument("script", metavar="SCRIPT", help="the script, which each process runs")
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="its arguments")


def engine_of(source: str) -> str | None:
    """Return the engine of the one backend that the text of a script names; None if it names none, or several.

    Examples
    --------
    >>> from mithril.command.launch import engine_of
    >>> engine_of("backend = ml.NumpyBackend()")
    'mpi'
    >>> engine_of("ml.NumpyBackend(), ml.JaxBackend()") is None
    True
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    engines = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name.endswith("Backend"):
                engines.add(_NAMES.get(name))
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function == "get_backend":
                engines.add(_NAMES.get(str(node.args[0].value)))
    engines.discard(None)
    return engines.pop() if len(engines) == 1 else None


def launch(args: argparse.Namespace) -> int:
    """Run a script in several processes.

    Returns
    -------
    int
        0 if all processes ended well, else the exit code of the one that failed first; 128 and the number of the
        signal, if it was ended by one.

    Raises
    ------
    InvalidValueError
        If there is no such script, or the number of processes is not positive.
    BackendUnavailableError
        If what the engine needs is not installed.
    """
    if args.processes < 1:
        raise InvalidValueError(f"-n is {args.processes}", hint="give the number of processes, e.g. -n 4")
    if not args.module and not Path(args.script).is_file():
        raise InvalidValueError(f"there is no script {args.script!r}", hint="give the path of a Python file")
    if os.name != "posix":
        raise BackendUnavailableError(
            "mithril launch starts processes on Linux and macOS", hint="use torchrun, or mpiexec of your MPI"
        )
    engine = args.engine
    if engine is None:
        engine = "torch" if args.module else engine_of(Path(args.script).read_text("utf-8", "replace")) or "torch"
    program = [*(["-m"] if args.module else []), args.script, *args.arguments]
    with ENGINES[engine](args.processes, [sys.executable, *program]) as ranks:
        return _Job(ranks).run()


class _Job:
    """Processes that were started together, and end together."""

    def __init__(self, ranks: list[Rank]) -> None:
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []
        #: What each prints to its error stream, by its name.
        self._last: dict[str, deque[str]] = {}
        self._readers: list[threading.Thread] = []
        self._signal: int | None = None
        self._ranks = ranks
        self._watcher: Watcher | None = None

    def run(self) -> int:
        """Start all, wait for them, and end those that are left."""
        with self._forwarding():
            self._watcher = Watcher(_GRACE)
            try:
                for rank in self._ranks:
                    self._start(rank)
                failed = self._wait()
            finally:
                self._end()
                self._watcher.close()
        if self._signal is not None:
            return 128 + self._signal
        return self._report(failed) if failed else 0

    def _start(self, rank: Rank) -> None:
        # A group of its own: what a process starts is ended with it.
        process = subprocess.Popen(
            rank.command,
            env=rank.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._processes.append(process)
        assert self._watcher is not None
        self._watcher.add(process.pid)
        assert process.stdout is not None
        assert process.stderr is not None
        self._last[rank.name] = deque(maxlen=_KEPT)
        self._follow(rank.name, rank.prefix, process.stdout, sys.stdout)
        self._follow(rank.name, rank.prefix, process.stderr, sys.stderr)
        for lane in rank.lanes:
            self._last[lane.name] = deque(maxlen=_KEPT)
            self._follow(lane.name, lane.prefix, lane.output, sys.stdout)
            self._follow(lane.name, lane.prefix, lane.errors, sys.stderr)

    def _follow(self, name: str, prefix: str, stream: IO[bytes] | Path, to: Any) -> None:
        reader = threading.Thread(target=self._read, args=(name, prefix, stream, to), daemon=True)
        reader.start()
        self._readers.append(reader)

    def _read(self, name: str, prefix: str, source: IO[bytes] | Path, to: Any) -> None:
        with source.open("rb") if isinstance(source, Path) else source as stream:
            for line in iter(stream.readline, b""):
                text = line.decode("utf-8", "replace").rstrip("\n")
                with self._lock:
                    if to is sys.stderr:
                        self._last[name].append(text)
                    # Whoever read our output may be gone; the processes must not wait for it.
                    with suppress(OSError):
                        print(f"{prefix}{text}", file=to, flush=True)

    def _wait(self) -> list[int]:
        """Return the numbers of those that failed, after a moment for others to do so, too."""
        until = None
        while True:
            codes = [process.poll() for process in self._processes]
            failed = [number for number, code in enumerate(codes) if code]
            if all(code is not None for code in codes) or self._signal is not None:
                return failed
            if failed and until is None:
                until = time.monotonic() + _ECHO
            if until is not None and time.monotonic() > until:
                return failed
            time.sleep(0.02)

    def _end(self) -> None:
        """End the groups of all processes: in order if they can, and then for good."""
        first = self._signal or signal.SIGTERM
        for number in (first, signal.SIGKILL):
            for process in self._processes:
                if process.poll() is None or number == signal.SIGKILL:
                    _signal(process.pid, number)
            until = time.monotonic() + _GRACE
            while any(process.poll() is None for process in self._processes) and time.monotonic() < until:
                time.sleep(0.02)
        for process in self._processes:
            process.wait()
        for lane in (lane for rank in self._ranks for lane in rank.lanes):
            lane.release()
        for reader in self._readers:
            reader.join(_GRACE)

    @contextmanager
    def _forwarding(self) -> Iterator[None]:
        """Let signals that are meant for this process end all others as they would end it."""

        def forward(number: int, frame: object) -> None:
            self._signal = number

        signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        is_main = threading.current_thread() is threading.main_thread()
        before = {number: signal.signal(number, forward) for number in signals} if is_main else {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _report(self, failed: list[int]) -> int:
        """Say which process failed, and why; return its exit code."""
        number, name = failed[0], ""
        # Those that lost their peer fail as well, and may do so first.
        for each in failed:
            lanes = self._ranks[each].lanes
            names = [lane.name for lane in lanes if _traceback(self._last[lane.name])] or [self._ranks[each].name]
            causes = [n for n in names if not any(words in line for words in _FOLLOWS for line in self._last[n])]
            if causes:
                number, name = each, causes[0]
                break
        name = name or self._ranks[number].name
        code = self._processes[number].returncode
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
        lines = [f"mithril launch: {name} {how}; all processes were ended"]
        shown = _traceback(self._last[name])
        lines += ["it printed:", *(f"    {line}" for line in shown)] if shown else []
        print("\n".join(lines), file=sys.stderr, flush=True)
        return 128 - code if code < 0 else code


def _traceback(lines: Sequence[str]) -> list[str]:
    """Return the last traceback of what a process printed; PyTorch may write its rank in front."""
    starts = [i for i, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    return list(lines)[starts[-1] :] if starts else []


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return
