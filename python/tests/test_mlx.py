"""What is MLX's alone: lazy arrays, streams and threads, its compiler, its options, what it leaves to us."""

import gc
import pickle
import subprocess
import sys
import warnings

import mithril as ml
import numpy as np
import pytest
from mithril import _core, errors
from mithril.models import create_gpt
from networks import image_block, text_block
from threads import in_threads

mx = pytest.importorskip("mlx.core")

ROWS = {row["name"]: row for row in _core.op_definitions()}
RANDOM = np.random.default_rng(0)


def assert_near(actual, expected, units=64):
    actual, expected = (np.asarray(ml.MlxBackend().to_numpy(a), np.float64) for a in (actual, expected))
    assert actual.shape == expected.shape
    scale = np.abs(expected).max(initial=1e-30)
    assert np.abs(actual - expected).max(initial=0) <= units * 2.0**-23 * scale


# --- arrays -------------------------------------------------------------------------------------------------------


def test_nothing_is_computed_before_it_is_read():
    backend = ml.MlxBackend()
    x = backend.array(np.arange(1000.0))
    mx.eval(x)
    gc.collect()
    held = mx.get_active_memory()  # also what tests before this one still hold
    mx.reset_peak_memory()
    sums = backend.add(backend.expand_dims(x, 0), backend.expand_dims(x, 1))
    largest = backend.reduce_max(backend.add(sums, 1.0))
    assert mx.get_peak_memory() - held < 1_000_000
    assert backend.to_numpy(largest) == 1999.0
    assert mx.get_peak_memory() - held > 1_000_000


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_creation(dtype):
    backend = ml.MlxBackend()
    for array, value in ((backend.zeros(2, 3, dtype=dtype), 0), (backend.ones((2, 3), dtype=dtype), 1)):
        np.testing.assert_array_equal(backend.to_numpy(array), np.full((2, 3), value, dtype), strict=True)
    kept = backend.tensor(np.array([[1, 0]], dtype), dtype)
    np.testing.assert_array_equal(backend.to_numpy(kept), np.array([[1, 0]], dtype), strict=True)


def test_conversions_between_frameworks_keep_the_dtype():
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    backend = ml.MlxBackend()
    own = mx.array([1.0, 2.0], dtype=mx.float16)
    assert backend.from_mlx(own) is own
    assert backend.to_mlx(own) is own
    assert backend.to_torch(own).dtype == torch.float16
    assert backend.to_jax(own).dtype == jax.numpy.float16
    assert backend.from_torch(torch.ones(2, dtype=torch.bfloat16)).dtype == mx.bfloat16
    assert backend.from_jax(jax.numpy.ones(2, dtype="int32")).dtype == mx.int32
    for other in (ml.TorchBackend(), ml.JaxBackend(), ml.NumpyBackend()):
        converted = other.from_mlx(own)
        assert other.dtype(converted) == "float16"
        assert other.engine.is_own(converted)
        assert other.to_mlx(converted).dtype == mx.float16


def test_objects_with_an_array_inside():
    class Holder:
        def __array__(self, dtype=None, copy=None):
            return np.array([1, 2, 3])

    class Capsule:
        def __init__(self, array):
            self._array = array

        def __dlpack__(self, **options):
            return self._array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self._array.__dlpack_device__()

    for value in (Holder(), Capsule(np.array([1, 2, 3]))):
        converted = ml.MlxBackend().from_mlx(value)
        assert isinstance(converted, mx.array)
        assert converted.tolist() == [1, 2, 3]


# --- devices and threads ------------------------------------------------------------------------------------------


def test_the_default_device_of_the_user_stays():
    before = mx.default_device(), mx.default_stream(mx.cpu)
    backend = ml.MlxBackend(device="cpu")
    backend.exp(backend.ones(3))
    assert (mx.default_device(), mx.default_stream(mx.cpu)) == before


@pytest.mark.parametrize("device", [mx.cpu, mx.Device(mx.cpu, 0), "cpu", "cpu:0", "CPU"])
def test_devices(device):
    assert ml.MlxBackend(device=device).device == "cpu"


