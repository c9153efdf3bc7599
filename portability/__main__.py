"""Runs exported models with every compiler and on every machine that generated C is made for; prints a table.

``python -m portability [NAME…]`` runs all machines of ``machines.py``, or those whose names contain a word. What is
missing is installed by apt-get where that is possible; a machine that cannot run is skipped, with the reason.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from .machines import HERE, MACHINES, PACKAGES, Machine
from .models import Model, export_all
from .program import problems, write_table

#: Seconds after which a command counts as hanging.
LIMIT = 120


class Result(NamedTuple):
    """What happened on a machine: whether it is right, in words, and how long it took."""

    machine: Machine
    outcome: str
    detail: str
    seconds: float


class WrongError(Exception):
    """A model that does not compile, run, or compute what was recorded."""


def main(words: Sequence[str]) -> int:
    """Run the machines; 0 if nothing is wrong."""
    chosen = [m for m in MACHINES if not words or any(word in m.name for word in words)]
    install({need for machine in chosen for need in machine.needs if not is_there(need)})
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        exported = {}
        for lanes in dict.fromkeys(machine.lanes for machine in chosen):
            place = folder / f"lanes_{lanes}"
            exported[lanes] = export_all(place, lanes)
            write_table(exported[lanes], place)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            results = list(pool.map(lambda m: attempt(m, exported[m.lanes], folder / f"lanes_{m.lanes}"), chosen))
    width = max(len(m.name) for m in chosen)
    for machine, outcome, detail, seconds in results:
        first, *others = detail.splitlines() or [""]
        print(f"{machine.name:{width}}  {outcome:7}  {seconds:5.1f} s  {first}".rstrip())
        for line in others[:20]:
            print(f"{'':{width}}  {line}")
    return int(any(result.outcome == "WRONG" for result in results))


def is_there(need: str) -> bool:
    """Whether a command, or what a pattern of paths says, is on this machine."""
    return bool(glob.glob(need)) if need.startswith("/") else shutil.which(need) is not None


def install(missing: set[str]) -> None:
    """Install what is missing, where this process may; what stays missing is skipped later."""
    if not missing or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    packages = " ".join(PACKAGES[need] for need in sorted(missing)).split()
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        subprocess.run(["apt-get", "-qq", *command], env=environment, capture_output=True)


def attempt(machine: Machine, models: Sequence[Model], folder: Path) -> Result:
    """Build and run the models on a machine."""
    missing = [need for need in machine.needs if not is_there(need)]
    if missing:
        packages = ", ".join(PACKAGES[need] for need in missing)
        return Result(machine, "skipped", f"not installed: {packages}", 0.0)
    if machine.processor and machine.processor not in processor_flags():
        return Result(machine, "skipped", f"this processor has no {machine.processor}", 0.0)
    start = time.perf_counter()
    work = Path(tempfile.mkdtemp(dir=folder))
    actions = {"check": check, "run": run, "header": header}
    try:
        wrong = "\n".join(actions[machine.programs](machine, models, work))
    except WrongError as error:
        wrong = str(error)
    return Result(machine, "WRONG" if wrong else "ok", wrong, time.perf_counter() - start)


def processor_flags() -> set[str]:
    """Return what the processor of this machine can do, as Linux names it."""
    path = Path("/proc/cpuinfo")
    return set(path.read_text().split()) if path.exists() else set()


def command(*words: str | Path, cwd: Path, text: str | None = None) -> str:
    """Run a command; what it prints."""
    # Leaks count too.
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1", "LC_ALL": "C"}
    try:
        completed = subprocess.run(
            [str(w) for w in words], cwd=cwd, input=text, env=environment, capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        raise WrongError(f"{words[0]} does not end") from None
    if completed.returncode:
        raise WrongError(f"{words[0]} ends with {completed.returncode}\n{completed.stderr or completed.stdout}")
    return completed.stdout


def check(machine: Machine, models: Sequence[Model], work: Path) -> Iterator[str]:
    """Build the program of each exported folder, and run it on one thread and on two."""
    for model in models:
        program = work / model.name
        sources = [model.exported.folder / "main.c", model.source]
        command(*machine.compiler, *sources, "-o", program, *machine.libraries, cwd=work)
        for threads in ("1", "2"):
            printed = command(*machine.runner, program, threads, cwd=model.exported.folder)
            if printed.splitlines()[-1] != "ok":
                yield f"{model.name} on {threads} threads:\n{printed}"


def run(machine: Machine, models: Sequence[Model], work: Path) -> Iterator[str]:
    """Build all models into one program, and run it."""
    program = work / "run"
    places = [f"-I{m.exported.folder}" for m in models] + [f"-I{work.parent}"]
    sources = [HERE / "run.c", *(m.source for m in models)]
    command(*machine.compiler, *places, *sources, "-o", program, *machine.libraries, cwd=work)
    yield from problems(models, command(*machine.runner, program, cwd=work))


def header(machine: Machine, models: Sequence[Model], work: Path) -> Iterator[str]:
    """Read all headers, twice, in one file."""
    places = [f"-I{m.exported.folder}" for m in models]
    text = "".join(f'#include "{m.name}.h"\n' for m in models) * 2
    yield command(*machine.compiler, *places, "-", cwd=work, text=text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
