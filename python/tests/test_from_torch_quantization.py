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


class Observed(torch.nn.Module):
    """Quantizes by ranges that follow those of its data."""

    def __init__(self, least, most, *, observes=1, quantizes=1, axis=-1, symmetric=False, shape=(1,)):
        super().__init__()
        torch.manual_seed(0)
        self.w, self.axis, self.symmetric = torch.nn.Parameter(torch.randn(4, 4)), axis, symmetric
        of_ranges = (4,) if axis >= 0 else shape
        state = {
            "observes": torch.tensor([observes]),
            "quantizes": torch.tensor([quantizes]),
            "least": torch.full(of_ranges, least),
            "most": torch.full(of_ranges, most),
            "scale": torch.full((4,) if axis >= 0 else (1,), 0.25),
            "zero": torch.full((4,) if axis >= 0 else (1,), 3, dtype=INT),
        }
        for name, value in state.items():
            self.register_buffer(name, value)

    def forward(self, x):
        flags, state = (self.observes, self.quantizes), (self.least, self.most, self.scale, self.zero)
        options = (0.1, -128, 127, self.axis, self.axis >= 0, self.symmetric)
        return torch.fused_moving_avg_obs_fake_quant(self.w @ x, *flags, *state, *options)


INFINITE = (float("inf"), -float("inf"))
OBSERVED = {
    "first data": lambda: Observed(*INFINITE),
    "first data, ranges are numbers": lambda: Observed(*INFINITE, shape=()),
    "later data": lambda: Observed(-1.0, 2.0),
    "symmetric": lambda: Observed(-1.0, 3.0, symmetric=True),
    "symmetric, of one sign": lambda: Observed(1.0, 3.0, observes=0, symmetric=True),
    "channels": lambda: Observed(-1.0, 2.0, axis=0),
    "symmetric channels": lambda: Observed(*INFINITE, axis=0, symmetric=True),
    "not observed": lambda: Observed(-0.5, 2.0, observes=0),
    "not quantized": lambda: Observed(-0.5, 2.0, quantizes=0),
    "neither": lambda: Observed(-0.5, 2.0, observes=0, quantizes=0),
    "nothing seen": lambda: Observed(*INFINITE, observes=0),
    "a small range": lambda: Observed(-1e-4, 3e-5, observes=0),
    "a small positive range": lambda: Observed(1e-6, 2e-5, observes=0),
    "one number": lambda: Observed(0.0, 0.0, observes=0),
}


@pytest.mark.parametrize("backend", [ml.NumpyBackend, ml.TorchBackend, ml.JaxBackend, ml.CBackend])
@pytest.mark.parametrize("name", OBSERVED)
def test_ranges_are_observed_as_in_pytorch(name, backend):
    module, backend = OBSERVED[name](), backend()
    model, params = ml.from_torch(module, (torch.randn(4, 3),))
    compiled = ml.compile(model, backend, shapes={"x": [4, 3]})
    compiled.load_params(params)
    # Without the state, which is that of the compiled model.
    weights = {"w": backend.array(params["w"])}
    for _ in range(3):
        x = torch.randn(4, 3)
        output = module(x)
        cotangent = torch.randn_like(output)
        (expected,) = torch.autograd.grad(output, module.w, cotangent)
        outputs, gradients = compiled.evaluate(
            weights, {"x": backend.array(x.numpy())}, {"output": backend.array(cotangent.numpy())}
        )
        np.testing.assert_allclose(backend.to_numpy(outputs["output"]), output.detach(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(backend.to_numpy(gradients["w"]), expected, rtol=1e-4, atol=1e-5)
        state = dict(module.named_buffers())
        for key in ("least", "most", "scale", "zero"):
            found = backend.to_numpy(compiled.state[key])
            np.testing.assert_allclose(found, state[key], rtol=1e-6, err_msg=key)
            assert found.shape == state[key].shape


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_network_that_is_trained_for_integers():
    quantization = pytest.importorskip("torch.ao.quantization")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 5))
    module.qconfig = quantization.get_default_qat_qconfig("x86")
    module = quantization.prepare_qat(module.train())
    x = torch.randn(3, 2, 6, 6)
    with pytest.raises(
        ml.errors.UnsupportedOpError, match=r"weight_fake_quant` has seen no data(.|\n)*call the module once"
    ):
        ml.from_torch(module, (x,))
    module(x)
    model, params = ml.from_torch(module, (x,))
    compiled = ml.compile(model, ml.CBackend())
    compiled.load_params(params)
    step = ml.train.TrainingStep(compiled, ml.optim.SGD(0.1), loss="mse")
    (key,) = (key for key in model.input_keys if key not in params)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(4):
        x, target = torch.randn(3, 2, 6, 6), torch.randn(3, 5)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(module(x), target)
        loss.backward()
        optimizer.step()
        found = step({key: x.numpy(), "target": target.numpy()})
        np.testing.assert_allclose(found[step.loss], loss.item(), rtol=1e-4)
    state = dict(module.named_buffers())
    for name, value in compiled.state.items():
        np.testing.assert_allclose(value, state[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_modules_that_read_whether_they_observe_are_refused():
    quantization = pytest.importorskip("torch.ao.quantization")
    module = torch.nn.Sequential(torch.nn.Linear(4, 2), quantization.FakeQuantize())
    with pytest.raises(ml.errors.UnsupportedOpError, match="whether its observer is switched on"):
        ml.from_torch(module, (torch.ones(3, 4),))
