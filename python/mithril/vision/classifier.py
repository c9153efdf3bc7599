"""From images to the names of what they show, with probabilities."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from typing_extensions import Unpack

from ..backends.keywords import LoadOptions, passes_on
from ..checkpoints.folders import Folder, backend_of, load
from ..compiled.compile import compile
from ..errors import InvalidValueError
from .labels import check_labels, labels_of
from .preprocess import Preprocess

if TYPE_CHECKING:
    from .._core import Model
    from ..backends.backend import Backend
    from ..compiled.physical_model import PhysicalModel

__all__ = ["Classifier", "Prediction", "softmax"]

#: Names of sizes that a model leaves open.
SIZES = ("batch", "channels", "height", "width")


class Prediction(NamedTuple):
    """A class that an image may show."""

    label: str
    probability: float


class Classifier:
    """Say what images show.

    Parameters
    ----------
    model : PhysicalModel
        From images ``[batch, 3, height, width]`` to logits ``[batch, classes]``, with its parameters; compiled for
        inference.
    preprocess : Preprocess
        What the model was trained with.
    labels : sequence of str, optional
        Names of the classes; see `read_labels`. Default: their numbers.

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> from mithril.models import resnet18
    >>> from mithril.vision import Classifier, Preprocess
    >>> model = ml.compile(resnet18(num_classes=3), ml.NumpyBackend(), inference=True)
    >>> classifier = Classifier(model, Preprocess.imagenet(crop=32, resize=32), ["cat", "dog", "bird"])
    >>> [[first, second]] = classifier.classify(np.zeros((40, 50, 3), np.uint8), top=2)
    >>> 0 <= second.probability <= first.probability <= 1
    True
    """

    def __init__(self, model: PhysicalModel, preprocess: Preprocess, labels: Sequence[str] | None = None) -> None:
        if len(model.input_keys) != 1 or len(model.output_keys) != 1:
            raise InvalidValueError(
                f"a classifier has one input and one output, not {list(model.input_keys)} and "
                f"{list(model.output_keys)}",
                hint="compile it for inference, without a loss",
            )
        self.model = model
        self.preprocess = preprocess
        self.labels = None if labels is None else list(labels)

    @classmethod
    @passes_on(compile, without=("shapes", "inference"))
    def from_folder(
        cls,
        folder: str | os.PathLike[str],
        backend: Backend | str,
        *,
        model: Model | None = None,
        preprocess: Preprocess | None = None,
        labels: Sequence[str] | None = None,
        progress: bool = False,
        **options: Unpack[LoadOptions],
    ) -> Classifier:
        """Load a classifier from the folder of a checkpoint.

        Parameters
        ----------
        folder : path-like
            With ``config.json`` and weights; only weights, or their file, if the model is given.
        backend : Backend or str
            Where it runs.
        model : Model, optional
            Default: what ``config.json`` describes.
        preprocess : Preprocess, optional
            Default: as ``preprocessor_config.json`` says.
        labels : sequence of str, optional
            Default: those of ``config.json`` (``id2label``), or numbers.
        progress : bool, optional
            Show a progress bar.
        **options
            Further options of `compile`, e.g. ``jit``.

        Raises
        ------
        ModelFileError
            If a file is missing or malformed.
        """
        where = backend_of(backend)

        def compiled(model: Model) -> PhysicalModel:
            known = model.shape_of("input") or (None, 3, None, None)
            shape = [size or name for size, name in zip(known, SIZES, strict=True)]
            return compile(model, where, shapes={"input": shape}, inference=True, **options)

        preprocess = preprocess or Preprocess.from_folder(folder)
        if model is not None:
            return cls(load(partial(compiled, model), folder, progress), preprocess, labels)
        source = Folder(folder)
        if labels is None and "id2label" in source.config:
            labels = labels_of(source.config, str(source.path / "config.json"))
        return cls(source.model(compiled, progress=progress), preprocess, labels)

    def logits(self, images: Any, batch_size: int = 16) -> np.ndarray[Any, Any]:
        """Compute the logits of images.

        Parameters
        ----------
        images : image, sequence of images or array
            See `Preprocess`.
        batch_size : int, optional
            How many go through the model at once.

        Returns
        -------
        ndarray
            float32 ``[batch, classes]``.
        """
        return in_batches(self.model, self.preprocess(images), batch_size)

    def classify(self, images: Any, top: int = 5, batch_size: int = 16) -> list[list[Prediction]]:
        """Say what images show.

        Parameters
        ----------
        images : image, sequence of images or array
            See `Preprocess`.
        top : int, optional
            How many classes are named; fewer if there are not so many.
        batch_size : int, optional
            How many images go through the model at once.

        Returns
        -------
        list of list of Prediction
            For each image, the most probable classes, most probable first.
        """
        if not hasattr(top, "__index__") or isinstance(top, bool) or top < 1:
            raise InvalidValueError(f"top is {top!r}", hint="give a positive integer")
        probabilities = softmax(self.logits(images, batch_size))
        labels = check_labels(self.labels, probabilities.shape[1])
        # Stable, so that of equally probable classes the first comes first on every machine.
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
        return [
            [Prediction(labels[i], float(row[i])) for i in best] for row, best in zip(probabilities, order, strict=True)
        ]


def in_batches(model: PhysicalModel, images: np.ndarray[Any, Any], batch_size: int) -> np.ndarray[Any, Any]:
    """Run a model with one input and one output over images, some at once; return the output as float32."""
    if not hasattr(batch_size, "__index__") or isinstance(batch_size, bool) or batch_size < 1:
        raise InvalidValueError(f"batch_size is {batch_size!r}", hint="give a positive integer")
    [name], [output] = model.input_keys, model.output_keys
    parts = [images[start : start + batch_size] for start in range(0, len(images), batch_size)]
    params = model.get_parameters()
    outputs = [model.backend.to_numpy(model.evaluate(params, {name: part})[output]) for part in parts]
    return np.concatenate(outputs).astype(np.float32, copy=False)


def softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return probabilities of logits along the last axis, in float64."""
    logits = logits.astype(np.float64)
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities: np.ndarray[Any, Any] = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities
