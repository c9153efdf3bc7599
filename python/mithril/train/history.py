"""What happened in a training: losses, metrics and learning rates."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .. import tables
from ..checkpoints.files import write
from ..errors import InvalidValueError, KeyNotFoundError, ModelFileError
from .plot import panels, plot, svg

__all__ = ["History"]

#: What is known of each batch.
COLUMNS = ("epoch", "batch", "loss", "learning_rate")


class History:
    """Losses, metrics and learning rates of a training, per epoch and per batch.

    It prints as a table. ``history["val_loss"]`` is the list of what the epochs have under that name.

    Attributes
    ----------
    epochs : list of dict
        For each epoch: ``epoch``, ``loss``, the metrics, ``val_loss`` and so on, ``learning_rate``, ``seconds``.
    batches : dict of list
        ``epoch``, ``batch``, ``loss`` and ``learning_rate`` of every batch.
    monitor : str or None
        The column that says which epoch is the best.
    higher_is_better : bool
        Whether larger values of it are better.

    Examples
    --------
    >>> import mithril as ml
    >>> history = ml.train.History([{"epoch": 1, "loss": 0.5, "accuracy": 0.75}])
    >>> print(history)
    epoch  loss  accuracy
        1   0.5      0.75
    """

    def __init__(
        self,
        epochs: Sequence[Mapping[str, Any]] = (),
        batches: Mapping[str, Sequence[float]] | None = None,
        *,
        monitor: str | None = None,
        higher_is_better: bool = False,
    ) -> None:
        self.epochs: list[dict[str, Any]] = [dict(row) for row in epochs]
        self.batches: dict[str, list[Any]] = {name: list((batches or {}).get(name, ())) for name in COLUMNS}

        self.monitor, self.higher_is_better = monitor, higher_is_better

    @property
    def best(self) -> dict[str, Any] | None:
        """The row of the best epoch by ``monitor``, the first one of equals; None if that is not known."""
        name = self.monitor
        rows = [row for row in self.epochs if name in row and row[name] is not None and not math.isnan(row[name])]
        if name is None or not rows:
            return None
        sign = -1 if self.higher_is_better else 1
        return min(rows, key=lambda row: sign * row[name])

    def plot(self, path: str | os.PathLike[str] | None = None, *, names: Sequence[str] | None = None) -> Any:
        """Draw losses, metrics and learning rates by epoch; the best epoch is marked.

        Parameters
        ----------
        path : path-like, optional
            A file to write: ``*.svg``, ``*.png`` or ``*.pdf``.
        names : sequence of str, optional
            Columns to draw, such as ``["loss", "val_loss"]``. Default: all.

        Returns
        -------
        matplotlib.figure.Figure or Picture
            A figure; without matplotlib (``pip install matplotlib``) a picture with the attribute ``text``, which is
            SVG. Both show themselves in a notebook.

        Raises
        ------
        BackendUnavailableError
            For PNG and PDF without matplotlib.
        KeyNotFoundError
            If there is no column of a name.

        Examples
        --------
        >>> import mithril as ml, os, tempfile
        >>> rows = [{"epoch": 1, "loss": 0.5, "val_loss": 0.6}, {"epoch": 2, "loss": 0.4, "val_loss": 0.7}]
        >>> history = ml.train.History(rows, monitor="val_loss")
        >>> history.best["epoch"]
        1
        >>> picture = history.plot(os.path.join(tempfile.mkdtemp(), "training.svg"))
        """
        return plot(self, path, names)

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for row in self.epochs for name in row))
        if not names:
            return "<p>no epoch is complete</p>"
        table = tables.html(names, [[_text(row.get(name)) for name in names] for row in self.epochs])
        best = self.best
        note = "" if best is None else f"<p>best by {escape(str(self.monitor))}: epoch {escape(str(best['epoch']))}</p>"
        return f"<div>{svg(panels(self))}</div>{table}{note}"

    def add_batch(self, epoch: int, batch: int, loss: float, learning_rate: float | None) -> dict[str, Any]:
        """Note a batch; return what was noted."""
        row = dict(zip(COLUMNS, (epoch, batch, loss, learning_rate), strict=True))
        for name, value in row.items():
            self.batches[name].append(value)
        return row

    def __getitem__(self, name: str) -> list[Any]:
        known = {key for row in self.epochs for key in row}
        if name not in known:
            raise KeyNotFoundError(f"the history has no {name!r}", hint=f"it has: {', '.join(sorted(known))}")
        return [row.get(name) for row in self.epochs]

    def __len__(self) -> int:
        return len(self.epochs)

    def __eq__(self, other: object) -> bool:
        """Whether the numbers are the same; how long it took does not matter."""
        if not isinstance(other, History):
            return NotImplemented
        rows = [[{k: v for k, v in row.items() if k != "seconds"} for row in h.epochs] for h in (self, other)]
        return rows[0] == rows[1] and self.batches == other.batches

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        names = list(dict.fromkeys(name for row in self.epochs for name in row))
        table = [names, *([_text(row.get(name)) for name in names] for row in self.epochs)]
        if not names:
            return "no epoch is complete"
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ("  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in table)
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"History({len(self.epochs)} epochs, {len(self.batches['loss'])} batches)"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the history to a file.

        Parameters
        ----------
        path : path-like
            ``*.json`` takes everything, ``*.csv`` a row for each epoch.
        """
        suffix = os.path.splitext(os.fspath(path))[1]
        if suffix == ".json":
            text = (
                json.dumps(
                    {
                        "epochs": self.epochs,
                        "batches": self.batches,
                        "monitor": self.monitor,
                        "higher_is_better": self.higher_is_better,
                    },
                    default=float,
                )
                + "\n"
            )
        elif suffix == ".csv":
            text = self._csv()
        else:
            raise InvalidValueError(f"a history is saved as *.json or *.csv, not {os.fspath(path)!r}")
        write(path, text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Read a history that was saved as JSON.

        Raises
        ------
        ModelFileError
            If there is none.
        """
        try:
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
            # Those of older versions do not say which epoch is the best.
            is_higher = bool(content.get("higher_is_better", False))
            return cls(
                content["epochs"], content["batches"], monitor=content.get("monitor"), higher_is_better=is_higher
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ModelFileError(
                f"{os.fspath(path)!r} holds no history: {error}", hint="give a *.json that History.save wrote"
            ) from error

    def _csv(self) -> str:
        names = list(dict.fromkeys(name for row in self.epochs for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.epochs)
        return text.getvalue()


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.4g}"
    return str(value)
