"""Trainings of real models on real data: the backends agree, and the models learn."""

import itertools
import math

import mithril as ml
import numpy as np
import pytest
from backends import BACKENDS, backend
from mithril.examples.gpt import train as gpt
from mithril.examples.resnet import train as resnet

pytest.importorskip("sklearn")
SIZES = {"block_size": 24, "dims": 32, "num_heads": 4, "num_layers": 2}
OPTIONS = {"batch_size": 16, "progress": False}


@pytest.fixture(scope="module")
def text():
    return gpt.Text.of(gpt.reference(25_000), length=24)


def train_gpt(name, text, **options):
    settings = {"optimizer": ml.optim.AdamW(0.01), "epochs": 1, **OPTIONS, **options}
    return gpt.train(backend(name, settings.pop("dtype", "float64")), text, sizes=SIZES, **settings)


@pytest.fixture(scope="module")
def few(text):
    """The beginning of the text: 20 batches."""
    return gpt.Text(text.characters, text.train[:320], text.validation[:32])


@pytest.fixture(scope="module")
def reference(few):
    """The training on NumPy."""
    return train_gpt("numpy", few)


def test_entropies_of_a_text(text):
    """Against the definition, character by character."""
    entropies = text.entropies()
    pairs = [(a, b) for row in text.train.tolist() for a, b in itertools.pairwise(row)]
    share = {pair: pairs.count(pair) / len(pairs) for pair in set(pairs)}
    last = {b: sum(v for (_, other), v in share.items() if other == b) for _, b in share}
    first = {a: sum(v for (other, _), v in share.items() if other == a) for a, _ in share}
    assert entropies["entropy"] == pytest.approx(-sum(v * math.log(v) for v in last.values()))
    known = -sum(v * math.log(v / first[a]) for (a, _), v in share.items())
    assert entropies["entropy, predecessor known"] == pytest.approx(known)


def test_gpt_learns_a_real_text(text):
    """Better than the frequencies of the characters allow; a model that sees no text cannot be."""
    history, _ = train_gpt("torch", text)
    entropy = text.entropies()["entropy"]
    assert history["val_loss"][-1] < 0.95 * entropy < history.batches["loss"][0]


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "numpy"])
def test_gpt_has_the_same_losses_on_every_backend(name, few, reference):
    """In float64 only the order of sums differs: rounding of 1e-16, which 20 steps let grow."""
    history, compiled = train_gpt(name, few)
    expected, params = reference
    np.testing.assert_allclose(history.batches["loss"], expected.batches["loss"], rtol=1e-9)
    assert history["val_loss"] == pytest.approx(expected["val_loss"], rel=1e-9)
    assert history["val_accuracy"] == expected["val_accuracy"]
    for key, value in params.get_parameters().items():
        np.testing.assert_allclose(compiled.backend.to_numpy(compiled.parameters[key]), value, atol=1e-8, err_msg=key)


@pytest.mark.parametrize("name", BACKENDS)
def test_gpt_goes_on_exactly(name, few, tmp_path):
    class Killed(Exception):
        pass

    def kill(row):
        if row["batch"] == 5:
            raise Killed

    text = gpt.Text(few.characters, few.train[:128], few.validation[:16])
    expected, whole = train_gpt(name, text, dtype="float32")
    with pytest.raises(Killed):
        train_gpt(name, text, dtype="float32", checkpoint=tmp_path, checkpoint_every=3, on_batch=kill)
    actual, parts = train_gpt(name, text, dtype="float32", checkpoint=tmp_path)
    assert actual == expected
    for key, value in whole.get_parameters().items():
        np.testing.assert_array_equal(parts.backend.to_numpy(parts.parameters[key]), whole.backend.to_numpy(value))


@pytest.fixture(scope="module")
def digits():
    (images, labels), _ = resnet.images(8)
    return images[:64], labels[:64]


def train_resnet(name, digits, **options):
    settings = {"optimizer": ml.optim.SGD(0.01, momentum=0.9), "epochs": 1, **OPTIONS, **options}
    images, labels = digits
    return resnet.train(backend(name, "float64"), digits, (images[:16], labels[:16]), **settings)


@pytest.fixture(scope="module")
def few_digits(digits):
    """Three batches."""
    return tuple(array[:48] for array in digits)


@pytest.fixture(scope="module")
def resnet_reference(few_digits):
    return train_resnet("numpy", few_digits)[0]


def test_resnet_learns_real_images(digits):
    """Better than all classes alike."""
    history, _ = train_resnet("numpy", digits, epochs=2)
    assert history["loss"][-1] < math.log(10) < history["loss"][0] + 0.5
    assert history["accuracy"][-1] > 0.5


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "numpy"])
def test_resnet_has_the_same_losses_on_every_backend(name, few_digits, resnet_reference):
    """In float64, where no number is so near to the bend of a `relu` that rounding decides on which side it lies."""
    history, _ = train_resnet(name, few_digits)
    np.testing.assert_allclose(history.batches["loss"], resnet_reference.batches["loss"], rtol=1e-8)
    np.testing.assert_allclose(history["val_loss"], resnet_reference["val_loss"], rtol=1e-7)
