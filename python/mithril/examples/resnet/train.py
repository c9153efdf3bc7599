"""Train ResNet-18 on real handwritten digits, on every backend that is installed.

The images are those of scikit-learn, enlarged to 16 by 16 pixels. All backends start from the same parameters and see
the same batches, in float64: the losses agree to rounding. With ``--dtype float32`` it is faster, and they part after
some batches. The learning rate was chosen by the accuracy on the images that validate, which is therefore no estimate
for others.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np

import mithril as ml
from mithril.models import resnet18

from ..curves import COMPILED, parser, train_everywhere
from ..digits import load_digits

Array = np.ndarray[Any, Any]


def images(size: int = 16) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return images ``[n, 3, size, size]`` with labels, to train and to test."""
    train_images, train_labels, test_images, test_labels = load_digits()

    def enlarged(small: Array) -> Array:
        return np.kron(small, np.ones((1, 3, size // 8, size // 8), small.dtype))

    return (enlarged(train_images), train_labels), (enlarged(test_images), test_labels)


def train(
    backend: ml.Backend, data: tuple[Array, Array], validation: Any, epochs: int, **options: Any
) -> tuple[ml.train.History, ml.PhysicalModel]:
    """Train ResNet-18; see `mithril.train.fit` for the options."""
    size = data[0].shape[-1]
    shapes = {"input": ["batch", 3, size, size]}
    compiled = ml.compile(resnet18(num_classes=10), backend, shapes=shapes, jit=backend.name in COMPILED)
    chosen = {"optimizer": ml.optim.SGD(0.001, momentum=0.9), "metrics": ["accuracy"], **options}
    return ml.train.fit(compiled, data, validation=validation, epochs=epochs, **chosen), compiled


def main(arguments: list[str] | None = None) -> int:
    """Run the program."""
    options = parser(__doc__ or "", epochs=2, dtype="float64").parse_args(arguments)
    data, validation = images()

    def run(backend: ml.Backend, options: argparse.Namespace) -> tuple[ml.train.History, ml.PhysicalModel]:
        folder = None if options.checkpoint is None else options.checkpoint / f"{backend.name}-{options.dtype}"
        return train(backend, data, validation, options.epochs, checkpoint=folder)

    train_everywhere(run, options, "resnet18", {"all classes alike": math.log(10)})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
