"""The documentation's own programs, run on the NumPy backend in the place of the backend they show.

Test names carry the document and its first line: ``test_s004_287`` is document 004 from line 287 on.
"""

import pickle
import time

import mithril as ml
import numpy as np
import pytest


def classifier():
    model = ml.Model()
    model |= ml.Linear(dimension=128)(input="input", output="hidden1")
    model += ml.Relu()(input="hidden1", output="hidden1_act")
    model += ml.Linear(dimension=64)(input="hidden1_act", output="hidden2")
    model += ml.Relu()(input="hidden2", output="hidden2_act")
    model += ml.Linear(dimension=10)(input="hidden2_act", output="logits")
    model += ml.Softmax()(input="logits", output="output")
    return model


def cnn():
    model = ml.Model()
    model |= ml.Conv2d(filters=16, kernel_size=3, stride=1, padding="same")(input="input", output="conv1")
    model += ml.Relu()(input="conv1", output="conv1_act")
    model += ml.MaxPool2d(kernel_size=2)(input="conv1_act", output="pool1")
    model += ml.Conv2d(filters=32, kernel_size=3, stride=1, padding="same")(input="pool1", output="conv2")
    model += ml.Relu()(input="conv2", output="conv2_act")
    model += ml.MaxPool2d(kernel_size=2)(input="conv2_act", output="pool2")
    model += ml.Flatten()(input="pool2", output="flat")
    model += ml.Linear(dimension=64)(input="flat", output="hidden")
    model += ml.Relu()(input="hidden", output="hidden_act")
    model += ml.Linear(dimension=10)(input="hidden_act", output="output")
    return model


# --- 000: several backends ----------------------------------------------------------------------------------------


def test_s000_36_the_same_model_on_two_backends():
    model = cnn()
    results = []
    for backend in (ml.NumpyBackend(), ml.InterpreterBackend()):
        compiled = ml.compile(model, backend=backend, shapes={"input": [1, 3, 8, 8]}, data_keys={"input"})
        results.append(compiled.evaluate({}, {"input": np.ones((1, 3, 8, 8))})["output"])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-6)


def test_s000_76_benchmark_loop():
    numpy_input = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)
    results = {}
    for name, backend_class in {"numpy": ml.NumpyBackend, "interpreter": ml.InterpreterBackend}.items():
        backend = backend_class()
        compiled_model = ml.compile(
            cnn(), backend=backend, shapes={"input": [1, 3, 8, 8]}, data_keys={"input"}, jit=True
        )
        backend_input = backend.array(numpy_input)
        start_time = time.time()
        for _ in range(2):
            compiled_model.evaluate({}, {"input": backend_input})
        results[name] = time.time() - start_time
    assert all(seconds > 0 for seconds in results.values())


def test_s000_139_transfer_of_weights_without_shapes():
    numpy_backend = ml.NumpyBackend()
    with pytest.warns(ml.errors.UnusedKeyWarning, match="target"):
        trained = ml.compile(classifier(), backend=numpy_backend, data_keys={"input", "target"})
    params = trained.get_parameters()
    x = np.ones((2, 5), np.float32)
    wanted = trained.evaluate(params, {"input": x, "target": np.zeros(2)})["output"]
    numpy_params = {k: np.array(v) for k, v in params.items()}
    other = ml.InterpreterBackend()
    deployed = ml.compile(classifier(), backend=other, data_keys={"input"})
    outputs = deployed.evaluate({k: other.array(v) for k, v in numpy_params.items()}, {"input": x})
    np.testing.assert_allclose(outputs["output"], wanted, rtol=1e-5)


def test_s000_163_options_of_compile():
    model = ml.compile(
        classifier(), backend=ml.NumpyBackend(), data_keys={"input"}, jit=True, auto_scalar_promotion=True
    )
    assert model(np.ones((2, 5))).shape == (2, 10)


@pytest.mark.parametrize("name", ["TorchBackend", "JaxBackend", "MlxBackend", "MLXBackend", "CBackend", "GGMLBackend"])
def test_s000_39_other_backends_say_that_they_are_not_there(name):
    for module in (ml, ml.backends):
        with pytest.raises(ml.errors.BackendUnavailableError, match=r"not part of this version[\s\S]*NumpyBackend"):
            getattr(module, name)(device="cuda")
    assert not isinstance(ml.NumpyBackend(), getattr(ml, name))
    assert ml.MLXBackend is ml.MlxBackend


# --- 001: comparison ----------------------------------------------------------------------------------------------


