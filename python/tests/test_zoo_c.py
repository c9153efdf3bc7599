"""The known models in C against NumPy, which other tests hold against the originals: small, outputs and gradients."""

import mithril as ml
import numpy as np
import pytest
from mithril import models

from tools.compare_all.zoo import MODELS, TEXT, TOKENS, images

RANDOM = np.random.default_rng(0)
PORTS = ("query", "key", "value")


def pair(name, **options):
    """Return the model on C and on NumPy, parameters, and data."""
    build, data = MODELS[name]
    model = build()
    shapes = {key: list(value.shape) for key, value in data.items()}
    c = ml.compile(model, ml.CBackend(num_threads=2, flags="-O1"), shapes=shapes, **options)
    reference = ml.compile(model, ml.NumpyBackend(), shapes=shapes, **options)
    return c, reference, reference.randomize_params(seed=1), data


def worst(actual, expected):
    """Largest distance, in parts of the largest element."""
    assert list(actual) == list(expected)
    return max(np.abs(actual[k] - expected[k]).max() / (np.abs(expected[k]).max() + 1e-12) for k in expected)


@pytest.mark.parametrize("name", MODELS)
def test_outputs(name):
    c, reference, params, data = pair(name, inference=True)
    assert worst(c.evaluate(params, data), reference.evaluate(params, data)) < 1e-5


@pytest.mark.parametrize("name", ["resnet18", "gpt"])
def test_gradients(name):
    c, reference, params, data = pair(name)
    outputs = reference.evaluate(params, data)
    cotangents = {key: RANDOM.standard_normal(value.shape).astype(np.float32) for key, value in outputs.items()}
    actual, expected = (p.evaluate_gradients(params, data, output_gradients=cotangents) for p in (c, reference))
    # Gradients behind batch norm of two images are small differences of large sums.
    assert worst(actual, expected) < (1e-3 if name == "resnet18" else 1e-5)


#: Shapes of query, key and value, a mask, options.
ATTENTION = [
    # One head: blocks of its queries.
    (([1, 1, 96, 16], [1, 1, 200, 16], [1, 1, 200, 24]), None, {"is_causal": True}),
    (([2, 3, 37, 8], [2, 3, 41, 8], [2, 3, 41, 8]), RANDOM.standard_normal((37, 41)).astype(np.float32), {}),
    (([1, 4, 32, 8], [1, 2, 48, 8], [1, 2, 48, 8]), RANDOM.random((1, 1, 32, 48)) < 0.4, {"enable_gqa": True}),
]


def test_attention_goes_part_by_part():
    model, data = ml.Model(), {}
    for i, (sizes, mask, options) in enumerate(ATTENTION):
        arrays = {
            name: RANDOM.standard_normal(size).astype(np.float32) for name, size in zip(PORTS, sizes, strict=True)
        }
        arrays.update({} if mask is None else {"mask": mask})
        data.update({f"{name}{i}": value for name, value in arrays.items()})
        ports = {name: f"{name}{i}" for name in arrays}
        model |= ml.ScaledDotProductAttention(**options)(**ports, output=f"output{i}")
    options = {
        "shapes": {name: list(value.shape) for name, value in data.items()},
        "dtypes": {name: str(value.dtype) for name, value in data.items()},
        "inference": True,
    }
    c = ml.compile(model, ml.CBackend(num_threads=3, flags="-O1"), **options)
    expected = ml.compile(model, ml.NumpyBackend(), **options).evaluate({}, data)
    assert str(c.stages["kernel_selection"]).count("for each of") == len(ATTENTION)
    assert worst(c.evaluate({}, data), expected) < 1e-5


def test_donated_caches_are_written_in_place():
    model = models.create_gpt(**TEXT, dims=32, block_size=16, cache=True)
    caches = {f"past_{kind}_{i}": images(1, 8).reshape(1, 4, 6, 8) for i in range(2) for kind in ("key", "value")}
    data = {"input": TOKENS[:1, :2], "position": np.array(3), "padding": np.zeros(1, np.int64)}
    options = {"shapes": {name: list(value.shape) for name, value in {**data, **caches}.items()}, "inference": True}
    reference = ml.compile(model, ml.NumpyBackend(), **options)
    params = reference.randomize_params(seed=1)
    expected = reference.evaluate(params, {**data, **caches})
    backend = ml.CBackend(num_threads=2, flags="-O1")
    for donate in ([], list(caches)):
        donated = {name: value.copy() for name, value in caches.items()}
        c = ml.compile(model, backend, donate=donate, **options)
        actual = c.evaluate(params, {**data, **donated})
        assert worst(actual, expected) < 1e-5
        for name, old in donated.items():
            assert (actual[name.removeprefix("past_")] is old) == bool(donate)
            assert donate or np.array_equal(old, caches[name])
