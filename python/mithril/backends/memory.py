"""Memory of this process, as the operating system counts it."""

from __future__ import annotations

import resource
import sys

__all__ = ["process_memory"]


def process_memory() -> dict[str, int]:
    """Return resident memory in bytes: ``used`` now, ``peak`` so far, ``limit`` (0 if there is none)."""
    # Linux counts the peak in kilobytes, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return {"used": _resident() or peak, "peak": peak, "limit": 0 if limit == resource.RLIM_INFINITY else limit}


def _resident() -> int | None:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return None
