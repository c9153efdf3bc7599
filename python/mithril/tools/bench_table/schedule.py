"""Which cells are measured, each in a process of its own, and how the time is shared between them."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from ...errors import ConflictingOptionError, InvalidValueError, KeyNotFoundError
from ...suggestions import among
from ..chosen import check_device
from ..overview import FACTS, installed
from .frameworks import FRAMEWORKS
from .machine import Neighbors, machine, versions
from .report import BenchmarkTable, Cell
from .workloads import TABLES, WORKLOADS

__all__ = ["benchmark_table"]

#: Backends in the order of the columns. The interpreter, which checks others, is measured on request alone.
_BACKENDS = ("torch", "jax", "mlx", "numpy", "c", "ggml")
#: Frameworks that are compiled by default: their compilers take little time.
_COMPILED = ("jax", "mlx")
#: A cell may take this many times its share of what is left, and always so many seconds: the others may need less, and
#: some whole cells say more than none.
_SHARES, _LEAST = 3.0, 60.0
#: Seconds that importing takes, which are not measured.
_START = 2.0


@dataclass(frozen=True)
class _Task:
    """A process: the cells that it fills."""

    model: str
    backend: str
    by_hand: bool
    tables: tuple[str, ...]
    spec: dict[str, Any]

    @property
    def weight(self) -> float:
        """How much of the time it gets: all start in some seconds, and large models take longer."""
        if self.spec["quick"]:
            return 1.0
        return 1.0 + 0.15 * WORKLOADS[self.model].work * (3.0 if "training" in self.tables else 1.0)


def benchmark_table(
    table: str | Sequence[str] = "inference",
    *,
    models: Iterable[str] | None = None,
    backends: Iterable[str] | None = None,
    batch: int | None = None,
    device: str | None = None,
    minutes: float = 10.0,
    jit: bool = False,
    against: str | None = None,
    quick: bool = False,
    notes: Sequence[str] = (),
    progress: Callable[[str], object] | None = None,
) -> BenchmarkTable:
    """Measure published models on all installed backends.

    Each cell is measured in a process of its own, so that peaks of memory are its own, and the end of a process does
    not end the table. Weights and data are random numbers.

    Parameters
    ----------
    table : str or sequence of str, optional
        ``"inference"`` (images, pairs or tokens in a second), ``"training"`` (steps in a second: loss, gradients, SGD
        with momentum) or ``"memory"`` (peak GB of inference); also several of them.
    models : iterable of str, optional
        Of ``"resnet18"``, ``"resnet50"``, ``"vit_b_16"``, ``"bert"``, ``"gpt2"``, ``"gpt2_decode"``, ``"t5"`` and
        ``"clip"``. Default: all.
    backends : iterable of str, optional
        Names. Default: those that are installed.
    batch : int, optional
        Examples of a call. Default: 1, of training steps 4.
    device : str, optional
        Where frameworks compute, such as ``"cuda"``. Default: where each does by itself. Unless ``backends`` names
        others, only frameworks are then measured.
    minutes : float, optional
        How long all of it may take. A cell that does not fit says so (default 10).
    jit : bool, optional
        Compile PyTorch's code too, by ``torch.compile``; that of JAX and MLX always is (default False).
    against : {"native"}, optional
        Also measure the same network written by hand in the framework, with the same parameters.
    quick : bool, optional
        Small configurations of the models, to try it in seconds (default False).
    notes : sequence of str, optional
        Sentences that stand below the tables.
    progress : callable, optional
        Called with a line of text before each process.

    Returns
    -------
    BenchmarkTable

    Raises
    ------
    KeyNotFoundError
        If there is no table, model or backend of a name.

    Examples
    --------
    >>> import mithril as ml
    >>> table = ml.benchmark_table("inference", models=["resnet18"], backends=["numpy"], quick=True)
    >>> table.cell("inference", "resnet18", "numpy").value > 0
    True
    """
    tables = _chosen("table", [table] if isinstance(table, str) else list(table), TABLES)
    names = _chosen("model", list(WORKLOADS) if models is None else list(models), WORKLOADS)
    usual = _BACKENDS if device is None else tuple(FRAMEWORKS)
    here = [name for name in usual if _is_installed(name)] if backends is None else list(backends)
    here = _chosen("backend", here, FACTS)
    if device is not None:
        check_device(here, device)
    if isinstance(batch, bool) or not (batch is None or (isinstance(batch, int) and batch > 0)):
        raise InvalidValueError(f"batch is {batch!r}", hint="give a positive number")
    if not minutes > 0:
        raise InvalidValueError(f"minutes is {minutes!r}", hint="give a positive number")
    if against not in (None, "native"):
        raise InvalidValueError(f"against is {against!r}", hint='give "native", or leave it out')
    hands = [name for name in here if name in FRAMEWORKS] if against else []
    if against and not hands:
        raise ConflictingOptionError(
            f"nothing is written by hand for {', '.join(here)}", hint=f"add one of {', '.join(FRAMEWORKS)}"
        )
    compiled = {name for name in FRAMEWORKS if jit or name in _COMPILED}
    columns = {
        (name, by_hand): f"{name}{' (jit)' if name in compiled and name in FRAMEWORKS else ''}"
        f"{' by hand' if by_hand else ''}"
        for name in here
        for by_hand in ((False, True) if name in hands else (False,))
    }
    tasks = _tasks(tables, names, columns, batch, device, quick, compiled)
    start, neighbors = monotonic(), Neighbors()
    end = start + 60 * minutes
    cells: list[Cell] = []
    for number, task in enumerate(tasks):
        share = max(0.0, end - monotonic()) * task.weight / sum(other.weight for other in tasks[number:])
        if progress is not None:
            by_hand = " by hand" if task.by_hand else ""
            progress(
                f"{number + 1} of {len(tasks)}: {task.tables[0]} of {task.model} on {task.backend}{by_hand}, "
                f"{max(0.0, end - monotonic()):.0f} s left"
            )
        cells += _measured(task, share, min(max(_SHARES * share, _LEAST), max(0.0, end - monotonic())))
    order = {key: i for i, key in enumerate(columns)}
    cells.sort(key=lambda c: (tables.index(c.table), names.index(c.model), order[c.backend, c.by_hand]))
    about = {**machine(), "used_by_others": neighbors.share()}
    return BenchmarkTable(tables, cells, columns, about, versions(here), monotonic() - start, quick, notes)


def _chosen(what: str, names: Sequence[str], known: Iterable[str]) -> list[str]:
    known = list(known)
    for name in names:
        if name not in known:
            raise KeyNotFoundError(f"there is no {what} called {name!r}", hint=among(name, known))
    if not names:
        raise InvalidValueError(f"no {what} is given", hint=f"available: {', '.join(known)}")
    return list(dict.fromkeys(names))


def _is_installed(name: str) -> bool:
    module = {"torch": "torch", "jax": "jax", "mlx": "mlx"}.get(name)
    if module is not None:
        return importlib.util.find_spec(module) is not None
    # For C it is what to do where there is no compiler.
    return name != "c" or "install" not in installed("c")


def _tasks(
    tables: Sequence[str],
    names: Sequence[str],
    columns: Iterable[tuple[str, bool]],
    batch: int | None,
    device: str | None,
    quick: bool,
    compiled: set[str],
) -> list[_Task]:
    """Return the processes, the quick ones first; one of inference fills the table of memory too."""
    groups = [
        tuple(name for name in tables if name != "training"),
        tuple(name for name in tables if name == "training"),
    ]
    tasks = []
    for group in filter(None, groups):
        for model in names:
            for backend, by_hand in columns:
                work = WORKLOADS[model]
                size = work.batch(group[0], batch)
                spec = {"model": model, "backend": backend, "hand": by_hand, "quick": quick, "batch": size}
                spec |= {"table": "training" if group[0] == "training" else "inference", "jit": backend in compiled}
                if device is not None and backend in FRAMEWORKS:
                    spec["device"] = device
                tasks.append(_Task(model, backend, by_hand, group, spec))
    # NumPy computes convolutions and products with few threads, and ggml's gradients are not made for speed.
    slow = {"numpy": 4.0, "interpreter": 1000.0}
    return sorted(tasks, key=lambda t: WORKLOADS[t.model].work * slow.get(t.backend, 1.0))


def _measured(task: _Task, share: float, limit: float) -> list[Cell]:
    """Run the process of some cells; it is ended at the limit."""
    work, spec = WORKLOADS[task.model], task.spec

    def cells(**figures: Any) -> list[Cell]:
        units = work.units(spec["batch"], spec["quick"])
        return [Cell(t, task.model, task.backend, task.by_hand, spec["batch"], units, **figures) for t in task.tables]

    if task.tables == ("training",) and not work.loss:
        return cells(reason="it is not trained: GPT-2 is, on whole texts")
    if task.tables == ("training",) and work.loss == "pairs" and spec["batch"] < 2:
        return cells(reason="a contrastive loss needs a batch of at least two pairs")
    if limit < 0.5:
        return cells(reason="no time was left (--minutes)")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report"
        path.touch()
        seconds = max(0.5, share - _START)
        command = [sys.executable, "-m", "mithril.tools.bench_table.measure"]
        command += [json.dumps({**spec, "seconds": seconds}), str(path)]
        code = _run(command, limit, folder)
        measurements: dict[str, Any] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            # The last line is torn if the process was ended while it wrote.
            try:
                measurements.update(json.loads(line))
            except ValueError:
                continue
    known: dict[str, Any] = {"first": measurements.get("first"), "device": measurements.get("device", "")}
    known |= {name: measurements.get(name) for name in ("peak_bytes", "startup_bytes")}
    if measurements.get("times"):
        return cells(times=tuple(measurements["times"]), **known)
    stage = measurements.get("stage", "starting")
    if "error" in measurements:
        return cells(reason=measurements["error"], **known)
    if code is None:
        doing = stage if stage.endswith("ing") else f"in {stage}"
        took = f"; its first call took {measurements['first']:.1f} s" if measurements.get("first") else ""
        return cells(reason=f"it did not fit into its {limit:.0f} s (--minutes): ended while {doing}{took}", **known)
    ended = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
    return cells(reason=f"its process ended {ended} while {stage}", **known)


def _run(command: Sequence[str], limit: float, folder: str) -> int | None:
    """Run a command with what it starts; its status, or None if it was ended at the limit."""
    paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONWARNINGS": "ignore"}
    with open(Path(folder) / "output", "wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, start_new_session=os.name == "posix"
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            # Also after an interrupt; a compiler that it started ends too.
            if process.poll() is None:
                if os.name == "posix":
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()
                process.wait()