def test_s001_219_inference():
    backend = ml.NumpyBackend(dtype=ml.float32)
    compiled = ml.compile(model=classifier(), backend=backend, inference=True)
    assert compiled(np.ones((2, 5))).shape == (2, 10)
    with pytest.raises(ml.errors.UnsupportedOpError):
        compiled.evaluate({}, {"input": np.ones((2, 5))}, True)


def test_s001_272_static_inference_and_shapes():
    options = {"static_inference": True, "static_shapes": True}
    with pytest.raises(ml.errors.UnresolvedShapeError, match="input"):
        ml.compile(model=classifier(), backend=ml.NumpyBackend(), **options)
    with pytest.raises(ml.errors.UnresolvedShapeError, match="input"):
        ml.compile(classifier(), ml.NumpyBackend(), shapes={"input": ["batch", 5]}, **options)
    compiled = ml.compile(classifier(), ml.NumpyBackend(), shapes={"input": [2, 5]}, **options)
    assert compiled(np.ones((2, 5))).shape == (2, 10)


def test_s001_362_dtype_of_the_backend():
    backend = ml.NumpyBackend(dtype=ml.float64)
    compiled = ml.compile(classifier(), backend)
    assert compiled(np.ones((2, 5), np.float32)).dtype == np.float64
    assert backend.array([1.0]).dtype == np.float64


def test_s001_420_migration():
    numpy_backend = ml.NumpyBackend(dtype=ml.float32)
    first = ml.compile(classifier(), numpy_backend, shapes={"input": (2, 5)})
    params = first.randomize_params()
    numpy_params = {k: numpy_backend.to_numpy(v) for k, v in params.items()}
    other = ml.InterpreterBackend(dtype=ml.float32)
    second = ml.compile(classifier(), other)
    data = {"input": np.ones((2, 5))}
    found = second.evaluate({k: other.array(v) for k, v in numpy_params.items()}, data)["output"]
    np.testing.assert_allclose(found, first.evaluate(params, data)["output"], rtol=1e-5)


# --- 002: the API of backends -------------------------------------------------------------------------------------


def test_s002_13_import_paths():
    from mithril.backends import get_backend as first
    from mithril.backends.backend import Backend
    from mithril.backends.registry import get_backend as second
    from mithril.backends.with_autograd.backend import AutogradBackend
    from mithril.backends.with_autograd.jax_backend import JaxBackend
    from mithril.backends.with_autograd.mlx_backend import MlxBackend
    from mithril.backends.with_autograd.torch_backend import TorchBackend
    from mithril.backends.with_manualgrad.c_backend import CBackend
    from mithril.backends.with_manualgrad.ggml_backend import GGMLBackend
    from mithril.backends.with_manualgrad.numpy_backend import NumpyBackend
    from mithril.models import LogicalModel

    assert first is second
    assert LogicalModel is ml.Model
    assert issubclass(NumpyBackend, Backend)
    assert issubclass(AutogradBackend, Backend)
    for absent in (JaxBackend, MlxBackend, TorchBackend, CBackend, GGMLBackend):
        with pytest.raises(ImportError, match="not part of this version"):
            absent()


def test_s002_64_model_compiles_itself():
    from mithril.models import LogicalModel

    model = LogicalModel()
    model |= ml.Linear(4)(input="input", output="output")
    physical_model = model.compile(ml.NumpyBackend())
    assert physical_model(np.ones((2, 3))).shape == (2, 4)


def test_s002_107_aliases_of_options():
    backend = ml.NumpyBackend(seed=42, default_dtype="float16")
    assert backend.default_dtype == "float16"
    again = ml.NumpyBackend(random_seed=42, dtype=np.float16)
    np.testing.assert_array_equal(backend.randn(4), again.randn(4))


@pytest.mark.parametrize("backend", [ml.NumpyBackend(), ml.InterpreterBackend()])
def test_s002_138_operations(backend):
    x = backend.tensor([1, 2, 3], dtype="float32")
    y = backend.tensor([4, 5, 6], dtype="float32")
    z = backend.add(x, y)
    w = backend.matmul(x, y)
    a = backend.relu(z)
    b = backend.sigmoid(w)
    c = backend.reduce_sum(a)
    d = backend.reduce_mean(b)
    np.testing.assert_array_equal(backend.to_numpy(z), [5, 7, 9])
    assert (float(w), float(c)) == (32.0, 21.0)
    np.testing.assert_allclose(d, 1 / (1 + np.exp(-32.0)))


