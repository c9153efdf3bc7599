"""A page that classifies pictures: a file that is chosen, pasted or dropped, preprocessed as the model was trained."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import mithril as ml
from mithril import models
from mithril.errors import InvalidValueError
from mithril.suggestions import among
from mithril.vision import Classifier, Preprocess, read_labels

__all__ = ["write"]

_HERE = Path(__file__).parent
#: How the page shrinks images as Pillow does.
_INTERPOLATIONS = ("bilinear", "bicubic", "box")


def write(
    folder: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | Any = "resnet18",
    weights: str | os.PathLike[str] | None = None,
    labels: str | os.PathLike[str] | None = None,
    quantize: str | None = None,
    preprocess: Preprocess | None = None,
) -> Any:
    """Write the page and its model.

    Parameters
    ----------
    folder : path
        Made where it does not exist.
    model : str, path or Model, optional
        The folder of a checkpoint, a model of the zoo such as ``"resnet50"``, or a model itself.
    weights : path, optional
        Weights of a model that is not of a folder. Default: random numbers.
    labels : path, optional
        Names of the classes; see `mithril.vision.read_labels`. Default: those of the folder, or numbers.
    quantize : str, optional
        Scheme of the weights; see `mithril.CBackend`. Default: float32.
    preprocess : Preprocess, optional
        What is done to a picture. Default: as the folder says, or as for ImageNet.

    Returns
    -------
    ExportedWeb
        What was exported into ``folder/model``.

    Raises
    ------
    BackendUnavailableError
        If there is no compiler for WebAssembly.
    InvalidValueError
        If there is no such model, or the page cannot preprocess its pictures.
    """
    names = None if labels is None else read_labels(labels)
    place = Path(folder)
    backend: Any = ml.NumpyBackend() if quantize is None else ml.CBackend(quantize=quantize, num_threads=1)
    is_folder = isinstance(model, (str, os.PathLike)) and Path(model).is_dir()
    if is_folder:
        classifier = Classifier.from_folder(model, ml.NumpyBackend(), labels=names, preprocess=preprocess)
        preprocess, names, params = classifier.preprocess, classifier.labels, classifier.model.get_parameters()
        logical: Any = models.from_config(model)
    else:
        known = [name for name in models.__all__ if name.startswith("resnet")]
        if isinstance(model, str) and model not in known:
            raise InvalidValueError(f"there is no model {model!r}", hint=f"give a folder; {among(model, known)}")
        logical = getattr(models, model)() if isinstance(model, str) else model
        params = None
    preprocess = preprocess or Preprocess.imagenet()
    height, width = _sizes(preprocess)
    compiled = ml.compile(logical, backend, shapes={"input": [1, 3, height, width]}, inference=True)
    if weights is not None:
        ml.load_weights(compiled, weights)
    exported = compiled.export(place / "model", target="web", prefix="classifier", params=params)
    described = {
        "resize": preprocess.resize,
        "crop": [height, width],
        "mean": list(preprocess.mean),  # type: ignore[arg-type]
        "std": list(preprocess.std),  # type: ignore[arg-type]
        "scale": None if preprocess.scale == 1 / 255 else preprocess.scale,
        "interpolation": preprocess.interpolation,
        "rounding": preprocess.crop_rounding,
        "background": list(preprocess.background),
        "input": compiled.input_keys[0],
        "output": compiled.output_keys[0],
        "labels": names,
        "isRandom": weights is None and not is_folder,
    }
    (place / "image.json").write_text(json.dumps(described), "utf-8")
    shutil.copyfile(_HERE / "image.mjs", place / "image.mjs")
    shutil.copyfile(_HERE / "image.html", place / "index.html")
    return exported


def _sizes(preprocess: Preprocess) -> tuple[int, int]:
    """Return height and width of what the model sees."""
    crop = preprocess.crop
    size = crop if crop is not None else preprocess.resize
    if size is None or (crop is None and isinstance(size, int)):
        raise InvalidValueError("the preprocessing gives images of any size", hint="set crop")
    if preprocess.interpolation not in _INTERPOLATIONS:
        text = f"the page cannot resize images by {preprocess.interpolation!r}"
        raise InvalidValueError(text, hint=f"use one of {', '.join(_INTERPOLATIONS)}")
    return (size, size) if isinstance(size, int) else size
