"""Peak memory of generated code against the same by hand, each in a process of its own.

PyTorch and MLX count what they allocate; of JAX on the CPU only the memory of the process is known, which varies.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mithril as ml

from . import by_hand, frameworks

WORKLOADS = {f.__name__: f for f in (frameworks.gpt, frameworks.resnet, frameworks.resnet_step)}


def of_torch(function: Callable[[], Any]) -> int:
    """Return the peak of what PyTorch allocates in a call, in bytes."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def of_mlx(function: Callable[[], Any]) -> int:
    """Return the peak of what MLX allocates in a call, in bytes."""
    import mlx.core as mx

    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    function()
    return int(mx.get_peak_memory() - before)


def of_process(function: Callable[[], Any]) -> int:
    """Return what calls need on top of what the process holds between them, in bytes."""
    # Linux forgets the peak so far.
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    for _ in range(3):
        function()
    return status("VmHWM") - before


#: Name of a backend -> how its memory is measured.
METERS: dict[str, Callable[[Callable[[], Any]], int]] = {"torch": of_torch, "jax": of_process, "mlx": of_mlx}


def status(field: str) -> int:
    """Return a field of this process in bytes, as Linux counts it: ``VmRSS`` now, ``VmHWM`` the peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def measure(name: str, workload: str, jit: bool, who: int) -> int:
    """Return the peak of a call, in bytes, after a first one."""
    pair = WORKLOADS[workload](ml.get_backend(name), by_hand.FRAMEWORKS[name](), jit)
    function = pair[1 + who]
    function()
    gc.collect()
    return METERS[name](function)


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
