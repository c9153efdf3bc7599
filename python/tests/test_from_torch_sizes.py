"""Modules whose sizes stay open: what is computed from sizes, and parts that follow from them, for many sizes."""

import contextlib
import math

import mithril as ml
import numpy as np
import pytest
from mithril import errors
from mithril.backends import get_backend

torch = pytest.importorskip("torch")
F = torch.nn.functional


def replaced(x, *keys):
    """Put parts of a tensor that was moved into a copy of it, at the places of the keys."""
    y = x.clone()
    for key in keys:
        y[key] = 3.0 * x.flip(1)[key]
    return y


def windows(x):
    """Pad to a multiple of 4, and take the means of parts of that size."""
    y = F.pad(x, (0, -x.shape[1] % 4))
    return y.reshape(y.shape[0], -1, 4).mean(-1)


def spectrum(x):
    """Keep half of the frequencies, as neural operators do."""
    z = torch.fft.rfft(x)
    y = torch.zeros_like(z)
    y[:, :3] = z[:, :3] * 2.0
    return torch.fft.irfft(y, n=x.shape[1])


def grid(x):
    points = [torch.linspace(-1, 1, size) for size in x.shape]
    places = torch.stack(torch.meshgrid(*points, indexing="ij")[::-1], -1)
    return F.grid_sample(x[None, None], places[None] * 0.9, align_corners=True)


def sines(x):
    place, frequency = torch.arange(x.shape[1])[:, None], torch.exp(torch.arange(0, 6, 2) * -0.7)
    table = torch.zeros(x.shape[1], 6)
    table[:, 0::2], table[:, 1::2] = torch.sin(place * frequency), torch.cos(place * frequency)
    return x @ table


