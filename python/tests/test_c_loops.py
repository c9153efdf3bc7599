"""Loops of C whose axes are short, reversed or transposed: sums, and elements that come from one piece or another.

Compilers write short loops out and make vectors of what is left; GCC 12 mixes up loads that depend on a choice then,
and the terms of sums.
"""

import itertools
import re

import mithril as ml
import numpy as np
import pytest
import torch
from torch.nn import functional

SHAPES = [[9, 10], [2, 5, 9], [3, 8, 12], [5, 3, 30], [3, 10, 14], [4, 6, 2, 7], [2, 3, 4, 5], [3, 4, 5, 2, 3]]


def moved(x):
    """Rolls by several axes, joined pieces, padding of several axes, and sums of what was padded."""
    results = []
    axes = range(x.dim())
    for pair in itertools.combinations(axes, 2):
        results += [torch.roll(x, [1, 2], pair), torch.fft.fftshift(x, pair), torch.roll(x, [-1, 1], pair) + 1]
    results.append(torch.fft.fftshift(x))
    for axis in axes:
        halves = x.tensor_split(2, axis)
        results.append(torch.cat([halves[1], x.flip(axis), halves[0]], axis))
        results.append(torch.cat([halves[1].exp(), torch.roll(x, 1, axis - 1)], axis))
    padded = functional.pad(x, (1, 2, 2, 1))
    return (*results, padded, padded.sum(-1), torch.roll(padded, 3, -2).sum(-2), torch.stack([x, 2 * x], -2))


ROWS = [
    [4, 7],
    [5, 8],
    [3, 14],
    [3, 33],
    [2, 300],
    [2, 5, 12],
    [9, 3, 31],
    [40, 30, 32],
    [3, 40, 40],
    [4, 6, 3],
    [3, 4, 5, 2],
    [2, 700, 9],
    [1100],
]


def sums(x):
    """Rows one behind the other, from their end, with gaps, with choices, over some axes and over all."""
    chosen = torch.where(x > 0.4, x, x * x)
    shifted = functional.pad(x, (2, 1))
    apart = functional.pad(x[..., ::2], (0, 1))
    turned = x.flip(0).movedim(0, -1)
    outputs = []
    for values in (x, x.flip(-1), x.movedim(0, -1), turned, x[..., 1:], apart, chosen, shifted, torch.exp(x)):
        outputs += [values.sum(-1), values.sum(), values.mean(tuple(range(x.dim()))[-2:])]
    return (*outputs, torch.prod(1.0 + 0.01 * x, -1), (x * x).sum(0))


class Module(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def check(function, shape, dtype):
    """Hold the results in C against those of PyTorch in float64."""
    x = torch.tensor(np.random.default_rng(0).uniform(0.1, 1, shape).astype(dtype))
    model, params = ml.from_torch(Module(function), (x,))
    compiled = ml.compile(model, ml.CBackend(num_threads=1, dtype=getattr(ml, dtype)), inference=True)
    outputs = compiled.evaluate(params, {"x": x.numpy()})
    wanted = function(x.double())
    for i, (name, output, expected) in enumerate(zip(outputs, outputs.values(), wanted, strict=True)):
        # A product of n factors is rounded n times, in float64 ours as much as PyTorch's.
        is_product = function is sums and i == len(wanted) - 2
        factors = shape[-1] if is_product and dtype == "float64" else 0
        tolerance = max(16, factors) * np.finfo(dtype).eps
        np.testing.assert_allclose(output, expected.numpy(), rtol=tolerance, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_elements_come_from_where_they_should(shape, dtype):
    check(moved, shape, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_sums_of_rows_of_any_length(shape, dtype):
    check(sums, shape, dtype)


#: Shapes of parts that are joined along an axis, which must differ in nothing else.
JOINED = {
    "many rows": (0, [[8, 300]] * 40),
    "rows of a step": (0, [[1, 600]] * 70),
    "uneven rows": (0, [[1, 50, 30], [4, 50, 30], [17, 50, 30], [2, 50, 30]]),
    "columns": (-1, [[200, n] for n in (64, 1, 7, 130)]),
    "single columns": (1, [[400, 1]] * 100),
    "in the middle": (1, [[6, n, 40] for n in (3, 50, 1, 90, 12)]),
    "many in the middle": (1, [[6, n, 40] for n in range(1, 14)]),
    "many large": (0, [[64, 600]] * 10),
    "many large and small": (0, [[64, 600], [1, 600]] * 6),
    "short": (2, [[30, 40, 1, 2], [30, 40, 2, 2], [30, 40, 1, 2]]),
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("after", ["nothing", "others"])
@pytest.mark.parametrize("case", JOINED)
def test_joined_parts(case, after, threads):
    axis, shapes = JOINED[case]
    generator = np.random.default_rng(0)
    parts = {f"part_{i}": generator.normal(size=shape).astype(np.float32) for i, shape in enumerate(shapes, 1)}
    expected = np.concatenate(list(parts.values()), axis)
    scale = generator.normal(size=expected.shape).astype(np.float32)
    model = ml.Model()
    model |= ml.Concat(axis=axis, n=len(parts))(
        **{f"inputs{i}": key for i, key in enumerate(parts, 1)}, output="joined"
    )
    if after == "others":
        # The same for all parts: written once for each.
        model |= ml.Multiply()(left="joined", right="scale", output="scaled")
        model |= ml.Relu()(input="scaled", output="output")
        expected = np.maximum(expected * scale, 0)
    data = {**parts, "scale": scale} if after == "others" else parts
    shapes = {key: list(array.shape) for key, array in data.items()}
    compiled = ml.compile(model, ml.CBackend(num_threads=threads), shapes=shapes)
    (output,) = compiled.evaluate({}, data).values()
    np.testing.assert_array_equal(output, expected)
    # No element asks which part it is in.
    assert "else if" not in compiled.source


def nested(x):
    """Many parts, some of which are padded, rolled, reversed or joined of others."""
    results = []
    for axis in range(x.dim()):
        halves = x.tensor_split(2, axis)
        around = [0] * (2 * (x.dim() - 1 - axis)) + [2, 1]
        padded, rolled = functional.pad(x, around), torch.roll(x, 1, axis)
        inner = torch.cat([halves[1].exp(), x, halves[0].flip(axis)], axis)
        many = [x * i for i in range(1, 9)]
        for first in (padded, rolled, inner):
            parts = [first, *many, first.flip(axis)]
            results += [torch.cat(parts, axis), torch.cat(parts[::-1], axis) + 1]
    return tuple(results)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_many_parts_joined_of_others(shape):
    check(nested, shape, "float32")


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_steps_of_a_recurrence_share_functions(name):
    model = ml.Model()
    model |= getattr(ml, name)(8, length=40, batch_first=True)(input="x", output="y")
    compiled = ml.compile(model, ml.CBackend(num_threads=1), shapes={"x": (2, 40, 4)})
    parameters = compiled.randomize_params()
    data = {"x": np.random.default_rng(0).normal(size=(2, 40, 4)).astype(np.float32)}
    actual = compiled.evaluate(parameters, data)["y"]
    reference = ml.compile(model, ml.NumpyBackend(), shapes={"x": (2, 40, 4)})
    np.testing.assert_allclose(actual, reference.evaluate(parameters, data)["y"], rtol=1e-4, atol=1e-5)
    # The functions of loops; those of kernels have names of their own.
    assert len(re.findall(r"^static MITHRIL_\w+ void model_", compiled.source, re.M)) <= 6
