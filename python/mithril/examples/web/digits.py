"""A page on which digits are drawn with the mouse and recognised, by a model that is trained in the page.

The folder holds a training step of a small network with random parameters, in ``model``, scikit-learn's 1,797 images of
8 by 8 pixels, and the page. A step with the learning rate 0 changes nothing: it is how the page recognises a digit.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import mithril as ml

from ..digits import dense, load_digits, with_loss

__all__ = ["BATCH", "step", "write"]

#: Images of one step.
BATCH = 32
_HERE = Path(__file__).parent


def step() -> Any:
    """Compile the network of the digits demo with its loss.

    Returns
    -------
    PhysicalModel
        Takes ``input``, ``[BATCH, 1, 8, 8]`` from 0 to 1, and ``target``, ``[BATCH]``; gives ``logits`` and ``loss``.
    """
    shapes = {"input": [BATCH, 1, 8, 8], "target": [BATCH]}
    return ml.compile(with_loss(dense()), ml.NumpyBackend(), shapes=shapes, dtypes={"target": "int64"})


def write(folder: str | os.PathLike[str]) -> Any:
    """Write the page, its model and its images.

    Parameters
    ----------
    folder : path
        Made where it does not exist.

    Returns
    -------
    ExportedWeb
        What was exported into ``folder/model``.

    Raises
    ------
    BackendUnavailableError
        If there is no compiler for WebAssembly.
    MissingDependencyError
        If scikit-learn, which has the images, is not installed.
    """
    images, labels, test_images, test_labels = load_digits()
    place = Path(folder)
    compiled = step()
    data = {"input": images[:BATCH], "target": labels[:BATCH]}
    params = compiled.randomize_params(seed=0)
    exported = compiled.export(
        place / "model",
        target="web",
        prefix="digits",
        optimizer=ml.optim.SGD(0.1),
        loss="loss",
        data=data,
        params=params,
    )
    pixels = np.round(16 * np.concatenate([images, test_images])).astype(np.uint8)
    answers = np.concatenate([labels, test_labels]).astype(np.uint8)
    (place / "digits.bin").write_bytes(pixels.tobytes() + answers.tobytes())
    shutil.copyfile(_HERE / "digits.mjs", place / "digits.mjs")
    shutil.copyfile(_HERE / "digits.html", place / "index.html")
    return exported
