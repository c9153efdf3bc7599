"""Choices in loops of C: which part of a tensor an element comes from, in loops of few turns.

Compilers write short loops out and make vectors of what is left; GCC 12 mixes up loads that depend on a choice then.
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_elements_come_from_where_they_should(shape, dtype):
    class Moved(torch.nn.Module):
        def forward(self, x):
            return moved(x)

    x = torch.tensor(np.random.default_rng(0).uniform(0.1, 1, shape).astype(dtype))
    model, params = ml.from_torch(Moved(), (x,))
    compiled = ml.compile(model, ml.CBackend(num_threads=1, dtype=getattr(ml, dtype)), inference=True)
    outputs = compiled.evaluate(params, {next(iter(model.input_keys)): x.numpy()})
    for name, output, expected in zip(outputs, outputs.values(), moved(x), strict=True):
        np.testing.assert_allclose(output, expected.numpy(), rtol=16 * np.finfo(dtype).eps, err_msg=name)