def test_absent_devices():
    if not mx.is_available(mx.gpu):
        for device in (mx.gpu, "gpu", "metal", "cuda"):
            with pytest.raises(errors.BackendUnavailableError, match="cpu"):
                ml.MlxBackend(device=device)
    with pytest.raises(errors.BackendUnavailableError, match="npu"):
        ml.MlxBackend(device="npu")


def test_doubles_are_refused_on_the_gpu(monkeypatch):
    monkeypatch.setattr(mx, "is_available", lambda device: True)
    with pytest.raises(errors.UnsupportedOpError, match="float64"):
        ml.MlxBackend(device="gpu", dtype="float64")
    with pytest.raises(errors.UnsupportedOpError, match="float64"):
        ml.MlxBackend(device="gpu").zeros(2, dtype="float64")


def noisy_classifier():
    model = ml.Model()
    model |= ml.Linear(16)(input="input", output="hidden")
    model |= ml.BatchNorm1d()(input="hidden", output="normal")
    model |= ml.Dropout(0.25)(input="normal", output="dropped")
    model |= ml.Linear(4)(input="dropped", output="output")
    return model


@pytest.mark.parametrize("jit", [False, True])
def test_threads_share_a_model_and_its_state(jit):
    """State and results of one thread are computed by whichever thread reads them."""
    backend = ml.MlxBackend()
    compiled = ml.compile(noisy_classifier(), backend, shapes={"input": ["batch", 8]}, jit=jit)
    params = compiled.randomize_params(seed=0)
    results = []

    def work(number):
        for step in range(5):
            data = {"input": np.full((number + 2, 8), step / 10, np.float32)}
            outputs, gradients = compiled.evaluate(params, data, True)
            results.append((outputs["output"], gradients))

    in_threads(work, 4)
    assert len(results) == 20
    for output, gradients in results:
        assert np.isfinite(backend.to_numpy(output)).all()
        assert all(np.isfinite(backend.to_numpy(g)).all() for g in gradients.values())
    assert all(np.isfinite(backend.to_numpy(value)).all() for value in compiled.state.values())


@pytest.mark.parametrize("jit", [False, True])
def test_threads_give_the_numbers_of_one(jit):
    backend = ml.MlxBackend()
    model = ml.Model()
    model |= ml.Linear(16)(input="input", output="hidden")
    model |= ml.Gelu()(input="hidden", output="output")
    compiled = ml.compile(model, backend, shapes={"input": ["batch", 8]}, jit=jit)
    params = compiled.randomize_params(seed=0)
    inputs = [np.full((n, 8), n / 10, np.float32) for n in range(1, 5)]
    expected = [backend.to_numpy(compiled.evaluate(params, {"input": x})["output"]) for x in inputs]
    failures = []

    def work(number):
        for _ in range(10):
            actual = compiled.evaluate(params, {"input": inputs[number]})["output"]
            if not np.array_equal(backend.to_numpy(actual), expected[number]):
                failures.append(number)

    in_threads(work, 4)
    assert failures == []


# --- the compiler -------------------------------------------------------------------------------------------------


def noise():
    model = ml.Model()
    model |= ml.Dropout(0.3)(input="input", output="dropped")
    model |= ml.RandomNormal((4, 3))(output="noise")
    model |= ml.Add()(left="dropped", right="noise", output="output")
    return model


#: Model, shapes, and the data of two calls, of two sizes where a size is open.
COMPILED = {
    "image": (
        lambda: image_block(ml.MaxPool2d),
        {"input": ["batch", 3, 6, 6]},
        [{"input": RANDOM.normal(size=(n, 3, 6, 6))} for n in (2, 3)],
    ),
    "random": (noise, {"input": [4, 3]}, [{"input": RANDOM.normal(size=(4, 3))} for _ in range(2)]),
    "text": (
        text_block,
        {"input": ["batch", 5], "target": ["batch", 5]},
        [{name: RANDOM.integers(0, 50, (n, 5)) for name in ("input", "target")} for n in (2, 3)],
    ),
}


