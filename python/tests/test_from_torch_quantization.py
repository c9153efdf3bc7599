"""Fake quantization of PyTorch, and its gradients."""

import mithril as ml
import numpy as np
import pytest

torch = pytest.importorskip("torch")

INT = torch.int32
#: Name -> function of an input [3, 4] and a parameter [4, 4].
FUNCTIONS = {
    "per_tensor": lambda x, w: torch.fake_quantize_per_tensor_affine(x @ w, 0.05, 3, -8, 7),
    "tensors": lambda x, w: torch.fake_quantize_per_tensor_affine(
        x @ w, torch.tensor(0.05), torch.tensor(3, dtype=INT), -128, 127
    ),
    "half": lambda x, w: torch.fake_quantize_per_tensor_affine((x @ w).half(), 0.05, 3, -8, 7).float(),
    "per_channel": lambda x, w: (
        x
        @ torch.fake_quantize_per_channel_affine(
            w, torch.tensor([0.1, 0.2, 0.3, 0.05]), torch.tensor([0, 1, 2, 0], dtype=INT), 1, -8, 7
        )
    ),
    "learned": lambda x, w: torch._fake_quantize_learnable_per_tensor_affine(
        x @ w * 3, w[0, :1].abs() * 0.1, w[1, :1] * 2, 0, 15, 0.3
    ),
    "learned_per_channel": lambda x, w: torch._fake_quantize_learnable_per_channel_affine(
        x @ w, w[0].abs() * 0.3, w[1], 1, -8, 7, 0.5
    ),
}


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.function, self.w = function, torch.nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return self.function(x, self.w)


@pytest.mark.parametrize("backend", [ml.NumpyBackend, ml.TorchBackend, ml.CBackend])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_those_of_pytorch(name, backend):
    module, x = Module(FUNCTIONS[name]), torch.randn(3, 4)
    model, params = ml.from_torch(module, (x,))
    output = module(x)
    cotangent = torch.randn_like(output)
    (expected,) = torch.autograd.grad(output, module.w, cotangent)
    backend = backend()
    compiled = ml.compile(model, backend, shapes={"x": [3, 4]})
    arrays = {key: backend.array(value) for key, value in params.items()}
    outputs, gradients = compiled.evaluate(
        arrays, {"x": x.numpy()}, output_gradients={"output": backend.array(cotangent.numpy())}
    )
    np.testing.assert_allclose(backend.to_numpy(outputs["output"]), output.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(backend.to_numpy(gradients["w"]), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("fused", "reason"), [(False, "whether its observer is switched on"), (True, "it observes ranges")]
)
def test_modules_that_observe_ranges_are_refused(fused, reason):
    quantization = pytest.importorskip("torch.ao.quantization")
    kind = quantization.FusedMovingAvgObsFakeQuantize if fused else quantization.FakeQuantize
    with pytest.raises(ml.errors.UnsupportedOpError, match=reason):
        ml.from_torch(torch.nn.Sequential(torch.nn.Linear(4, 2), kind()), (torch.ones(3, 4),))
