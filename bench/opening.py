"""How long an exported model takes to open, and its first calls: `python -m bench.opening [resnet18]`.

Two builds of one folder take turns, each time in a new process: one maps the file of weights, as exported programs do,
the other reads it, as they do where the system maps no files. The file lies in the cache of the system.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import mithril as ml

from .calls import FLAGS

#: Processes of each build.
TURNS = 15
#: Prints milliseconds: opening, the first call, one more.
PROGRAM = """
#include "model.h"
#include <stdio.h>
#include <time.h>
static float data0[INPUT], output0[OUTPUT];
static double now(void) {
  struct timespec t;
  timespec_get(&t, TIME_UTC);
  return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}
int main(void) {
  const void *data[] = {data0};
  void *outputs[] = {output0};
  double at[4] = {now()};
  model_model *model = model_open("model.weights", 1);
  at[1] = now();
  for (int i = 2; i < 4; i++) {
    if (!model || model_call(model, data, outputs)) return 1;
    at[i] = now();
  }
  for (int i = 0; i < 3; i++) printf("%f ", at[i + 1] - at[i]);
  model_close(model);
  return 0;
}
"""


def main() -> None:
    """Print the medians."""
    name = sys.argv[1] if len(sys.argv) > 1 else "resnet18"
    model = getattr(ml.models, name)()
    compiled = ml.compile(model, ml.CBackend(num_threads=1), shapes={"input": [1, 3, 224, 224]}, inference=True)
    with tempfile.TemporaryDirectory() as folder:
        exported = compiled.export(folder, params=compiled.randomize_params(seed=0), weights_inside=False)
        (Path(folder) / "opening.c").write_text(PROGRAM)
        # Where __unix__ is not defined, weights are read.
        builds: dict[str, list[str]] = {"mapped": [], "read": ["-U__unix__"]}
        for build, flags in builds.items():
            sizes = ["-DINPUT=150528", "-DOUTPUT=1000"]
            command = ["cc", *FLAGS.split(), "-march=native", *sizes, *flags, "opening.c", "model.c", "-o", build]
            subprocess.run([*command, "-lm", "-lpthread"], cwd=folder, check=True)
        times: dict[str, list[list[float]]] = {build: [] for build in builds}
        for _ in range(TURNS):
            for build, rows in times.items():
                printed = subprocess.run([f"./{build}"], cwd=folder, check=True, capture_output=True, text=True).stdout
                rows.append([float(word) for word in printed.split()])
    print(f"{name}, {exported.weight_bytes / 1e6:.0f} MB of weights, ms")
    print(f"{'':10}{'open':>10}{'first call':>12}{'next call':>12}{'open + call':>14}")
    for build, rows in times.items():
        opened, first, again = (statistics.median(column) for column in zip(*rows, strict=True))
        both = statistics.median(row[0] + row[1] for row in rows)
        print(f"{build:10}{opened:10.2f}{first:12.2f}{again:12.2f}{both:14.2f}")


if __name__ == "__main__":
    main()
