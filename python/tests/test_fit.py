"""`ml.train.fit`: data, losses, metrics, histories, checkpoints; training that was interrupted goes on exactly."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import mithril as ml
import numpy as np
import pytest
import torch
from backends import BACKENDS, backend
from mithril.train import checkpoints, progress
from mithril.train.metrics import accuracy, cross_entropy

pytest.importorskip("safetensors")


def network():
    """A classifier with everything that has a memory: running statistics and a counter of random numbers."""
    model = ml.Model()
    model |= ml.Linear(16, name="first")(input="input")
    model += ml.BatchNorm1d(name="norm")()
    model += ml.Relu()()
    model += ml.Dropout(0.3)()
    model += ml.Linear(3, name="second")(output="output")
    return model


def examples(n=61, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5)).astype(np.float32)
    return {"input": x, "target": (x[:, :3] + 0.3 * rng.normal(size=(n, 3))).argmax(1)}


def make(name="numpy", **options):
    return ml.compile(network(), backend(name, **options), shapes={"input": ["batch", 5]})


def fit(compiled, data=None, **options):
    options = {"optimizer": ml.optim.Adam(0.01), "batch_size": 8, "epochs": 3, "progress": False, **options}
    return ml.train.fit(compiled, examples() if data is None else data, **options)


class Killed(Exception):
    """What stands for the end of the process."""


def killed_after(batches):
    """A callback that ends the training when so many batches are done."""
    done = []

    def on_batch(row):
        done.append(row)
        if len(done) == batches:
            raise Killed

    return on_batch


def numbers(compiled):
    """Parameters and state as bytes."""
    arrays = {**compiled.get_parameters(), **compiled.state}
    return {name: np.array(compiled.backend.to_numpy(value)).tobytes() for name, value in arrays.items()}


# --- going on exactly -------------------------------------------------------------------------------------------

OPTIMIZERS = {"momentum": lambda: ml.optim.SGD(0.05, momentum=0.9), "adamw": lambda: ml.optim.AdamW(lambda s: 0.1 / s)}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", BACKENDS)
def test_resumed_training_gives_the_same_numbers(name, optimizer, tmp_path):
    """With dropout, running statistics, momentum and shuffling; killed in the middle of an epoch, and twice."""
    options = {"metrics": ["accuracy"], "validation": examples(20, seed=1), "checkpoint_every": 3}
    whole = make(name)
    expected = fit(whole, optimizer=OPTIMIZERS[optimizer](), checkpoint=tmp_path / "whole", **options)
    again = {**options, "checkpoint": tmp_path / "parts"}
    for batches in (11, 8):
        with pytest.raises(Killed):
            fit(make(name), optimizer=OPTIMIZERS[optimizer](), on_batch=killed_after(batches), **again)
    parts = make(name)
    found = fit(parts, optimizer=OPTIMIZERS[optimizer](), **again)
    assert found == expected
    assert len(found.batches["loss"]) == 3 * (61 // 8)
    assert numbers(parts) == numbers(whole)
    plain = make(name)
    assert fit(plain, optimizer=OPTIMIZERS[optimizer](), **{**options, "checkpoint_every": None}) == expected
    assert numbers(plain) == numbers(whole)


@pytest.mark.parametrize("name", BACKENDS)
def test_resumed_training_of_a_convolutional_network(name, tmp_path):
    """The same with matrices in every memory layout, and bfloat16-free float32 sums that notice one."""
    def convolutional():
        model = ml.Model()
        model |= ml.Conv2d(4, 3, padding="same", name="conv")(input="input")
        model += ml.BatchNorm2d(name="norm")()
        model += ml.Relu()()
        model += ml.Flatten()()
        model += ml.Linear(32, name="hidden")()
        model += ml.Relu()()
        model += ml.Linear(3, name="out")(output="output")
        return ml.compile(model, backend(name), shapes={"input": ["batch", 2, 6, 6]})

    rng = np.random.default_rng(0)
    data = (rng.normal(size=(40, 2, 6, 6)).astype(np.float32), rng.integers(0, 3, 40))
    whole, parts = convolutional(), convolutional()
    expected = fit(whole, data)
    with pytest.raises(Killed):
        fit(convolutional(), data, on_batch=killed_after(8), checkpoint=tmp_path, checkpoint_every=7)
    assert fit(parts, data, checkpoint=tmp_path, checkpoint_every=7) == expected
    assert numbers(parts) == numbers(whole)
