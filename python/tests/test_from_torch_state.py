"""PyTorch modules in training mode: losses, running statistics and other buffers, against PyTorch itself."""

import mithril as ml
import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional

BACKENDS = ["numpy", "torch", "jax", "mlx", "c"]


class Network(nn.Module):
    """Batch norms of several kinds, one of them called twice, dropout, momenta, no affine parameters."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU())
        self.conv = nn.Conv2d(6, 6, 3, padding=1)
        self.shared = nn.BatchNorm2d(6, momentum=0.3, eps=1e-3, affine=False)
        self.local = nn.BatchNorm2d(6, track_running_stats=False)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(96, 8), nn.BatchNorm1d(8), nn.Dropout(0.0), nn.Linear(8, 3))

    def forward(self, x):
        x = self.stem(x)
        x = self.shared(self.conv(self.shared(x))) + self.local(x)
        return self.head(F.max_pool2d(x, 2))


class Averages(nn.Module):
    """Buffers that are changed: a moving average, the last rows, a count in a child, one that is never read."""

    class Child(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
            self.register_buffer("outer", torch.zeros(4))

        def forward(self, x):
            self.seen += x.shape[0]
            return x * 0.5

    def __init__(self):
        super().__init__()
        self.child = self.Child()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("average", torch.full((4,), 0.25))
        self.register_buffer("rows", torch.zeros(5, 4))
        # Changed, and read by nothing that is an output.
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("largest", torch.zeros(4))

    def forward(self, x):
        y = self.child(self.linear(x))
        self.average.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        self.rows.copy_(torch.cat([self.rows[x.shape[0] :], y.detach()]))
        self.child.outer.copy_(y.detach().amax(0) + self.average)
        self.calls += 1
        self.largest.copy_(torch.maximum(self.largest, x.amax(0)))
        return y + self.average + self.rows.mean(0)


def prepared(make):
    torch.manual_seed(5)
    module = make().train()
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(std=0.3)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 2)
    return module


def copied(params):
    return {name: np.array(value) for name, value in params.items()}


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_goes_along_the_losses_and_statistics_of_pytorch(backend):
    module = prepared(Network)
    x, target = torch.randn(6, 3, 8, 8).sin(), torch.tensor([0, 1, 2, 0, 1, 2])
    model, params = ml.from_torch(module, (x,))
    assert set(params) == set(module.state_dict())
    chosen = ml.get_backend(backend)
    compiled = ml.compile(model, chosen)
    kept = {k for k, _ in module.named_buffers()}
    assert set(compiled.state) == kept
    for name, value in module.named_buffers():
        np.testing.assert_array_equal(np.asarray(chosen.to_numpy(compiled.state[name])), value.numpy(), err_msg=name)
    compiled.load_params(copied(params))
    step = ml.train.TrainingStep(compiled, ml.optim.SGD(0.1), loss="cross_entropy")
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(x), target)
        loss.backward()
        optimizer.step()
        actual = step({"x": x.numpy(), "target": target.numpy()})[step.loss]
        np.testing.assert_allclose(float(actual), float(loss.detach()), rtol=2e-5, atol=1e-6)
        x = x.roll(1, 0) * 1.1
    for name, value in module.named_buffers():
        actual = np.asarray(chosen.to_numpy(compiled.state[name]))
        assert actual.dtype == value.numpy().dtype
        np.testing.assert_allclose(actual, value.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def test_inference_uses_the_statistics_of_training():
    module = prepared(Network)
    x = torch.randn(6, 3, 8, 8)
    model, params = ml.from_torch(module, (x,))
    output = ml.compile(model, ml.NumpyBackend(), inference=True).evaluate(params, {"x": x.numpy()})["output"]
    np.testing.assert_allclose(output, module.eval()(x).detach().numpy(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_buffers_that_change_are_state(backend):
    module = prepared(Averages)
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    model, params = ml.from_torch(module, (x,))
    chosen = ml.get_backend(backend)
    params = {k: chosen.array(v) for k, v in copied(params).items()}
    compiled = ml.compile(model, chosen)
    for i in range(4):
        x_scaled = x * (i + 1)
        result = compiled.evaluate(params, {"x": chosen.array(x_scaled.numpy())})
        output = np.asarray(chosen.to_numpy(result["output"]))
        np.testing.assert_allclose(output, module(x_scaled).detach().numpy(), rtol=0, atol=1e-5)
    kept = {name: value for name, value in module.named_buffers() if name != "child.outer"}
    assert set(compiled.state) == set(kept) == set(params) - {"linear.weight", "linear.bias"}
    for name, value in kept.items():
        output = np.asarray(chosen.to_numpy(compiled.state[name]))
        np.testing.assert_allclose(output, value.numpy(), rtol=0, atol=1e-5, err_msg=name)


def test_state_is_saved_and_loaded_with_the_model(tmp_path):
    module = prepared(Averages)
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    model, params = ml.from_torch(module, (x,))
    params = copied(params)
    ml.save(model, tmp_path / "model.json")
    compiled = ml.compile(ml.load(tmp_path / "model.json"), ml.NumpyBackend())
    output = compiled.evaluate(params, {"x": x.numpy()})["output"]
    np.testing.assert_allclose(output, module(x).detach().numpy(), rtol=0, atol=1e-5)


def test_fit_trains_a_module():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3)).train()
    x = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    y = x[:, :3].argmax(axis=1)
    model, params = ml.from_torch(module, (torch.ones(50, 4),))
    compiled = ml.compile(model, ml.CBackend())
    compiled.load_params(copied(params))
    history = ml.train.fit(
        compiled, (x, y), optimizer=ml.optim.Adam(0.02), epochs=6, batch_size=50, metrics=["accuracy"], progress=False
    )
    assert history["accuracy"][-1] > 0.8
    assert int(compiled.state["1.num_batches_tracked"]) == 36


def test_what_is_no_buffer_stays_an_error():
    class Writes(nn.Module):
        def forward(self, x):
            x.add_(1)
            return x * 2

    with pytest.raises(ml.errors.UnsupportedOpError, match="user_input_mutation"):
        ml.from_torch(Writes(), (torch.ones(3),))

    class Cumulative(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4, momentum=None)

        def forward(self, x):
            return self.norm(x)

    with pytest.raises(ml.errors.UnsupportedOpError):
        ml.from_torch(Cumulative().train(), (torch.ones(3, 4),))


def test_changes_in_place_are_seen_by_all_that_share_memory():
    """Random programs of views and changes, each against PyTorch; their graphs are rewritten without tracing again."""
    from mithril.frontend.torch import export
    from torch_aliases import Programs

    x = torch.linspace(-1, 1, 48).reshape(4, 2, 6).sin()
    module = Programs(range(25))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "_decompositions", None)
        model, params = ml.from_torch(module, (x,))
    outputs = ml.compile(model, ml.NumpyBackend()).evaluate(params, {"x": x.numpy()})
    for (name, value), right in zip(outputs.items(), module(x), strict=True):
        scale = max(1.0, float(right.abs().max()))
        np.testing.assert_allclose(value, right.numpy(), rtol=0, atol=1e-5 * scale, err_msg=name)


def test_a_gradient_passes_by_what_is_written_through_detach():
    class Clipped(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x) * 3
            y.detach().clamp_(-0.5, 0.5)
            return y * y

    torch.manual_seed(0)
    module, x = Clipped(), torch.randn(3, 4)
    model, params = ml.from_torch(module, (x,))
    y = module(x)
    y.sum().backward()
    compiled = ml.compile(model, ml.NumpyBackend())
    outputs, gradients = compiled.evaluate(params, {"x": x.numpy()}, {"output": np.ones((3, 4), np.float32)})
    np.testing.assert_allclose(outputs["output"], y.detach().numpy(), rtol=1e-5)
    for key, parameter in module.named_parameters():
        np.testing.assert_allclose(gradients[key], parameter.grad.numpy(), rtol=1e-4, atol=1e-5)


class Moved(nn.Module):
    """A buffer that is written with its own value, as those that are moved to the device of the input."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(12.0).reshape(3, 4), persistent=False)
        self.register_buffer("other", torch.arange(8.0).reshape(2, 4))

    def forward(self, x):
        self.table = self.table.to(x.device)
        self.other.copy_(self.other)
        return self.linear(x) + self.table[: x.shape[0]] * self.other[0]


@pytest.mark.parametrize("make", [Moved, lambda: nn.Sequential(Moved(), nn.ReLU())])
def test_buffers_that_are_written_with_their_own_value(make):
    module, x = make().eval(), torch.ones(2, 4)
    model, params = ml.from_torch(module, (x,))
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={model.input_keys[0]: [2, 4]})
    (result,) = compiled.evaluate(params, {model.input_keys[0]: x.numpy()}).values()
    np.testing.assert_allclose(result, module(x).detach().numpy(), rtol=1e-5)
