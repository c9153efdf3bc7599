"""How exact float32 is in C: errors against float64 are at most twice those of torch.

The activation is smooth: where a ReLU is all but 0, the last bit of an input decides whether a gradient passes, and
that changes a sum over few pixels far more than rounding does.
"""

import mithril as ml
import numpy as np
import pytest
import torch
from torch.nn import functional


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(function, params, data, model):
    """Gradients of `loss`, and by torch in both precisions with `function`; each by its relative error."""
    shapes, dtypes = ({k: getattr(v, what) for k, v in data.items()} for what in ("shape", "dtype"))
    compiled = ml.compile(
        model, ml.CBackend(num_threads=1), shapes=shapes, dtypes={k: str(v) for k, v in dtypes.items()}
    )
    assert list(compiled.parameter_keys) == list(params)
    outputs, actual = compiled.evaluate(params, data, {"loss": 1.0})

    def by_torch(dtype):
        leaves = {name: torch.tensor(value, dtype=dtype, requires_grad=True) for name, value in params.items()}
        loss = function(leaves, **{k: torch.tensor(v, dtype=dtype) for k, v in data.items()})
        return loss.item(), dict(zip(leaves, torch.autograd.grad(loss, leaves.values()), strict=True))

    exact, expected = by_torch(torch.float64)
    np.testing.assert_allclose(outputs["loss"], exact, rtol=1e-5)
    for name, gradient in by_torch(torch.float32)[1].items():
        near(actual[name], gradient.numpy(), expected[name].numpy(), name)


def near(actual, theirs, exact, name):
    error, other = (np.linalg.norm(array - exact) for array in (actual, theirs))
    assert error <= 2 * other, f"{name}: {error / other:.2f} times the error of torch"


def test_products_with_long_sums():
    # The terms have one sign: what rounding does to a sum grows with what the terms before have come to.
    model = ml.Model()
    model |= ml.Linear(32, use_bias=False)(input="input", output="hidden")
    model |= ml.Multiply()(left="hidden", right="weights", output="product")
    model |= ml.Mean()(input="product", output="loss")
    model.set_outputs("loss")
    data = {"input": abs(normal(3000, 512)), "weights": abs(normal(3000, 32, seed=1))}
    params = {"linear.weight": normal(32, 512, seed=2)}
    check(
        lambda p, input, weights: (functional.linear(input, p["linear.weight"]) * weights).mean(), params, data, model
    )


