"""PyTorch, JAX and MLX as users meet them: arrays, devices, options, the frameworks' own transformations, mistakes."""

import copy
import importlib
import pathlib
import pickle
import subprocess
import sys

import mithril as ml
import numpy as np
import pytest
from mithril import errors
from mithril.backends.frameworks import FRAMEWORKS as FRAMEWORKS_NEEDED
from threads import in_threads

FRAMEWORKS = {"torch": ml.TorchBackend, "jax": ml.JaxBackend, "mlx": ml.MlxBackend}
MODULES = {"torch": "torch", "jax": "jax", "mlx": "mlx.core"}


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    pytest.importorskip(MODULES[request.param])
    return request.param


@pytest.fixture
def own(framework):
    return FRAMEWORKS[framework]()


def classifier():
    model = ml.Model()
    model |= ml.Linear(8)(input="input", output="hidden")
    model += ml.Gelu()(output="hidden_act")
    model += ml.Linear(3)(output="logits")
    model += ml.Softmax()(output="output")
    return model


DATA = np.random.default_rng(0).normal(size=(4, 5))


@pytest.fixture(scope="module")
def truth():
    """Outputs and gradients in double precision on NumPy."""
    compiled = ml.compile(classifier(), ml.NumpyBackend(dtype="float64"), shapes={"input": [4, 5]})
    params = {k: np.asarray(v, np.float64) for k, v in initial().items()}
    return compiled.evaluate(params, {"input": DATA}, {"output": np.eye(4, 3)})


def initial():
    return ml.compile(classifier(), ml.NumpyBackend(), shapes={"input": [4, 5]}).randomize_params(seed=1)


def assert_close(own, actual, expected):
    for part, other in zip(actual, expected, strict=True):
        assert list(part) == list(other)
        for name in other:
            np.testing.assert_allclose(own.to_numpy(part[name]), other[name], rtol=2e-5, atol=1e-6, err_msg=name)


# --- the same numbers in every way of running ---------------------------------------------------------------------


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("autodiff", ["native", "graph"])
def test_outputs_and_gradients(own, truth, autodiff, jit):
    compiled = ml.compile(classifier(), own, shapes={"input": ["batch", 5]}, jit=jit, autodiff=autodiff)
    params = compiled.randomize_params(seed=1)
    assert all(own.engine.is_own(value) for value in params.values())
    outputs = compiled.evaluate(params, {"input": DATA}, {"output": np.eye(4, 3)})
    assert_close(own, outputs, truth)
    plain = compiled.evaluate(params, {"input": DATA})["output"]
    np.testing.assert_allclose(own.to_numpy(plain), truth[0]["output"], rtol=2e-5)


def test_parameters_start_alike_everywhere(own):
    compiled = ml.compile(classifier(), own, shapes={"input": [4, 5]})
    for name, value in compiled.randomize_params(seed=1).items():
        np.testing.assert_array_equal(own.to_numpy(value), initial()[name])


def test_random_numbers_are_those_of_numpy(framework):
    own, numpy = FRAMEWORKS[framework](seed=7), ml.NumpyBackend(seed=7)
    np.testing.assert_array_equal(own.to_numpy(own.rand(5)), numpy.rand(5))
    np.testing.assert_allclose(own.to_numpy(own.randn(3, 2)), numpy.randn(3, 2), rtol=1e-6)
    own.set_seed(7)
    numpy.set_seed(7)
    np.testing.assert_array_equal(own.to_numpy(own.randint(0, 9, (4,))), numpy.randint(0, 9, (4,)))


def test_recompilations_are_counted_and_explained(framework):
    own = FRAMEWORKS[framework](jit=True)
    compiled = ml.compile(classifier(), own)
    params = compiled.get_parameters()
    for size in (2, 2, 3):
        compiled.evaluate(params, {"input": DATA[:size]})
    stats = compiled.compile_stats
    assert [c.what for c in stats.compilations] == ["generate", "evaluate", "generate", "evaluate"]
    assert stats.recompilations == 2
    assert "data 'input' is float32 [3, 5], was float32 [2, 5]" in stats.compilations[-1].reason
    assert "4 compilations" in str(stats)
    assert stats.seconds > 0


