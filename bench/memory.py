"""Peak memory of generated code against the same by hand, each in a process of its own."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import mithril as ml

from . import by_hand, frameworks

WORKLOADS = {f.__name__: f for f in (frameworks.gpt, frameworks.resnet, frameworks.resnet_step)}


def status(field: str) -> int:
    """Return a field of this process in bytes, as Linux counts it: ``VmRSS`` now, ``VmHWM`` the peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def measure(name: str, workload: str, jit: bool, who: int) -> int:
    """Return what calls need on top of what is there between them, in bytes."""
    pair = WORKLOADS[workload](ml.get_backend(name), by_hand.FRAMEWORKS[name](), jit)
    function = pair[1 + who]
    function()
    gc.collect()
    # Linux forgets the peak so far.
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    for _ in range(3):
        function()
    return status("VmHWM") - before


def child(*arguments: object) -> int:
    """Measure in a new process."""
    command = [sys.executable, "-m", "bench.memory", *map(str, arguments)]
    # Otherwise freed memory is kept by the allocator, and what is taken from it does not count.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return int(done.stdout.split()[-1])


def main() -> None:
    """Print the table."""
    print(f"{'peak memory of a call':<50}{'by hand':>12}{'ours':>12}{'ratio':>8}")
    for name in frameworks.installed():
        for workload in WORKLOADS:
            for jit in (False, True):
                ours, hand = (child(name, workload, int(jit), who) for who in (0, 1))
                label = f"{name} {'jit' if jit else 'eager'}: {workload}"
                print(f"{label:<50}{hand / 1e6:>9.1f} MB{ours / 1e6:>9.1f} MB{ours / max(hand, 1):>8.2f}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(measure(sys.argv[1], sys.argv[2], sys.argv[3] == "1", int(sys.argv[4])))
    else:
        main()
