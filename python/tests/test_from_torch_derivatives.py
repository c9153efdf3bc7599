"""Modules that take gradients in ``forward``: values and gradients on backends are those of PyTorch."""

import random

import mithril as ml
import numpy as np
import pytest
from mithril.errors import UnsupportedOpError
from torch_common import check_import

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional


class Residual(nn.Module):
    """The residual of a differential equation, as physics-informed networks have it."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        x = x.requires_grad_(True)
        u = self.net(x)
        first = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        second = torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)[0]
        return first[:, 1:] + u * first[:, :1] - 0.1 * second[:, :1]


class Hamiltonian(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 10), nn.Softplus(), nn.Linear(10, 1))

    def forward(self, x):
        gradient = torch.func.vmap(torch.func.grad(lambda z: self.net(z).squeeze()))(x)
        q, p = gradient.chunk(2, -1)
        return torch.cat([p, -q], -1)


class Forces(nn.Module):
    """An energy of atoms, and the forces, which are its gradient."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 8), nn.SiLU(), nn.Linear(8, 1))
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, positions, count):
        positions = positions.detach().requires_grad_(True)
        places = positions * self.scale * torch.tensor([1.0, 0.5, 1.0])
        energy = self.net((places[:, None] - places + 1e-3).norm(dim=-1, keepdim=True)).sum() / count
        return {"energy": energy, "forces": -torch.autograd.grad(energy, positions, create_graph=True)[0]}


class Evaluated(Forces):
    """Forces without a graph, as they are when a network is only evaluated."""

    def forward(self, positions, count):
        positions = positions.detach().requires_grad_(True)
        energy = self.net((positions[:, None] - positions + 1e-3).norm(dim=-1, keepdim=True)).sum() / count
        return -torch.autograd.grad(energy, positions)[0]


class InnerSteps(nn.Module):
    """Steps of gradient descent within a call, as meta-learning takes them."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, x, y, query):
        weights = [*self.first.parameters(), *self.last.parameters()]

        def predict(x, a, b, c, d):
            return F.linear(F.gelu(F.linear(x, a, b)), c, d)

        for _ in range(2):
            steps = torch.autograd.grad(F.mse_loss(predict(x, *weights), y), weights, create_graph=True)
            weights = [weight - 0.1 * step for weight, step in zip(weights, steps, strict=True)]
        return predict(query, *weights)


class Penalty(nn.Module):
    """A gradient penalty of images."""

    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(2, 4, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(4, 6, 3, 2, 1, groups=2), nn.GroupNorm(2, 6)]
        self.critic = nn.Sequential(*layers, nn.SiLU(), nn.Flatten(), nn.Linear(24, 1))

    def forward(self, real, fake):
        x = (0.3 * real + 0.7 * fake).requires_grad_(True)
        gradient = torch.autograd.grad(self.critic(x).sum(), x, create_graph=True)[0]
        return self.critic(fake.detach()).mean() + 10 * ((gradient.flatten(1).norm(dim=1) - 1) ** 2).mean()


class Curvature(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 5), nn.Linear(5, 1)

    def forward(self, x):
        hessian = torch.vmap(torch.func.hessian(lambda z: self.b(torch.tanh(self.a(z)))[0]))(x)
        jacobian = torch.vmap(torch.func.jacrev(lambda z: self.a(z).exp()))(x)
        _, tangent = torch.func.jvp(lambda z: torch.sin(self.a(z)), (x,), (torch.ones_like(x),))
        return hessian.diagonal(dim1=-2, dim2=-1).sum(-1), jacobian, tangent


class Stopped(nn.Module):
    """Parts without a gradient: detached, under ``no_grad``, and a gradient that is not part of the graph."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 5), nn.Linear(5, 1)

    def forward(self, x):
        x = x.requires_grad_(True)
        u = self.b(torch.tanh(self.a(x)).detach() * self.a(x))
        gradient = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        with torch.no_grad():
            still = self.a(x) * 2
        alone = torch.autograd.grad((self.a(x) ** 2).sum(), x, retain_graph=True)[0]
        return (gradient * gradient).sum() + (still * self.a(x)).sum(), (alone * gradient).sum()


