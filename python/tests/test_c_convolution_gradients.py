"""Gradients of convolutions in C against PyTorch: in groups, with strides and dilation, and of transposed ones."""

import mithril as ml
import numpy as np
import pytest
import torch


def gradients(module, x, threads, dtype):
    """Compare the outputs, and the gradients of parameters; return the C that computes them, and what its steps are."""
    model, params = ml.from_torch(module, (x,))
    (key,) = (name for name in model.input_keys if name not in params)
    backend = ml.CBackend(num_threads=threads, dtype=dtype)
    data = {key: x.detach().numpy()}
    compiled = ml.compile(model, backend)
    compiled.load_params(params)
    (name,) = compiled.output_keys
    expected = module(x)
    cotangent = torch.from_numpy(np.random.default_rng(0).normal(size=expected.shape)).to(x.dtype)
    module.zero_grad()
    expected.backward(cotangent)
    outputs, found = compiled.evaluate(compiled.parameters, data, {name: cotangent.numpy()})
    limit = 1e-12 if dtype == "float64" else 2e-5
    close(outputs[name], expected.detach().numpy(), limit)
    own = dict(module.named_parameters())
    assert found.keys() == own.keys()
    for name_of, array in found.items():
        close(array, own[name_of].grad.numpy(), limit)
    rows = compiled.profile(compiled.parameters, data, {name: cotangent.numpy()}, runs=1).rows
    return compiled.gradient_source, [row.what for row in rows]


def close(actual, expected, limit):
    assert np.abs(actual - expected).max() <= limit * np.abs(expected).max()


CASES = {
    "depthwise": dict(channels=6, size=(11, 9), kernel_size=3, padding=1, groups=6),
    "depthwise 7x7": dict(channels=4, size=(9, 14), kernel_size=7, padding=3, groups=4),
    "depthwise with stride": dict(channels=8, size=(16, 17), kernel_size=5, padding=2, stride=2, groups=8),
    "groups": dict(channels=12, size=(10, 10), kernel_size=3, padding=1, groups=3),
    "groups with stride": dict(channels=12, size=(15, 12), kernel_size=3, padding=1, stride=2, groups=2),
    "uneven": dict(channels=6, size=(20, 13), kernel_size=(3, 2), padding=(0, 2), stride=(3, 1), groups=2),
    "dilation": dict(channels=4, size=(14, 14), kernel_size=3, padding=2, dilation=2, groups=2),
    "more filters": dict(channels=4, filters=20, size=(8, 8), kernel_size=3, padding=1, groups=4),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_in_groups(name, dtype):
    options = dict(CASES[name])
    channels, size = options.pop("channels"), options.pop("size")
    filters = options.pop("filters", channels)
    torch.manual_seed(0)
    # The first layer asks for the gradient of what the other one reads.
    first = torch.nn.Conv2d(3, channels, 1)
    module = torch.nn.Sequential(first, torch.nn.ReLU(), torch.nn.Conv2d(channels, filters, **options))
    module = module.to(getattr(torch, dtype))
    x = torch.randn(3, 3, *size, dtype=getattr(torch, dtype))
    _, steps = gradients(module, x, 2, dtype)
    assert any(f"in {options['groups']} groups" in step for step in steps), steps


def test_in_one_dimension():
    module = torch.nn.Sequential(torch.nn.Conv1d(2, 32, 1), torch.nn.Conv1d(32, 32, 5, padding=2, groups=32))
    _, steps = gradients(module, torch.randn(4, 2, 500), 1, "float32")
    assert any("in 32 groups" in step for step in steps), steps


@pytest.mark.parametrize("stride", [2, (2, 3), (4, 1)])
@pytest.mark.parametrize("groups", [1, 4])
def test_what_is_interleaved_is_read_without_choices(groups, stride):
    # Of a transposed convolution each phase of the result is a tensor of its own.
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 1),
        torch.nn.ReLU(),
        torch.nn.ConvTranspose2d(8, 8, 3, stride=stride, padding=1, groups=groups),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, stride=stride, padding=1, groups=groups),
    )
    source, _ = gradients(module, torch.randn(2, 3, 16, 12), 1, "float32")
    loops = [part for part in source.split("\nstatic ") if "phase_2[" in part and "relu" in part]
    assert loops
    for loop in loops:
        assert " && " not in loop, loop


@pytest.mark.parametrize("options", [{}, {"groups": 4}, {"stride": 2}, {"dilation": 2}])
def test_products_in_bfloat16(options):
    """Operands are rounded to bfloat16; the same kernels sum in float32 as without `precision`."""
    torch.manual_seed(0)
    module = torch.nn.Conv2d(8, 32, 3, padding=1, **options)
    x = torch.randn(3, 8, 14, 11)
    model, params = ml.from_torch(module, (x,))
    (key,) = (name for name in model.input_keys if name not in params)
    compiled = ml.compile(model, ml.CBackend(num_threads=2, precision="bfloat16"))
    compiled.load_params(params)
    (name,) = compiled.output_keys
    cotangent = torch.randn(module(x).shape)
    call = (compiled.parameters, {key: x.numpy()}, {name: cotangent.numpy()})
    _, gradients_of = compiled.evaluate(*call)
    exact = module.to(torch.bfloat16).double()
    exact(x.bfloat16().double()).backward(cotangent.bfloat16().double())
    # The gradient is rounded to bfloat16, to half a unit of 2**-8 at most.
    close(gradients_of["weight"], exact.weight.grad.numpy(), 2**-8)
    assert any("gradient of 3x3 weights" in row.what for row in compiled.profile(*call, runs=1).rows)
