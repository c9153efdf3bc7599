"""The models that the documentation shows, and the backends that its programs run on."""

import functools

import mithril as ml
import numpy as np
import pages
import pytest

#: Backends that programs of the documentation run on.
BACKENDS = ("numpy", "interpreter", "torch", "jax", "mlx")
#: Those that differentiate and compile by themselves.
FRAMEWORKS = ("torch", "jax", "mlx")


def backend(name, **options):
    """A backend by its name on the CPU, or a skipped test where its framework is not installed."""
    if not pages.is_installed(name):
        pytest.skip(f"{name} is not installed")
    return ml.get_backend(name, device="cpu", **options)


def available(names=BACKENDS):
    """Names of the backends whose frameworks are installed."""
    return [name for name in names if pages.is_installed(name)]


def classifier():
    model = ml.Model()
    model |= ml.Linear(dimension=128)(input="input", output="hidden1")
    model += ml.Relu()(input="hidden1", output="hidden1_act")
    model += ml.Linear(dimension=64)(input="hidden1_act", output="hidden2")
    model += ml.Relu()(input="hidden2", output="hidden2_act")
    model += ml.Linear(dimension=10)(input="hidden2_act", output="logits")
    model += ml.Softmax()(input="logits", output="output")
    return model


def cnn():
    model = ml.Model()
    model |= ml.Conv2d(filters=16, kernel_size=3, stride=1, padding="same")(input="input", output="conv1")
    model += ml.Relu()(input="conv1", output="conv1_act")
    model += ml.MaxPool2d(kernel_size=2)(input="conv1_act", output="pool1")
    model += ml.Conv2d(filters=32, kernel_size=3, stride=1, padding="same")(input="pool1", output="conv2")
    model += ml.Relu()(input="conv2", output="conv2_act")
    model += ml.MaxPool2d(kernel_size=2)(input="conv2_act", output="pool2")
    model += ml.Flatten()(input="pool2", output="flat")
    model += ml.Linear(dimension=64)(input="flat", output="hidden")
    model += ml.Relu()(input="hidden", output="hidden_act")
    model += ml.Linear(dimension=10)(input="hidden_act", output="output")
    return model


def inputs(*shape, seed=0):
    """Normally distributed float32 numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@functools.cache
def wanted(name):
    """Output of a model above on NumPy, and its gradients, for parameters of seed 1."""
    model, x = {"classifier": (classifier(), inputs(2, 5)), "cnn": (cnn(), inputs(2, 3, 8, 8))}[name]
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": list(x.shape)})
    outputs, gradients = compiled.evaluate(compiled.randomize_params(seed=1), {"input": x}, True)
    return outputs["output"], gradients