# --- arrays -------------------------------------------------------------------------------------------------------


def strange_arrays():
    frozen = DATA.copy()
    frozen.setflags(write=False)
    wide = np.repeat(DATA, 2, axis=1)
    return {
        "float64": DATA,
        "read-only": frozen,
        "every second column": wide[:, ::2],
        "negative strides": DATA[::-1][::-1].copy()[::-1][::-1],
        "Fortran order": np.asfortranarray(DATA),
        "other byte order": DATA.astype(">f8"),
        "list": DATA.tolist(),
    }


@pytest.mark.parametrize("kind", strange_arrays())
def test_data_of_any_layout(own, truth, kind):
    compiled = ml.compile(classifier(), own, shapes={"input": [4, 5]})
    output = compiled.evaluate(compiled.randomize_params(seed=1), {"input": strange_arrays()[kind]})["output"]
    np.testing.assert_allclose(own.to_numpy(output), truth[0]["output"], rtol=2e-5)


@pytest.mark.parametrize("other", FRAMEWORKS)
def test_data_of_another_framework_is_taken_parameters_are_not(own, truth, other):
    pytest.importorskip(MODULES[other])
    foreign = FRAMEWORKS[other]()
    compiled = ml.compile(classifier(), own, shapes={"input": [4, 5]})
    params = compiled.randomize_params(seed=1)
    output = compiled.evaluate(params, {"input": foreign.array(DATA)})["output"]
    np.testing.assert_allclose(own.to_numpy(output), truth[0]["output"], rtol=2e-5)
    if type(foreign) is not type(own):
        with pytest.raises(errors.ParameterError, match=r"runs on [\s\S]*backend\.array"):
            compiled.evaluate({k: foreign.array(own.to_numpy(v)) for k, v in params.items()}, {"input": DATA})


def test_arrays_are_copies(own):
    host = np.ones(3, np.float32)
    array = own.array(host)
    host[0] = 5
    np.testing.assert_array_equal(own.to_numpy(array), [1, 1, 1])
    assert own.shape(array) == (3,)
    assert own.dtype(array) == "float32"
    assert own.dtype(own.array([1, 2])) == own.dtype(own.array(np.array([1], np.int64))) == "int64"
    assert own.dtype(own.array([True])) == "bool"
    assert own.dtype(own.array([1.5], "bfloat16")) == "bfloat16"
    np.testing.assert_array_equal(own.to_numpy(own.array([1e9, np.nan, -3.7], "int32")), [10**9, 0, -3])


def test_dtypes_of_the_framework_are_understood(framework, own):
    native = own.engine.native_dtype("float16")
    assert FRAMEWORKS[framework](dtype=native).default_dtype == "float16"
    assert own.dtype(own.zeros((2,), native)) == "float16"


def test_float64(framework):
    own = FRAMEWORKS[framework](dtype=ml.float64)
    compiled = ml.compile(classifier(), own, shapes={"input": [4, 5]})
    numpy = ml.compile(classifier(), ml.NumpyBackend(dtype="float64"), shapes={"input": [4, 5]})
    outputs, gradients = compiled.evaluate(compiled.randomize_params(seed=1), {"input": DATA}, True)
    expected = numpy.evaluate(numpy.randomize_params(seed=1), {"input": DATA}, True)
    assert own.dtype(outputs["output"]) == "float64"
    for name, value in gradients.items():
        np.testing.assert_allclose(own.to_numpy(value), expected[1][name], rtol=1e-12, atol=1e-14)


# --- gradients of functions ---------------------------------------------------------------------------------------


def test_gradients_of_functions(own):
    x = own.tensor([1.0, 2.0, 3.0])

    def f(x):
        return own.reduce_sum(own.power(x, 2))

    np.testing.assert_allclose(own.to_numpy(own.grad(f)(x)), [2, 4, 6])
    value, _ = own.value_and_grad(f)(x)
    assert float(value) == 14.0
    second = own.grad(lambda x: own.reduce_sum(own.grad(f)(x) * x))(x)
    np.testing.assert_allclose(own.to_numpy(second), [4, 8, 12])
    both = own.grad(lambda a, b: own.reduce_sum(a * b), argnums=(0, 1))(x, own.tensor([4.0, 5.0, 6.0]))
    np.testing.assert_allclose([own.to_numpy(g) for g in both], [[4, 5, 6], [1, 2, 3]])


