"""Weights that are used many times: their gradients are one product, and those of PyTorch."""

import re

import mithril as ml
import numpy as np
import pytest
import torch
from backends import backend
from torch import nn


class Tied(nn.Module):
    """A weight in the layers of a deep network, once transposed."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(24, 24) / 5)

    def forward(self, x):
        for _ in range(4):
            x = torch.tanh(x @ self.weight)
        return torch.tanh(x @ self.weight.T)


class Recurrent(nn.Module):
    """The last hidden state of a recurrent layer."""

    def __init__(self, kind, **options):
        super().__init__()
        self.layer = getattr(nn, kind)(12, 16, batch_first=True, **options)

    def forward(self, x):
        return self.layer(x)[0][:, -1]


MODULES = {
    "tied": (Tied, (3, 24)),
    "tied, with another axis": (Tied, (2, 2, 24)),
    "RNN": (lambda: Recurrent("RNN"), (2, 7, 12)),
    "GRU, bidirectional": (lambda: Recurrent("GRU", bidirectional=True), (3, 5, 12)),
    "LSTM": (lambda: Recurrent("LSTM", num_layers=2), (4, 6, 12)),
}


def imported(name):
    """Return a module in float64 with what it reads, its model with parameters and the key of its input."""
    torch.manual_seed(0)
    make, shape = MODULES[name]
    module = make().double()
    x = torch.randn(shape, dtype=torch.float64)
    model, params = ml.from_torch(module, (x,))
    (key,) = (key for key in model.input_keys if key not in params)
    return module, x, model, params, key


def check(name, backend, **options):
    """Compare gradients with those of PyTorch; return the compiled model."""
    module, x, model, params, key = imported(name)
    compiled = ml.compile(model, backend, **options)
    (output,) = compiled.output_keys
    expected = module(x)
    cotangent = torch.randn_like(expected)
    expected.backward(cotangent)
    arrays = {name: compiled.backend.array(value) for name, value in params.items()}
    data = {key: compiled.backend.array(x.numpy())}
    outputs, gradients = compiled.evaluate(arrays, data, {output: compiled.backend.array(cotangent.numpy())})
    np.testing.assert_allclose(np.asarray(outputs[output]), expected.detach().numpy(), rtol=1e-9, atol=1e-12)
    own = dict(module.named_parameters())
    assert gradients.keys() == own.keys()
    for parameter, gradient in gradients.items():
        right = own[parameter].grad.numpy()
        np.testing.assert_allclose(np.asarray(gradient), right, rtol=1e-8, atol=1e-9 * np.abs(right).max())
    return compiled


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("module", MODULES)
def test_gradients_are_those_of_pytorch(module, name):
    # Otherwise the autodiff of PyTorch and JAX is used.
    check(module, backend(name, "float64"), autodiff="graph")


@pytest.mark.parametrize("module", MODULES)
def test_gradients_in_c_are_those_of_pytorch(module):
    check(module, ml.CBackend(dtype="float64"))
    check(module, ml.InterpreterBackend(dtype="float64"))


def products(compiled):
    return len(re.findall(r" @ ", compiled.gradient_source)) - len(re.findall(r" @ ", compiled.source))


def test_gradients_of_a_weight_are_one_product():
    # Cotangents of what four layers read, and the gradient of the weight.
    assert products(check("tied", ml.NumpyBackend(dtype="float64"))) == 4 + 1


def test_checkpoints_keep_products_apart():
    # Joined, the activations of all segments would be needed at once.
    compiled = check("tied", ml.NumpyBackend(dtype="float64"), gradient_checkpointing=True)
    assert products(compiled) > products(check("tied", ml.NumpyBackend(dtype="float64")))


def test_a_divided_batch_needs_no_other_communication():
    layout = ml.Layout(ml.Mesh(data=2), batch="data")
    compiled = check("LSTM", ml.InterpreterBackend(dtype="float64"), layout=layout)
    # One sum over the devices for each parameter, and nothing else.
    exchanged = ml.plan(compiled, layout, gradients=True).communications
    assert {each.op for each in exchanged} == {"all_reduce"}
