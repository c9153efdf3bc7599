"""Models as users write them: the documentation's spellings, values, names, expressions."""

import copy
import pickle

import mithril as ml
import numpy as np
import pytest
from threads import in_threads

BACKENDS = [ml.NumpyBackend, ml.InterpreterBackend]


def classifier():
    model = ml.Model()
    model |= ml.Linear(dimension=16)(input="input", output="hidden1")
    model += ml.Relu()(input="hidden1", output="hidden1_act")
    model += ml.Linear(dimension=10)(input="hidden1_act", output="logits")
    model += ml.Softmax()(input="logits", output="output")
    return model


@pytest.mark.parametrize("backend", BACKENDS)
def test_documented_training_loop_without_shapes(backend):
    compiled = ml.compile(classifier(), backend())
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 8))
    y = np.eye(10)[rng.integers(0, 10, 20)]
    params = compiled.get_parameters()
    with pytest.raises(ml.errors.UnresolvedShapeError):
        params.items()
    losses = []
    for _ in range(30):
        outputs = compiled.evaluate(params, {"input": x})
        predictions = outputs["output"]
        losses.append(-np.log((predictions * y).sum(1)).mean())
        _, gradients = compiled.evaluate(params, {"input": x}, output_gradients={"logits": (predictions - y) / 20})
        assert set(gradients) == set(params)
        for name, gradient in gradients.items():
            params[name] = params[name] - 0.5 * gradient
    assert losses[-1] < 0.7 * losses[0]


def test_both_backends_give_the_same_numbers():
    results = []
    for backend in BACKENDS:
        compiled = ml.compile(classifier(), backend(), shapes={"input": ["batch", 8]})
        params = compiled.randomize_params(seed=3)
        x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
        results.append(compiled.evaluate(params, {"input": x}, True))
    for a, b in zip(results[0], results[1], strict=True):
        assert list(a) == list(b)
        for name in a:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-5, atol=1e-6)


def test_a_model_is_a_value():
    block = ml.Model()
    block |= ml.Linear(4)(input="input", output="output")
    before = repr(block)
    outer = ml.Model()
    outer |= block(input="input", output="a")
    outer |= block(input="a", output="output")
    assert repr(block) == before
    assert outer.parameter_keys == [
        "model.linear.weight",
        "model.linear.bias",
        "model_1.linear.weight",
        "model_1.linear.bias",
    ]
    block |= ml.Relu()(input="output", output="more")
    assert len(outer.parameter_keys) == 4
    assert len(copy.deepcopy(outer).parameter_keys) == 4


def test_one_model_compiles_many_times():
    model = classifier()
    sources = {ml.compile(model, ml.NumpyBackend(), shapes={"input": [2, 8]}).source for _ in range(3)}
    assert len(sources) == 1


def test_subclass():
    class Block(ml.Model):
        def __init__(self, size, name=None):
            super().__init__(name=name)
            self |= ml.Linear(size)(input="input", output="hidden")
            self += ml.Relu()(output="output")

    model = ml.Model()
    model |= Block(8)(input="input", output="h")
    model |= Block(4, name="second")(input="h", output="output")
    assert model.parameter_keys[0] == "block.linear.weight"
    assert model.parameter_keys[2] == "second.linear.weight"
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [2, 3]})
    assert compiled(np.ones((2, 3))).shape == (2, 4)


def test_expressions_and_shape_arithmetic():
    x = ml.IOKey("input", shape=["batch", 4, 6])
    y = x[..., :3].reshape((x.shape[0], -1)) * 2.0 + 1.0
    model = ml.Model.create(output=y)
    compiled = ml.compile(model, ml.NumpyBackend())
    data = np.arange(48, dtype=np.float32).reshape(2, 4, 6)
    np.testing.assert_array_equal(compiled(data), data[..., :3].reshape(2, -1) * 2 + 1)


def test_shared_weights():
    model = ml.Model()
    model |= ml.Linear(4, name="first")(input="input", output="h")
    model |= ml.Linear(4)(input="h", weight="first.weight", output="output")
    assert "first.weight" in model.parameter_keys
    assert len(model.parameter_keys) == 3


def test_lambda_is_traced():
    backend = ml.NumpyBackend()

    def custom_activation(x):
        return backend.maximum(0.01 * x, x)

    model = ml.Model()
    model |= ml.Linear(dimension=64)(input="input", output="hidden")
    model += ml.Lambda(custom_activation)(input="hidden", output="hidden_act")
    model += ml.Linear(dimension=10)(input="hidden_act", output="output")
    compiled = ml.compile(model, backend, shapes={"input": [2, 3]})
    assert "maximum" in compiled.source
    outputs, gradients = compiled.evaluate(compiled.randomize_params(), {"input": np.ones((2, 3))}, True)
    assert outputs["output"].shape == (2, 10)
    assert len(gradients) == 4