def test_s002_158_utilities():
    backend = ml.NumpyBackend()
    tensor = backend.from_numpy(backend.to_numpy(backend.ones(2, 3)))
    assert backend.shape(tensor) == (2, 3)
    assert backend.dtype(tensor) == "float32"
    assert backend.random_normal(shape=(3, 4), mean=0.0, stddev=1.0).shape == (3, 4)
    backend.set_seed(42)
    first = backend.randn(5)
    backend.set_seed(42)
    np.testing.assert_array_equal(first, backend.random_normal(shape=(5,)))


def test_s002_181_gradient_of_a_function(capsys):
    backend = ml.NumpyBackend()

    def f(x):
        return backend.reduce_sum(backend.power(x, 2))

    x = backend.tensor([1.0, 2.0, 3.0])
    grad_f = backend.grad(f)
    grad_x = grad_f(x)
    print(backend.to_numpy(grad_x))
    assert capsys.readouterr().out == "[2. 4. 6.]\n"


# --- 003: custom backends -----------------------------------------------------------------------------------------


class MyCustomBackend(ml.backends.backend.Backend):
    def __init__(self):
        super().__init__()

    def tensor(self, data, dtype=None):
        return np.array(data, dtype=self._convert_dtype(dtype))

    def zeros(self, shape, dtype=None):
        return np.zeros(shape, dtype=self._convert_dtype(dtype))

    def ones(self, shape, dtype=None):
        return np.ones(shape, dtype=self._convert_dtype(dtype))

    def _convert_dtype(self, dtype):
        if dtype is None:
            return None
        dtype_map = {
            "float32": np.float32,
            "float64": np.float64,
            "int32": np.int32,
            "int64": np.int64,
            "bool": np.bool_,
        }
        return dtype_map.get(dtype)


class EnhancedNumpyBackend(ml.NumpyBackend):
    def __init__(self, use_bfloat16=False):
        super().__init__()
        self.use_bfloat16 = use_bfloat16
        self._custom_functions = {}

    def tensor(self, data, dtype=None):
        if dtype == "bfloat16" and self.use_bfloat16:
            return self._simulate_bfloat16(np.array(data, dtype=np.float32))
        return super().tensor(data, dtype)

    def _simulate_bfloat16(self, arr):
        as_uint32 = arr.view(np.uint32)
        as_uint32 = as_uint32 & 0xFFFF0000
        return as_uint32.view(np.float32)

    def fft(self, x):
        return np.fft.fft(x)

    def solve(self, a, b):
        return np.linalg.solve(a, b)

    def register_function(self, name, function):
        self._custom_functions[name] = function

    def call_custom(self, name, *args, **kwargs):
        if name not in self._custom_functions:
            raise ValueError(f"Custom function '{name}' not registered")
        return self._custom_functions[name](*args, **kwargs)


@pytest.mark.filterwarnings("ignore::mithril.errors.BackendWarning")
def test_s003_59_a_backend_of_three_methods_runs_models():
    backend = MyCustomBackend()
    x = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)
    compiled = ml.compile(classifier(), backend)
    reference = ml.compile(classifier(), ml.NumpyBackend(), shapes={"input": [2, 5]})
    params = compiled.randomize_params(seed=1)
    outputs, gradients = compiled.evaluate(params, {"input": x}, True)
    wanted = reference.evaluate(reference.randomize_params(seed=1), {"input": x}, True)
    np.testing.assert_allclose(outputs["output"], wanted[0]["output"], rtol=1e-5)
    assert list(gradients) == list(wanted[1])
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


def test_s003_263_registry():
    from mithril.backends import get_backend
    from mithril.backends.registry import register_backend

    register_backend("my_custom", MyCustomBackend, override=True)
    assert isinstance(get_backend("my_custom"), MyCustomBackend)
    assert "my_custom" in ml.list_backends()
    with pytest.raises(ml.errors.BackendUnavailableError, match="CBackend is not part of this version"):
        get_backend("c")


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


def test_s004_113_tensors():
    backend = ml.NumpyBackend()
    assert backend.array([[1, 2, 3], [4, 5, 6]]).shape == (2, 3)
    assert backend.array(np.random.randn(3, 4)).dtype == np.float32
    assert backend.zeros(3, 4).shape == backend.ones(3, 4).shape == backend.randn(3, 4).shape == (3, 4)
    assert backend.zeros((3, 4), "float64").dtype == np.float64
    z = backend.add(backend.array([1.0, 2.0, 3.0]), backend.array([4.0, 5.0, 6.0]))
    np.testing.assert_array_equal(backend.to_numpy(z), [5, 7, 9])


