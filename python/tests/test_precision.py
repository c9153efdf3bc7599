"""Mixed precision: what is computed in the compute dtype, what in float32, and that the results are as good."""

import re

import mithril as ml
import numpy as np
import pytest

BACKENDS = [ml.NumpyBackend, ml.InterpreterBackend]
ALL = [*BACKENDS, ml.TorchBackend, ml.JaxBackend, ml.MlxBackend]
LOW = {"linear", "matmul", "conv2d", "scaled_dot_product_attention"}
WIDE = {"softmax", "cross_entropy", "layer_norm", "batch_norm", "mean", "sum", "exp", "log", "power", "cumsum"}


def operands(compiled):
    """Op name -> dtypes of its float operands, over all of the nodes of the typed graph."""
    dtypes, by_op = {}, {}
    for line in compiled.stages["precision"].splitlines():
        for value, dtype in re.findall(r'(%\d+)(?: "[^"]*")?: (\w+)\[', line):
            dtypes[value] = dtype
        if match := re.search(r" = (\w+)\((.*)\) in ", line):
            read = {dtypes[value] for value in re.findall(r"%\d+", match[2])}
            by_op.setdefault(match[1], set()).update(d for d in read if "f" in d)
    return by_op


def check_dtypes(compiled, low, expected):
    actual = operands(compiled)
    assert expected <= set(actual)
    for op, dtypes in actual.items():
        if op in LOW:
            assert dtypes == {low}, op
        elif op in WIDE:
            assert dtypes == {"f32"}, op


def classifier():
    model = ml.Model()
    model |= ml.Linear(dimension=32)(input="input", output="hidden")
    model += ml.Relu()(output="active")
    model += ml.Linear(dimension=4)(output="logits")
    model |= ml.Softmax()(input="logits", output="output")
    model |= ml.CrossEntropy()(input="logits", target="target", output="loss")
    return model


def images():
    model = ml.Model()
    model |= ml.Conv2d(4, 3, padding=1)(input="input", output="maps")
    model += ml.BatchNorm2d()(output="normal")
    model += ml.Relu()(output="active")
    model |= ml.Mean(axis=(2, 3))(input="active", output="output")
    return model


def transformer():
    model = ml.Model()
    model |= ml.LayerNorm()(input="input", output="normal")
    model += ml.SelfAttention(8, num_heads=2)(output="attended")
    model |= ml.Add()(left="input", right="attended", output="output")
    return model


CASES = {
    "classifier": (classifier, {"input": ["batch", 8], "target": ["batch"]}, {"linear", "softmax", "cross_entropy"}),
    "images": (images, {"input": ["batch", 3, 6, 6]}, {"conv2d", "batch_norm", "mean"}),
    "transformer": (transformer, {"input": ["batch", 5, 8]}, {"layer_norm", "scaled_dot_product_attention", "add"}),
}


def data_for(shapes, seed=0):
    rng = np.random.default_rng(seed)
    data = {"input": rng.normal(size=[3, *shapes["input"][1:]]).astype("float32")}
    if "target" in shapes:
        data["target"] = rng.integers(0, 4, size=3)
    return data


def construct(backend):
    try:
        return backend()
    except ml.errors.BackendUnavailableError as error:
        pytest.skip(str(error))


def compile_case(name, backend, **options):
    make, shapes, _ = CASES[name]
    dtypes = {"target": "int64"} if "target" in shapes else {}
    return ml.compile(make(), backend, shapes=shapes, dtypes=dtypes, **options), data_for(shapes)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_products_are_low_and_sums_wide(name, precision):
    compiled, _ = compile_case(name, ml.NumpyBackend(), precision=precision)
    check_dtypes(compiled, {"bfloat16": "bf16", "float16": "f16"}[precision], CASES[name][2])


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("name", CASES)
def test_outputs_gradients_and_states_keep_their_dtype(name, backend):
    backend = construct(backend)
    compiled, data = compile_case(name, backend, precision="bfloat16")
    params = compiled.randomize_params(seed=0)
    outputs, gradients = compiled.evaluate(params, data, True)
    state = [value for key, value in compiled.state.items() if key != "key"]
    arrays = [*params.values(), *outputs.values(), *gradients.values(), *state]
    assert {str(backend.dtype(array)) for array in arrays} == {"float32"}


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_results_are_near_those_of_float32(name, precision):
    exact, data = compile_case(name, ml.NumpyBackend())
    mixed, _ = compile_case(name, ml.NumpyBackend(), precision=precision)
    params = exact.randomize_params(seed=1)
    epsilon = {"bfloat16": 2**-8, "float16": 2**-11}[precision]
    results = [m.evaluate(params, data, True) for m in (exact, mixed)]
    for expected, actual in zip(*results, strict=True):
        for key in expected:
            # A handful of roundings on the way, each relative to the largest values that are added up.
            scale = max(1.0, float(np.abs(expected[key]).max()))
            np.testing.assert_allclose(actual[key], expected[key], atol=16 * epsilon * scale, rtol=0)
    assert any(np.any(results[0][0][key] != results[1][0][key]) for key in results[0][0])