MODULES = {
    "residual": (Residual, [(5, 2)]),
    "hamiltonian": (Hamiltonian, [(5, 4)]),
    "forces": (Forces, [(5, 3), ()]),
    "inner steps": (InnerSteps, [(6, 3), (6, 2), (4, 3)]),
    "penalty": (Penalty, [(2, 2, 8, 8), (2, 2, 8, 8)]),
    "curvature": (Curvature, [(4, 3)]),
    "stopped": (Stopped, [(4, 3)]),
}


@pytest.mark.parametrize("backend", ["numpy", "c"])
@pytest.mark.parametrize("name", MODULES)
def test_gradients_within_a_module(name, backend):
    torch.manual_seed(3)
    make, shapes = MODULES[name]
    check_import(make(), tuple(torch.randn(shape).abs() + 0.1 for shape in shapes), ml.get_backend(backend))


@pytest.mark.parametrize(
    "layer",
    [
        *(nn.SiLU(), nn.GELU(), nn.Mish(), nn.Hardswish(), nn.Softplus(), nn.ELU(), nn.LeakyReLU(), nn.Softmax(-1)),
        *(nn.LogSoftmax(-1), nn.Sigmoid(), nn.LayerNorm(8), nn.PReLU(), nn.GLU(-1), nn.Hardsigmoid(), nn.LogSigmoid()),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_gradients_that_are_only_evaluated(layer):
    torch.manual_seed(3)
    module = Evaluated()
    module.net = nn.Sequential(nn.Linear(1, 8), layer, nn.LazyLinear(1))
    args = torch.randn(5, 3), torch.tensor(3.0)
    right = module(*args)
    model, params = ml.from_torch(module, args)
    assert set(model.input_keys) == {"positions", "count", *params}
    data = {"positions": args[0].numpy(), "count": args[1].numpy()}
    results = ml.compile(model, ml.NumpyBackend()).evaluate(params, data)
    np.testing.assert_allclose(results["output"], right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["residual", "hamiltonian"])
def test_sizes_that_stay_open(name):
    make, ((_, features),) = MODULES[name]
    rows = torch.export.Dim("rows", min=2)
    args, others = (torch.randn(5, features),), [torch.randn(9, features)]
    check_import(make(), args, ml.NumpyBackend(), dynamic_shapes=({0: rows},), others=others)


IMAGES, LINES = (2, 4, 8, 8), (2, 4, 8)
#: Ops whose gradients have ops of their own in PyTorch.
PARTS = {
    "conv1d": (nn.Conv1d(4, 3, 3, dilation=2, padding="same"), LINES),
    "conv2d": (nn.Conv2d(4, 6, 3, 2, 1, groups=2), IMAGES),
    "conv3d": (nn.Conv3d(2, 3, 2, bias=False), (1, 2, 3, 4, 5)),
    "conv_transpose": (nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), IMAGES),
    "group_norm": (nn.GroupNorm(2, 4), IMAGES),
    "layer_norm": (nn.LayerNorm(8), LINES),
    "rms_norm": (nn.RMSNorm(8), LINES),
    "batch_norm": (nn.BatchNorm1d(4).eval(), LINES),
    "max_pool": (nn.MaxPool2d(3, 2, 1), IMAGES),
    "avg_pool": (nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), IMAGES),
    "avg_pool_divisor": (nn.AvgPool2d(3, 2, 1, divisor_override=5), IMAGES),
    "adaptive_avg_pool": (nn.AdaptiveAvgPool2d(3), IMAGES),
    "adaptive_max_pool": (nn.AdaptiveMaxPool2d(3), IMAGES),
    "nearest": (nn.Upsample(scale_factor=2), IMAGES),
    "bilinear": (nn.Upsample(scale_factor=1.5, mode="bilinear"), IMAGES),
    "reflection": (nn.ReflectionPad2d(2), IMAGES),
    "replication": (nn.ReplicationPad2d((1, 2, 0, 3)), IMAGES),
    "local_response": (nn.LocalResponseNorm(3), IMAGES),
    "lstm": (nn.LSTM(8, 5, batch_first=True), LINES),
    "gru": (nn.GRU(8, 5, batch_first=True, bidirectional=True), LINES),
    "prelu": (nn.PReLU(), LINES),
    "slices": (lambda x: x[:, 1:3] * x[:, ::2] * x[:, -1:, 2:-1].mean(), LINES),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), LINES),
    "distances": (lambda x: torch.cdist(x[0], x[1]), LINES),
    "distances_1": (lambda x: torch.cdist(x[0], x[1], p=1.0), LINES),
    "distances_3": (lambda x: torch.cdist(x, x, p=3.0), LINES),
    "grid_sample": (
        lambda x: F.grid_sample(x[:, :2], x[:, 2:].permute(0, 2, 3, 1).tanh(), align_corners=False),
        IMAGES,
    ),
    "cholesky": (lambda x: torch.linalg.cholesky(x @ x.mT + 8 * torch.eye(4)), LINES),
    "inverse": (lambda x: torch.linalg.inv(x[..., :4] + 3 * torch.eye(4)), LINES),
    "spectrum": (lambda x: torch.fft.rfft(x).abs(), LINES),
}


