"""Compares architectures of libraries with PyTorch: ``python -m tools.architectures --only bert gpt2``.

Each architecture that the installed library has is built small, with random weights, imported by ``ml.from_torch`` and
compared with PyTorch: what it returns on each backend, with ``--onnx`` also what ONNX Runtime and Mithril make of the
file that ``ml.to_onnx`` writes of it, with ``--gradients`` the gradients of all of its parameters in C. Architectures
run in processes of their own, which may end in any way.

What cannot be built or called without knowing more about it, and what ``torch.export`` refuses, is counted, not
compared. Where results differ, those of PyTorch in float64 decide; of gradients also finite differences.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from . import of_timm, of_torchvision, of_transformers
from .comparison import compare
from .network import NotCompared

#: Libraries by name: each has `names` of its architectures, and `network` builds one.
LIBRARIES: dict[str, Any] = {"transformers": of_transformers, "timm": of_timm, "torchvision": of_torchvision}

#: Architectures of a process, and seconds for it.
EACH, PATIENCE = 8, 1920


def _results(chosen: Sequence[str], options: Sequence[str]) -> Iterator[tuple[str, str, Any]]:
    """Compare in processes of several architectures each; that one hangs or ends its process is a result, too."""
    rest = list(chosen)
    while rest:
        call = [sys.executable, "-m", "tools.architectures", "--measure", *options, "--only", *rest[:EACH]]
        process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            printed, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            printed, _ = process.communicate()
        # Architectures print, too.
        found = [
            json.loads(line.removeprefix("RESULT ")) for line in printed.splitlines() if line.startswith("RESULT ")
        ]
        yield from map(tuple, found)
        if len(found) < len(rest[:EACH]):
            yield rest[len(found)], "ended", f"the process returned {process.returncode}"
            found.append(None)
        rest = rest[len(found) :]


def _outcome(args: argparse.Namespace, name: str) -> tuple[str, Any]:
    """Build and compare an architecture."""
    try:
        network = LIBRARIES[args.library].network(name)
    except NotCompared as reason:
        return str(reason).partition(":")[0], str(reason)
    return compare(network, args.backends.split(","), onnx=args.onnx, gradients=args.gradients)


def main() -> int:
    """Compare what the command line asks for; 1 if something differs or fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.architectures", description=__doc__.splitlines()[0])
    parser.add_argument("--library", choices=list(LIBRARIES), default="transformers", help="default: transformers")
    parser.add_argument("--only", nargs="+", help="names of architectures (default: all)")
    parser.add_argument("--backends", default="numpy,c", help="numpy, c, torch, jax, mlx (default: numpy,c)")
    parser.add_argument("--onnx", action="store_true", help="write each as ONNX, and run that in ONNX Runtime and here")
    parser.add_argument("--gradients", action="store_true", help="compare gradients in C as well")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        import torch

        warnings.filterwarnings("ignore")
        torch.set_num_threads(1)
        for name in args.only:
            print("RESULT", json.dumps([name, *_outcome(args, name)]), flush=True)
        return 0
    options = ["--library", args.library, "--backends", args.backends]
    options += [f"--{flag}" for flag in ("onnx", "gradients") if getattr(args, flag)]
    counts: Counter[str] = Counter()
    for name, outcome, more in _results(args.only or LIBRARIES[args.library].names(), options):
        counts[outcome] += 1
        print(f"{name}: {outcome}, {more if outcome == 'agrees' else str(more)[:300]}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    return int(any(counts[outcome] for outcome in ("different", "fails", "ended")))


if __name__ == "__main__":
    raise SystemExit(main())
