"""The documentation's own programs on every backend that is installed, beyond what `test_checklist` runs.

Test names carry the document and its first line: ``test_s004_287`` is document 004 from line 287 on.
"""

import functools
import time

import documented
import mithril as ml
import ml_dtypes
import numpy as np
import pytest
from custom_backends import EnhancedNumpyBackend, MyCustomBackend
from documented import inputs, reference_results
from networks import classifier, cnn


@pytest.fixture(params=documented.BACKENDS)
def make(request):
    """What makes a backend: called with options."""
    return functools.partial(documented.backend, request.param)


@pytest.fixture
def backend(make):
    return make()


# --- 000: several backends ----------------------------------------------------------------------------------------


def test_s000_76_benchmark_loop(make):
    backend = make(seed=1)
    compiled_model = ml.compile(
        cnn(), backend=backend, shapes={"input": [2, 3, 8, 8]}, data_keys={"input"}, jit=backend.name != "torch"
    )
    backend_input = backend.array(inputs(2, 3, 8, 8))
    start_time = time.time()
    for _ in range(2):
        outputs = compiled_model.evaluate({}, {"input": backend_input})
    np.testing.assert_allclose(backend.to_numpy(outputs["output"]), reference_results("cnn")[0], rtol=1e-3, atol=1e-4)
    assert time.time() > start_time


def test_s000_139_transfer_of_weights_without_shapes(backend):
    numpy_backend = ml.NumpyBackend()
    with pytest.warns(ml.errors.UnusedKeyWarning, match="target"):
        trained = ml.compile(classifier(), backend=numpy_backend, data_keys={"input", "target"})
    params = trained.get_parameters()
    x = np.ones((2, 5), np.float32)
    actual = trained.evaluate(params, {"input": x, "target": np.zeros(2)})["output"]
    numpy_params = {k: np.array(v) for k, v in params.items()}
    deployed = ml.compile(classifier(), backend=backend, data_keys={"input"})
    outputs = deployed.evaluate({k: backend.array(v) for k, v in numpy_params.items()}, {"input": x})
    np.testing.assert_allclose(np.asarray(outputs["output"]), actual, rtol=1e-4, atol=1e-6)


# --- 001: comparison ----------------------------------------------------------------------------------------------


def test_s001_272_static_inference_and_symbols(backend):
    options = {"static_inference": True, "static_shapes": True}
    with pytest.raises(ml.errors.UnresolvedShapeError, match="input"):
        ml.compile(classifier(), backend, shapes={"input": ["batch", 5]}, **options)


def test_s001_362_dtype_of_the_backend(make):
    backend = make(dtype=ml.float64)
    compiled = ml.compile(classifier(), backend)
    assert backend.dtype(compiled(np.ones((2, 5), np.float32))) == "float64"
    assert backend.dtype(backend.array([1.0])) == "float64"


# --- 002: the API of backends -------------------------------------------------------------------------------------


def test_s002_13_both_names_of_modules():
    from mithril.backends import get_backend as first
    from mithril.backends.registry import get_backend as second
    from mithril.backends.with_autograd.backend import AutogradBackend
    from mithril.backends.with_manualgrad.c_backend import CBackend
    from mithril.backends.with_manualgrad.ggml_backend import GGMLBackend

    assert first is second
    assert issubclass(AutogradBackend, ml.Backend)
    assert CBackend is ml.RawCBackend
    assert GGMLBackend is ml.GGMLBackend is ml.GgmlBackend


def test_s002_107_aliases_of_options(make):
    backend = make(seed=42, default_dtype="float16")
    assert backend.default_dtype == "float16"
    again = make(random_seed=42, dtype=np.float16)
    np.testing.assert_array_equal(backend.to_numpy(backend.randn(4)), again.to_numpy(again.randn(4)))
    for first, second in (("dtype", "default_dtype"), ("seed", "random_seed")):
        with pytest.raises(ml.errors.ConflictingOptionError, match=rf"{first}.*{second}"):
            make(**{first: "float32" if first == "dtype" else 1, second: "float16" if first == "dtype" else 2})
        make(**{first: "float32" if first == "dtype" else 1, second: "float32" if first == "dtype" else 1})
    with pytest.raises(TypeError, match="did you mean `seed`"):
        make(seeds=42)


