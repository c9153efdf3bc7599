"""Convolutions of volumes in the C target, whose frames lie one after the other in blocks of channels: values and
gradients against PyTorch in double precision."""

import mithril as ml
import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn = torch.nn


class Volumes(nn.Module):
    """Layers of random sizes, steps and margins, some of whose results are added up."""

    def __init__(self, seed):
        super().__init__()
        self.random = np.random.default_rng(seed)
        self.layers = nn.ModuleList()
        self.kinds = []
        self.channels = first = self.pick(1, 3, 16, 32)
        self.size = [int(self.random.integers(1, 6)), *map(int, self.random.integers(4, 15, 2))]
        self.shape = (self.pick(1, 3), first, *self.size)
        for _ in range(4):
            self.add(self.pick("dense", "dense", "channels", "residual", "pool"))
        self.put("plain", nn.SiLU())

    def pick(self, *choices):
        return choices[self.random.integers(len(choices))]

    def put(self, kind, layer):
        self.kinds.append(kind)
        self.layers.append(layer)

    def add(self, kind):
        if kind == "pool":
            if min(self.size) > 1:
                self.put("plain", nn.MaxPool3d(2, 1))
                self.size = [n - 1 for n in self.size]
            return
        kernel, stride, dilation, padding = [3] * 3, [1] * 3, [1] * 3, [1] * 3
        if kind != "residual" and self.random.random() < 0.7:
            kernel = [self.pick(1, 2, 3, 5) for _ in range(3)]
            stride = [self.pick(1, 1, 2, 3) for _ in range(3)]
            dilation = [self.pick(1, 1, 2) for _ in range(3)]
            padding = [self.pick(0, 1, 2, 4) for _ in range(3)]
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        room = [n + 2 * p - r for n, p, r in zip(self.size, padding, reach, strict=True)]
        if min(room) < 0:
            return
        filters = self.pick(16, 16, 48, 20) if kind == "dense" else self.channels
        groups = self.channels if kind == "channels" else 1
        layer = nn.Conv3d(
            self.channels, filters, kernel, stride, padding, dilation, groups, bias=self.pick(True, False)
        )
        self.put(kind, layer)
        self.channels, self.size = filters, [r // s + 1 for r, s in zip(room, stride, strict=True)]
        if self.pick(True, False):
            self.put("plain", self.pick(nn.ReLU, nn.GELU)())

    def forward(self, x):
        for kind, layer in zip(self.kinds, self.layers, strict=True):
            x = x + layer(x) if kind == "residual" else layer(x)
        return x


@pytest.mark.parametrize("seed", range(10))
def test_random_volumes(seed):
    torch.manual_seed(seed)
    module = Volumes(seed).eval().double()
    data = torch.randn(*module.shape, dtype=torch.float64)
    expected = module(data)
    dtype, allowed = [("float64", 1e-11), ("float32", 1e-4)][seed % 3 > 0]
    module, data = module.to(getattr(torch, dtype)), data.to(getattr(torch, dtype))
    model, params = ml.from_torch(module, (data,))
    key = next(key for key in model.input_keys if key not in params)
    backend = ml.CBackend(num_threads=1 + seed % 2, dtype=dtype)
    compiled = ml.compile(model, backend, inference=True)
    compiled.load_params(params)
    (actual,) = compiled.evaluate({}, {key: data.numpy()}).values()
    assert actual.shape == tuple(expected.shape)
    assert np.abs(actual - expected.detach().numpy()).max() <= allowed * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_of_volumes(stride, threads):
    torch.manual_seed(stride)
    layers = [nn.Conv3d(16, 32, 3, stride, 1), nn.ReLU(), nn.Conv3d(32, 16, 3, padding=1), nn.SiLU()]
    module = nn.Sequential(*layers, nn.Conv3d(16, 16, 3, padding=1, groups=16)).double()
    data = torch.randn(2, 16, 5, 7, 6, dtype=torch.float64)
    output = module(data)
    weight = torch.randn_like(output)
    output.backward(weight)
    model, params = ml.from_torch(module, (data,))
    key = next(key for key in model.input_keys if key not in params)
    compiled = ml.compile(model, ml.CBackend(num_threads=threads, dtype="float64"))
    (name,) = model.output_keys
    actual = compiled.evaluate_gradients(params, {key: data.numpy()}, {name: weight.numpy()})
    assert len(actual) == len(params) == 6
    expected = {value.shape: value.grad.numpy() for value in module.parameters() if value.ndim > 1}
    for value in map(np.asarray, actual.values()):
        if value.ndim > 1:
            np.testing.assert_allclose(value, expected[value.shape], rtol=1e-9, atol=1e-9)


def test_frames_lie_in_blocks():
    model = ml.Model()
    model |= ml.Conv3d(32, 3, padding=1)(input="input", output="hidden")
    model |= ml.Conv3d(16, 3, padding=1, stride=2)(input="hidden", output="output")
    options = {"shapes": {"input": [1, 3, 4, 8, 8]}, "inference": True}
    compiled = ml.compile(model, ml.CBackend(), **options)
    params = compiled.randomize_params(seed=0)
    data = {"input": np.random.default_rng(0).normal(size=(1, 3, 4, 8, 8)).astype(np.float32)}
    expected = ml.compile(model, ml.NumpyBackend(), **options).evaluate(params, data)["output"]
    np.testing.assert_allclose(compiled.evaluate(params, data)["output"], expected, rtol=1e-4, atol=1e-5)
    layouts = compiled.stages["halo"]
    assert "in blocks of" not in layouts or "frames 1 0" in layouts
    assert "columns" not in compiled.stages["kernel_selection"] or "in blocks of" not in layouts
