"""`fit` and `train_model`: what users call to train a compiled model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from ..backends.backend import Backend
from ..compiled.parameters import Parameters
from ..compiled.physical_model import PhysicalModel
from ..errors import InvalidValueError
from ..optim import SGD
from .history import History
from .loop import Options, Training

__all__ = ["fit", "train_model"]


def fit(
    compiled: PhysicalModel,
    data: Any,
    *,
    loss: Any = None,
    freeze: Iterable[str] | None = None,
    optimizer: Any = None,
    epochs: int = 1,
    batch_size: int = 32,
    shuffle: bool = True,
    drop_last: bool = True,
    seed: int = 0,
    validation: Any = None,
    metrics: Any = (),
    patience: int | None = None,
    monitor: str | None = None,
    ema: Any = None,
    on_epoch: Callable[[dict[str, Any]], object] | None = None,
    on_batch: Callable[[dict[str, Any]], object] | None = None,
    callbacks: Any = (),
    progress: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    keep: int = 2,
    resume: bool | str | os.PathLike[str] | None = None,
) -> History:
    """Train a compiled model: its own parameters (`PhysicalModel.get_parameters`) and state.

    With ``checkpoint``, an interrupted training resumes when it is started again, and gives the same numbers as without
    the interruption.

    Parameters
    ----------
    compiled : PhysicalModel
        Compiled for training.
    data : mapping, pair, iterable or callable
        Name to array, or a pair of input and target, with all examples along the first axis: they are shuffled and
        split into batches. Or batches, as mappings or pairs: a list, a ``DataLoader`` of PyTorch, or a function that
        takes the epoch number and returns an iterator. Targets are called ``target``.
    loss : str, Model or callable, optional
        The loss to minimize: the name of a scalar output; or, computed from the only output and the target,
        ``"cross_entropy"`` (classes along axis 1), ``"token_cross_entropy"`` (along the last axis), ``"mse"``, ``"l1"``
        or ``"bce"`` (of logits); or a layer, such as ``ml.CrossEntropy(label_smoothing=0.1)``; or a function of
        connections, such as ``lambda output, target: (output - target).abs().mean()``. Inputs of layers and functions
        that are named like outputs of the model are connected to these; the others are data. Default: the output
        ``loss`` if there is one, otherwise the cross entropy.
    freeze : iterable of str, optional
        Name patterns of parameters that are not trained: ``["encoder.*"]``.
    optimizer : Optimizer, optional
        Takes the steps; default `mithril.optim.SGD` with learning rate 0.01 and momentum 0.9. A learning rate with a
        method ``observe`` is told ``monitor`` after each epoch.
    epochs : int, optional
        How many times all data are used, those before a checkpoint included.
    batch_size : int, optional
        Examples per batch, if ``data`` are arrays.
    shuffle : bool, optional
        Shuffle the examples before each epoch, if ``data`` are arrays.
    drop_last : bool, optional
        Drop an incomplete last batch, if ``data`` are arrays.
    seed : int, optional
        Seed of the order of the examples.
    validation : mapping, pair, iterable or callable, optional
        Data to evaluate the model on after each epoch, compiled for inference.
    metrics : sequence or mapping, optional
        Metrics besides the loss: ``"accuracy"``, ``"top_5"`` and the like, ``"perplexity"``, ``"mse"``, ``"mae"``;
        layers, such as ``ml.L1Loss()``; functions of output and target (NumPy arrays) that return a number; `Metric`.
        All of them also as a dict by name.
    patience : int, optional
        Stop when ``monitor`` has not improved for this many epochs.
    monitor : str, optional
        The criterion for the best epoch: a column of the history; default ``"val_loss"``, without validation
        ``"loss"``.
    ema : EMA, optional
        Averages the parameters, e.g. ``mithril.optim.EMA(0.999)``: after each batch, and the validation measures the
        averages. They are ``ema.params``; the model keeps its own parameters.
    on_epoch, on_batch : callable, optional
        Called after each epoch or batch with its row of the history, a dict.
    callbacks : Callback or sequence of Callback, optional
        Told what happens: `mithril.train.TensorBoard`, `mithril.train.MLflow`, or your own `mithril.train.Callback`.
    progress : bool, optional
        Show a bar (if ``tqdm`` is installed, on a terminal) and a line for each epoch, on the standard error stream.
    checkpoint : path-like, optional
        A folder for checkpoints, one after each epoch.
    checkpoint_every : int, optional
        Also write one after every so many batches.
    keep : int, optional
        How many of the latest checkpoints are kept, in addition to the best one.
    resume : bool or path-like, optional
        A path: resume from this checkpoint. False: start from scratch, in a folder without checkpoints. Default, and
        with ``checkpoint`` also True: resume from the latest checkpoint in that folder, if there is one.

    Returns
    -------
    History
        Losses, metrics and learning rates; prints as a table.

    Raises
    ------
    NumericsError
        If a loss is not finite; the model keeps the parameters that it had.
    ModelFileError
        If a checkpoint is damaged or cannot be written.
    ParameterError
        If the data do not match the model, or a checkpoint belongs to another model or other data.

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> model = ml.Model()
    >>> model |= ml.Linear(1)(input="input", output="output")
    >>> compiled = ml.compile(model, ml.NumpyBackend())
    >>> x = np.linspace(-1, 1, 64)[:, None]
    >>> history = ml.train.fit(compiled, (x, 2 * x + 1), loss="mse", epochs=100, metrics=["mae"], progress=False)
    >>> print(compiled.parameters["linear.bias"].round(2), history["mae"][-1] < 0.01)
    [1.] True
    """
    options = Options(
        loss=loss,
        freeze=freeze,
        optimizer=optimizer,
        epochs=epochs,
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        seed=seed,
        validation=validation,
        metrics=metrics,
        patience=patience,
        monitor=monitor,
        ema=ema,
        on_epoch=on_epoch,
        on_batch=on_batch,
        callbacks=callbacks,
        progress=progress,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        keep=keep,
        resume=resume,
    )
    return Training(compiled, data, options).run()


def train_model(
    model: PhysicalModel,
    backend: Backend,
    data: Any,
    *,
    loss: Any = None,
    optimizer: Any = None,
    learning_rate: float = 0.01,
    epochs: int = 1,
    batch_size: int = 32,
    seed: int = 0,
    on_epoch: Callable[[int, float], None] | None = None,
) -> Parameters:
    """Train a model.

    Parameters
    ----------
    model : PhysicalModel
        Compiled for training. Its own parameters (`PhysicalModel.get_parameters`) and state are trained.
    backend : Backend
        The backend that it is compiled for.
    data : mapping or iterable
        Name to array with all examples along the first axis, which are shuffled and cut into batches; or batches:
        mappings, or pairs of input and target. Targets are called ``target``.
    loss : str, Model or callable, optional
        What is minimized: the name of an output that is one number; or ``"cross_entropy"``, ``"mse"``, ``"l1"`` or
        ``"bce"`` of the one output and the target; or a layer or a function, as for `fit`. Default: the output ``loss``
        if there is one, else the cross entropy.
    optimizer : Optimizer, optional
        Takes the steps; default `SGD` with momentum 0.9.
    learning_rate : float, optional
        That of the default optimizer.
    epochs : int, optional
        How many times all data is used.
    batch_size : int, optional
        Examples per batch, where ``data`` is a mapping; what is left over in the end is left out.
    seed : int, optional
        Seed of the order of the examples.
    on_epoch : callable, optional
        Called after each epoch with its number, from 1 on, and the mean loss of its batches.

    Returns
    -------
    dict
        The trained parameters, those of the model, with its running statistics.

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> backend = ml.NumpyBackend()
    >>> model = ml.Model()
    >>> model |= ml.Linear(1)(input="input", output="output")
    >>> compiled = ml.compile(model, backend)
    >>> x = np.linspace(-1, 1, 64)[:, None]
    >>> data = {"input": x, "target": 2 * x + 1}
    >>> params = ml.train.train_model(compiled, backend, data, loss="mse", epochs=100)
    >>> print(params["linear.bias"].round(2))
    [1.]
    """
    if not isinstance(model, PhysicalModel):
        raise InvalidValueError(f"the model is a {type(model).__name__}", hint="compile it first: ml.compile(...)")
    if model.backend is not backend:
        raise InvalidValueError(f"the model is compiled for another backend, {model.backend}", hint="pass that")
    fit(
        model,
        data,
        loss=loss,
        optimizer=SGD(learning_rate, momentum=0.9) if optimizer is None else optimizer,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        on_epoch=None if on_epoch is None else lambda row: on_epoch(row["epoch"], row["loss"]),
        progress=False,
    )
    return model.get_parameters()
