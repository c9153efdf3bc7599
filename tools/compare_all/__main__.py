"""Compares all backends: ``python -m tools.compare_all --kinds zoo,layer,network,attention --seeds 0:100``.

Each program runs on NumPy and on one other backend, with its gradients, and is compared value by value.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections import Counter

from .programs import BACKENDS, KINDS, names
from .worker import all_results


def main() -> int:
    """Compare what the command line asks for; 1 if something differs."""
    parser = argparse.ArgumentParser(prog="python -m tools.compare_all", description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS), help="zoo, layer, network, attention (default: all)")
    parser.add_argument("--seeds", default="0:20", help="seeds of the random programs, first:end (default 0:20)")
    parser.add_argument("--backends", help="interpreter, torch, jax, mlx, c, ggml (default: those that are installed)")
    parser.add_argument("--only", help="programs by name instead, such as zoo:bert,layer:17,attention:3")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    args = parser.parse_args()
    first, _, end = args.seeds.partition(":")
    installed = [name for name, module in BACKENDS.items() if importlib.util.find_spec(module)]
    backends = args.backends.split(",") if args.backends else installed
    seeds = range(int(first), int(end or int(first) + 1))
    chosen = args.only.split(",") if args.only else names(args.kinds.split(","), seeds)
    started, done, different, notes = time.time(), Counter[str](), 0, Counter[str]()
    for result in all_results(chosen, backends, args.jobs):
        done[result["backend"]] += 1
        notes.update(f"{result['backend']}: {note[:90]}" for note in result["notes"])
        if result["text"]:
            different += 1
            print(f"\n{result['name']} on {result['backend']}\n{result['text']}\n{result['program']}", flush=True)
        if done.total() % 100 == 0:
            print(f"{done.total()} compared, {different} differ, {time.time() - started:.0f} s", flush=True)
    for note, count in notes.most_common(30):
        print(f"{count:5} {note}")
    print(f"{', '.join(f'{n} on {b}' for b, n in done.items())}: {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