def test_any_input_is_trainable_and_constants_fold():
    model = ml.Model()
    model |= ml.Multiply()(left="a", right="b", output="output")
    compiled = ml.compile(
        model,
        ml.NumpyBackend(),
        shapes={"a": [3]},
        trainable_keys={"a"},
        constant_keys={"b": np.array([1.0, 2.0, 3.0])},
    )
    outputs, gradients = compiled.evaluate({"a": np.ones(3, np.float32)}, {}, True)
    np.testing.assert_array_equal(outputs["output"], [1, 2, 3])
    np.testing.assert_array_equal(gradients["a"], [1, 2, 3])


def test_output_gradients_made_of_the_outputs_see_the_same_random_numbers():
    model = ml.Model()
    model |= ml.Linear(6, bias=False)(input="input", output="h")
    model += ml.Dropout(0.5)(output="output")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [4, 3]})
    params, data = compiled.randomize_params(seed=0), {"input": np.ones((4, 3))}
    before = dict(compiled.state)
    seen = []
    outputs, gradients = compiled.evaluate(params, data, lambda o: seen.append(o["output"]) or {"output": o["output"]})
    np.testing.assert_array_equal(seen[0], outputs["output"])
    # d(½ Σ y²)/dw = Σ y · dy/dw, and y is linear in w.
    total = sum(float((gradients[name] * params[name]).sum()) for name in params)
    np.testing.assert_allclose(total, float((outputs["output"] ** 2).sum()), rtol=1e-5)
    assert any(not np.array_equal(before[k], compiled.state[k]) for k in before)


def test_open_sizes_are_decided_by_the_first_call():
    model = ml.Model()
    model |= ml.Add()(left="a", right="b", output="c")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"a": [None, 3], "b": [None, 3]})
    for rows in (2, 1):
        data = {"a": np.ones((2, 3)), "b": np.ones((rows, 3))}
        assert compiled.evaluate({}, data)["c"].shape == (2, 3)
    with pytest.raises(ml.errors.ShapeError):
        ml.compile(model, ml.NumpyBackend(), shapes={"a": [None, 3], "b": [None, 4]})


def test_sizes_of_parameters_may_come_with_the_first_call():
    model = ml.Model()
    model |= ml.Flatten()(input="input", output="flat")
    model += ml.Linear(2)(output="output")
    for width in ("width", None):
        compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": ["batch", 3, width]})
        with pytest.raises(ml.errors.ParameterError, match=r"\[2, 4, 5\], but must be \['batch', 3"):
            compiled.evaluate({}, {"input": np.ones((2, 4, 5))})
        assert compiled.evaluate({}, {"input": np.ones((2, 3, 5))})["output"].shape == (2, 2)
        assert compiled.get_parameters()["linear.weight"].shape == (2, 15)
        assert compiled(np.ones((7, 3, 5))).shape == (7, 2)
        with pytest.raises(ml.errors.MithrilError):
            compiled(np.ones((7, 3, 6)))


def test_symbols_are_one_size_before_parameters_are_known():
    model = ml.Model.create(output=ml.Linear(2)(ml.IOKey("a")) + ml.Linear(2)(ml.IOKey("b")))
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"a": ["n", "k"], "b": ["n", "k"]})
    with pytest.raises(ml.errors.ParameterError, match=r"k is 3 in this call"):
        compiled.evaluate({}, {"a": np.ones((4, 3)), "b": np.ones((4, 5))})


def test_batch_size_may_change():
    compiled = ml.compile(classifier(), ml.NumpyBackend(), shapes={"input": ["batch", 8]})
    params = compiled.randomize_params()
    for n in (1, 5, 0):
        assert compiled.evaluate(params, {"input": np.zeros((n, 8))})["output"].shape == (n, 10)
    late = ml.compile(classifier(), ml.NumpyBackend())
    params = late.get_parameters()
    for n in (2, 3, 7, 2):
        assert late.evaluate(params, {"input": np.zeros((n, 8))})["output"].shape == (n, 10)
    assert len(late._programs) <= 4


def test_threads_share_a_model():
    compiled = ml.compile(classifier(), ml.NumpyBackend(), shapes={"input": ["batch", 8]})
    params = compiled.randomize_params(seed=0)
    inputs = [np.full((n, 8), n / 10, np.float32) for n in range(1, 9)]
    expected = [compiled.evaluate(params, {"input": x}, True) for x in inputs]
    failures = []

    def work(i):
        for _ in range(50):
            outputs, gradients = compiled.evaluate(params, {"input": inputs[i]}, True)
            same = np.array_equal(outputs["output"], expected[i][0]["output"])
            if not (same and all(np.array_equal(gradients[k], expected[i][1][k]) for k in gradients)):
                failures.append(i)

    in_threads(work, len(inputs))
    assert not failures