@pytest.mark.parametrize(
    ("use", "kind", "word"),
    [
        (lambda b: b.grad(b.exp)(b.ones(3)), errors.InvalidValueError, "shape"),
        (lambda b: b.grad(lambda x: 5)(b.ones(3)), errors.InvalidValueError, "returns a int"),
        (lambda b: b.grad(b.reduce_sum, argnums=3)(b.ones(3)), errors.InvalidValueError, "argnums"),
        (lambda b: b.grad(b.reduce_sum)(b.array([1, 2])), errors.TypeInferenceError, "floats"),
        (lambda b: b.tensor([1 + 2j]), errors.InvalidValueError, "complex"),
        (lambda b: b.tensor([[1, 2], [3]]), errors.InvalidValueError, "equal length"),
        (lambda b: b.tensor(None), errors.InvalidValueError, "None"),
        (lambda b: b.tensor("abc"), errors.InvalidValueError, "numbers"),
        (lambda b: b.tensor([300], dtype="uint8"), errors.InvalidValueError, "uint8"),
        (lambda b: b.zeros(-1), errors.ShapeError, "-1"),
        (lambda b: b.matmul(b.ones(2, 3), b.ones(4, 5)), errors.ShapeError, "3 and 4"),
        (lambda b: b.sum(b.ones(2), axis=5), errors.InvalidValueError, "axis 5"),
        (lambda b: b.foo, AttributeError, "has no op"),
    ],
)
def test_mistakes_with_ops(own, use, kind, word):
    with pytest.raises(kind) as caught:
        use(own)
    assert word in str(caught.value)


# --- the frameworks' own transformations --------------------------------------------------------------------------


def squared(compiled):
    return compiled.loss_function(lambda outputs: (outputs["output"] ** 2).sum())


def oracle():
    numpy = ml.compile(classifier(), ml.NumpyBackend(dtype="float64"), shapes={"input": [4, 5]})
    params = {k: np.asarray(v, np.float64) for k, v in initial().items()}
    outputs, gradients = numpy.evaluate(params, {"input": DATA}, lambda out: {"output": 2 * out["output"]})
    return (outputs["output"] ** 2).sum(), gradients


def compiled_for(name):
    own = FRAMEWORKS[name]()
    compiled = ml.compile(classifier(), own, shapes={"input": ["batch", 5]})
    return own, compiled, dict(compiled.randomize_params(seed=1)), {"input": own.array(DATA)}


def test_torch_users_call_backward():
    torch = pytest.importorskip("torch")
    _, compiled, params, data = compiled_for("torch")
    loss, expected = oracle()
    for value in params.values():
        value.requires_grad_()
    actual = squared(compiled)(params, data)
    actual.backward()
    np.testing.assert_allclose(actual.item(), loss, rtol=1e-5)
    for name, value in params.items():
        np.testing.assert_allclose(value.grad.numpy(), expected[name], rtol=2e-5, atol=1e-6)
    functional = torch.func.grad(squared(compiled))({k: v.detach() for k, v in params.items()}, data)
    np.testing.assert_allclose(functional["linear.bias"].numpy(), expected["linear.bias"], rtol=2e-5, atol=1e-6)


def test_jax_users_transform_the_function():
    jax = pytest.importorskip("jax")
    _, compiled, params, data = compiled_for("jax")
    loss, expected = oracle()
    np.testing.assert_allclose(jax.jit(squared(compiled))(params, data), loss, rtol=1e-5)
    for arrays in (params, compiled.randomize_params(seed=1)):
        actual = jax.jit(jax.grad(squared(compiled)))(arrays, data)
        assert type(actual) is type(arrays)
        for name in expected:
            np.testing.assert_allclose(actual[name], expected[name], rtol=2e-5, atol=1e-6)
    stored = compiled.get_parameters()
    _, gradients = compiled.evaluate(stored, data, True)
    stepped = jax.tree.map(lambda p, g: p - 0.1 * g, stored, gradients)
    np.testing.assert_allclose(stepped["linear.bias"], stored["linear.bias"] - 0.1 * gradients["linear.bias"])