@pytest.mark.parametrize("autodiff", ["native", "graph"])
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_models_give_the_numbers_of_eager_ones(name, autodiff):
    make, shapes, calls = COMPILED[name]
    backend = ml.MlxBackend()
    results = []
    for jit in (False, True):
        compiled = ml.compile(make(), backend, shapes=shapes, jit=jit, autodiff=autodiff)
        params = compiled.randomize_params(seed=0)
        runs = []
        for data in calls:
            if params:
                outputs, gradients = compiled.evaluate(params, data, True)
            else:
                outputs, gradients = compiled.evaluate({}, data), {}
            runs.append({**outputs, **gradients, **compiled.state})
        results.append(runs)
    for eager, fused in zip(*results, strict=True):
        assert list(eager) == list(fused)
        for key, value in eager.items():
            assert fused[key].dtype == value.dtype
            # What MLX fuses it rounds less often; a bias before a normalization has no gradient but rounding.
            if "conv" not in key or "bias" not in key:
                assert_near(fused[key], value)


def test_mlx_compiles_our_function_and_differentiates_our_loss():
    """As in the MLX guide: `@mx.compile` around a pure function, `mx.grad` of a loss."""
    backend = ml.MlxBackend()
    model = ml.Model()
    model |= ml.Linear(8)(input="input", output="hidden")
    model += ml.Relu()(output="positive")
    model += ml.Linear(3)(output="output")
    compiled = ml.compile(model, backend, shapes={"input": [5, 4]})
    params = {name: value for name, value in compiled.get_parameters().items()}
    data = {"input": backend.array(RANDOM.normal(size=(5, 4)))}
    targets = backend.array(RANDOM.normal(size=(5, 3)))
    loss_of = compiled.loss_function(lambda outputs, target: mx.mean(mx.square(outputs["output"] - target)))

    @mx.compile
    def forward_backward(params, data, targets):
        return loss_of(params, data, targets), mx.grad(loss_of)(params, data, targets)

    loss, gradients = forward_backward(params, data, targets)
    outputs = compiled.evaluate(params, data)["output"]
    _, expected = compiled.evaluate(params, data, {"output": 2 * (outputs - targets) / outputs.size})
    assert_near(loss, mx.mean(mx.square(outputs - targets)))
    assert set(gradients) == set(expected)
    for name, gradient in expected.items():
        assert_near(gradients[name], gradient)
    assert mx.array_equal(mx.compile(compiled.function)(params, data)["output"], outputs)


def test_training_lowers_the_loss_under_the_compiler():
    backend = ml.MlxBackend(jit=True)
    compiled = ml.compile(noisy_classifier(), backend, shapes={"input": ["batch", 8]})
    params = compiled.get_parameters()
    x, y = RANDOM.normal(size=(32, 8)), RANDOM.normal(size=(32, 4))
    losses = []
    for _ in range(30):
        outputs, gradients = compiled.evaluate(params, {"input": x}, lambda out: {"output": out["output"] - y})
        losses.append(float(np.square(backend.to_numpy(outputs["output"]) - y).mean()))
        for name, gradient in gradients.items():
            params[name] = params[name] - 0.02 * gradient
    assert losses[-1] < 0.6 * losses[0]


# --- the generated code -------------------------------------------------------------------------------------------


def test_generated_code_is_what_one_writes_by_hand():
    model = create_gpt(block_size=8, dims=6, num_heads=2, num_layers=1, vocab_size=20)
    source = ml.compile(model, ml.MlxBackend(), shapes={"input": [2, 8]}, inference=True).source
    for call in (
        "mx.fast.layer_norm(",
        "mx.fast.scaled_dot_product_attention(",
        'mask="causal"',
        "import mlx.core as mx",
    ):
        assert call in source
    convolution = ml.compile(
        image_block(ml.MaxPool2d), ml.MlxBackend(), shapes={"input": [2, 3, 6, 6]}, inference=True
    ).source
    assert "mx.conv_general(mx.moveaxis(" in "".join(map(str.strip, convolution.splitlines()))
    assert "_with_gradient" not in convolution


