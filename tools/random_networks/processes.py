"""Runs random networks in processes of their own, so that one that ends its process is a result like any other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

#: Networks for each process, whose memory grows with every library that it loads.
EACH = 25


def results(pairs: list[tuple[int, str]], minimize: bool) -> list[dict[str, Any]]:
    """Run networks in a process of their own; one that ends it is a result, too."""
    rows: list[dict[str, Any]] = []
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(ROOT / "python"), str(ROOT)]),
    }
    while len(rows) < len(pairs):
        rest = pairs[len(rows) :]
        command = [sys.executable, "-m", "tools.random_networks.worker", "yes" if minimize else "no"]
        command += [f"{seed}:{backend}" for seed, backend in rest]
        process = subprocess.run(command, env=environment, capture_output=True, text=True)
        lines = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
        rows += [line for line in lines if "text" in line]
        if len(rows) < len(pairs):
            message = process.stderr.strip().splitlines()[-12:]
            text = f"the process ended ({process.returncode})\n" + "\n".join(message)
            rows.append(
                {"setting": pairs[len(rows)][1], "text": text, "ratio": 0.0, "note": "", "program": "", "blocks": []}
            )
    return [{**result, "seed": seed} for result, (seed, _) in zip(rows, pairs, strict=True)]


def all_results(pairs: list[tuple[int, str]], jobs: int, minimize: bool) -> Iterator[dict[str, Any]]:
    """Run networks in several processes, in order."""
    size = max(1, min(EACH, len(pairs) // jobs))
    with ThreadPoolExecutor(jobs) as pool:
        parts = [pairs[i : i + size] for i in range(0, len(pairs), size)]
        for part in pool.map(results, parts, [minimize] * len(parts)):
            yield from part