def test_s002_181_gradient_of_a_function(backend, capsys):
    def f(x):
        return backend.reduce_sum(backend.power(x, 2))

    x = backend.tensor([1.0, 2.0, 3.0])
    grad_f = backend.grad(f)
    grad_x = grad_f(x)
    print(backend.to_numpy(grad_x))
    assert capsys.readouterr().out == "[2. 4. 6.]\n"
    value, again = backend.value_and_grad(f)(x)
    assert float(value) == 14.0
    np.testing.assert_array_equal(backend.to_numpy(again), [2, 4, 6])


# --- 003: custom backends -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::mithril.errors.BackendWarning")
def test_s003_59_a_backend_of_three_methods_runs_models():
    backend = MyCustomBackend()
    x = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)
    compiled = ml.compile(classifier(), backend)
    reference = ml.compile(classifier(), ml.NumpyBackend(), shapes={"input": [2, 5]})
    params = compiled.randomize_params(seed=1)
    outputs, gradients = compiled.evaluate(params, {"input": x}, True)
    expected = reference.evaluate(reference.randomize_params(seed=1), {"input": x}, True)
    np.testing.assert_allclose(outputs["output"], expected[0]["output"], rtol=1e-5)
    assert list(gradients) == list(expected[1])
    np.testing.assert_array_equal(backend.add(backend.ones((2,)), [1.0, 2.0]), [2, 3])


def test_s003_109_autograd_backends_bring_their_own_gradient():
    from mithril.backends.with_autograd.backend import AutogradBackend

    class MyAutogradBackend(AutogradBackend):
        def __init__(self):
            super().__init__()

        def grad(self, function):
            return lambda x: "my gradient"

    assert MyAutogradBackend().grad(None)(1) == "my gradient"


def test_s003_161_enhanced_numpy_backend():
    backend = EnhancedNumpyBackend(use_bfloat16=True)
    np.testing.assert_array_equal(backend.tensor([1.0, 1.001], "bfloat16"), [1.0, 1.0])
    np.testing.assert_allclose(backend.fft(np.ones(4)), [4, 0, 0, 0])
    np.testing.assert_allclose(backend.solve(2 * np.eye(2), np.ones(2)), [0.5, 0.5])
    backend.register_function("double", lambda x: 2 * x)
    assert backend.call_custom("double", 4) == 8
    with pytest.raises(ValueError, match="not registered"):
        backend.call_custom("half")
    compiled = ml.compile(cnn(), backend)
    outputs, gradients = compiled.evaluate({}, {"input": np.ones((2, 3, 8, 8))}, True)
    assert outputs["output"].shape == (2, 10)
    assert all(np.isfinite(g).all() for g in gradients.values())


def test_s003_218_a_backend_without_methods_says_what_is_missing():
    class TPUBackend(ml.Backend):
        def __init__(self):
            super().__init__()

    with pytest.raises(ml.errors.UnsupportedOpError, match="TPUBackend does not define `tensor`"):
        TPUBackend().add([1.0], [2.0])


def test_s003_254_backend_tests():
    from mithril.testing.backend_tests import run_backend_tests

    results = run_backend_tests(
        ml.NumpyBackend(), ["add", "matmul", "exp", "sum", "softmax", "conv2d", "argmax", "split"]
    )
    assert results.failures == []
    assert results.passed == results.total > 30


def test_s003_254_backend_tests_find_what_is_wrong():
    from mithril.testing.backend_tests import run_backend_tests

    class Wrong(ml.NumpyBackend):
        def _op(self, name, args):
            return super()._op("maximum" if name == "add" else name, args)

    class Poor(ml.Backend):
        pass

    results = run_backend_tests(Wrong(), ["add", "subtract"])
    assert results.failed > 0
    assert all(line.startswith("add") for line in results.failures)
    poor = run_backend_tests(Poor(), ["add"])
    assert poor.passed == 0
    assert "does not define `tensor`" in poor.unsupported[0]


def test_s003_263_registry(monkeypatch):
    from mithril.backends import get_backend, registry
    from mithril.backends.registry import register_backend

    monkeypatch.setattr(registry, "_FACTORIES", {})
    register_backend("my_custom", MyCustomBackend)
    assert isinstance(get_backend("my_custom"), MyCustomBackend)
    assert "my_custom" in ml.list_backends()


