"""Loops of C whose axes are short, reversed or transposed: sums, and elements that come from one piece or another.

Compilers write short loops out and make vectors of what is left; GCC 12 mixes up loads that depend on a choice then,
and the terms of sums.
"""

import itertools

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
    for name, output, expected in zip(outputs, outputs.values(), function(x.double()), strict=True):
        np.testing.assert_allclose(output, expected.numpy(), rtol=16 * np.finfo(dtype).eps, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_elements_come_from_where_they_should(shape, dtype):
    check(moved, shape, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_sums_of_rows_of_any_length(shape, dtype):
    check(sums, shape, dtype)