class Cubed(nn.Module):
    """The gradient of a sum of cubes of what a layer or a function returns."""

    def __init__(self, part):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.3))
        if isinstance(part, nn.Module):
            self.part = part
        else:
            self.function = part

    def forward(self, x):
        x = x.requires_grad_(True)
        y = (self.part if hasattr(self, "part") else self.function)(x * self.scale)
        return torch.autograd.grad(((y[0] if isinstance(y, tuple) else y) ** 3).sum(), x, create_graph=True)[0]


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize("name", PARTS)
def test_gradients_of_gradients_of(name):
    torch.manual_seed(4)
    part, shape = PARTS[name]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), torch.backends.mkldnn.flags(False):
        # Where a norm takes the scale out, its gradient is 0, and what is left is rounding.
        check_import(Cubed(part), (torch.randn(shape),), ml.NumpyBackend(), atol=1e-4)


def test_a_module_stays_as_it_was():
    torch.manual_seed(5)
    module = Cubed(nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(8, 3)))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    x = torch.randn(LINES)
    model, params = ml.from_torch(module, (x,))
    assert "forward" not in vars(module)
    assert not x.requires_grad
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    # Statistics of a module in training change from call to call.
    compiled = ml.compile(model, ml.NumpyBackend(), inference=False)
    compiled.evaluate(params, {"x": x.numpy()})
    module(x.clone())
    mean = module.part[0].running_mean
    np.testing.assert_allclose(compiled.state["part.0.running_mean"], mean, rtol=1e-5)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.round()

    @staticmethod
    def backward(context, gradient):
        return gradient


class WithRule(Hamiltonian):
    def forward(self, x):
        return super().forward(x) + Rounded.apply(self.net(x))


class StoppedWithin(Hamiltonian):
    def forward(self, x):
        return torch.vmap(torch.func.grad(lambda z: (self.net(z).detach() * self.net(z)).sum()))(x)


class Drawn(Hamiltonian):
    def forward(self, x):
        return super().forward(x) * random.random()


class OnData(Hamiltonian):
    def forward(self, x):
        y = super().forward(x)
        return y if y.sum() > 0 else -y


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (WithRule, "other gradients(?s:.*)autograd.Function"),
        (StoppedWithin, "other gradients(?s:.*)torch.func"),
        (Drawn, "other outputs(?s:.*)random"),
        (OnData, "depends on data"),
    ],
)
def test_what_a_trace_would_lose_is_refused(make, message):
    with pytest.raises(UnsupportedOpError, match=message):
        ml.from_torch(make(), (torch.randn(5, 4),))