FUNCTIONS = {
    # Numbers that are computed from sizes.
    "quotient": lambda x, n, t: (x.sum(0) / n, x * (1 / t), x * (2 * t / 3)),
    "power": lambda x, n, t: (x * t**-0.5, x * t**2, x * (t / 2) ** 2),
    "root": lambda x, n, t: x / math.sqrt(t),
    "difference": lambda x, n, t: (x * (t - 1.5), x + (t / 3 - 1), x * -(t / 2), x * abs(t - 9)),
    "larger": lambda x, n, t: (x * max(t, 7), x + min(n, 3)),
    "compared": lambda x, n, t: (x < t / 20, x.clamp(max=t / 20), torch.where(x > 0, x, t / 2)),
    "filled": lambda x, n, t: torch.full((n, 3), t / 7) * x[:, :3],
    "exponent": lambda x, n, t: x.abs().pow(t / 8),
    "numel": lambda x, n, t: x.sum() / (x.numel() / 2),
    "half_of": lambda x, n, t: (x[:, : t // 2], x[:, t // 2 :]),
    "rounded": lambda x, n, t: x[:, : math.ceil(t / 2)],
    "linspace": lambda x, n, t: x * torch.linspace(-1, 1, t),
    # Parts that are replaced.
    "front": lambda x, n, t: replaced(x, (slice(None), slice(0, 2))),
    "behind": lambda x, n, t: replaced(x, (slice(None), slice(1, None))),
    "last": lambda x, n, t: replaced(x, (slice(None), -1)),
    "several": lambda x, n, t: replaced(x, (slice(None), slice(-3, None)), (0,), (slice(None), slice(None, None, 2))),
    "from_end": lambda x, n, t: replaced(x, (slice(None), slice(-4, -2))),
    "at_half": lambda x, n, t: replaced(x, (slice(None), slice(t // 2, None))),
    # Axes that are moved, padded, cut and joined.
    "padded": lambda x, n, t: (F.pad(x, (n, -t % 4), value=0.5), F.pad(x, (-1, -t % 4, 0, n))),
    "windows": lambda x, n, t: windows(x),
    "rolled": lambda x, n, t: (x.roll(t // 2, 1), x.roll(-n, 1), torch.fft.fftshift(x, 1)),
    "unfolded": lambda x, n, t: x.unfold(1, 3, 2),
    "gated": lambda x, n, t: F.glu(torch.cat([x, x * 2], 1)),
    "spectrum": lambda x, n, t: spectrum(x),
    "spectrum_by_size": lambda x, n, t: (torch.fft.rfft(x) * (1 / t) / math.sqrt(n)).abs(),
    "filled_in_place": lambda x, n, t: x.clone().fill_(2.0) * x,
    # Functions that PyTorch exports for one size only, or that need numbers here.
    "one_hot": lambda x, n, t: F.one_hot(x.argmax(1), t) * x,
    "max_pool1d": lambda x, n, t: F.max_pool1d(x[:, None], 2),
    "distances": lambda x, n, t: torch.cdist(x, x + 1),
    "largest": lambda x, n, t: x.topk(t // 2)[0],
    "scattered": lambda x, n, t: torch.zeros(n, 4).scatter_add(1, x.abs().long() % 4, x),
    "grid": lambda x, n, t: grid(x),
    "affine": lambda x, n, t: F.affine_grid(torch.eye(2, 3)[None], (1, 1, n, t), align_corners=False) * x[..., None],
    "positions": lambda x, n, t: sines(x),
    "resized": lambda x, n, t: (F.interpolate(x[:, None], scale_factor=2), F.interpolate(x[:, None], (7,))),
    "resized_linearly": lambda x, n, t: F.interpolate(x[None, None], (2 * n, t), mode="bilinear"),
    "resized_to_nearest": lambda x, n, t: F.interpolate(x[:, None], (t + 3,), mode="nearest-exact"),
    "resized_by_corners": lambda x, n, t: F.interpolate(x[None, None], (n, 2 * t), mode="bilinear", align_corners=True),
    "resized_cubically": lambda x, n, t: F.interpolate(x[None, None], (n + 2, t - 2), mode="bicubic"),
    "adaptive": lambda x, n, t: F.adaptive_avg_pool1d(x[:, None], 3),
}


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.tensor([1.1]))

    def forward(self, x):
        return self.function(x * self.weight, *x.shape)


def imported(function, bounds=(6, 64)):
    n, t = torch.export.Dim("n", min=2, max=64), torch.export.Dim("t", min=bounds[0], max=bounds[1])
    module = Module(function)
    return module, *ml.from_torch(module, (torch.randn(4, 12),), dynamic_shapes=({0: n, 1: t},))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_open_sizes(name):
    module, model, params = imported(FUNCTIONS[name])
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"x": ["n", "t"]})
    compiled.load_params(params)
    for sizes in ((4, 12), (5, 9), (3, 8), (2, 15)):
        x = torch.randn(*sizes)
        expected = module(x)
        expected = expected if isinstance(expected, tuple) else (expected,)
        results = compiled.evaluate(compiled.get_parameters(), {"x": x.numpy()})
        assert list(results) == list(model.output_keys)
        for actual, wanted in zip(results.values(), expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(np.array(actual)), wanted.detach(), rtol=1e-5, atol=1e-5)
        cotangents = [torch.randn_like(y) if y.is_floating_point() else None for y in expected]
        pairs = [(y, g) for y, g in zip(expected, cotangents, strict=True) if g is not None and y.requires_grad]
        gradient = torch.autograd.grad([y for y, _ in pairs], module.weight, [g for _, g in pairs])
        given = {k: g.numpy() for k, g in zip(results, cotangents, strict=True) if g is not None}
        actual = compiled.evaluate_gradients(compiled.get_parameters(), {"x": x.numpy()}, output_gradients=given)
        torch.testing.assert_close(torch.from_numpy(actual["weight"]), gradient[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "name", ["quotient", "several", "padded", "rolled", "spectrum", "resized_linearly", "adaptive"]
)
@pytest.mark.parametrize("backend", ["torch", "jax", "mlx", "c"])
def test_open_sizes_on_other_backends(name, backend):
    backend = get_backend(backend if backend == "c" else pytest.importorskip(backend) and backend)
    module, model, params = imported(FUNCTIONS[name])
    compiled = ml.compile(model, backend, shapes={"x": ["n", "t"]})
    compiled.load_params(params)
    for sizes in ((4, 12), (5, 9)):
        x = torch.randn(*sizes)
        expected = module(x)
        results = compiled.evaluate(compiled.get_parameters(), {"x": x.numpy()}).values()
        for actual, wanted in zip(results, expected if isinstance(expected, tuple) else (expected,), strict=True):
            actual = torch.from_numpy(np.array(backend.to_numpy(actual)))
            torch.testing.assert_close(actual, wanted.detach(), rtol=1e-4, atol=1e-4)


def test_numbers_of_sizes_have_the_dtype_of_what_they_meet():
    module, model, params = imported(
        lambda x, n, t: (x.double() / math.sqrt(t), x.half() * (1 / t), x.long() * max(t, 7))
    )
    compiled = ml.compile(model, ml.NumpyBackend())
    compiled.load_params(params)
    x = torch.randn(3, 7) * 5
    for actual, wanted in zip(
        compiled.evaluate(compiled.get_parameters(), {"x": x.numpy()}).values(), module(x), strict=True
    ):
        torch.testing.assert_close(torch.from_numpy(np.array(actual)), wanted.detach())


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x, n, t: x * 2 if t > 9 else x, "PyTorch suggests t = Dim('t', min=10, max=64)"),
        (lambda x, n, t: x.reshape(n, 2, -1), "computes something else for other sizes"),
        (lambda x, n, t: x / float(t), "use torch.sym_float"),
        (lambda x, n, t: x[:, : int(t * 0.7)], "for all sizes that dynamic_shapes allows"),
        (lambda x, n, t: x[:, : min(t, n)], "the larger or smaller one of two"),
    ],
)
def test_what_depends_on_sizes_otherwise_is_refused(function, text):
    with pytest.raises(errors.UnsupportedOpError) as caught:
        imported(function)
    assert text in str(caught.value)


def test_what_a_program_asserts_of_sizes_is_checked():
    module = Module(lambda x, n, t: x.reshape(n, 2, -1))
    t = torch.export.Dim("t", min=6, max=64)
    options = {"dynamic_shapes": ({1: t},), "prefer_deferred_runtime_asserts_over_guards": True}
    program = torch.export.export(module, (torch.randn(4, 12),), **options)
    with pytest.raises(
        errors.UnsupportedOpError, match=r"the program computes something else for other sizes(.|\n)*= 7"
    ):
        ml.from_torch(program)


def test_a_size_that_a_decomposition_takes_for_a_number_is_an_error(monkeypatch):
    # PyTorch's decomposition of `affine_grid` calls a function that takes integers, unless that is replaced.
    from mithril.frontend.torch import export

    replaced, calls = export.replaced_functions, []

    def only_once(module):
        calls.append(module)
        return replaced(module) if len(calls) == 1 else contextlib.nullcontext()

    monkeypatch.setattr(export, "replaced_functions", only_once)
    with pytest.raises(
        errors.UnsupportedOpError, match="the program computes something else for other sizes: it was"
    ) as e:
        imported(FUNCTIONS["affine"])
    assert "`n == 4`" in str(e.value) or "`t == 12`" in str(e.value)
