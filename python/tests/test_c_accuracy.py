"""How exact float32 is in C: errors against float64 are at most twice those of torch.

The activation is smooth: where a ReLU is all but 0, the last bit of an input decides whether a gradient passes, and
that changes a sum over few pixels far more than rounding does.
"""

import mithril as ml
import numpy as np
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
    assert list(compiled.parameters) == list(params)
    outputs, found = compiled.evaluate(params, data, {"loss": 1.0})

    def by_torch(dtype):
        leaves = {name: torch.tensor(value, dtype=dtype, requires_grad=True) for name, value in params.items()}
        loss = function(leaves, **{k: torch.tensor(v, dtype=dtype) for k, v in data.items()})
        return loss.item(), dict(zip(leaves, torch.autograd.grad(loss, leaves.values()), strict=True))

    exact, wanted = by_torch(torch.float64)
    np.testing.assert_allclose(outputs["loss"], exact, rtol=1e-5)
    for name, gradient in by_torch(torch.float32)[1].items():
        error, theirs = (np.linalg.norm(g - wanted[name].numpy()) for g in (found[name], gradient.numpy()))
        assert error <= 2 * theirs, f"{name}: {error / theirs:.2f} times the error of torch"


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