@pytest.mark.parametrize("backend", ALL[1:])
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_all_backends_give_the_same(name, precision, backend):
    results = []
    for backend_instance in (ml.NumpyBackend(), construct(backend)):
        compiled, data = compile_case(name, backend_instance, precision=precision)
        both = compiled.evaluate(compiled.randomize_params(seed=2), data, True)
        results.append({key: backend_instance.to_numpy(value) for group in both for key, value in group.items()})
    epsilon = {"bfloat16": 2**-8, "float16": 2**-11}[precision]
    for key, expected in results[0].items():
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(results[1][key], expected, atol=8 * epsilon * scale, rtol=0)


def test_a_product_is_that_of_rounded_operands():
    model = ml.Model()
    model |= ml.Linear(dimension=3)(input="input", output="output")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [2, 4]}, precision="float16")
    params = compiled.randomize_params(seed=0)
    x = np.random.default_rng(0).normal(size=(2, 4)).astype("float32")
    weight, bias = (params[f"linear.{n}"].astype("float16").astype("float64") for n in ("weight", "bias"))
    expected = x.astype("float16").astype("float64") @ weight.T + bias
    actual = compiled.evaluate(params, {"input": x})["output"]
    np.testing.assert_allclose(actual, expected, rtol=2**-9)
    assert np.all(actual == actual.astype("float16"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_islands_do_not_overflow(backend):
    """Squares and sums of values near the end of float16 stay finite and right."""
    model = ml.Model()
    model |= ml.Linear(dimension=8, use_bias=False)(input="input", output="large")
    model |= ml.LayerNorm()(input="large", output="normal")
    model |= ml.Sum()(input="large", output="sum")
    model |= ml.Softmax()(input="large", output="shares")
    model |= ml.Power()(left="large", right=2.0, output="square")
    compiled = ml.compile(model, backend(), shapes={"input": [2, 8]}, precision="float16")
    params = compiled.randomize_params(seed=0)
    params["linear.weight"] = np.eye(8, dtype="float32") * 1000
    x = np.random.default_rng(0).uniform(20, 60, size=(2, 8)).astype("float32")
    outputs = compiled.evaluate(params, {"input": x})
    large = (x.astype("float16").astype("float64") * 1000).astype("float16").astype("float64")
    with np.errstate(over="ignore"):
        assert not np.isfinite(large.astype("float16").sum(dtype="float16"))
        assert not np.isfinite(np.float16(large[0, 0]) ** 2)
    np.testing.assert_allclose(outputs["sum"], large.sum(), rtol=1e-5)
    np.testing.assert_allclose(outputs["square"], large**2, rtol=1e-5)
    deviation = large - large.mean(1, keepdims=True)
    np.testing.assert_allclose(outputs["normal"], deviation / large.std(1, keepdims=True), rtol=1e-4, atol=1e-4)
    shares = np.exp(large - large.max(1, keepdims=True))
    np.testing.assert_allclose(outputs["shares"], shares / shares.sum(1, keepdims=True), atol=1e-6)


def test_numbers_that_float16_cannot_hold_keep_float32():
    model = ml.Model()
    model |= ml.Linear(dimension=2, use_bias=False)(input="input", output="hidden")
    model |= ml.Add()(left="hidden", right=1e-12, output="tiny")
    model |= ml.Add()(left="hidden", right=-1e9, output="huge")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [1, 2]}, precision="float16")
    params = {"linear.weight": np.zeros((2, 2), dtype="float32")}
    outputs = compiled.evaluate(params, {"input": np.ones((1, 2), dtype="float32")})
    np.testing.assert_array_equal(outputs["tiny"], np.full((1, 2), 1e-12, dtype="float32"))
    np.testing.assert_array_equal(outputs["huge"], np.full((1, 2), -1e9, dtype="float32"))


