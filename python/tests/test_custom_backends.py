"""Backends that users write: a few methods, overridden ops, gradients of their own, tests, registration."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import mithril as ml
import numpy as np
import pytest
from custom_backends import MODELS, EnhancedNumpyBackend, Handful, MyCustomBackend, mlp, quiet, train
from mithril.backends.backend import Backend
from mithril.backends.with_autograd.backend import AutogradBackend
from mithril.errors import BackendWarning, InvalidValueError, ShapeError, TypeInferenceError, UnsupportedOpError

# --- a few methods ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", [MyCustomBackend, Handful])
def test_a_few_methods_train_a_model(kind, name):
    make, shape = MODELS[name]
    backend = kind()
    losses, gradients = quiet(lambda: train(make(), backend, shape))
    expected_losses, expected_gradients = train(make(), ml.NumpyBackend(), shape)
    assert losses[-1] < 0.8 * losses[0]
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    for key in expected_gradients:
        np.testing.assert_allclose(gradients[key], expected_gradients[key], rtol=1e-4, atol=1e-6)
    if kind is Handful:
        used = {"add", "matmul", "exp", "reduce_sum", "transpose"} | ({"conv2d"} if name == "cnn" else set())
        assert used <= backend.calls.keys()


def test_what_is_lacking_is_warned_about_once_and_refused_if_strict():
    with pytest.warns(BackendWarning, match=r"Handful has no .*maximum") as told:
        compiled = ml.compile(mlp(), Handful(), shapes={"input": [2, 4], "target": [2]})
    assert len(told) == 1
    assert told[0].filename == __file__
    assert "backend.matmul(" in compiled.source
    assert "reference.maximum(" in compiled.source
    with pytest.raises(UnsupportedOpError, match=r"Handful has no .*maximum"):
        ml.compile(mlp(), Handful(), shapes={"input": [2, 4], "target": [2]}, strict=True)

    class Enough(MyCustomBackend):
        def maximum(self, a, b):
            return np.maximum(a, b)

    model = ml.Model()
    model |= ml.Relu()(input="input", output="output")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = ml.compile(model, Enough(), shapes={"input": [2]}, strict=True)
        np.testing.assert_array_equal(compiled(np.float32([-1, 2])), [0, 2])


def test_creators_get_tuples_and_names():
    backend = MyCustomBackend()
    assert backend.zeros(3, 4).shape == backend.ones((3, 4)).shape == (3, 4)
    assert backend.zeros((2,), "int64").dtype == backend.ones(2, dtype=ml.int64).dtype == np.int64
    assert backend.tensor([1], dtype=np.float32).dtype == np.float32
    assert backend.array([1.0]).dtype == np.float32
    assert backend.array([1]).dtype == np.int64
    with pytest.raises(UnsupportedOpError, match="has no float16"):
        quiet(lambda: ml.compile(small(), MyCustomBackend(), shapes={"input": [2, 4]}, dtypes={"input": "float16"}))


def test_a_backend_without_methods_says_what_to_define():
    class TPUBackend(Backend):
        def __init__(self):
            super().__init__()

    with pytest.raises(UnsupportedOpError, match="TPUBackend does not define `zeros`") as caught:
        ml.compile(mlp(), TPUBackend(), shapes={"input": [2, 4], "target": [2]})
    assert "define `zeros`" in caught.value.hint
    with pytest.raises(UnsupportedOpError, match="does not define `tensor`"):
        TPUBackend().tensor([1.0])


# --- overridden ops -----------------------------------------------------------------------------------------------


def test_an_override_of_a_built_in_backend_is_used_everywhere():
    class Counting(ml.NumpyBackend):
        calls = 0

        def matmul(self, a, b):
            self.calls += 1
            return super().matmul(a, b)

    backend = Counting()
    losses, gradients = train(mlp(), backend, (16, 4), steps=1)
    expected_losses, expected_gradients = train(mlp(), ml.NumpyBackend(), (16, 4), steps=1)
    # Two layers: forward, and by weight and input.
    assert backend.calls == 5
    assert losses == expected_losses
    assert all(np.array_equal(gradients[k], expected_gradients[k]) for k in expected_gradients)
    for name in ("matmul", "mm", "bmm"):
        np.testing.assert_array_equal(
            getattr(backend, name)(backend.ones(2, 3), backend.ones(3, 2)), np.full((2, 2), 3)
        )
    assert backend.calls == 8
    # Inside an op that is defined by it, too.
    backend.einsum("ij,jk->ik", backend.ones(2, 3), backend.ones(3, 2))
    assert backend.calls == 9


def test_an_override_takes_part_in_tracing():
    class Steep(ml.NumpyBackend):
        def maximum(self, a, b):
            return np.maximum(a, b)

    backend = Steep()
    model = ml.Model()
    model |= ml.Lambda(lambda x: backend.maximum(0.01 * x, x))(input="input", output="output")
    compiled = ml.compile(model, backend, shapes={"input": [2]})
    assert "backend.maximum(" in compiled.source
    np.testing.assert_allclose(compiled([-1.0, 2.0]), [-0.01, 2.0], rtol=1e-6)
    np.testing.assert_allclose(
        backend.grad(lambda x: backend.sum(backend.maximum(x, 0.5 * x)))([-1.0, 2.0]), [0.5, 1.0]
    )


@pytest.mark.parametrize(
    ("result", "error", "text"),
    [
        (lambda x: np.exp(x)[..., None], ShapeError, r"Wrong.exp returns shape \[3, 1\], but must return \[3\]"),
        (lambda x: np.exp(x).astype(np.float64), TypeInferenceError, "Wrong.exp returns float64, but must return f"),
        (lambda x: [1.0, 2.0, 3.0], TypeInferenceError, "Wrong.exp returns a list, not an array"),
        (lambda x: None, TypeInferenceError, "Wrong.exp returns a NoneType"),
    ],
)
def test_a_wrong_result_of_an_override_is_an_error(result, error, text):
    class Wrong(ml.NumpyBackend):
        def exp(self, x):
            return result(x)

    model = ml.Model()
    model |= ml.Lambda(lambda x: ml.NumpyBackend().exp(x))(input="input", output="output")
    compiled = ml.compile(model, Wrong(), shapes={"input": ["n"]})
    with pytest.raises(error, match=text):
        compiled(np.ones(3, np.float32))


def test_a_use_that_a_method_cannot_express_is_not_given_to_it():
    backend = Handful()
    model = ml.Model()
    model |= ml.Conv2d(2, kernel_size=3, dilation=2, use_bias=False)(input="input", output="output")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        compiled = ml.compile(model, backend, shapes={"input": [1, 1, 6, 6]})
    assert any("Handful.conv2d is not called for" in str(w.message) and "`dilation`" in str(w.message) for w in told)
    assert "backend.conv2d" not in compiled.source
    with pytest.raises(UnsupportedOpError):
        ml.compile(model, Handful(), shapes={"input": [1, 1, 6, 6]}, strict=True)
    with pytest.warns(BackendWarning, match="compiled models cannot call Odd.softmax: its parameter `temperature`"):

        class Odd(ml.NumpyBackend):
            def softmax(self, x, temperature):
                return x


class Words(ml.NumpyBackend):
    """Convolutions and poolings that know paddings by name alone, as that of TensorFlow."""

    def __init__(self, **options):
        super().__init__(**options)
        self.calls = []

    def conv2d(self, x, filters, kernel_size, strides=(1, 1), padding="SAME"):
        assert padding in ("SAME", "VALID"), padding
        assert tuple(kernel_size) == filters.shape[2:]
        self.calls.append(padding)
        return super().conv2d(x, filters, None, strides, padding)

    def max_pool2d(self, x, kernel_size=(2, 2), stride=(2, 2), padding="VALID"):
        assert padding in ("SAME", "VALID"), padding
        self.calls.append(padding)
        return super().max_pool2d(x, kernel_size, stride, padding)


class Plain(ml.NumpyBackend):
    """The same with all arguments."""

    def __init__(self, **options):
        super().__init__(**options)
        self.calls = []

    def conv2d(self, input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        self.calls.append(padding)
        return super().conv2d(input, weight, bias, stride, padding, dilation, groups)


CONVOLUTIONS = [
    {"padding": 1},
    {"padding": (1, 2)},
    {"padding": ((0, 1), (2, 0))},
    {"padding": "same"},
    {"padding": "valid"},
    {"padding": 1, "stride": 2},
    {"padding": 1, "stride": (2, 1), "bias": False},
]


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("kind", [Words, Plain])
def test_a_convolution_of_ones_own_is_called_for_every_padding(kind, options):
    backend, layer = kind(), lambda: ml.Conv2d(4, 3, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = ml.compile(layer(), backend, shapes={"input": [2, 3, 6, 7]}, strict=True)
    reference = ml.compile(layer(), ml.NumpyBackend(), shapes={"input": [2, 3, 6, 7]})
    x, params = np.random.default_rng(0).normal(size=(2, 3, 6, 7)), reference.randomize_params(seed=0)
    backend.calls.clear()
    actual, gradients = compiled.evaluate(params, {"input": x}, output_gradients=True)
    assert backend.calls
    expected, by = reference.evaluate(params, {"input": x}, output_gradients=True)
    np.testing.assert_allclose(actual["output"], expected["output"], rtol=1e-5, atol=1e-6)
    for name in by:
        np.testing.assert_allclose(gradients[name], by[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"dilation": 2}, {"groups": 3, "padding": 1}], ids=str)
def test_all_arguments_of_a_convolution_reach_a_method_that_takes_them(options):
    backend, layer = Plain(), lambda: ml.Conv2d(6, 3, **options)
    compiled = ml.compile(layer(), backend, shapes={"input": [2, 3, 6, 7]}, strict=True)
    compiled.evaluate(compiled.randomize_params(seed=0), {"input": np.ones((2, 3, 6, 7))})
    assert backend.calls
    with pytest.warns(BackendWarning, match=f"Words.conv2d is not called .* takes no `{next(iter(options))}`"):
        ml.compile(layer(), Words(), shapes={"input": [2, 3, 6, 7]})


def test_a_pooling_of_ones_own_is_called_for_every_padding():
    x = -1 - np.random.default_rng(0).random(size=(2, 3, 6, 7))
    for padding in (0, 1, "same", ((0, 1), (1, 0))):
        backend, layer = Words(), lambda padding=padding: ml.MaxPool2d(2, 2, padding)
        compiled = ml.compile(layer(), backend, shapes={"input": [2, 3, 6, 7]}, strict=True)
        backend.calls.clear()
        actual = compiled(x)
        assert backend.calls == ["SAME" if padding == "same" else "VALID"]
        np.testing.assert_allclose(actual, ml.compile(layer(), ml.NumpyBackend(), shapes={"input": [2, 3, 6, 7]})(x))


class Narrow(ml.NumpyBackend):
    """Methods that lack an argument each."""

    def softmax(self, x):
        return super().softmax(x)

    def gelu(self, x):
        return super().gelu(x)

    def batch_norm(self, x, weight, bias, running_mean, running_var, training=True, momentum=0.1):
        return super().batch_norm(
            x,
            weight=weight,
            bias=bias,
            running_mean=running_mean,
            running_var=running_var,
            training=training,
            momentum=momentum,
        )

    def matmul(self, a, b):
        return super().matmul(a, b)

    def max_pool2d(self, x, kernel_size):
        return super().max_pool2d(x, kernel_size)


@pytest.mark.parametrize(
    ("layer", "shape", "method", "argument"),
    [
        (lambda: ml.Softmax(axis=1), [2, 3, 4], "softmax", "axis"),
        (lambda: ml.Gelu("tanh"), [2, 3], "gelu", "approximate"),
        (lambda: ml.BatchNorm2d(eps=1e-3), [2, 3, 4, 4], "batch_norm", "eps"),
        (lambda: ml.MaxPool2d(2, 1), [2, 3, 4, 4], "max_pool2d", "stride"),
    ],
)
def test_a_method_that_is_passed_over_is_said(layer, shape, method, argument):
    with pytest.warns(BackendWarning, match=rf"Narrow\.{method} is not called .*`{argument}`") as told:
        compiled = ml.compile(layer(), Narrow(), shapes={"input": shape})
    assert len([w for w in told if "is not called" in str(w.message)]) == 1
    assert f"backend.{method}(" not in compiled.source


def test_a_method_inside_a_layer_is_called_and_nothing_is_said():
    for layer, shape, method in (
        (lambda: ml.Linear(3), [2, 4], "matmul"),
        (lambda: ml.Softmax(), [2, 3], "softmax"),
        (lambda: ml.Gelu(), [2, 3], "gelu"),
        (lambda: ml.BatchNorm2d(), [2, 3, 4, 4], "batch_norm"),
        (lambda: ml.MaxPool2d(2), [2, 3, 4, 4], "max_pool2d"),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compiled = ml.compile(layer(), Narrow(), shapes={"input": shape}, strict=True)
        assert f"backend.{method}(" in compiled.source


def test_the_numpy_backend_with_extra_features():
    backend = EnhancedNumpyBackend(use_bfloat16=True)
    assert backend.tensor([1.001], dtype="bfloat16") == np.float32(1.0)
    x = backend.tensor([1.0, 2.0, 4.0])
    np.testing.assert_allclose(backend.ifft(backend.fft(x)).real, x)
    np.testing.assert_array_equal(backend.solve(2 * np.eye(3, dtype=np.float32), x), x / 2)
    # In a model complex numbers are pairs.
    spectrum = ml.Lambda(lambda x: backend.fft(x))
    compiled = ml.compile(spectrum, backend, shapes={"input": [3]})
    assert "backend.fft(" in compiled.source
    np.testing.assert_allclose(compiled(x)["output_1"], np.fft.fft(x).imag, atol=1e-6)
    backend.register_function("half", lambda x: x / 2)
    np.testing.assert_array_equal(backend.call_custom("half", x), x / 2)
    with pytest.raises(ValueError, match="'third' not registered"):
        backend.call_custom("third", x)
    train(mlp(), backend, (16, 4), steps=2)


def test_functions_are_registered_with_any_backend():
    backend = ml.NumpyBackend()
    backend.register_function("half", lambda x, by=2: x / by)
    assert backend.call_custom("half", 3.0, by=3) == 1.0
    with pytest.raises(InvalidValueError, match="Custom function 'halve' not registered") as caught:
        backend.call_custom("halve", 1)
    assert "half" in caught.value.hint
    with pytest.raises(InvalidValueError):
        backend.register_function("x", 3)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", ["torch", "jax", "mlx"])
def test_overrides_of_the_frameworks_are_compiled_and_checked(name, jit):
    framework = pytest.importorskip({"mlx": "mlx.core", "jax": "jax.numpy"}.get(name, name))
    kind = {"torch": "TorchBackend", "jax": "JaxBackend", "mlx": "MlxBackend"}[name]

    class Overridden(getattr(ml, kind)):
        calls = 0
        extra = False

        def matmul(self, a, b):
            self.calls += 1
            product = framework.matmul(a, b)
            return product[None] if self.extra else product

    backend = Overridden()
    compiled = ml.compile(small(), backend, shapes={"input": ["batch", 2]}, jit=jit)
    x = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    params = compiled.randomize_params(seed=0)
    outputs, gradients = compiled.evaluate(params, {"input": x}, True)
    assert backend.calls > 0
    reference = ml.compile(small(), ml.NumpyBackend(), shapes={"input": ["batch", 2]})
    expected_outputs, expected_gradients = reference.evaluate(reference.randomize_params(seed=0), {"input": x}, True)
    np.testing.assert_allclose(backend.to_numpy(outputs["output"]), expected_outputs["output"], rtol=1e-5)
    for key in expected_gradients:
        np.testing.assert_allclose(backend.to_numpy(gradients[key]), expected_gradients[key], rtol=1e-4, atol=1e-6)
    # The extra axis would broadcast away.
    wrong = Overridden()
    wrong.extra = True
    compiled = ml.compile(small(), wrong, shapes={"input": ["batch", 2]}, jit=jit)
    with pytest.raises(ShapeError, match=r"Overridden.matmul returns shape \[1, 4, 3\]"):
        compiled.evaluate(compiled.randomize_params(), {"input": x})


# --- gradients of a user's own ------------------------------------------------------------------------------------


def test_backward_methods_give_the_gradients_of_their_ops():
    class Manual(ml.NumpyBackend):
        calls = 0

        def backward_tanh(self, grad_output, inputs, outputs):
            self.calls += 1
            tanh_x = outputs[0]
            return grad_output * (1 - tanh_x * tanh_x)

        def backward_matmul(self, grad_output, inputs, outputs):
            self.calls += 1
            a, b = inputs
            return grad_output @ b.T, (2 * a.T) @ grad_output

        def backward_softmax(self, grad_output, inputs, outputs, axis):
            assert axis in (0, -1)
            return outputs[0] * (grad_output - (grad_output * outputs[0]).sum(axis, keepdims=True))

    model = ml.Model()
    model |= ml.Linear(3, use_bias=False)(input="input", weight="w", output="hidden")
    model |= ml.Tanh()(input="hidden", output="active")
    model |= ml.Softmax(axis=0)(input="active", output="output")
    backend = Manual()
    x = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    actual, expected = ({}, {})
    for one, result in ((backend, actual), (ml.NumpyBackend(), expected)):
        compiled = ml.compile(model, one, shapes={"input": ["batch", 5]})
        params = compiled.randomize_params(seed=1)
        result.update(compiled.evaluate(params, {"input": x}, {"output": x[:, :3]})[1])
    assert backend.calls == 2
    # The factor 2 of the planted gradient shows that it is used.
    np.testing.assert_allclose(actual["w"], 2 * expected["w"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("gradient", "error", "text"),
    [
        (lambda g, x: g[..., None], ShapeError, r"backward_tanh returns shape \[3, 1\], but \[3\] is expected"),
        (lambda g, x: g.astype(np.float64), TypeInferenceError, "backward_tanh returns float64"),
        (lambda g, x: (g, g), InvalidValueError, "returns 2 gradients for 1 inputs"),
        (lambda g, x: "no", TypeInferenceError, "backward_tanh returns a str"),
    ],
)
def test_a_wrong_gradient_of_a_user_is_an_error(gradient, error, text):
    class Wrong(ml.NumpyBackend):
        def backward_tanh(self, grad_output, inputs, outputs):
            return gradient(grad_output, inputs[0])

    model = ml.Model()
    model |= ml.Tanh()(input="input", output="output")
    compiled = ml.compile(model, Wrong(), shapes={"input": [3]}, trainable_keys={"input"})
    with pytest.raises(error, match=text):
        compiled.evaluate({"input": np.ones(3, np.float32)}, {}, True)


def test_none_is_no_gradient():
    class Stopped(ml.NumpyBackend):
        def backward_multiply(self, grad_output, inputs, outputs):
            return grad_output * inputs[1], None

    model = ml.Model()
    model |= ml.Multiply()(left="a", right="b", output="output")
    compiled = ml.compile(model, Stopped(), shapes={"a": [2], "b": [2]}, trainable_keys={"a", "b"})
    params = {"a": np.float32([1, 2]), "b": np.float32([3, 4])}
    gradients = compiled.evaluate(params, {}, True)[1]
    np.testing.assert_array_equal(gradients["a"], [3, 4])
    np.testing.assert_array_equal(gradients["b"], [0, 0])


def central(function, x):
    """Gradient by central differences."""
    gradient = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[i] = 1e-3
        gradient[i] = (np.float64(function(x + step)) - np.float64(function(x - step))) / 2e-3
    return gradient


class Differences(Handful, AutogradBackend):
    """Differentiates by differences, of the first argument."""

    used = 0

    def maximum(self, a, b):
        return np.maximum(a, b)

    def value_and_grad(self, function):
        def both(x, *more):
            self.used += 1
            return function(x, *more), central(lambda x: function(x, *more), x)

        return both


class WithPlaces(Differences):
    """The same for any arguments."""

    def value_and_grad(self, function, argnums=0):
        def both(*args):
            self.used += 1
            places = (argnums,) if isinstance(argnums, int) else argnums
            gradients = tuple(central(lambda x, i=i: function(*args[:i], x, *args[i + 1 :]), args[i]) for i in places)
            return function(*args), gradients[0] if isinstance(argnums, int) else gradients

        return both


class WithTrees(Differences):
    """The same for a dict."""

    takes_trees = True

    def value_and_grad(self, function):
        def both(tree):
            self.used += 1
            return function(tree), {k: central(lambda x, k=k: function({**tree, k: x}), v) for k, v in tree.items()}

        return both


class GradientOnly(Handful, AutogradBackend):
    """Has `grad` alone."""

    used = 0

    def maximum(self, a, b):
        return np.maximum(a, b)

    def grad(self, function):
        def gradient(x):
            self.used += 1
            return central(function, x)

        return gradient


def small():
    model = ml.Model()
    model |= ml.Linear(3)(input="input", output="hidden")
    model |= ml.Relu()(input="hidden", output="output")
    return model


@pytest.mark.parametrize(("kind", "calls"), [(Differences, 2), (WithPlaces, 1), (WithTrees, 1), (GradientOnly, 2)])
def test_compiled_gradients_come_from_the_users_method(kind, calls):
    backend = kind()
    x = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    cotangent = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    compiled = ml.compile(small(), backend, shapes={"input": [4, 2]})
    params = compiled.randomize_params(seed=0)
    outputs, gradients = compiled.evaluate(params, {"input": x}, {"output": cotangent})
    assert backend.used == calls
    reference = ml.compile(small(), ml.NumpyBackend(), shapes={"input": [4, 2]})
    expected_outputs, expected_gradients = reference.evaluate(dict(params), {"input": x}, {"output": cotangent})
    np.testing.assert_allclose(outputs["output"], expected_outputs["output"], rtol=1e-5)
    for name in expected_gradients:
        np.testing.assert_allclose(gradients[name], expected_gradients[name], rtol=2e-2, atol=2e-3)
    graph = quiet(lambda: ml.compile(small(), backend, shapes={"input": [4, 2]}, autodiff="graph"))
    exact = quiet(lambda: graph.evaluate(params, {"input": x}, {"output": cotangent})[1])
    assert backend.used == calls
    np.testing.assert_allclose(exact["linear.weight"], expected_gradients["linear.weight"], rtol=1e-5)
    if not kind.takes_trees:
        square = backend.grad(lambda x: (x * x).sum())
        np.testing.assert_allclose(square(np.float32([1, 2])), [2, 4], rtol=1e-2)


def test_native_gradients_do_not_pass_through_the_host():
    class Little(MyCustomBackend, AutogradBackend):
        def value_and_grad(self, function):
            raise AssertionError

    compiled = quiet(lambda: ml.compile(small(), Little(), shapes={"input": [4, 2]}))
    with pytest.raises(UnsupportedOpError, match="cannot differentiate a model with add, matmul, maximum") as caught:
        compiled.evaluate(compiled.randomize_params(), {"input": np.ones((4, 2))}, True)
    assert 'autodiff="graph"' in caught.value.hint


def test_an_autograd_backend_without_gradients_uses_the_graph():
    class Plain(Handful, AutogradBackend):
        pass

    losses, _ = quiet(lambda: train(mlp(), Plain(), (16, 4)))
    assert losses[-1] < losses[0]


# --- the registry -------------------------------------------------------------------------------------------------


def test_backends_are_registered_and_found_by_name():
    ml.backends.register_backend("handful", Handful)
    from mithril.backends.registry import get_backend, list_backends, register_backend

    assert get_backend is ml.backends.get_backend is ml.get_backend
    assert type(get_backend("handful")) is Handful
    assert "handful" in list_backends()
    with pytest.raises(InvalidValueError, match="called 'handful' already"):
        register_backend("handful", MyCustomBackend)
    with pytest.raises(InvalidValueError, match="called 'numpy' already"):
        register_backend("numpy", MyCustomBackend)
    register_backend("handful", lambda: MyCustomBackend(), override=True)
    assert type(get_backend("handful")) is MyCustomBackend
    with pytest.raises(ml.errors.KeyNotFoundError, match="no backend called 'handfull'") as caught:
        get_backend("handfull")
    assert "'handful'" in caught.value.hint
    with pytest.raises(TypeError, match="dtyp"):
        get_backend("numpy", dtyp="float64")
    register_backend("nonsense", dict)
    with pytest.raises(InvalidValueError, match="returns a dict"):
        get_backend("nonsense")
    with pytest.raises(InvalidValueError, match="by its class"):
        register_backend("x", 3)


def install(folder, package, name, value, source):
    """A distribution as pip would leave it, with an entry point."""
    (folder / f"{package}.py").write_text(source)
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[mithril.backends]\n{name} = {package}:{value}\n")


def test_backends_of_other_packages_are_found(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    source = "import mithril as ml\nclass Offered(ml.NumpyBackend):\n    name = 'offered'\n"
    install(tmp_path, "fake_offering", "offered", "Offered", source)
    install(tmp_path, "fake_broken", "broken", "Absent", "import not_installed_anywhere\n")
    assert "offered" in ml.list_backends()
    backend = ml.get_backend("offered", dtype="float64")
    assert (type(backend).__name__, backend.default_dtype) == ("Offered", "float64")
    train(mlp(), ml.get_backend("offered"), (16, 4), steps=1)
    with pytest.raises(ml.errors.BackendUnavailableError, match="'broken' of the package fake_broken") as caught:
        ml.get_backend("broken")
    assert "not_installed_anywhere" in caught.value.message
    install(tmp_path, "fake_other", "offered", "Offered", source)
    with pytest.raises(InvalidValueError, match="fake_offering and fake_other both offer"):
        ml.get_backend("offered")


def test_capabilities():
    capabilities = Handful().capabilities()
    methods = ["add", "conv2d", "exp", "matmul", "multiply", "ones", "reduce_sum", "transpose", "zeros"]
    assert capabilities["methods"] == methods
    assert capabilities["dtypes"] == ["bool", "int32", "int64", "float32", "float64"]
    assert (capabilities["ops"]["sum"], capabilities["ops"]["linear"], capabilities["ops"]["erf"]) == (
        "native",
        "expanded",
        "reference",
    )
    assert capabilities["native"] + capabilities["expanded"] + capabilities["reference"] == len(capabilities["ops"])
    assert (capabilities["autodiff"], capabilities["jit"], capabilities["missing"]) == (["graph"], False, 0)
    assert Differences().capabilities()["autodiff"] == ["native", "graph"]
    numpy = ml.NumpyBackend().capabilities()
    assert numpy["missing"] == numpy["reference"] == 0
    assert ml.InterpreterBackend().capabilities()["native"] == len(numpy["ops"])

    class Listed(ml.NumpyBackend):
        limitations = {("solve", "float16"): "too coarse"}

        def random_normal(self, shape=(), mean=0.0, stddev=1.0):
            return np.zeros(shape)

    capabilities = Listed().capabilities()
    assert capabilities["limitations"] == {"solve of float16": "too coarse"}
    assert capabilities["unused_methods"] == {"random_normal": "it takes no `key`"}


# --- the command line ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["manual", "autograd"])
def test_new_backend_writes_a_backend_that_works(kind, tmp_path):
    if kind == "autograd":
        pytest.importorskip("jax")
    words = ["new-backend", "my_backend", "--folder", str(tmp_path), *(["--autograd"] if kind == "autograd" else [])]
    here = str(Path(ml.__file__).parents[1])
    run = [sys.executable, "-m"]
    environment = {**os.environ, "PYTHONPATH": here}
    done = subprocess.run([*run, "mithril", *words], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    project = tmp_path / "my_backend"
    package = {path.name for path in (project / "my_backend").iterdir()}
    assert package == {"__init__.py", "backend.py", "ops.py", "utils.py"}
    environment["PYTHONPATH"] = f"{here}{os.pathsep}{project}"
    done = subprocess.run(
        [*run, "pytest", "-q", "-W", "error", "tests"], capture_output=True, text=True, env=environment, cwd=project
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    ruff = [*run, "ruff", "check", "--isolated", "--select", "E,F", "--line-length", "120", str(project)]
    checked = subprocess.run(ruff, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    again = subprocess.run([*run, "mithril", *words], capture_output=True, text=True, env=environment)
    assert again.returncode == 1
    assert "exists already" in again.stderr


@pytest.mark.parametrize("name", ["", "My", "class", "a-b", "../x", "numpy"])
def test_new_backend_refuses_names(name, tmp_path):
    from mithril.tools.scaffold import new_backend

    with pytest.raises(InvalidValueError):
        new_backend(name, tmp_path)
    assert list(tmp_path.iterdir()) == []
