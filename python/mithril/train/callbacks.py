"""Callbacks of a training run: the interface, and writers for TensorBoard and MLflow."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import InvalidValueError
from ..optional_packages import require

if TYPE_CHECKING:
    from .history import History

__all__ = ["Callback", "MLflow", "TensorBoard", "read_callbacks"]

#: Of a row of the history, what says where it is.
_PLACES = ("epoch", "batch")


class Callback:
    """Told what happens in a training; override what is of interest.

    Examples
    --------
    >>> import mithril as ml
    >>> class Losses(ml.train.Callback):
    ...     def on_epoch(self, row):
    ...         print(f"epoch {row['epoch']}")
    >>> Losses().on_epoch({"epoch": 1, "loss": 0.5})
    epoch 1
    """

    def on_start(self, settings: Mapping[str, Any], history: History) -> None:
        """Start.

        Parameters
        ----------
        settings : mapping
            What the training is: ``optimizer``, ``loss``, ``monitor``, ``batch_size`` and so on, by name.
        history : History
            What happened before, if the training resumes.
        """

    def on_batch(self, row: Mapping[str, Any]) -> None:
        """Take the row of a batch: ``epoch``, ``batch``, ``loss`` and ``learning_rate``."""

    def on_epoch(self, row: Mapping[str, Any]) -> None:
        """Take the row of an epoch: the losses and metrics."""

    def on_end(self, history: History, error: BaseException | None) -> None:
        """End, also of a training that fails or is interrupted.

        Parameters
        ----------
        history : History
            All that happened.
        error : BaseException or None
            What ended it early.
        """


def read_callbacks(value: Any) -> tuple[Callback, ...]:
    """Return callbacks as `fit` is given them, one or several."""
    if value is None:
        return ()
    callbacks = (value,) if isinstance(value, Callback) else tuple(value) if isinstance(value, Iterable) else (value,)
    for one in callbacks:
        if not isinstance(one, Callback):
            raise InvalidValueError(
                f"callbacks holds {one!r}",
                hint="give instances of ml.train.Callback; functions are on_epoch and on_batch",
            )
    return callbacks


class TensorBoard(Callback):
    """Writes event files, which ``tensorboard --logdir FOLDER`` shows.

    Curves are called like the columns of the history: ``loss`` and ``learning_rate`` of batches under ``batch/``, by
    the number of batches so far; those of epochs under ``epoch/``, with ``val_loss`` as ``epoch/loss/validation``, by
    epoch. A training that resumes continues them.

    Parameters
    ----------
    folder : path-like
        Where the files go; a folder for each training, below the one that TensorBoard shows, compares them.
    batches : bool, optional
        Also write each batch (default True).

    Raises
    ------
    BackendUnavailableError
        If the package tensorboardX is not installed.

    Examples
    --------
    >>> import importlib.util, tempfile
    >>> import mithril as ml
    >>> callbacks = []
    >>> if importlib.util.find_spec("tensorboardX"):
    ...     callbacks.append(ml.train.TensorBoard(tempfile.mkdtemp()))
    """

    def __init__(self, folder: str | os.PathLike[str], *, batches: bool = True) -> None:
        if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
            raise InvalidValueError(f"folder is {folder!r}", hint='give a path: ml.train.TensorBoard("runs/first")')
        self.folder, self.batches = os.fspath(folder), batches
        self._package = require("tensorboardX", "writing for TensorBoard")
        self._writer: Any = None
        self._step = 0

    def on_start(self, settings: Mapping[str, Any], history: History) -> None:
        """Open a file."""
        self._step = len(history.batches["loss"])
        # What a training that was interrupted wrote after its checkpoint is not shown.
        purged = {"purge_step": self._step + 1} if self._step else {}
        # Names of files have seconds alone: of two trainings within one, the second would overwrite the first.
        suffix = f".{time.time_ns()}"
        self._writer = self._package.SummaryWriter(self.folder, filename_suffix=suffix, **purged)
        lines = "\n".join(f"- {name}: `{value}`" for name, value in settings.items())
        self._writer.add_text("settings", lines, self._step)

    def on_batch(self, row: Mapping[str, Any]) -> None:
        """Write a batch."""
        self._step += 1
        if self.batches:
            self._add("batch/", row, self._step)

    def on_epoch(self, row: Mapping[str, Any]) -> None:
        """Write an epoch, and let it be seen."""
        self._add("epoch/", row, row["epoch"])
        self._writer.flush()

    def on_end(self, history: History, error: BaseException | None) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _add(self, prefix: str, row: Mapping[str, Any], step: int) -> None:
        for name, value in row.items():
            if name not in _PLACES and value is not None:
                is_validation = name.startswith("val_")
                tag = f"{name.removeprefix('val_')}/validation" if is_validation else name
                self._writer.add_scalar(f"{prefix}{tag}", float(value), step)


class MLflow(Callback):
    """Logs a training to MLflow as a run: settings as parameters, the columns of the history as metrics.

    Metrics are logged by epoch. The run ends as finished, failed, or killed after Ctrl-C. If a run is active when the
    training starts, that one is used and left open; parameters that it has already stay as they are.

    Parameters
    ----------
    experiment : str, optional
        Name of the experiment. Default: the active one.
    run_name : str, optional
        Name of the run. Default: one that MLflow makes up.
    tracking_uri : str, optional
        Where the runs are kept: a server or a database, e.g. ``"sqlite:///mlflow.db"``. Default: as MLflow is
        configured.
    params : mapping, optional
        Further parameters of the run.

    Raises
    ------
    BackendUnavailableError
        If MLflow is not installed.

    Examples
    --------
    >>> import importlib.util
    >>> import mithril as ml
    >>> callbacks = []
    >>> if importlib.util.find_spec("mlflow"):
    ...     callbacks.append(ml.train.MLflow("digits", run_name="first", tracking_uri="http://localhost:5000"))
    """

    def __init__(
        self,
        experiment: str | None = None,
        *,
        run_name: str | None = None,
        tracking_uri: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        self.experiment, self.run_name, self.tracking_uri = experiment, run_name, tracking_uri
        self.params = dict(params or {})
        self._mlflow = require("mlflow", "logging to MLflow")
        self._is_own = False
        self._is_open = False

    def on_start(self, settings: Mapping[str, Any], history: History) -> None:
        """Start a run, unless one is active."""
        if self.tracking_uri is not None:
            self._mlflow.set_tracking_uri(self.tracking_uri)
        if self.experiment is not None:
            self._mlflow.set_experiment(self.experiment)
        self._is_own = self._mlflow.active_run() is None
        if self._is_own:
            self._mlflow.start_run(run_name=self.run_name)
        self._is_open = True
        # A run may hold an earlier training, or the first part of this one; what is logged once cannot change.
        active = self._mlflow.active_run()
        known = {} if self._is_own else self._mlflow.get_run(active.info.run_id).data.params
        params = {**settings, **self.params}
        self._mlflow.log_params({name: value for name, value in params.items() if name not in known})

    def on_epoch(self, row: Mapping[str, Any]) -> None:
        """Log an epoch."""
        values = {name: float(v) for name, v in row.items() if name not in _PLACES and v is not None}
        self._mlflow.log_metrics(values, step=row["epoch"])

    def on_end(self, history: History, error: BaseException | None) -> None:
        """End the run."""
        if self._is_open and self._is_own:
            status = "FINISHED" if error is None else "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
            self._mlflow.end_run(status)
        self._is_open = False