def train(precision, backend, steps=60):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 8)).astype("float32")
    labels = (x[:, 0] > 0).astype("int64") + 2 * (x[:, 1] > 0)
    shapes = {"input": [64, 8], "target": [64]}
    compiled = ml.compile(classifier(), backend, shapes=shapes, dtypes={"target": "int64"}, precision=precision)
    params = compiled.randomize_params(seed=0)
    for _ in range(steps):
        outputs, gradients = compiled.evaluate(params, {"input": x, "target": labels}, {"loss": np.float32(1)})
        params = {name: params[name] - 0.5 * gradients[name] for name in params}
    return float(outputs["loss"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_in_bfloat16_gets_as_far_as_float32(backend):
    first = train(None, ml.NumpyBackend(), steps=1)
    exact = train(None, ml.NumpyBackend())
    mixed = train("bfloat16", backend())
    assert exact < 0.3 * first
    assert abs(mixed - exact) < 0.1 * exact


def test_stored_half_computed_half_has_islands_and_float32_is_the_widest():
    model, shapes = classifier(), {"input": [2, 8], "target": [2]}
    options = {"shapes": shapes, "dtypes": {"target": "int64"}}
    compiled = ml.compile(model, ml.NumpyBackend(dtype="bfloat16"), precision="float32", **options)
    dtypes = operands(compiled)
    assert dtypes["linear"] == dtypes["softmax"] == dtypes["relu"] == {"f32"}
    params = compiled.randomize_params(seed=0)
    assert {str(p.dtype) for p in params.values()} == {"bfloat16"}
    outputs = compiled.evaluate(params, data_for(shapes) | {"input": np.ones((2, 8)), "target": np.array([0, 1])})
    assert str(outputs["output"].dtype) == "bfloat16"


def test_double_precision_keeps_its_islands_double():
    shapes = {"input": [2, 8], "target": [2]}
    compiled = ml.compile(
        classifier(), ml.NumpyBackend(dtype="float64"), shapes=shapes, dtypes={"target": "int64"}, precision="float16"
    )
    dtypes = operands(compiled)
    assert dtypes["linear"] == {"f16"}
    assert dtypes["softmax"] == {"f64"}


@pytest.mark.parametrize("backend", ALL, ids=lambda backend: backend.__name__)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_default_epsilon_of_rms_norm_is_that_of_pytorch(dtype, backend):
    torch = pytest.importorskip("torch")
    backend = backend()
    # Beside the epsilon of 16-bit floats these are small.
    x = np.random.default_rng(0).normal(size=(3, 8), scale=1e-3).astype(np.float32)
    actual = backend.to_numpy(backend.cast(backend.rms_norm(backend.cast(backend.array(x), dtype)), "float32"))
    rounded = torch.tensor(x).to(getattr(torch, dtype))
    expected = torch.nn.functional.rms_norm(rounded, (8,)).float().numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-5 if dtype == "float32" else 1e-2)


def test_the_backend_gives_the_default():
    options = {"shapes": {"input": [2, 8], "target": [2]}, "dtypes": {"target": "int64"}}
    assert operands(ml.compile(classifier(), ml.NumpyBackend(precision="bfloat16"), **options))["linear"] == {"bf16"}
    assert operands(ml.compile(classifier(), ml.NumpyBackend(precision="bfloat16"), precision="float16", **options))[
        "linear"
    ] == {"f16"}
    assert (
        "precision"
        not in ml.compile(classifier(), ml.NumpyBackend(precision="bfloat16"), precision="float32", **options).stages
    )
    assert "precision" not in ml.compile(classifier(), ml.NumpyBackend(), **options).stages
    spelled = ml.compile(classifier(), ml.NumpyBackend(), compute_precision=np.float16, **options)
    assert operands(spelled)["linear"] == {"f16"}


def test_bad_precision_is_an_error():
    options = {"shapes": {"input": [2, 8], "target": [2]}, "dtypes": {"target": "int64"}}
    with pytest.raises(ml.errors.InvalidValueError, match="precision is int32"):
        ml.compile(classifier(), ml.NumpyBackend(), precision="int32", **options)
    with pytest.raises(ml.errors.MithrilError, match="flaot16"):
        ml.compile(classifier(), ml.NumpyBackend(), precision="flaot16", **options)
    with pytest.raises(ml.errors.ConflictingOptionError):
        ml.compile(classifier(), ml.NumpyBackend(), precision="float16", compute_precision="bfloat16", **options)
