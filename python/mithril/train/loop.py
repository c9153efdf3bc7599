"""The loop of a training: epochs, batches, validation, checkpoints."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..compiled import internals
from ..compiled.parameters import Parameters
from ..compiled.physical_model import PhysicalModel
from ..errors import InvalidValueError, MithrilError, ModelFileError, NumericsError, ParameterError
from ..optim import SGD
from ..parallel.stored import StoredArray
from .batches import Batches, fingerprint, open_data
from .callbacks import read_callbacks
from .checkpoints import Checkpoint, Store, check_model, find, read, types_of
from .history import COLUMNS, History
from .losses import add_loss, check_number, for_validation
from .metrics import Meter, number_of, read_metrics
from .progress import Progress
from .step import TrainingStep
from .update import Update

__all__ = ["Options", "Training"]

#: What a process says that cannot read a checkpoint: more than any checksum.
_UNREADABLE = 1 << 40
_EMPTY = "give batch_size examples or more; batches that can be read once only serve one epoch: pass a list"


@dataclass(frozen=True)
class Options:
    """What `mithril.train.fit` takes; described there."""

    loss: Any = None
    freeze: Any = None
    optimizer: Any = None
    epochs: int = 1
    batch_size: int = 32
    shuffle: bool = True
    drop_last: bool = True
    seed: int = 0
    validation: Any = None
    metrics: Any = ()
    patience: int | None = None
    monitor: str | None = None
    ema: Any = None
    on_epoch: Callable[[dict[str, Any]], object] | None = None
    on_batch: Callable[[dict[str, Any]], object] | None = None
    callbacks: Any = ()
    progress: bool = False
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: int | None = None
    keep: int = 2
    resume: bool | str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "keep", "patience", "checkpoint_every"):
            value = getattr(self, name)
            if value is None and name in ("patience", "checkpoint_every"):
                continue
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise InvalidValueError(f"{name} is {value!r}", hint="give a positive integer")
        if isinstance(self.seed, bool) or not isinstance(self.seed, (int, np.integer)):
            raise InvalidValueError(f"seed is {self.seed!r}", hint="give an integer")
        for name in ("shuffle", "drop_last", "progress"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise InvalidValueError(f"{name} is {getattr(self, name)!r}", hint="give True or False")
        for name, needs in (("checkpoint_every", self.checkpoint_every is not None), ("resume", self.resume is True)):
            if self.checkpoint is None and needs:
                raise InvalidValueError(f"{name} needs a folder", hint='give one: checkpoint="folder"')
        if isinstance(self.optimizer, type) or not callable(getattr(self.optimizer or SGD, "update", None)):
            raise InvalidValueError(f"optimizer is {self.optimizer!r}", hint="pass e.g. ml.optim.Adam(0.001)")
        if isinstance(self.ema, type) or not (self.ema is None or callable(getattr(self.ema, "update", None))):
            raise InvalidValueError(f"ema is {self.ema!r}", hint="pass e.g. ml.optim.EMA(0.999)")
        if self.checkpoint is not None and not callable(getattr(self.optimizer or SGD, "state_dict", None)):
            raise InvalidValueError(
                f"a {type(self.optimizer).__name__} has no state_dict, so there can be no checkpoints",
                hint="use one of ml.optim",
            )


class Training:
    """One training of one model.

    Attributes
    ----------
    history : History
        What happened so far.
    """

    def __init__(self, model: PhysicalModel, data: Any, options: Options) -> None:
        if not isinstance(model, PhysicalModel):
            raise InvalidValueError(f"the model is a {type(model).__name__}", hint="compile it first: ml.compile(...)")
        self._model, self._options, self._backend = model, options, model.backend
        self._metrics = read_metrics(
            options.metrics, options.loss if isinstance(options.loss, str) else "cross_entropy"
        )
        layers = {metric.output: metric.layer for metric in self._metrics if metric.layer is not None}
        self._trained, self._loss, chosen = add_loss(model, options.loss, options.freeze, layers)
        if len(layers) < len(self._metrics) and set(self._trained.output_keys) == {self._loss, *layers}:
            raise InvalidValueError(
                "the model gives nothing but its loss, so there is nothing to measure",
                hint="make another output of it: ml.IOKey(name, expose=True)",
            )
        self._optimizer = SGD(0.01, momentum=0.9) if options.optimizer is None else options.optimizer
        self._whole = TrainingStep(self._trained, self._optimizer, loss=self._loss)
        self._update = Update(self._optimizer, self._trained)
        names, size = self._trained.input_keys, options.batch_size
        convert = self._backend.engine.to_host
        self._data = open_data(
            data,
            names,
            size,
            shuffle=options.shuffle,
            drop_last=options.drop_last,
            seed=int(options.seed),
            convert=convert,
            is_repeatable=options.checkpoint is not None,
        )
        self._validation: Batches | None = None
        if options.validation is not None:
            self._validation = open_data(
                options.validation, names, size, shuffle=False, drop_last=False, convert=convert
            )
            self._validator = for_validation(self._trained)
        self._monitor, self._sign = self._watched()
        self._settings = {
            **self._data.settings,
            "loss": chosen,
            "metrics": [metric.name for metric in self._metrics],
            "monitor": self._monitor,
            "optimizer": type(self._optimizer).__name__,
            "ema": None if options.ema is None else type(options.ema).__name__,
        }
        if self._trained.frozen_keys:
            self._settings["frozen"] = list(self._trained.frozen_keys)
        #: What connects this process with others that run the same training; the first one prints and writes.
        self._processes = internals.communicator(self._trained)
        shown = bool(options.progress) and (self._processes is None or self._processes.rank == 0)
        self._progress = Progress(shown, options.epochs, self._data.per_epoch)
        self._store = None if options.checkpoint is None else Store(options.checkpoint, options.keep)
        internals.restore_state(self._trained, internals.saved_state(model))
        #: Parameters without statistics, which the state holds; those of the model until the first batch.
        self._params: Mapping[str, Any] = model.get_parameters()
        self.history = self._history()
        callbacks = read_callbacks(options.callbacks)
        self._callbacks = callbacks if self._processes is None or self._processes.rank == 0 else ()
        #: The epoch that is under way, how many of its batches are done, and what they gave.
        self._epoch, self._batch = 1, 0
        self._meter = Meter(self._metrics, self._loss, self._backend)
        #: Fingerprint of the batch that was used last; the same right after a checkpoint was read, to compare.
        self._fingerprint = 0
        #: Whether the arrays are others than those of the model.
        self._is_apart = False
        #: Whether each device keeps only its part of the parameters, where a layout divides them.
        self._is_distributed = internals.program_settings(self._trained).layout is None
        #: Whether arrays of a checkpoint may still be in its files.
        self._is_partly_read = False
        #: The state of the model before the first step.
        self._before: tuple[dict[str, Any], ...] | None = None
        self._expected: int | None = None

    def _watched(self) -> tuple[str, int]:
        """Return what is watched, and 1 if less of it is better, else -1."""
        better = {"loss": 1, **{metric.name: -1 if metric.higher_is_better else 1 for metric in self._metrics}}
        if self._validation is not None:
            better = {**{f"val_{name}": sign for name, sign in better.items()}, **better}
        monitor = next(iter(better)) if self._options.monitor is None else self._options.monitor
        if monitor not in better:
            raise InvalidValueError(f"monitor is {monitor!r}", hint=f"give one of {', '.join(better)}")
        return monitor, better[monitor]

    def _history(self, epochs: Sequence[Mapping[str, Any]] = (), batches: Any = None) -> History:
        return History(epochs, batches, monitor=self._monitor, higher_is_better=self._sign < 0)

    # --- running ----------------------------------------------------------------------------------------------

    def run(self) -> History:
        """Train; then the parameters belong to the model."""
        self._resume()
        error: BaseException | None = None
        try:
            for callback in self._callbacks:
                callback.on_start(self._about(), self.history)
            while self._epoch <= self._options.epochs and not self._is_patience_over():
                self._run_epoch()
        except KeyboardInterrupt as interrupt:
            error = interrupt
            # What was learned so far is not thrown away.
            self._hand_over()
            raise
        except Exception as failure:
            error = failure
            # Statistics that were measured since belong to parameters that are lost.
            if self._before is not None:
                internals.restore_state(self._model, self._before)
            raise
        finally:
            self._progress.end()
            for callback in self._callbacks:
                callback.on_end(self.history, error)
        self._hand_over()
        return self.history

    def _about(self) -> dict[str, Any]:
        """Return what the training is, for callbacks."""
        rate = getattr(self._optimizer, "learning_rate", None)
        further = {"learning_rate": rate} if isinstance(rate, (int, float)) else {}
        return {**self._settings, **further, "epochs": self._options.epochs, "backend": self._backend.name}

    def _hand_over(self) -> None:
        self._read_rest()
        if self._params is not self._model.get_parameters():
            # Whoever saves them need not ask the other processes.
            whole = {name: self._backend.engine.whole(array) for name, array in self._params.items()}
            self._model.load_params(whole, strict=False)
            internals.update_state(self._model, self._trained.state)

    def _is_patience_over(self) -> bool:
        if self._options.patience is None:
            return False
        values = [self._sign * row[self._monitor] for row in self.history.epochs]
        best = min(range(len(values)), key=lambda index: (np.isnan(values[index]), values[index]), default=0)
        return len(values) - 1 - best >= self._options.patience

    def _run_epoch(self) -> None:
        epoch, start = self._epoch, time.perf_counter()
        batches = self._data.epoch(epoch) if self._expected is None else self._left(self._expected)
        self._progress.start(epoch, self._batch)
        for batch in batches:
            self._step(batch)
        if not len(self._meter):
            raise InvalidValueError(f"the data of epoch {epoch} hold no batch", hint=_EMPTY)
        self._read_rest()
        row = {"epoch": epoch, **self._meter.row(), **self._validate()}
        row |= {"learning_rate": self.history.batches["learning_rate"][-1], "seconds": time.perf_counter() - start}
        self.history.epochs.append(row)
        # A schedule that watches how the training goes.
        observe = getattr(getattr(self._optimizer, "learning_rate", None), "observe", None)
        if observe is not None:
            observe(row[self._monitor])
        self._epoch, self._batch, self._meter = epoch + 1, 0, Meter(self._metrics, self._loss, self._backend)
        self._progress.end(row)
        if self._store is not None:
            self._save(self._store, self._sign * row[self._monitor])
        if self._options.on_epoch is not None:
            self._options.on_epoch(row)
        for callback in self._callbacks:
            callback.on_epoch(row)

    def _step(self, batch: Mapping[str, Any]) -> None:
        if self._params is self._model.get_parameters():
            self._start(batch)
        if not self._is_distributed:
            self._is_distributed = True
            self._params = Parameters.of(
                internals.distributed(self._trained, self._params, batch, self._loss), (), self._trained.frozen_keys
            )
        self._whole.params = self._params
        gradients: Any = None
        if self._whole.is_fused(batch):
            self._part()
            outputs = self._whole(batch)
        else:
            outputs, gradients = self._trained.evaluate(self._params, batch, {self._loss: 1.0})
        loss = number_of(self._backend, "the loss", outputs[self._loss])
        if not np.isfinite(loss):
            raise NumericsError(
                f"the loss of batch {self._batch + 1} of epoch {self._epoch} is {loss}",
                hint="a smaller learning_rate may help; so may data of mean 0 and variance 1",
            )
        rate = getattr(self._optimizer, "learning_rate", None)
        rate = rate(self._optimizer.steps + (gradients is not None)) if callable(rate) else rate
        if gradients is not None:
            self._params = self._update(self._params, gradients, outputs)
        if self._options.ema is not None:
            # Computed now: nothing else needs the averages, and what is put off would grow from batch to batch.
            self._backend.synchronize(self._options.ema.update(self._with_statistics()))
        self._read_rest()
        self._meter.add(outputs, batch, loss)
        self._batch += 1
        row = self.history.add_batch(self._epoch, self._batch, loss, None if rate is None else float(rate))
        self._progress.step(loss)
        if self._store is not None:
            self._fingerprint = fingerprint(batch, self._backend.engine.to_host)
            every = self._options.checkpoint_every
            if every is not None and len(self.history.batches["loss"]) % every == 0:
                self._save(self._store)
        if self._options.on_batch is not None:
            self._options.on_batch(row)
        for callback in self._callbacks:
            callback.on_batch(row)

    def _start(self, batch: Mapping[str, Any]) -> None:
        """Part from the parameters of the model, which keeps them if the training fails."""
        params = self._model.get_parameters()
        # Their shapes may follow from the first batch.
        internals.prepare_call(self._trained, params, batch)
        self._before = internals.saved_state(self._model)
        check_number(self._trained, self._loss)
        self._params = Parameters.of(
            {name: params[name] for name in self._trained.parameter_keys}, (), self._trained.frozen_keys
        )

    def _part(self) -> None:
        """Part from the arrays of the model, too: these are changed in place."""
        if not self._is_apart:
            self._is_apart = True
            own = {name: np.array(p, order="C") for name, p in self._params.items()}
            self._params = self._whole.params = Parameters.of(own, (), self._trained.frozen_keys)
            internals.update_state(
                self._trained, {name: np.array(s, order="C") for name, s in self._trained.state.items()}
            )

    def _with_statistics(self) -> Parameters:
        """Return the parameters with the statistics that were measured with them."""
        names = internals.names_by_role(self._trained)["state"]
        values = {**self._params, **{name: self._trained.state[name] for name in names}}
        return Parameters.of(values, names, self._trained.frozen_keys)

    def _validate(self) -> dict[str, float]:
        if self._validation is None:
            return {}
        names = internals.names_by_role(self._validator)["state"]
        internals.update_state(
            self._validator, {name: value for name, value in self._trained.state.items() if name in names}
        )
        params = self._params if self._options.ema is None else self._options.ema.params
        meter = Meter(self._metrics, self._loss, self._backend)
        for batch in self._validation.epoch(self._epoch):
            outputs = self._validator.evaluate(params, batch)
            meter.add(outputs, batch, number_of(self._backend, "the loss", outputs[self._loss]))
        if not len(meter):
            raise InvalidValueError(f"the validation data of epoch {self._epoch} hold no batch", hint=_EMPTY)
        return meter.row("val_")

    # --- checkpoints ------------------------------------------------------------------------------------------

    def _save(self, store: Store, value: float | None = None) -> None:
        columns = {name: np.array(column, np.float64) for name, column in self.history.batches.items()}
        groups = {
            "parameters": dict(self._params),
            "state": dict(self._trained.state),
            "optimizer": self._optimizer.state_dict(),
            "ema": {} if self._options.ema is None else self._options.ema.state_dict(),
            "history": columns,
            "meter": {name: np.array(column, np.float64) for name, column in self._meter.values.items()},
        }
        about = {
            "settings": self._settings,
            "parameters": types_of(self._params, self._backend),
            "epochs": self.history.epochs,
            "fingerprint": self._fingerprint,
        }
        checkpoint = Checkpoint(self._epoch, self._batch, groups, about, value)
        store.write(checkpoint, self._backend, self._processes)

    def _resume(self) -> None:
        """Go on from the checkpoint that is wanted, if there is one."""
        if self._store is None and self._options.resume is None:
            return
        latest: tuple[Checkpoint, Any] | None = None
        error: MithrilError | None = None
        try:
            latest = self._read()
        except MithrilError as reason:
            error = reason
        if self._processes is not None:
            # Also if it is an error here: the others would wait.
            self._check_agreement(0 if latest is None else latest[0].checksum + 1, error)
        if error is not None:
            raise error
        if latest is not None:
            checkpoint, path = latest
            self._restore(checkpoint, str(path))
            self._progress.say(f"going on from {path}")

    def _check_agreement(self, own: int, error: MithrilError | None) -> None:
        """Raise if other processes read another checkpoint, as in a folder that they do not share."""
        assert self._processes is not None
        checksums = self._processes.gathered(_UNREADABLE if error is not None else own)
        others = [str(rank) for rank, checksum in enumerate(checksums) if checksum != own]
        if error is None and others:
            raise ModelFileError(
                f"process {self._processes.rank} reads another checkpoint, or none, than process {', '.join(others)}",
                code="M0802",
                hint="on several machines, the folder has to be one that all of them share",
            )

    def _read(self) -> tuple[Checkpoint, Any] | None:
        """Read the checkpoint that is wanted, if there is one."""
        resume, there = self._options.resume, self._store.positions() if self._store is not None else {}
        if resume is False and there:
            raise InvalidValueError(
                f"{str(next(iter(there.values())).parent)!r} holds the checkpoints of another training run",
                hint="resume=True continues from them; otherwise give another folder, or remove them",
            )
        path = next(reversed(there.values()), None) if resume is None or isinstance(resume, bool) else find(resume)
        if path is None:
            return None
        is_divided = internals.program_settings(self._trained).layout is not None
        checkpoint = read(path, self._backend, is_divided=is_divided)
        if any(position > (checkpoint.epoch, checkpoint.batch) for position in there):
            raise InvalidValueError(
                f"the folder of the checkpoints holds later ones than {str(path)!r}",
                hint="remove them, or give another folder for the new ones",
            )
        return checkpoint, path

    def _restore(self, checkpoint: Checkpoint, path: str) -> None:
        about, groups = checkpoint.about, checkpoint.groups
        # With its loss, the model may not know its shapes before the first batch.
        program = internals.current_program(self._model) or internals.current_program(self._trained)
        check_model(self._trained, program, about["parameters"], groups["state"], path)
        differing = [
            f"{name} is {ours!r}, there {about['settings'].get(name)!r}"
            for name, ours in self._settings.items()
            if about["settings"].get(name) != ours
        ]
        if differing:
            raise InvalidValueError(
                f"the checkpoint {path!r} belongs to another training run: {'; '.join(differing)}",
                hint="ml.train.load_checkpoint takes only the parameters, for a new training",
            )
        self._optimizer.load_state_dict(groups["optimizer"])
        if self._options.ema is not None:
            self._options.ema.load_state_dict(groups["ema"])
        self._params = Parameters.of(groups["parameters"], (), self._trained.frozen_keys)
        if internals.current_program(self._model) is not None:
            self._before = internals.saved_state(self._model)
        internals.update_state(self._trained, groups["state"])
        self._is_apart = self._is_partly_read = True
        self._epoch, self._batch = checkpoint.epoch, checkpoint.batch
        self._fingerprint = self._expected = about["fingerprint"]
        columns = {name: groups["history"][name].tolist() for name in COLUMNS}
        columns |= {name: [int(number) for number in columns[name]] for name in ("epoch", "batch")}
        columns["learning_rate"] = [None if rate != rate else rate for rate in columns["learning_rate"]]
        self.history = self._history(about["epochs"], columns)
        self._meter.values = {name: groups["meter"][name].tolist() for name in self._meter.values}

    def _read_rest(self) -> None:
        """Read what no device has read its part of: no step was taken, or there is no gradient of it."""
        if not self._is_partly_read:
            return
        self._is_partly_read = False
        restored = self._backend.engine.restored

        def settled(values: Mapping[str, Any]) -> dict[str, Any] | None:
            if not any(isinstance(value, StoredArray) for value in values.values()):
                return None
            return {n: restored(value) if isinstance(value, StoredArray) else value for n, value in values.items()}

        params = settled(self._params)
        if params is not None:
            self._params = Parameters.of(params, (), self._trained.frozen_keys)
        for holder in (self._optimizer, self._options.ema):
            state = None if holder is None else settled(holder.state_dict())
            if holder is not None and state is not None:
                holder.load_state_dict(state)

    def _left(self, expected: int) -> Iterator[Mapping[str, Any]]:
        """Return what is left of the epoch of the checkpoint, after a look at the batch before."""
        self._expected = None
        last, batches = self._data.resume(self._epoch, self._batch)
        if fingerprint(last, self._backend.engine.to_host) != expected if last is not None else self._batch:
            raise ParameterError(
                f"the data are not those of the checkpoint: the batch before batch {self._batch + 1} of epoch "
                f"{self._epoch} differs",
                hint="the same data in the same order are needed; a DataLoader that shuffles needs a generator",
            )
        return batches