def test_s003_309_layout_and_convolution():
    backend = ml.NumpyBackend()
    x = backend.randn(2, 3, 5, 4)
    assert backend.transpose(x, (0, 2, 3, 1)).shape == (2, 5, 4, 3)
    w = backend.randn(6, 3, 3, 3)
    same = backend.conv2d(x, w, padding="SAME")
    assert same.shape == (2, 6, 5, 4)
    np.testing.assert_array_equal(same, backend.conv2d(x, w, padding="same"))
    np.testing.assert_array_equal(same, backend.conv2d(x, w, padding=1))


# --- 004: training ------------------------------------------------------------------------------------------------


def test_s004_113_tensors(backend):
    z = backend.add(backend.array([1.0, 2.0, 3.0]), backend.array([4.0, 5.0, 6.0]))
    np.testing.assert_array_equal(backend.to_numpy(z), [5, 7, 9])
    assert backend.dtype(backend.zeros((3, 4), "float64")) == "float64"
    for dtype in ("float64", "float16", "bfloat16", "int64", "int8", "bool"):
        for array in (backend.zeros(2, dtype=dtype), backend.ones(2, dtype=dtype), backend.tensor([0, 1], dtype)):
            assert backend.dtype(array) == dtype


def test_s004_126_numbers_come_back_as_they_went_in(backend):
    for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int64, np.uint8, np.bool_):
        values = np.array([0, 1, 1], dtype)
        actual = backend.to_numpy(backend.tensor(values, dtype))
        assert actual.dtype == values.dtype
        np.testing.assert_array_equal(actual, values)


def test_s004_152_output_gradients_in_every_form(backend):
    compiled = ml.compile(classifier(), backend)
    x, target = np.ones((2, 5)), backend.array(np.full((2, 10), 0.1, np.float32))
    params = compiled.get_parameters()
    outputs = compiled.evaluate(params, {"input": x})
    seed = 2 * (outputs["output"] - target)
    _, actual = compiled.evaluate(params, {"input": x}, output_gradients={"output": seed})
    forms = [{"output": seed}, seed, backend.to_numpy(seed), lambda out: {"output": 2 * (out["output"] - target)}]
    for form in forms:
        again, gradients = compiled.evaluate(params, {"input": x}, form)
        np.testing.assert_array_equal(np.asarray(again["output"]), np.asarray(outputs["output"]))
        for name, value in actual.items():
            np.testing.assert_allclose(np.asarray(gradients[name]), np.asarray(value), rtol=1e-6, atol=1e-9)


def test_s004_398_verbose_when_shapes_come_later(backend, capsys):
    compiled = ml.compile(classifier(), backend, verbose=True)
    compiled(np.ones((2, 5), np.float32))
    assert "compiled" in capsys.readouterr().out


def test_s004_450_the_gradient_of_the_logits_trains(backend):
    """Attached to the probabilities, as one may write it, the same gradient leads elsewhere."""
    if backend.name == "interpreter":
        pytest.skip("the reference interpreter takes minutes")
    X, y = inputs(100, 784), np.random.default_rng(1).integers(0, 10, size=(100,))
    y_one_hot = backend.array(np.eye(10, dtype=np.float32)[y])
    accuracies = {}
    for key in ("logits", "output"):
        compiled_model = ml.compile(classifier(), backend)
        params = compiled_model.get_parameters()
        for _ in range(6):
            predictions = compiled_model.evaluate(params, {"input": X})["output"]
            _, gradients = compiled_model.evaluate(
                params, {"input": X}, output_gradients={key: predictions - y_one_hot}
            )
            for name, grad in gradients.items():
                params[name] = params[name] - 0.01 * grad
        predictions = backend.to_numpy(compiled_model.evaluate(params, {"input": X})["output"])
        accuracies[key] = np.mean(np.argmax(predictions, axis=1) == y)
    assert accuracies["logits"] > 0.9
    assert accuracies["logits"] > accuracies["output"]


def test_s004_510_image_model_in_half_precision(make):
    backend = make(dtype=np.float16)
    compiled = ml.compile(cnn(), backend)
    assert backend.dtype(compiled(np.ones((2, 3, 8, 8)))) == "float16"
    assert tuple(compiled.get_parameters()["conv2d.weight"].shape) == (16, 3, 3, 3)
