"""How a command ends: what it prints of an error, and what it returns."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import InternalError, MithrilError, UnresolvedShapeError
from ..interrupts import INTERRUPTED, restore
from .terminal import colored

__all__ = ["guarded"]

#: What the shell says of a program whose reader went away.
_BROKEN_PIPE = 141
#: Set, an error that is a defect of ours shows where it was raised.
_TRACEBACK = "MITHRIL_TRACEBACK"
_PACKAGE = os.path.dirname(os.path.dirname(__file__))


def guarded(run: Callable[[], int]) -> int:
    """Run a command; errors are printed without a line of Python, and an interrupt is quiet.

    Parameters
    ----------
    run : callable
        Returns what the command returns.

    Returns
    -------
    int
        That; 1 after an error, 130 if the command was interrupted, 141 if its output pipe was closed.
    """
    try:
        restore()
        with _insisting(), _warning_in_a_line():
            return run()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The pipe was closed, as by `mithril backends | head`: the rest of the buffer is discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except (MithrilError, OSError) as error:
        print(colored(_message(error), sys.stderr), file=sys.stderr)
    except Exception as error:
        if os.environ.get(_TRACEBACK):
            raise
        hint = f"it is a defect of Mithril: please report it with what {_TRACEBACK}=1 shows"
        text = str(InternalError(f"{type(error).__name__}: {error}", hint=hint))
        print(colored(text, sys.stderr), file=sys.stderr)
    return 1


@contextmanager
def _warning_in_a_line() -> Iterator[None]:
    """Print warnings without the line of Python that they are about."""
    before = warnings.showwarning

    def show(message: Any, category: Any, filename: str, *rest: Any, **further: Any) -> None:
        print(colored(f"warning: {message}", sys.stderr), file=sys.stderr)

    # What catches warnings by itself keeps its own way.
    is_plain = getattr(before, "__module__", "") == "warnings"
    if is_plain:
        warnings.showwarning = show
    try:
        yield
    finally:
        if is_plain and warnings.showwarning is show:
            warnings.showwarning = before


#: Seconds after which an interrupt comes again.
_AGAIN = 0.2


@contextmanager
def _insisting() -> Iterator[None]:
    """Let an interrupt come again until it gets through: code that is called back may swallow exceptions."""
    is_main = threading.current_thread() is threading.main_thread()
    if not (is_main and hasattr(signal, "setitimer") and signal.getsignal(signal.SIGINT) is signal.default_int_handler):
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGALRM, signal.SIGINT)}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _message(error: MithrilError | OSError) -> str:
    """Return an error without the line of Python that started the program, which is none of the user's."""
    text = str(error)
    if isinstance(error, UnresolvedShapeError):
        return str(UnresolvedShapeError(error.message, code=error.code, hint="give numbers: --shape NAME=1,3,224,224"))
    where = getattr(error, "where", None) or ""
    if where.startswith(("<", sys.argv[0], _PACKAGE)):
        text = text.replace(f"\n  at {where}", "").replace(f" at {where}", "")
    return text
