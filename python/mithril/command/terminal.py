"""What is different on a terminal: colors, and a line that says how long a command has been at it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any, TextIO

__all__ = ["Waiting", "colored", "is_colored", "waiting"]

#: Seconds before anything is shown.
_PATIENCE = 2.0
_EACH = 0.25
_STYLES = {"error": "\033[1;31m", "warning": "\033[1;33m", "help": "\033[1;36m", "end": "\033[0m"}


def is_colored(stream: TextIO, environment: Mapping[str, str] | None = None) -> bool:
    """Whether colors are written to a stream: to a terminal, unless ``NO_COLOR`` or ``TERM=dumb`` forbid it.

    Examples
    --------
    >>> import io
    >>> is_colored(io.StringIO(), {})
    False
    """
    known = os.environ if environment is None else environment
    # https://no-color.org: any value but the empty one.
    return not known.get("NO_COLOR") and known.get("TERM") != "dumb" and stream.isatty()


def colored(text: str, stream: TextIO) -> str:
    """Return the message of an error or a warning as it is written to a stream."""
    if not is_colored(stream):
        return text
    lines = []
    for line in text.split("\n"):
        for word in ("error", "warning", "help"):
            start = line.lstrip()
            head, colon, _ = start.partition(":")
            if colon and (head == word or head.startswith(f"{word}[")):
                line = line.replace(head + colon, f"{_STYLES[word]}{head}{colon}{_STYLES['end']}", 1)
                break
        lines.append(line)
    return "\n".join(lines)


class Waiting:
    """A line on a terminal: what is being done, and for how long; it is wiped away in the end."""

    def __init__(self, stream: TextIO, what: str) -> None:
        self._stream, self._start = stream, monotonic()
        self._what, self._shown, self._over = what, 0, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def say(self, what: str) -> None:
        """Change what is being done."""
        self._what = what

    def _run(self) -> None:
        pause = _PATIENCE
        while not self._over.wait(pause):
            pause = _EACH
            try:
                width = os.get_terminal_size(self._stream.fileno()).columns
            except (OSError, ValueError):
                width = 80
            text = f"{self._what} … {monotonic() - self._start:.0f} s"[: max(width - 1, 10)]
            self._write(f"\r{text.ljust(self._shown)}")
            self._shown = len(text)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # The terminal is gone: nobody is waiting.
            self._over.set()

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()
        if self._shown:
            self._write(f"\r{' ' * self._shown}\r")


class _Silent(Waiting):
    """What stands for it where there is no terminal."""

    def __init__(self) -> None:
        pass

    def say(self, what: str) -> None:
        """Show nothing."""


@contextmanager
def waiting(what: str, stream: TextIO | None = None) -> Iterator[Waiting]:
    """Show on a terminal, after two seconds, that a command is at work.

    Parameters
    ----------
    what : str
        What is being done.
    stream : text stream, optional
        Default: the standard error.
    """
    target = sys.stderr if stream is None else stream
    if not target.isatty():
        yield _Silent()
        return
    with Waiting(target, what) as shown:
        yield shown
