"""What a user sees while a model is trained: a bar if tqdm is installed, and a line for each epoch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["Progress"]


class Progress:
    """Shows how far a training is, on the standard error stream."""

    def __init__(self, shown: bool, epochs: int, per_epoch: int | None) -> None:
        self._shown, self._epochs, self._per_epoch = shown, epochs, per_epoch
        self._bar: Any = None

    def start(self, epoch: int, done: int) -> None:
        """Begin an epoch of which so many batches are done."""
        if self._shown:
            self._bar = _bar(f"epoch {epoch}/{self._epochs}", self._per_epoch, done)

    def step(self, loss: float) -> None:
        """Show that a batch is done."""
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.4g}", refresh=False)
            self._bar.update()

    def end(self, row: Mapping[str, Any] | None = None) -> None:
        """Take away the bar, and print the row of the epoch if it is complete."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if row is not None:
            numbers = ", ".join(
                f"{name} {value:.4g}" for name, value in row.items() if name != "epoch" and value is not None
            )
            self.say(f"epoch {row['epoch']}/{self._epochs}: {numbers}")

    def say(self, text: str) -> None:
        """Print a line."""
        if self._shown:
            print(text, file=sys.stderr, flush=True)


def _bar(label: str, total: int | None, done: int) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    # None: only on a terminal, where lines can be overwritten.
    return tqdm(desc=label, total=total, initial=done, leave=False, disable=None)
