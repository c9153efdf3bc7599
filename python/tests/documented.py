"""The backends that programs of the documentation run on, and what its models give on NumPy."""

import functools

import mithril as ml
import numpy as np
import pages
import pytest
from networks import classifier, cnn

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


def inputs(*shape, seed=0):
    """Normally distributed float32 numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@functools.cache
def reference_results(name):
    """Output of a model on NumPy, and its gradients, for parameters of seed 1."""
    model, x = {"classifier": (classifier(), inputs(2, 5)), "cnn": (cnn(), inputs(2, 3, 8, 8))}[name]
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": list(x.shape)})
    outputs, gradients = compiled.evaluate(compiled.randomize_params(seed=1), {"input": x}, True)
    return outputs["output"], gradients