def test_save_and_load(tmp_path):
    path = tmp_path / "model.json"
    ml.save(classifier(), path)
    loaded = ml.load(path)
    assert repr(loaded) == repr(classifier())
    source = ml.compile(classifier(), ml.NumpyBackend(), shapes={"input": [1, 8]}).source
    assert ml.compile(loaded, ml.NumpyBackend(), shapes={"input": [1, 8]}).source == source
    params = ml.compile(loaded, ml.NumpyBackend(), shapes={"input": [1, 8]}).randomize_params(seed=0)
    again = pickle.loads(pickle.dumps(dict(params)))
    assert set(again) == set(params)


def test_gradients_of_gradients():
    backend = ml.NumpyBackend(dtype="float64")

    def f(x):
        return backend.reduce_sum(backend.power(x, 4))

    def squared_gradient(x):
        return backend.reduce_sum(backend.grad(f)(x) ** 2)

    def third(x):
        return backend.reduce_sum(backend.grad(squared_gradient)(x))

    x = np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(backend.grad(f)(x), 4 * x**3)
    np.testing.assert_allclose(backend.grad(squared_gradient)(x), 96 * x**5)
    np.testing.assert_allclose(backend.grad(third)(x), 480 * x**4)


def test_gradients_inside_functions_see_what_is_around_them():
    backend = ml.NumpyBackend(dtype="float64")

    def outer(w):
        def inner(x):
            return backend.reduce_sum(backend.tanh(w * x))

        return backend.reduce_sum(backend.grad(inner)(w * 2.0))

    # d/dx tanh(w x) = w (1 - tanh²(w x)) at x = 2 w
    def by_hand(w):
        return np.sum(w * (1 - np.tanh(2 * w * w) ** 2))

    w = np.array([0.3, -0.7])
    value, gradient = backend.value_and_grad(outer)(w)
    np.testing.assert_allclose(value, by_hand(w))
    steps = 1e-6 * np.eye(2)
    expected = [(by_hand(w + h) - by_hand(w - h)) / 2e-6 for h in steps]
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


@pytest.mark.parametrize(("dtype", "expected"), [("float32", np.complex64), ("float64", np.complex128)])
def test_transforms_are_complex_where_numpy_is(dtype, expected):
    backend = ml.NumpyBackend(dtype=dtype)
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(3, 6)) + 1j * rng.normal(size=(3, 6))).astype(expected)
    tolerance = 50 * np.finfo(dtype).eps
    assert backend.fft(x).dtype == expected
    np.testing.assert_allclose(backend.fft(x), np.fft.fft(x), atol=tolerance)
    np.testing.assert_allclose(backend.ifft(x, axis=0), np.fft.ifft(x, axis=0), atol=tolerance)
    np.testing.assert_allclose(backend.rfft(x.real), np.fft.rfft(x.real), atol=tolerance)
    half = np.fft.rfft(x.real)
    np.testing.assert_allclose(backend.irfft(half, n=6), x.real, atol=tolerance)
    # Inside of functions that are differentiated they are pairs.
    gradient = backend.grad(lambda t: backend.reduce_sum(backend.fft(t)[0] ** 2))(x.real[0])
    np.testing.assert_allclose(gradient.shape, (6,))


def test_eager_ops():
    backend = ml.NumpyBackend()
    x = backend.tensor([1, 2, 3], dtype="float32")
    y = backend.tensor([4, 5, 6], dtype="float32")
    assert backend.matmul(x, y).shape == ()
    np.testing.assert_array_equal(backend.add(x, y), [5, 7, 9])
    np.testing.assert_array_equal(backend.relu(backend.array([-1.0, 2.0])), [0, 2])
    assert backend.zeros(3, 4).shape == backend.zeros((3, 4)).shape == (3, 4)
    assert backend.zeros((3, 4), "int64").dtype == np.int64
    assert backend.shape(x) == (3,)
    assert backend.dtype(x) == "float32"
    a = ml.NumpyBackend(seed=42).random_normal(shape=(3, 4), mean=0.0, stddev=1.0)
    backend.set_seed(42)
    np.testing.assert_array_equal(a, backend.random_normal(shape=(3, 4), mean=0.0, stddev=1.0))
    np.testing.assert_array_equal(a, ml.InterpreterBackend(seed=42).randn(3, 4).astype(np.float32))
