"""What C compilers make of generated models: `python -m bench.compilers [MODEL…]`, models of torchvision.

For each compiler that is there, the seconds from `ml.compile` to a model that can be called, with an empty cache, and
the median of a call on one thread; calls of the two compilers take turns. Images of 224 by 224 pixels.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from typing import Any

import mithril as ml

from . import workloads
from .c import _compiled
from .timing import turns

COMPILERS = ("gcc", "clang")
MODELS = ("resnet18", "resnet50", "mobilenet_v2")


def timed_compile(name: str, compiler: str) -> tuple[float, Any]:
    """Return seconds, and a call of the model."""
    work = workloads.torchvision(name, 1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MITHRIL_CACHE_DIR"] = folder
        start = time.perf_counter()
        compiled = _compiled(work, ml.CBackend(num_threads=1, cc=compiler))
        seconds = time.perf_counter() - start
        compiled.evaluate({}, work.data)
    return seconds, lambda: compiled.evaluate({}, work.data)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.compilers", description=__doc__)
    parser.add_argument("models", metavar="MODEL", nargs="*", default=MODELS, help="default: %(default)s")
    models = parser.parse_args().models
    there = [compiler for compiler in COMPILERS if shutil.which(compiler)]
    print("| model | compiler | to compile | a call |\n|---|---|---|---|")
    for name in models:
        compiled = {compiler: timed_compile(name, compiler) for compiler in there}
        calls = [call for _, call in compiled.values()]
        times = turns(calls[0], calls[-1])
        for (compiler, (seconds, _)), once in zip(compiled.items(), times, strict=False):
            print(f"| {name} | {compiler} | {seconds:.1f} s | {once * 1e3:.1f} ms |", flush=True)


if __name__ == "__main__":
    main()