def test_s004_152_output_gradients_in_every_form():
    compiled = ml.compile(classifier(), ml.NumpyBackend())
    x, target = np.ones((2, 5)), np.full((2, 10), 0.1, np.float32)
    params = compiled.get_parameters()
    outputs = compiled.evaluate(params, {"input": x})
    seed = 2 * (outputs["output"] - target)
    _, wanted = compiled.evaluate(params, {"input": x}, output_gradients={"output": seed})
    forms = [{"output": seed}, seed, lambda out: {"output": 2 * (out["output"] - target)}]
    for form in forms:
        again, gradients = compiled.evaluate(params, {"input": x}, form)
        np.testing.assert_array_equal(again["output"], outputs["output"])
        for name, value in wanted.items():
            np.testing.assert_array_equal(gradients[name], value)


def test_s004_221_training_loop():
    rng = np.random.default_rng(0)
    compiled_model = ml.compile(classifier(), ml.NumpyBackend())
    params = compiled_model.get_parameters()
    batch_inputs, batch_targets = rng.normal(size=(8, 5)), np.eye(10)[rng.integers(0, 10, 8)]
    losses = []
    for _ in range(20):
        outputs, gradients = compiled_model.evaluate(
            params,
            {"input": batch_inputs},
            output_gradients=lambda outputs: {"output": 2 * (outputs["output"] - batch_targets)},
        )
        losses.append(((outputs["output"] - batch_targets) ** 2).sum())
        for name, grad in gradients.items():
            params[name] = params[name] - 0.05 * grad
    assert losses[-1] < 0.9 * losses[0]
    assert params is compiled_model.get_parameters()


def test_s004_283_custom_operation():
    backend = ml.NumpyBackend()

    def custom_activation(x):
        return backend.maximum(0.01 * x, x)

    model = ml.Model()
    model |= ml.Linear(dimension=64)(input="input", output="hidden")
    model += ml.Lambda(custom_activation)(input="hidden", output="hidden_act")
    model += ml.Linear(dimension=10)(input="hidden_act", output="output")
    assert ml.compile(model, backend)(np.ones((2, 3))).shape == (2, 10)
    np.testing.assert_array_equal(custom_activation(backend.array([-100.0, 2.0])), [-1, 2])


def test_s004_299_pickled_parameters(tmp_path):
    backend = ml.NumpyBackend()
    compiled = ml.compile(classifier(), backend, shapes={"input": [2, 5]})
    params = compiled.get_parameters()
    path = tmp_path / "model_params.pkl"
    with path.open("wb") as f:
        pickle.dump({k: backend.to_numpy(v) for k, v in params.items()}, f)
    with path.open("rb") as f:
        loaded = {k: backend.array(v) for k, v in pickle.load(f).items()}
    x = {"input": np.ones((2, 5))}
    np.testing.assert_array_equal(compiled.evaluate(loaded, x)["output"], compiled.evaluate(params, x)["output"])


def test_s004_398_debugging(capsys):
    backend = ml.NumpyBackend()
    ml.compile(classifier(), backend, verbose=True)
    ml.compile(classifier(), backend, shapes={"input": [2, 5]}, verbose=True)
    assert "compiled" in capsys.readouterr().out
    tensor = backend.array([1.0, float("nan")])
    print(f"Shape: {backend.shape(tensor)}, Dtype: {backend.dtype(tensor)}")
    print(f"Contains NaN: {backend.isnan(tensor).any()}")
    assert capsys.readouterr().out == "Shape: (2,), Dtype: float32\nContains NaN: True\n"


def test_s004_450_classification_as_written():
    rng = np.random.default_rng(0)
    compiled_model = ml.compile(classifier(), ml.NumpyBackend())
    X = rng.normal(size=(100, 784))
    y = rng.integers(0, 10, size=(100,))
    y_one_hot = np.zeros((100, 10))
    y_one_hot[np.arange(100), y] = 1
    params = compiled_model.get_parameters()
    learning_rate = 0.01
    accuracies = []
    for _ in range(10):
        outputs = compiled_model.evaluate(params, {"input": X})
        predictions = outputs["output"]
        loss_grad = predictions - y_one_hot
        _, gradients = compiled_model.evaluate(params, {"input": X}, output_gradients={"output": loss_grad})
        for name, grad in gradients.items():
            params[name] = params[name] - learning_rate * grad
        accuracies.append(np.mean(np.argmax(predictions, axis=1) == y))
    assert accuracies[-1] > accuracies[0]


def test_s004_510_image_model_in_half_precision():
    compiled = ml.compile(cnn(), ml.NumpyBackend(dtype=np.float16))
    assert compiled(np.ones((2, 3, 8, 8))).dtype == np.float16
    assert compiled.get_parameters()["conv2d.weight"].shape == (16, 3, 3, 3)