@pytest.mark.parametrize("length", [3, 5])
def test_the_causal_mask_counts_from_the_first(length):
    """MLX counts from the last query and key; the two differ when there are more keys than queries."""
    backend, reference = ml.MlxBackend(), ml.NumpyBackend()
    q, k, v = (RANDOM.normal(size=(1, 2, n, 4)).astype(np.float32) for n in (3, length, length))
    actual = backend.scaled_dot_product_attention(*map(backend.array, (q, k, v)), is_causal=True)
    assert_near(actual, reference.scaled_dot_product_attention(q, k, v, is_causal=True))


# --- what MLX leaves to us ----------------------------------------------------------------------------------------


def test_integer_division_by_zero_does_not_end_the_process():
    program = """
import mithril as ml
backend = ml.MlxBackend()
left, right = backend.array([7, -7, -2**31, 5]), backend.array([0, 2, -1, 3])
for name in ("floor_divide", "remainder"):
    print(backend.to_numpy(getattr(backend, name)(backend.cast(left, "int32"), backend.cast(right, "int32"))).tolist())
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n")[:2] == ["[0, -4, -2147483648, 1]", "[0, 1, 0, 2]"]


@pytest.mark.parametrize("op", ["take", "diagonal", "embedding"])
def test_gradients_of_look_ups_in_nothing(op):
    """MLX divides by the number of elements there; with an open size it shows at the call only."""
    backend = ml.MlxBackend()
    x = ml.IOKey("x")
    if op == "take":
        connection, shape = _core.apply_op("take", [x, np.array([0, 1]), 1]), ("batch", 3)
    elif op == "diagonal":
        connection, shape = _core.apply_op("diagonal", [x, 0, 1, 2]), ("batch", 3, 3)
    else:
        connection, shape = _core.apply_op("embedding", [ml.IOKey("index"), x]), (3, 0)
    sizes = tuple(0 if size == "batch" else size for size in shape)
    compiled = ml.compile(
        ml.Model.create(output=connection),
        backend,
        shapes={"x": sizes, **({"index": [2]} if op == "embedding" else {})},
        dtypes={"index": "int64"} if op == "embedding" else {},
        trainable_keys=["x"],
    )
    data = {"index": np.array([0, 2])} if op == "embedding" else {}
    _, gradients = compiled.evaluate({"x": backend.zeros(sizes)}, data, True)
    assert backend.to_numpy(gradients["x"]).shape == sizes


@pytest.mark.parametrize("name", ["Sum", "Prod", "Any", "All", "Mean", "Var", "Std", "Norm"])
def test_reductions_of_nothing_end(name):
    """MLX reads beyond an array without elements, at times for ever; the size is known when running only."""
    model = ml.Model()
    model |= getattr(ml.models, name)(axis=1)(input="x", output="y")
    pm = ml.compile(model, ml.MlxBackend(), data_keys={"x"}, shapes={"x": ["a", "b", 3]}, inference=True)
    for sizes in ((2, 4, 3), (2, 0, 3), (0, 4, 3)):
        data = np.ones(sizes, np.float32)
        expected = {"Prod": np.prod, "Any": np.any, "All": np.all}.get(name, np.sum)(data, 1)
        if name in ("Mean", "Var", "Std"):
            expected = np.full_like(expected, np.nan if 0 in sizes[1:] else name == "Mean")
        np.testing.assert_allclose(
            np.asarray(pm.evaluate({}, {"x": data})["y"]), np.sqrt(expected) if name == "Norm" else expected
        )


def test_singular_matrices_are_an_error_when_the_result_is_read():
    backend = ml.MlxBackend()
    matrix = backend.array([[1.0, 2.0], [2.0, 4.0]])
    for result in (backend.inv(matrix), backend.solve(matrix, backend.ones(2))):
        with pytest.raises(errors.NumericsError, match="singular"):
            backend.to_numpy(result)


def test_factors_of_indefinite_matrices_are_nan():
    backend = ml.MlxBackend()
    actual = backend.to_numpy(backend.cholesky(backend.array([[[1.0, 2.0], [2.0, 1.0]], [[4.0, 0.0], [0.0, 9.0]]])))
    assert np.isnan(actual[0]).all()
    np.testing.assert_array_equal(actual[1], [[2, 0], [0, 3]])


def test_doubles_have_all_their_digits():
    """MLX computes exp, sin, cos and erf of doubles in float32."""
    backend = ml.MlxBackend(dtype="float64")
    reference = ml.InterpreterBackend(dtype="float64")
    x = np.concatenate([np.linspace(-40, 40, 501), np.linspace(-1, 1, 101)])
    uses = {name: [x] for name in ("exp", "sin", "cos", "tan", "erf", "erfc", "sigmoid", "softplus", "gelu", "tanh")}
    for op, args in {**uses, "softmax": [x, -1], "logsumexp": [x], "log_softmax": [x, -1]}.items():
        args = [*args, *(row.get("default") for row in ROWS[op]["ports"][len(args) :])]
        actual = backend.to_numpy(backend._op(op, args))
        expected = np.asarray(reference._op(op, args))
        error = np.abs(actual - expected).max() / np.abs(expected).max() / 2.0**-52
        assert error <= 12, (op, error)


# --- options ------------------------------------------------------------------------------------------------------


def test_options_of_the_guide():
    backend = ml.MLXBackend(
        dtype=mx.float16, device=mx.cpu, random_seed=42, compute_precision="float32", use_graph=True
    )
    assert (backend.default_dtype, backend.device, backend._seed, backend.jit) == ("float16", "cpu", 42, True)
    assert ml.MLXBackend is ml.MlxBackend
    assert ml.MlxBackend(dtype=mx.bfloat16).zeros(1).dtype == mx.bfloat16
    copy = pickle.loads(pickle.dumps(backend))
    assert (copy.default_dtype, copy._seed, copy.jit, copy.precision) == ("float16", 42, True, backend.precision)


def test_options_that_mean_nothing_are_ignored_with_one_warning():
    with pytest.warns(errors.IgnoredOptionWarning) as caught:
        backend = ml.MlxBackend(use_ane=True)
    assert len(caught) == 1
    assert backend.ignored_options == ("use_ane",)
    with pytest.warns(errors.IgnoredOptionWarning, match="enable_mps_optimization"):
        ml.MlxBackend(enable_mps_optimization=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ml.MlxBackend().ignored_options == ()


def test_memory_options():
    limit, cache = mx.set_memory_limit(10**12), mx.set_cache_limit(10**9)
    try:
        backend = ml.MlxBackend(memory_limit="4GB", auto_free_tensors=True)
        info = backend.get_memory_info()
        assert info["limit"] == 4000.0
        assert info["limit_bytes"] == 4 * 10**9
        assert mx.set_cache_limit(10**9) == 0
        array = backend.ones(1_000_000)
        mx.eval(array)
        assert backend.get_memory_info()["used"] >= 4.0
        assert ml.MlxBackend(mem_size="512MiB").get_memory_info()["limit_bytes"] == 512 * 2**20
        for wrong in ("4 bananas", 0, -1, "GB"):
            with pytest.raises(errors.InvalidValueError, match="memory_limit"):
                ml.MlxBackend(memory_limit=wrong)
    finally:
        mx.set_memory_limit(limit)
        mx.set_cache_limit(cache)


def test_meshes_of_one_device():
    assert ml.MlxBackend(device_mesh=(1,)).device == "cpu"
    with pytest.raises(errors.BackendUnavailableError, match="2 devices"):
        ml.MlxBackend(device_mesh=(2,))


def test_devices_of_the_guide_are_added_on_request_only():
    program = """
import mlx.core as mx, mithril as ml
ml.MlxBackend()
assert not hasattr(mx, "devices")
from mithril.compat import mlx
mlx.install()
assert mx.devices.cpu == mx.cpu and mx.devices.gpu == mx.gpu
print(ml.MlxBackend(device=mx.devices.cpu))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "MlxBackend(device='cpu', dtype=float32)"