def test_mlx_users_transform_the_function():
    mx = pytest.importorskip("mlx.core")
    _, compiled, params, data = compiled_for("mlx")
    loss, expected = oracle()
    np.testing.assert_allclose(mx.compile(squared(compiled))(params, data).item(), loss, rtol=1e-5)
    actual = mx.grad(squared(compiled))(params, data)
    for name in expected:
        np.testing.assert_allclose(np.array(actual[name]), expected[name], rtol=2e-5, atol=1e-6)


def test_loss_functions_give_one_number(own):
    compiled = ml.compile(classifier(), own, shapes={"input": [4, 5]})
    with pytest.raises(errors.InvalidValueError, match=r"shape \[4, 3\]"):
        compiled.loss_function()(compiled.get_parameters(), {"input": DATA})


def test_state_goes_through_the_pure_function(own):
    model = ml.Model()
    model |= ml.BatchNorm1d()(input="input", output="output")
    compiled = ml.compile(model, own, shapes={"input": [4, 5]})
    before = dict(compiled.state)
    outputs, after = compiled.function(compiled.get_parameters(), {"input": own.array(DATA)}, before)
    assert compiled.state == before
    mean = next(name for name in after if "mean" in name)
    np.testing.assert_allclose(own.to_numpy(after[mean]), 0.1 * DATA.mean(axis=0), rtol=1e-5, atol=1e-7)
    assert own.shape(outputs["output"]) == (4, 5)


def test_threads_share_a_model(own, truth):
    compiled = ml.compile(classifier(), own, shapes={"input": [4, 5]})
    params = compiled.randomize_params(seed=1)

    def work(_):
        return own.to_numpy(compiled.evaluate(params, {"input": DATA})["output"])

    for result in in_threads(work, 4):
        np.testing.assert_allclose(result, truth[0]["output"], rtol=2e-5)


def test_models_are_pickled_and_copied(own):
    compiled = ml.compile(classifier(), own, shapes={"input": [4, 5]}, autodiff="graph")
    expected = own.to_numpy(compiled(DATA))
    for other in (pickle.loads(pickle.dumps(compiled.backend)), copy.deepcopy(compiled.backend)):
        assert repr(other) == repr(own)
    params = {k: own.to_numpy(v) for k, v in compiled.get_parameters().items()}
    again = copy.copy(compiled)
    actual = again.evaluate({k: own.array(v) for k, v in params.items()}, {"input": DATA})["output"]
    np.testing.assert_allclose(own.to_numpy(actual), expected, rtol=1e-6)


def test_arrays_of_another_device():
    torch = pytest.importorskip("torch")
    own = ml.TorchBackend(device="meta")
    compiled = ml.compile(classifier(), own, shapes={"input": [4, 5]})
    assert compiled(torch.ones(4, 5)).device.type == "meta"
    with pytest.raises(errors.ParameterError, match=r"on cpu, but the model runs on meta[\s\S]*backend\.array"):
        compiled.evaluate({k: torch.zeros(v.shape) for k, v in compiled.get_parameters().items()}, {"input": DATA})


# --- frameworks, devices and options that are not there -----------------------------------------------------------


def test_importing_mithril_imports_no_framework():
    program = "import sys, mithril as ml; ml.TorchBackend, ml.JaxBackend, ml.MlxBackend;"
    program += "assert not {'torch', 'jax', 'mlx'} & set(sys.modules), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_missing_framework(framework, monkeypatch):
    monkeypatch.setitem(sys.modules, MODULES[framework], None)
    with pytest.raises(ImportError, match=rf"not installed[\s\S]*pip install \"?{framework}"):
        FRAMEWORKS[framework]()


def test_old_framework(framework, monkeypatch):
    module = importlib.import_module(MODULES[framework])
    monkeypatch.setattr(module, "__version__", "0.1")
    with pytest.raises(errors.BackendUnavailableError, match=r"0\.1 is too old[\s\S]*--upgrade"):
        FRAMEWORKS[framework]()