@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_of_convolutions_and_batch_norm(stride):
    model = ml.Model()
    model |= ml.Conv2d(32, 3, padding=1, bias=False)(input="input")
    model += ml.BatchNorm2d(32)
    model += ml.Gelu()
    model += ml.Conv2d(32, 3, stride=stride, padding=1)(output="second")
    model |= ml.Multiply()(left="second", right="weights", output="product")
    model |= ml.Mean()(input="product", output="loss")
    model.set_outputs("loss")
    data = {"input": abs(normal(8, 32, 28, 28)), "weights": abs(normal(8, 32, 28 // stride, 28 // stride, seed=1))}
    params = {
        "conv2d.weight": normal(32, 32, 3, 3, seed=2) / 17,
        "batch_norm2d.weight": 1 + normal(32, seed=3) / 4,
        "batch_norm2d.bias": normal(32, seed=4),
        "conv2d_1.weight": normal(32, 32, 3, 3, seed=5) / 17,
        "conv2d_1.bias": normal(32, seed=6),
    }

    def loss(p, input, weights):
        x = functional.conv2d(input, p["conv2d.weight"], padding=1)
        x = functional.batch_norm(x, None, None, p["batch_norm2d.weight"], p["batch_norm2d.bias"], training=True)
        x = functional.conv2d(functional.gelu(x), p["conv2d_1.weight"], p["conv2d_1.bias"], stride, 1)
        return (x * weights).mean()

    check(loss, params, data, model)


def test_convolutions_with_long_sums():
    # One after another, between tensors in blocks of channels; of 4608 terms, of one sign.
    model = ml.Model()
    model |= ml.Conv2d(512, 1, bias=False)(input="input")
    model += ml.Conv2d(32, 3, stride=2, bias=False)(output="output")
    shapes = {"input": [1, 3, 21, 21]}
    compiled = ml.compile(model, ml.CBackend(num_threads=1), shapes=shapes, inference=True)
    data, params = abs(normal(1, 3, 21, 21)), [abs(normal(512, 3, 1, 1, seed=1)), abs(normal(32, 512, 3, 3, seed=2))]
    output = compiled.evaluate(dict(zip(compiled.parameters, params, strict=True)), {"input": data})["output"]

    def by_torch(dtype):
        x, first, second = (torch.tensor(a, dtype=dtype) for a in (data, *params))
        return functional.conv2d(functional.conv2d(x, first), second, stride=2).numpy()

    near(output, by_torch(torch.float32), by_torch(torch.float64), "output")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("terms", [3, 1030])
@pytest.mark.parametrize("rows", [1, 2, 3, 6, 8])
def test_few_rows_times_weights_that_no_cache_holds(tmp_path, rows, terms, dtype):
    # More than a megabyte of weights; neither number of terms is whole vectors.
    columns = (1 << 18) // terms + 37
    model = ml.Model()
    model |= ml.Linear(columns, use_bias=False)(input="x", output="y")
    compiled = ml.compile(
        model, ml.CBackend(num_threads=1, dtype=getattr(ml, dtype)), shapes={"x": [rows, terms]}, inference=True
    )
    x, weight = normal(rows, terms).astype(dtype), normal(columns, terms, seed=1).astype(dtype)
    compiled.load_params(dict.fromkeys(compiled.parameter_keys, weight))
    left, right = x.astype(np.longdouble), weight.astype(np.longdouble).T
    error = np.abs(compiled.evaluate({}, {"x": x})["y"] - left @ right)
    assert np.all(error <= 2 * np.finfo(dtype).eps * (np.abs(left) @ np.abs(right)))
    if rows == 2:
        # What other vectors compute is compared by the export itself.
        for lanes in (8, 4, 1):
            compiled.export(tmp_path / str(lanes), data={"x": x}, lanes=lanes)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("flipped", [False, True])
def test_products_with_zero_of_what_is_not_finite(dtype, flipped):
    model = ml.Model()
    left, right = (0.0, "x") if flipped else ("x", 0.0)
    model |= ml.Multiply()(left=left, right=right, output="zero")
    model |= ml.Add()(left="zero", right="y", output="output")
    shapes = {"x": [100], "y": [100]}
    compiled = ml.compile(
        model, ml.CBackend(dtype=dtype), shapes=shapes, dtypes={"x": dtype, "y": dtype}, inference=True
    )
    x = np.resize(np.array([np.nan, np.inf, -np.inf, 2.0, -3.0, 1e30]), 100).astype(dtype)
    y = np.ones(100, dtype)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(compiled.evaluate({}, {"x": x, "y": y})["output"], x * 0 + y)


def test_operations_keep_their_order():
    # A compiler that takes `(a + b) - a` for `b` drops what is not finite, and the sign of a zero.
    model = ml.Model()
    model |= ml.Add()(left="a", right="b", output="sum")
    model |= ml.Subtract()(left="sum", right="a", output="output")
    a = np.resize(np.array([np.inf, -np.inf, np.nan, 1e8, -1e8, 1.0, -0.0], "float32"), 70)
    b = np.resize(np.array([1.0, -0.0, 0.3], "float32"), 70)
    compiled = ml.compile(model, ml.CBackend(), shapes={"a": [70], "b": [70]}, inference=True)
    with np.errstate(invalid="ignore"):
        expected = (a + b) - a
    output = compiled.evaluate({}, {"a": a, "b": b})["output"]
    np.testing.assert_array_equal(output, expected)
    np.testing.assert_array_equal(np.signbit(output), np.signbit(expected))
