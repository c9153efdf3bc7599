"""Train two models on real handwritten digits, each defined once, on every backend that is installed.

``make demo`` runs this. Both models start from the same parameters and see the same batches on every backend, so
that the losses agree to rounding. In float32 rounding grows with every step of the training; run it with
``--dtype float64`` to see that nothing else differs. The learning curves are written as a picture.
"""

from __future__ import annotations

import argparse
import copy
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import mithril as ml
from mithril.optional_packages import require

from .curves import COMPILED, installed, picture

#: Model -> passes over the training images, and the test accuracy to be reached.
EPOCHS, WANTED = {"dense": 12, "convolutional": 6}, {"dense": 0.96, "convolutional": 0.95}
#: All backends that train, the reference first.
BACKENDS = ("interpreter", "numpy", "torch", "jax", "mlx", "c")


def dense() -> ml.Model:
    """Build the classifier of fully connected layers."""
    model = ml.Model(name="dense")
    model |= ml.Flatten()(input="input", output="flat")
    model += ml.Linear(dimension=128)(input="flat", output="hidden1")
    model += ml.Relu()(input="hidden1", output="hidden1_act")
    model += ml.Linear(dimension=64)(input="hidden1_act", output="hidden2")
    model += ml.Relu()(input="hidden2", output="hidden2_act")
    model += ml.Linear(dimension=10)(input="hidden2_act", output="logits")
    return model


def convolutional() -> ml.Model:
    """Build the classifier of convolutions."""
    model = ml.Model(name="convolutional")
    model |= ml.Conv2d(filters=16, kernel_size=3, stride=1, padding="same")(input="input", output="conv1")
    model += ml.Relu()(input="conv1", output="conv1_act")
    model += ml.MaxPool2d(kernel_size=2)(input="conv1_act", output="pool1")
    model += ml.Conv2d(filters=32, kernel_size=3, stride=1, padding="same")(input="pool1", output="conv2")
    model += ml.Relu()(input="conv2", output="conv2_act")
    model += ml.MaxPool2d(kernel_size=2)(input="conv2_act", output="pool2")
    model += ml.Flatten()(input="pool2", output="flat")
    model += ml.Linear(dimension=64)(input="flat", output="hidden")
    model += ml.Relu()(input="hidden", output="hidden_act")
    model += ml.Linear(dimension=10)(input="hidden_act", output="logits")
    return model


def with_loss(model: ml.Model) -> ml.Model:
    """Add the loss: one more input, ``target``, and one more output, ``loss``."""
    trained = copy.copy(model)
    trained |= ml.CrossEntropy()(input=ml.IOKey("logits", expose=True), target="target", output="loss")
    return trained


@dataclass
class Run:
    """What one training gives."""

    model: str
    backend: str
    losses: list[float] = field(default_factory=list)
    accuracy: float = 0.0
    seconds: float = 0.0
    params: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)


def load_digits() -> tuple[np.ndarray[Any, Any], ...]:
    """Load scikit-learn's 1,797 images of 8 by 8 pixels: 1,437 to train, 360 to test."""
    datasets = require("sklearn.datasets", "loading the digits")
    digits = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images / 16.0).astype(np.float32)[order, None]
    labels = digits.target.astype(np.int64)[order]
    return images[:1437], labels[:1437], images[1437:], labels[1437:]


def train(model: ml.Model, backend: ml.Backend, data: tuple[np.ndarray[Any, Any], ...], epochs: int) -> Run:
    """Train by stochastic gradient descent with momentum."""
    tqdm = require("tqdm", "a progress bar").tqdm
    images, labels, test_images, test_labels = data
    run = Run(str(model.name), backend.name)
    shapes = {"input": ["batch", 1, 8, 8], "target": ["batch"]}
    start = time.perf_counter()
    compiled = ml.compile(with_loss(model), backend, shapes=shapes, jit=backend.name in COMPILED)
    params = compiled.randomize_params(seed=1)
    velocity = {name: 0.0 * value for name, value in params.items()}
    batch = 32
    with tqdm(
        total=epochs * (len(images) // batch), desc=f"{run.model} on {run.backend}", leave=False, disable=None
    ) as bar:
        for epoch in range(epochs):
            order = np.random.default_rng(epoch).permutation(len(images))
            losses = []
            for at in range(0, len(order) - batch + 1, batch):
                chosen = order[at : at + batch]
                outputs, gradients = compiled.evaluate(
                    params, {"input": images[chosen], "target": labels[chosen]}, output_gradients={"loss": 1.0}
                )
                for name, gradient in gradients.items():
                    velocity[name] = 0.9 * velocity[name] + gradient
                    params[name] = params[name] - 0.05 * velocity[name]
                losses.append(float(outputs["loss"]))
                bar.update()
            run.losses.append(float(np.mean(losses)))
    inference = ml.compile(model, backend, shapes={"input": ["batch", 1, 8, 8]}, inference=True)
    logits = inference.evaluate(params, {"input": test_images})["logits"]
    run.accuracy = float(np.mean(np.argmax(backend.to_numpy(logits), axis=1) == test_labels))
    run.seconds = time.perf_counter() - start
    run.params = {name: backend.to_numpy(value) for name, value in params.items()}
    return run


def differences(runs: list[Run]) -> tuple[float, float]:
    """Return the largest difference of the learning curves, and of the parameters at the end."""
    first, *others = runs
    losses = [abs(a - b) for r in others for a, b in zip(r.losses, first.losses, strict=True)]
    params = [float(np.abs(r.params[k] - first.params[k]).max()) for r in others for k in first.params]
    return max(losses, default=0.0), max(params, default=0.0)


def main(arguments: list[str] | None = None) -> int:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, help="passes over the training images (default 12 and 6)")
    parser.add_argument("--backends", nargs="+", default=BACKENDS, help="backends to train on (default: all)")
    parser.add_argument("--dtype", default="float32", help="dtype of the floats (default float32)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the picture (default out)")
    options = parser.parse_args(arguments)
    data = load_digits()
    backends = installed(list(options.backends), options.dtype)
    runs: list[Run] = []
    print(f"{'model':<15}{'backend':<13}{'loss':>9}{'accuracy':>10}{'seconds':>9}{'largest difference of':>24}")
    print(f"{'':<56}{'losses':>12}{'parameters':>12}")
    for model in (dense(), convolutional()):
        mine: list[Run] = []
        for backend in backends:
            run = train(model, backend, data, options.epochs or EPOCHS[str(model.name)])
            mine.append(run)
            losses, parameters = differences([mine[0], run])
            print(
                f"{run.model:<15}{run.backend:<13}{run.losses[-1]:>9.4f}{run.accuracy:>10.4f}{run.seconds:>9.1f}"
                f"{losses:>12.1e}{parameters:>12.1e}"
            )
        runs += mine
    path = options.out / "digits.png"
    picture({model: {r.backend: r.losses for r in runs if r.model == model} for model in WANTED}, path)
    print(f"learning curves: {path}")
    failed = [r for r in runs if r.accuracy < WANTED[r.model]]
    for run in failed:
        print(f"the {run.model} model reaches {run.accuracy:.4f} on {run.backend}, less than {WANTED[run.model]}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