@pytest.mark.parametrize("device", ["tpu", "gpu:7", "warp"])
def test_missing_device(framework, device):
    with pytest.raises(errors.BackendUnavailableError, match=r"no device[\s\S]*(cpu|install)"):
        FRAMEWORKS[framework](device=device)


@pytest.mark.parametrize(
    ("options", "kind", "word"),
    [
        ({"dtype": "float32", "default_dtype": "float16"}, errors.ConflictingOptionError, "default_dtype"),
        ({"seed": 1, "random_seed": 2}, errors.ConflictingOptionError, "random_seed"),
        ({"dtype": "int32"}, errors.InvalidValueError, "int32"),
        ({"jit": "yes"}, errors.InvalidValueError, "True or False"),
        ({"precision": "int8"}, errors.InvalidValueError, "not a float"),
        ({"amp": True, "precision": "float32"}, errors.ConflictingOptionError, "amp"),
        ({"device_mesh": (0,)}, errors.InvalidValueError, "positive"),
        ({"dtyp": "float32"}, TypeError, "did you mean `dtype`"),
    ],
)
def test_options_that_do_not_fit(framework, own, options, kind, word):
    with pytest.raises(kind) as caught:
        FRAMEWORKS[framework](**options)
    assert word in str(caught.value)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"device_mesh": (2, 2)}, "4 devices"),
        ({"parallel_strategy": "data_parallel", "devices": ["cpu", "cpu"]}, "2 devices"),
    ],
)
def test_devices_that_are_not_there(framework, options, word):
    if framework == "torch":
        if FRAMEWORKS[framework]().device != "cpu":
            pytest.skip("needs as many GPUs")
        # It starts a worker for each, when something is computed.
        assert FRAMEWORKS[framework](**options).layout.mesh.devices == int(word[0])
        return
    with pytest.raises(errors.BackendUnavailableError) as caught:
        FRAMEWORKS[framework](**options)
    assert word in str(caught.value)


def test_options_mean_something(framework):
    own = FRAMEWORKS[framework](default_dtype="float16", random_seed=3, device_mesh=(1,), amp=False)
    assert own.dtype(own.zeros(2)) == "float16"
    again = FRAMEWORKS[framework](dtype="float16", seed=3)
    np.testing.assert_array_equal(own.to_numpy(own.rand(3)), again.to_numpy(again.rand(3)))
    assert FRAMEWORKS[framework](amp=True).precision in ("bfloat16", "float16")
    own.set_device("cpu")
    with pytest.raises(errors.BackendUnavailableError):
        own.set_platform("warp")
    with pytest.raises(errors.BackendUnavailableError):
        own.set_default_device("warp")
    assert own.get_memory_info()["used"] >= 0


def test_autodiff_and_jit_options_are_checked(own):
    with pytest.raises(errors.InvalidValueError, match="'native' or 'graph'"):
        ml.compile(classifier(), own, autodiff="magic")
    with pytest.raises(errors.InvalidValueError, match="'graph'"):
        ml.compile(classifier(), ml.NumpyBackend(), autodiff="native")


def test_memory_that_is_not_there_is_an_error(own):
    model = ml.Model()
    model |= ml.Linear(2**20)(input="input", output="hidden")
    model += ml.Linear(2**23)(output="output")
    with pytest.raises(MemoryError, match=r"GB[\s\S]*help"):
        ml.compile(model, own)(np.ones((2, 3)))


def test_oldest_versions_are_those_of_the_package():
    text = (pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text()
    for distribution, extra, oldest in FRAMEWORKS_NEEDED.values():
        [line] = [line for line in text.splitlines() if line.startswith(f"{extra} = ")]
        assert f">={oldest}" in line
        assert distribution in line


def test_verbose_tells_phases_ops_and_memory(own, capsys):
    ml.compile(classifier(), own, shapes={"input": [4, 5]}, verbose=True)
    printed = capsys.readouterr().out
    assert "phases: infer and optimize" in printed
    assert "2 linear" in printed
    assert "parameters: 0.00 MB in 4 arrays" in printed
