"""What a measurement was made on: processor, cores, memory, versions; nothing that names the machine or its user."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from ... import _core
from ..overview import installed

__all__ = ["Neighbors", "machine", "versions"]


class Neighbors:
    """How busy other programs keep the processor, from when it was made.

    Examples
    --------
    >>> share = Neighbors().share()
    >>> share is None or 0 <= share <= 1
    True
    """

    def __init__(self) -> None:
        self._before = _busy(), _own()

    def share(self) -> float | None:
        """Return the part of all processors that others used; None where that is not known."""
        (busy, total), own = _busy(), _own()
        spent = total - self._before[0][1]
        if spent <= 0:
            return None
        return min(1.0, max(0.0, (busy - self._before[0][0] - (own - self._before[1])) / spent))


def _busy() -> tuple[float, float]:
    """Return seconds that all processors were busy, and all seconds; zeros where the system does not say."""
    try:
        with open("/proc/stat") as file:
            times = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0.0, 0.0
    ticks = os.sysconf("SC_CLK_TCK")
    # The fourth is idle, the fifth waits for disks.
    return (sum(times) - times[3] - times[4]) / ticks, sum(times) / ticks


def _own() -> float:
    """Return the processor time of this process and of those that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def machine() -> dict[str, Any]:
    """Return processor, cores that this process may use, memory and system."""
    # A container may use fewer than the machine has.
    is_bound = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if is_bound else os.cpu_count() or 1
    return {
        "processor": _processor(),
        "cores": cores,
        "memory_gb": round(_memory() / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions(backends: Iterable[str]) -> dict[str, str]:
    """Return the versions of Mithril, Python, and what the backends run on."""
    by_name = {"mithril": _core.__version__, "Python": platform.python_version()}
    for name in backends:
        # The path of a compiler belongs to the machine.
        version = installed(name)
        by_name[name] = os.path.basename(version) if os.sep in version else version
    return by_name


def _processor() -> str:
    if sys.platform == "linux":
        try:
            with open("/proc/cpuinfo") as file:
                for line in file:
                    if line.startswith(("model name", "Model")):
                        return " ".join(line.partition(":")[2].split())
        except OSError:
            pass
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            pass
    return platform.processor() or platform.machine()


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
