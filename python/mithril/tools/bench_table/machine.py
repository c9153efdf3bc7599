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

__all__ = ["machine", "versions"]


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
    found = {"mithril": _core.__version__, "Python": platform.python_version()}
    for name in backends:
        # The path of a compiler belongs to the machine.
        version = installed(name)
        found[name] = os.path.basename(version) if os.sep in version else version
    return found


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
