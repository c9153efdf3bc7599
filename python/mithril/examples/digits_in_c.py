"""Train a classifier of handwritten digits in C: the training step is exported, ``train_digits.c`` calls it.

``python -m mithril.examples.digits_in_c FOLDER`` leaves everything in the folder. The same training on the NumPy
backend shows that the losses agree to rounding.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import mithril as ml
from mithril.optional_packages import require

Array = np.ndarray[Any, Any]

_DESCRIPTION = "Train a classifier of handwritten digits by exported C, and on the NumPy backend for comparison."
#: As in train_digits.c.
IMAGES, BATCHES, HIDDEN = 72, 20, 32
EPOCHS, RATE = 10, 0.01


def network() -> ml.Model:
    """Build the classifier with its loss."""
    model = ml.Model()
    model |= ml.Linear(HIDDEN, name="hidden")(input="input")
    model += ml.Relu()()
    model += ml.Linear(10, name="out")(output="logits")
    model |= ml.CrossEntropy()(input="logits", target="target", output="loss")
    return model


class Trained(NamedTuple):
    """What a training gives: the loss of each step, and the parameters in order."""

    losses: Array
    params: list[Array]


def batches() -> tuple[list[dict[str, Array]], dict[str, Array]]:
    """Load scikit-learn's digits: the batches to train, and the rest to test."""
    datasets = require("sklearn.datasets", "loading the digits")
    digits = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.data[order] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int32)
    starts = range(0, IMAGES * BATCHES, IMAGES)
    train = [{"input": images[i : i + IMAGES], "target": labels[i : i + IMAGES]} for i in starts]
    return train, {"input": images[IMAGES * BATCHES :], "target": labels[IMAGES * BATCHES :]}


def compiled(train: list[dict[str, Array]]) -> ml.PhysicalModel:
    """Compile the network for the sizes of a batch."""
    shapes = {name: list(array.shape) for name, array in train[0].items()}
    return ml.compile(network(), ml.NumpyBackend(), shapes=shapes, dtypes={"target": "int32"})


def train_in_c(folder: Path, train: list[dict[str, Array]]) -> Trained:
    """Export the training step, build the program around it, and run that."""
    model = compiled(train)
    params = model.randomize_params(seed=0)
    optimizer = ml.optim.AdamW(RATE)
    model.export(
        folder, prefix="digits", data=train[0], params=params, optimizer=optimizer, loss="loss", weights_inside=True
    )
    shutil.copy(Path(__file__).with_name("train_digits.c"), folder)
    (folder / "digits.data").write_bytes(b"".join(b["input"].tobytes() + b["target"].tobytes() for b in train))
    build = "cc -std=c11 -O3 -march=native -Wall -Wextra -Werror train_digits.c digits.c -o train -lm -lpthread"
    subprocess.run(build.split(), cwd=folder, check=True)
    run = subprocess.run(["./train", str(EPOCHS), str(RATE)], cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    numbers = np.fromfile(folder / "digits.trained", np.float32)
    updated = []
    for name in params:
        count = params[name].size
        updated.append(numbers[:count].reshape(params[name].shape))
        numbers = numbers[count:]
    return Trained(np.array(run.stdout.split(), np.float32), updated)


def train_in_python(train: list[dict[str, Array]]) -> Trained:
    """Train the same on the NumPy backend."""
    model = compiled(train)
    params: dict[str, Any] = dict(model.randomize_params(seed=0))
    optimizer = ml.optim.AdamW(RATE)
    losses = []
    for epoch in range(EPOCHS):
        optimizer.learning_rate = RATE * (EPOCHS - epoch) / EPOCHS
        for batch in train:
            outputs, gradients = model.evaluate(params, batch, True)
            params = optimizer.update(params, gradients)
            losses.append(outputs["loss"])
    return Trained(np.array(losses, np.float32), list(params.values()))


def accuracy(params: list[Array], test: dict[str, Array]) -> float:
    """Return the share of images that are classified rightly."""
    weight1, bias1, weight2, bias2 = params
    scores = np.maximum(test["input"] @ weight1.T + bias1, 0) @ weight2.T + bias2
    return float((scores.argmax(1) == test["target"]).mean())


def main() -> None:
    """Train in both ways, and print what comes out."""
    parser = argparse.ArgumentParser(prog="python -m mithril.examples.digits_in_c", description=_DESCRIPTION)
    parser.add_argument("folder", nargs="?", help="where the C files go (default: a temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        train, test = batches()
        in_c = train_in_c(Path(args.folder or temporary), train)
        expected = train_in_python(train)
    for epoch in range(EPOCHS):
        place = slice(epoch * BATCHES, (epoch + 1) * BATCHES)
        print(
            f"epoch {epoch + 1:2}: loss in C {in_c.losses[place].mean():.6f}, NumPy {expected.losses[place].mean():.6f}"
        )
    print(f"accuracy: in C {accuracy(in_c.params, test):.4f}, NumPy {accuracy(expected.params, test):.4f}")


if __name__ == "__main__":
    main()
