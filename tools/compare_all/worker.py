"""A process that compares some programs on a backend: a line of JSON for each."""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: Seconds after which a program counts as one that hangs.
PATIENCE = 900
#: Programs of a process, whose memory grows with every library that it loads.
EACH = 25


def check(name: str, backend: str) -> dict[str, Any]:
    """Compare a program: what differs, and what could not be compared."""
    from .programs import program

    built = program(name)
    try:
        result = built.compare(backend)
    except Exception as error:
        return {"text": f"{type(error).__name__}: {error}", "program": built.text, "notes": []}
    report = result.reports[backend]
    # NumPy is judged too: it is the reference of nothing but the order of evaluation.
    defects = [str(d) for r in result.reports.values() for d in r.defects]
    has_gradients = bool(report.gradients)
    return {"text": "\n".join(defects[:5]), "program": built.text, "notes": report.notes, "gradients": has_gradients}


def results(names: list[str], backend: str) -> list[dict[str, Any]]:
    """Compare programs in a process of their own; one that ends it is a result, too."""
    rows: list[dict[str, Any]] = []
    path = os.pathsep.join([*filter(None, sys.path), str(ROOT / "python"), str(ROOT)])
    while len(rows) < len(names):
        command = [sys.executable, "-m", "tools.compare_all.worker", backend, *names[len(rows) :]]
        process = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
        rows += [json.loads(line) for line in process.stdout.splitlines() if line.startswith('{"text"')]
        if len(rows) < len(names):
            last = "\n".join(process.stderr.strip().splitlines()[-12:])
            text = f"the process ended ({process.returncode})\n{last}"
            rows.append({"text": text, "program": "", "notes": []})
    return [{**result, "name": name, "backend": backend} for name, result in zip(names, rows, strict=True)]


def all_results(names: list[str], backends: list[str], jobs: int) -> Iterator[dict[str, Any]]:
    """Compare programs on backends in several processes."""
    size = max(1, min(EACH, len(names) // jobs))
    parts = [(names[i : i + size], backend) for i in range(0, len(names), size) for backend in backends]
    with ThreadPoolExecutor(jobs) as pool:
        for part in pool.map(lambda pair: results(*pair), parts):
            yield from part


def main() -> None:
    """Compare the programs that the command line names: a backend, then names."""
    backend, *names = sys.argv[1:]
    for name in names:
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        print(json.dumps(check(name, backend)), flush=True)


if __name__ == "__main__":
    main()
