"""Every layer alone: all backends against the reference interpreter, and gradients against differences."""

import functools
import os

import mithril as ml
import numpy as np
import pytest
from backends import BACKENDS, backend

from tools.compare_all.layers import ALL, CASES, LAYERS, build


def test_no_layer_is_forgotten():
    assert set(LAYERS) <= set(ALL)
    assert set(ALL) == {row["name"] for row in ml._core.layer_definitions()}


def compiled(layer, backend, data):
    """Compile with all floats trainable; return the model, its parameters and the other inputs."""
    floats = {n: v for n, v in data.items() if v.dtype.kind == "f"}
    rest = {n: v for n, v in data.items() if n not in floats}
    model = ml.compile(
        layer,
        backend,
        shapes={n: v.shape for n, v in data.items()},
        dtypes={n: v.dtype.name for n, v in rest.items()},
        trainable_keys=floats,
    )
    arrays = {n: backend.array(v) for n, v in floats.items()}
    return model, {**model.randomize_params(seed=0), **arrays}, rest


def total(outputs):
    return sum(v.sum() for v in outputs.values() if v.dtype.kind == "f")


def check_differences(model, params, rest, gradients):
    """Slope along a random direction: what the gradients say, and the difference of two evaluations."""
    rng = np.random.default_rng(7)
    direction = {n: rng.uniform(-1, 1, v.shape) for n, v in params.items()}
    step = 1e-6
    up, down = (
        total(model.evaluate({n: np.asarray(v + h * direction[n]) for n, v in params.items()}, rest))
        for h in (step, -step)
    )
    slope = sum((gradients[n] * direction[n]).sum() for n in gradients)
    np.testing.assert_allclose(slope, (up - down) / (2 * step), rtol=1e-4, atol=1e-5)


def results_of(layer, chosen, data, differences=False):
    """All that a layer gives on a backend, as NumPy arrays: outputs, states, gradients."""
    model, params, rest = compiled(layer, chosen, data)
    actual = dict(model.evaluate(params, rest))
    actual |= {f"state {n}": v for n, v in model.state.items()}
    if params and any("float" in str(v.dtype) for n, v in actual.items() if n in model.output_keys):
        _, gradients = model.evaluate(params, rest, True)
        # Running statistics are entries, too, and have no gradient but zeros.
        assert set(model.parameter_keys) == set(params) - set(model.state)
        assert set(model.parameter_keys) <= set(gradients) <= set(params)
        assert not any(np.asarray(chosen.to_numpy(gradients[n])).any() for n in set(params) & set(model.state))
        gradients = {n: gradients[n] for n in model.parameter_keys}
        actual |= {f"gradient {n}": v for n, v in gradients.items()}
        if differences and "key" not in model.state:
            check_differences(model, params, rest, gradients)
    return {key: np.asarray(chosen.to_numpy(value)) for key, value in actual.items()}


@functools.cache
def reference_case(number):
    """Layer, data and results of a case by the reference interpreter."""
    layer, data = build(*CASES[number])
    return layer, data, results_of(layer, ml.InterpreterBackend(dtype="float64"), data)


NUMBERS = range(len(CASES))
#: XLA compiles each case for a third of a second: JAX takes the first case of each layer, and with `make test-all` all.
FIRST = [i for i in NUMBERS if CASES[i][0] not in {layer for layer, *_ in CASES[:i]}]
CHOSEN = [(i, n) for n in BACKENDS for i in (NUMBERS if n != "jax" or "MITHRIL_TEST_ALL" in os.environ else FIRST)]


@pytest.mark.parametrize(
    ("number", "backend_name"),
    CHOSEN,
    ids=lambda x: "{}-{}-{}".format(*CASES[x]).replace(" ", "_") if isinstance(x, int) else x,
)
def test_layer(number, backend_name):
    layer, data, reference = reference_case(number)
    # Its gradients are not those of what it computes: that is what it is for.
    has_slope = backend_name == "numpy" and CASES[number][0] not in ("StopGradient", "ReplaceGradient")
    actual = results_of(layer, backend(backend_name, "float64"), data, differences=has_slope)
    assert list(actual) == list(reference)
    for key, value in actual.items():
        assert value.dtype == reference[key].dtype
        np.testing.assert_allclose(value, reference[key], rtol=1e-9, atol=1e-9, err_msg=key)
