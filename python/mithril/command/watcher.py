"""A process that ends groups of processes if the one that started them is gone, however it ended."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

__all__ = ["Watcher"]

#: Reads numbers of groups, and `0` once they have ended; if the pipe ends without it, these groups are to be ended.
_PROGRAM = """
import os, signal, sys, time
groups = []
for line in sys.stdin:
    if line.strip() == "0":
        sys.exit()
    groups.append(int(line))

def end(number):
    for group in groups[:]:
        try:
            os.killpg(group, number)
        except (ProcessLookupError, PermissionError):
            groups.remove(group)

end(signal.SIGTERM)
until = time.monotonic() + float(sys.argv[1])
while groups and time.monotonic() < until:
    time.sleep(0.05)
    end(0)
end(signal.SIGKILL)
"""


class Watcher:
    """Ends groups of processes if this process is killed, which it cannot do itself then.

    It is a process of its own session, so that what is sent to this one's group does not reach it, and reads from a
    pipe that the system closes when this process ends.

    Parameters
    ----------
    grace : float
        Seconds that the processes have to end by themselves before they are killed.
    """

    def __init__(self, grace: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, str(grace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def add(self, group: int) -> None:
        """Watch a group of processes."""
        self._say(group)

    def close(self) -> None:
        """Let the groups be: all have ended."""
        self._say(0)
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _say(self, number: int) -> None:
        assert self._process.stdin is not None
        # If the watcher was killed, the launch goes on without it.
        with suppress(OSError):
            self._process.stdin.write(b"%d\n" % number)
            self._process.stdin.flush()
