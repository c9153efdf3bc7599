"""Memory of this process, as the operating system counts it."""

from __future__ import annotations

import resource
import sys

__all__ = ["process_memory"]


#: The most that was seen so far: the kernel counts pages of each thread apart and adds them up later, so that its own
#: peak may be less than what is resident now.
_seen = 0


def process_memory() -> dict[str, int]:
    """Return resident memory in bytes: ``used`` now, ``peak`` so far, ``limit`` (0 if there is none)."""
    # Linux counts the peak in kilobytes, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    global _seen
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    used = _resident() or peak
    _seen = max(_seen, used, peak)
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return {"used": used, "peak": _seen, "limit": 0 if limit == resource.RLIM_INFINITY else limit}


def _resident() -> int | None:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return None
