"""`from_torch` keeps the gradients that a `torch.autograd.Function` says."""

import mithril as ml
import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, g):
        return g


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.factor * g, None


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        y = torch.sigmoid(x)
        return g * (y * (1 + x * (1 - y)))


class Both(torch.autograd.Function):
    """Two results, an integer between them, and a rule of both arguments that is none of the forward's."""

    @staticmethod
    def forward(x, w):
        return x @ w, x.argmax(-1), w.sum(0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g, _, h):
        x, w = ctx.saved_tensors
        return 2 * g @ w.mT if ctx.needs_input_grad[0] else None, x.mT @ torch.cos(x @ w) * g.sum() + h * 3


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return 2 * g.clamp(-1, 1)


class Auxiliary(torch.autograd.Function):
    """Adds a loss: its gradient is 1, whatever the gradient of the result."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2 + 1


class Hidden(torch.autograd.Function):
    """Computes a part of its gradient where autograd does not see it."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        with torch.no_grad():
            return g * 2


class Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 2


def both(x, w):
    y, i, s = Both.apply(x * w[:4, 0], w)
    return y + i[:, None] + s


#: Name -> function of an input [3, 4] and a parameter [4, 4].
FUNCTIONS = {
    "straight_through": lambda x, w: Rounded.apply(x @ w) * x,
    "with_a_number": lambda x, w: torch.tanh(Reversed.apply(w, 0.5)).sum(0) * x,
    "saved": lambda x, w: Swish.apply(x @ w),
    "several": both,
    "twice": lambda x, w: Swish.apply(Swish.apply(x * w[0]) + Rounded.apply(w[1])),
    "in_no_grad": lambda x, w: _without(lambda: Rounded.apply(w)).sum(0) + x * w[0],
    "checkpointed": lambda x, w: torch.utils.checkpoint.checkpoint(
        lambda v: Rounded.apply(v) * w[0], x * w[1], use_reentrant=False
    ),
}


def _without(function):
    with torch.no_grad():
        return function()


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.function, self.w = function, torch.nn.Parameter(torch.randn(4, 4) * 2)

    def forward(self, x):
        return self.function(x, self.w)


BACKENDS = {"torch": ml.TorchBackend, "jax": ml.JaxBackend, "numpy": ml.NumpyBackend, "c": ml.CBackend}


def gradients(module, x, backend, model, params):
    """Return the gradient by PyTorch, and by Mithril, of the parameter."""
    output = module(x)
    cotangent = torch.randn_like(output)
    (expected,) = torch.autograd.grad(output, module.w, cotangent)
    compiled = ml.compile(model, backend, shapes={"x": list(x.shape)})
    arrays = {name: backend.array(value) for name, value in params.items()}
    outputs, found = compiled.evaluate(
        arrays, {"x": x.numpy()}, output_gradients={"output": backend.array(cotangent.numpy())}
    )
    np.testing.assert_allclose(backend.to_numpy(outputs["output"]), output.detach(), rtol=1e-5, atol=1e-5)
    return expected.numpy(), backend.to_numpy(found["w"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_the_rule(name, backend):
    if backend == "jax":
        pytest.importorskip("jax")
    module, x = Module(FUNCTIONS[name]), torch.randn(3, 4)
    model, params = ml.from_torch(module, (x,))
    expected, found = gradients(module, x, BACKENDS[backend](), model, params)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_sizes_may_stay_open():
    module, x = Module(FUNCTIONS["several"]), torch.randn(3, 4)
    model, params = ml.from_torch(module, (x,), dynamic_shapes=({0: torch.export.Dim("n", min=2)},))
    expected, found = gradients(module, torch.randn(5, 4), ml.NumpyBackend(), model, params)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_without_gradients_nothing_is_left_of_the_rule():
    with torch.no_grad():
        model, _ = ml.from_torch(Module(FUNCTIONS["several"]), (torch.randn(3, 4),), verify=True)
    source = ml.compile(model, ml.NumpyBackend(), inference=True).source
    assert "argmax" in source
    assert "np.cos" not in source


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (Clipped, "is not linear"),
        (Auxiliary, "is not linear"),
        (Hidden, "or computes without autograd"),
        (Written, r"cannot be traced \(a function that writes"),
    ],
)
def test_a_rule_that_is_left_out_is_said(cls, reason, first):
    """The others are kept, whichever comes first."""

    def function(x, w):
        y = Rounded.apply(w) if first else None
        z = cls.apply(x * 2)
        return z * (Rounded.apply(w) if y is None else y)[1]

    module = Module(function)
    with pytest.warns(UserWarning, match=rf"{cls.__name__}.backward at .*test_from_torch_rules.py.* {reason}") as seen:
        model, params = ml.from_torch(module, (torch.randn(3, 4),))
    assert len(seen) == 1
    assert seen[0].filename == __file__
    output = ml.compile(model, ml.NumpyBackend()).evaluate(params, {"x": np.ones((3, 4), np.float32)})["output"]
    np.testing.assert_allclose(output, module(torch.ones(3, 4)).detach(), rtol=1e-5)
    expected, found = gradients(module, torch.randn(3, 4), ml.NumpyBackend(), model, params)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
