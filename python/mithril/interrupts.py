"""Ctrl-C while the command line is still importing: it ends at once, without a traceback.

Importing this module is what sets it up: it is imported before anything else of Mithril, and imports nothing of it.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from typing import Any

__all__ = ["INTERRUPTED", "restore"]

#: What the shell says of a program that was interrupted.
INTERRUPTED = 130
#: What the command is called, after `pip` has installed it.
_COMMANDS = ("mithril", "mithril.exe", "mithril-script.py")


def restore() -> None:
    """Let an interrupt raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _watch() -> None:
    """End the process at an interrupt, if it was started as the command line; `restore` takes this back."""
    program = (sys.argv or [""])[0]
    # While the package of `python -m mithril` is imported, the program is called "-m".
    is_module = program == "-m" and ("-m", "mithril") in itertools.pairwise(sys.orig_argv)
    is_main = threading.current_thread() is threading.main_thread()
    if not (is_main and (is_module or os.path.basename(program) in _COMMANDS)):
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def _end(number: int, frame: Any) -> None:
    os._exit(INTERRUPTED)


_watch()
