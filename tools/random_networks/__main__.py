"""Runs many random networks: ``python -m tools.random_networks --count 1000 --seed 0 --backends c,numpy --jobs 2``.

Each seed is a network and a setting. What differs is printed as the smallest program that was found to show it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter

from .processes import all_results


def main() -> int:
    """Run what the command line asks for; 1 if something differs."""
    parser = argparse.ArgumentParser(prog="python -m tools.random_networks", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="how many networks (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--backends", default="c", help="c, numpy, torch, jax, mlx, ggml: in turns (default c)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--whole", action="store_true", help="do not look for smaller networks that differ")
    args = parser.parse_args()
    backends = args.backends.split(",")
    pairs = [(s, backends[s % len(backends)]) for s in range(args.seed, args.seed + args.count)]
    started, different, notes = time.time(), 0, Counter[str]()
    for done, result in enumerate(all_results(pairs, args.jobs, not args.whole), 1):
        if result["text"]:
            different += 1
            print(f"\nseed {result['seed']}: {result['setting']}\n{result['text']}\n{result['program']}", flush=True)
        elif result["ratio"] > 0.5:
            print(f"seed {result['seed']}: {result['setting']}: {result['ratio']:.2f} of what is allowed", flush=True)
        if result["note"]:
            notes[result["note"][:70]] += 1
        if done % 100 == 0:
            print(f"{done} networks, {different} differ, {(time.time() - started) / done:.2f} s each", flush=True)
    for note, count in notes.most_common(20):
        print(f"{count:5} {note}")
    print(f"{args.count} networks from seed {args.seed}: {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
