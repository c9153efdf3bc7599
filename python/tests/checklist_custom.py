"""Checklist D: backends of users' own."""

import functools

import mithril as ml
import numpy as np
import pytest
from checklist import ROOT, Page, Proven
from documented import backend

MINE = functools.partial(Proven, "test_seeds.py")
_three = MINE("test_s003_59_a_backend_of_three_methods_runs_models")
_enhanced = MINE("test_s003_161_enhanced_numpy_backend")
_registry = MINE("test_s003_263_registry")
_backend_tests = MINE("test_s003_254_backend_tests")
_page = functools.partial(Page, "custom-backends.md")


def ops(*names):
    def program():
        for name in names:
            assert callable(getattr(ml.NumpyBackend(), name)), name

    return program


def dtypes_are_names():
    seen = []

    class Listening(ml.NumpyBackend):
        def tensor(self, data, dtype=None):
            seen.append(dtype)
            return super().tensor(data, dtype)

    used = Listening()
    used.array([1.0])
    for dtype in (np.float64, ml.int32, "int64", "bool", "float16", "bfloat16", "int8", "int16", "uint8"):
        used.array([1], dtype)
    model = ml.Model()
    model |= ml.Linear(2)(input="input", output="output")
    ml.compile(model, used, shapes={"input": [1, 3]}).get_parameters()
    assert None in seen
    assert "float32" in seen


def layouts():
    used = ml.NumpyBackend()
    x = used.randn(2, 3, 5, 4)
    assert used.transpose(x, (0, 2, 3, 1)).shape == (2, 5, 4, 3)
    assert used.conv2d(x, used.randn(6, 3, 3, 3), padding="SAME").shape == (2, 6, 5, 4)


def own_gradients():
    from mithril.backends.with_autograd.backend import AutogradBackend

    class MyAutogradBackend(AutogradBackend):
        def __init__(self):
            super().__init__()

        def grad(self, function):
            return lambda x: ("gradient", function(x))

        def value_and_grad(self, function):
            return lambda x: (function(x), ("gradient", function(x)))

    assert MyAutogradBackend().grad(abs)(-1) == ("gradient", 1)
    assert MyAutogradBackend().value_and_grad(abs)(-1) == (1, ("gradient", 1))


def categories():
    assert ml.NumpyBackend().is_manualgrad is True
    for name in ("torch", "jax", "mlx"):
        assert backend(name).is_manualgrad is False


def missing_frameworks():
    from mithril.backends import frameworks

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(frameworks.FRAMEWORKS, "absent_framework", ("absent-framework", "absent", "1.0"))
        with pytest.raises(ImportError, match="pip install absent"):
            frameworks.require("AbsentBackend", "absent_framework")


def sources(name):
    def program():
        folder = ROOT / "python" / "mithril" / "backends" / name
        assert (folder / "backend.py").exists()
        assert (folder / "__init__.py").exists()

    return program


ITEMS = {
    "D1": ("a backend creates arrays", _three),
    "D2": ("a backend has functions", _three),
    "D3": ("a backend runs models", _three),
    "D4": ("gradients are optional", _three),
    "D5": ("mithril.backends.backend.Backend", _three),
    "D6": ("backends with gradients of their own", categories),
    "D7": ("backends without", categories),
    "D8": ("class MyCustomBackend(Backend)", _three),
    "D9": ("np.array(data, dtype=self._convert_dtype(dtype))", _three),
    "D10": ("np.zeros(shape, dtype=self._convert_dtype(dtype))", _three),
    "D11": ("ones(self, shape, dtype=None)", _three),
    "D12": ("_convert_dtype(self, dtype)", _three),
    "D13": ("dtype is None", dtypes_are_names),
    "D14": ("dtypes by name", dtypes_are_names),
    "D15": ("tensor, zeros, ones, eye, random_normal", ops("tensor", "zeros", "ones", "eye", "random_normal")),
    "D16": ("add, subtract, multiply, divide", ops("add", "subtract", "multiply", "divide")),
    "D17": ("matmul, exp, log, sin, cos", ops("matmul", "exp", "log", "sin", "cos")),
    "D18": ("reshape, transpose, expand_dims", ops("reshape", "transpose", "expand_dims")),
    "D19": ("reduce_sum, reduce_mean, reduce_max", ops("reduce_sum", "reduce_mean", "reduce_max")),
    "D20": ("conv2d, max_pool2d, batch_norm", ops("conv2d", "max_pool2d", "batch_norm")),
    "D21": ("from mithril.backends.with_autograd.backend import AutogradBackend", own_gradients),
    "D22": ("class MyAutogradBackend(AutogradBackend)", own_gradients),
    "D23": ("grad(self, function)", own_gradients),
    "D24": ("value_and_grad(self, function)", own_gradients),
    "D25": ("folder of a backend", sources("with_autograd/jax_backend")),
    "D26": ("further modules of a backend", _page("backend.py")),
    "D27": ("from mithril.backends.with_manualgrad.numpy_backend import NumpyBackend", _enhanced),
    "D28": ("class EnhancedNumpyBackend(NumpyBackend)", _enhanced),
    "D29": ("__init__(self, use_bfloat16=False)", _enhanced),
    "D30": ("super().tensor(data, dtype)", _enhanced),
    "D31": ("as_uint32 & 0xFFFF0000", _enhanced),
    "D32": ("fft(self, x)", _enhanced),
    "D33": ("ifft(self, x)", _enhanced),
    "D34": ("solve(self, a, b)", _enhanced),
    "D35": ("register_function(self, name, function)", _enhanced),
    "D36": ("call_custom(self, name, *args, **kwargs)", _enhanced),
    "D37": ("an unregistered function is a ValueError", _enhanced),
    "D38": ("class TPUBackend(Backend)", MINE("test_s003_218_a_backend_without_methods_says_what_is_missing")),
    "D39": ("options of JAX", _page("jax.config.update")),
    "D40": ("a missing framework is an ImportError", missing_frameworks),
    "D41": ("from mithril.testing.backend_tests import run_backend_tests", _backend_tests),
    "D42": ("run_backend_tests(my_backend)", _backend_tests),
    "D43": ("results.passed, results.total", _backend_tests),
    "D44": ("from mithril.backends.registry import register_backend", _registry),
    "D45": ('register_backend("my_custom", MyCustomBackend)', _registry),
    "D46": ("from mithril.backends import get_backend", _registry),
    "D47": ('get_backend("my_custom")', _registry),
    "D48": ("ops that are not supported say so", MINE("test_s003_218_a_backend_without_methods_says_what_is_missing")),
    "D49": ("limitations are data", Proven("test_custom_backends.py", "test_")),
    "D50": ("conv2d(self, x, filters, kernel_size, strides=(1, 1), padding='SAME')", _page("strides=(1, 1)")),
    "D51": ("images are NCHW", layouts),
    "D52": ("self.transpose(x, (0, 2, 3, 1))", layouts),
    "D53": (
        "backward_tanh(self, grad_output, inputs, outputs)",
        _page("backward_tanh(self, grad_output, inputs, outputs)"),
    ),
    "D54": ("mithril/backends/with_autograd/jax_backend/", sources("with_autograd/jax_backend")),
    "D55": ("mithril/backends/with_autograd/torch_backend/", sources("with_autograd/torch_backend")),
    "D56": ("mithril/backends/with_manualgrad/numpy_backend/", sources("with_manualgrad/numpy_backend")),
    "D57": ("models run on them unchanged", _three),
}
