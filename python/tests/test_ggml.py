"""The GGML backend: models against NumPy and torch, low-bit weights, memory, and what is refused."""

import os

import mithril as ml
import numpy as np
import pytest
from mithril import _core, models
from mithril.errors import InvalidValueError, MithrilError
from mithril.generation import Sampling, compile_decoder, generate_tokens
from mithril.testing import run_backend_tests
from networks import classifier
from test_zoo_c import MODELS, RANDOM, worst

TYPES = tuple(_core.ggml_types())


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# --- ops ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [row["name"] for row in _core.op_definitions()])
def test_ops(op):
    """As compiled models, with special values."""
    results = run_backend_tests(ml.GGMLBackend(num_threads=1), [op], dtypes=["float32"], special=True)
    assert results.passed + len(results.limited) > 0
    assert results.failures == []
    assert results.unsupported == []


# --- models -------------------------------------------------------------------------------------------------------


def pair(name, **options):
    """Return the model on GGML and on NumPy, parameters, and data."""
    build, data = MODELS[name]
    model = build()
    shapes = {key: list(value.shape) for key, value in data.items()}
    compiled = ml.compile(model, ml.GGMLBackend(num_threads=2), shapes=shapes, **options)
    reference = ml.compile(model, ml.NumpyBackend(), shapes=shapes, **options)
    return compiled, reference, reference.randomize_params(seed=1), data


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    compiled, reference, params, data = pair(name, static_inference=True, static_shapes=True)
    assert worst(compiled.evaluate(params, data), reference.evaluate(params, data)) < 1e-3


@pytest.mark.parametrize("name", ["resnet18", "gpt", "llama"])
def test_gradients_of_models(name):
    compiled, reference, params, data = pair(name)
    outputs = reference.evaluate(params, data)
    cotangents = {key: RANDOM.standard_normal(value.shape).astype(np.float32) for key, value in outputs.items()}
    actual, expected = (p.evaluate_gradients(params, data, output_gradients=cotangents) for p in (compiled, reference))
    assert worst(actual, expected) < 5e-3


def test_a_network_of_torch():
    torch = pytest.importorskip("torch")
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    module = torchvision.models.resnet18(num_classes=10).eval()
    image = normal(2, 3, 64, 64)
    model = ml.compile(
        models.resnet18(num_classes=10), ml.GGMLBackend(), shapes={"input": [2, 3, 64, 64]}, inference=True
    )
    model.load_params({n: v.numpy() for n, v in module.state_dict().items() if not n.endswith("num_batches_tracked")})
    with torch.inference_mode():
        expected = module(torch.from_numpy(image)).numpy()
    actual = model.evaluate({}, {"input": image})["output"]
    assert np.abs(actual - expected).max() < 1e-5 * np.abs(expected).max()


def test_training_and_states():
    shapes = {"input": [8, 5]}
    ours, numpy = (ml.compile(classifier(), b, shapes=shapes) for b in (ml.GGMLBackend(), ml.NumpyBackend()))
    params, x = numpy.randomize_params(seed=1), normal(8, 5)
    # Not the same for all classes: their sum is 1, whatever the parameters are.
    cotangent = normal(8, 10, seed=2)
    for model in (ours, numpy):
        model.load_params(params)
    for _ in range(3):
        gradients = [m.evaluate({}, {"input": x}, {"output": cotangent})[1] for m in (ours, numpy)]
        assert worst(*gradients) < 1e-4
        for model, gradient in zip((ours, numpy), gradients, strict=True):
            for name, value in model.get_parameters().items():
                model.get_parameters()[name] = value - np.float32(0.1) * gradient[name]
    assert worst(dict(ours.get_parameters()), dict(numpy.get_parameters())) < 1e-4
    assert worst(ours.state, numpy.state) < 1e-5 if numpy.state else True


def test_sizes_are_taken_as_they_come():
    compiled = ml.compile(classifier(), ml.GGMLBackend(), shapes={"input": ["n", 5]}, inference=True)
    reference = ml.compile(classifier(), ml.NumpyBackend(), shapes={"input": ["n", 5]}, inference=True)
    params = reference.randomize_params(seed=1)
    for n in (1, 4, 1):
        x = normal(n, 5, seed=n)
        expected = reference.evaluate(params, {"input": x})["output"]
        np.testing.assert_allclose(compiled.evaluate(params, {"input": x})["output"], expected, rtol=1e-4, atol=1e-6)


# --- low-bit weights ------------------------------------------------------------------------------------------

#: Least cosine of the logits with those in f32, of random weights; ternary types are for weights that were trained so.
COSINES = {"f16": 0.99999, "bf16": 0.9999, "q8_0": 0.999, "q6_k": 0.995, "q5_k": 0.99, "q5_0": 0.99, "q5_1": 0.99}
COSINES |= {"q4_k": 0.98, "q4_1": 0.97, "q4_0": 0.96, "iq4_nl": 0.97, "iq4_xs": 0.97, "mxfp4": 0.95}
COSINES |= {"q3_k": 0.93, "q2_k": 0.8, "iq3_s": 0.9, "iq3_xxs": 0.85, "iq2_s": 0.7}
TEXT = {"vocab_size": 101, "num_heads": 4, "num_layers": 1, "dims": 256, "block_size": 16}
TOKENS = np.arange(12, dtype=np.int64)[None] * 7


@pytest.mark.parametrize("type", [t.lower() for t in TYPES if t != "f32"])
def test_logits_of_each_type(type):
    model = models.create_gpt(**TEXT)
    if type in ("iq1_m", "iq2_s") and not os.environ.get("MITHRIL_TEST_ALL"):
        pytest.skip("ggml makes tables for it for 20 seconds: MITHRIL_TEST_ALL=1")
    small = ml.compile(model, ml.GGMLBackend(quantize=type, num_threads=2), shapes={"input": [1, 12]}, inference=True)
    exact = ml.compile(model, ml.NumpyBackend(), shapes={"input": [1, 12]}, inference=True)
    params = exact.randomize_params(seed=0)
    report = ml.quantization_report(small, params, {"input": TOKENS})
    expected = exact.evaluate(params, {"input": TOKENS})["output"].reshape(-1)
    actual = small.evaluate(params, {"input": TOKENS})["output"].reshape(-1)
    cosine = actual @ expected / np.linalg.norm(actual) / np.linalg.norm(expected)
    assert COSINES.get(type, 0.1) <= cosine <= 1 + 1e-6, (type, cosine)
    assert len(report.rows) >= 5
    assert {row.type.lower() for row in report.rows} == {type}
    assert report.after < 0.6 * report.before
    assert abs(report.outputs[0].cosine - cosine) < 1e-3


def test_types_by_name_and_what_cannot_be():
    model = ml.Model()
    model |= ml.Linear(64, name="wide")(input="input", output="hidden")
    model |= ml.Linear(8, name="narrow")(input="hidden", output="output")
    options = {"shapes": {"input": [2, 40]}, "inference": True}
    compiled = ml.compile(model, ml.GGMLBackend(quantize={"narrow*": "q4_0", "*": "int8"}), **options)
    report = ml.quantization_report(compiled, compiled.randomize_params(seed=0))
    assert [(row.path, row.type) for row in report.rows] == [("narrow.weight", "q4_0")]
    reasons = {skip.path: skip.reason for skip in report.skipped}
    assert "40" in reasons["wide.weight"]
    assert "32" in reasons["wide.weight"]
    with pytest.raises(MithrilError, match=r"wide\.weight"):
        ml.compile(model, ml.GGMLBackend(quantize="int8", quantize_strict=True), **options)
    with pytest.raises(MithrilError, match=r"has a name like .tall"):
        ml.compile(model, ml.GGMLBackend(quantize={"tall*": "int8"}), **options)


def test_options_that_do_not_work():
    with pytest.raises(InvalidValueError, match="quantize is 'int3'"):
        ml.GGMLBackend(quantize="int3")
    with pytest.raises(InvalidValueError, match=r"quantize of 'head.\*' is 'q8'\n  help: did you mean 'q8_0'\?"):
        ml.GGMLBackend(quantize={"*": "q4_0", "head.*": "q8"})
    with pytest.raises(InvalidValueError, match="float32"):
        ml.GGMLBackend(dtype="float64")
    with pytest.raises(InvalidValueError, match="num_threads"):
        ml.GGMLBackend(num_threads=0)
    with pytest.raises(MithrilError, match="inference"):
        ml.compile(classifier(), ml.GGMLBackend(quantize="q8_0"), shapes={"input": [2, 5]})
    with pytest.raises(MithrilError, match="bytes"):
        ml.compile(classifier(), ml.GGMLBackend(mem_size=10), shapes={"input": [1000, 5]})


# --- generation ---------------------------------------------------------------------------------------------------

DECODERS = {
    "gpt": lambda: models.create_gpt(**{**TEXT, "dims": 64}, cache=True),
    "llama": lambda: models.create_llama(
        vocab_size=101, num_heads=4, num_kv_heads=2, num_layers=2, dims=64, hidden=96, cache=True
    ),
}


@pytest.mark.parametrize("name", DECODERS)
def test_tokens_stream(name):
    model, pieces = DECODERS[name](), []
    for backend in (ml.NumpyBackend(), ml.GGMLBackend(num_threads=2)):
        compiled = compile_decoder(model, backend)
        if not pieces:
            params = {key: 8 * value for key, value in compiled.randomize_params(seed=3).items()}
        compiled.load_params(params)
        tokens = generate_tokens(compiled, [[1, 2, 3], [5]], 8, sampling=Sampling(temperature=1.0, seed=3))
        streamed = list(tokens)
        assert len(streamed) >= 8
        pieces.append(tokens.tokens)
    assert pieces[0] == pieces[1]
    assert len(set(pieces[0][0])) > 4


def test_donated_caches_are_written_in_place():
    model = DECODERS["llama"]()
    shape = model.shape_of("past_key_0")
    caches = {name: normal(1, shape[1], 6, shape[3]) for name in model.input_keys if name.startswith("past_")}
    data = {"input": np.array([[3, 1]]), "position": np.array(3), "padding": np.zeros(1, np.int64)}
    options = {"shapes": {name: list(value.shape) for name, value in {**data, **caches}.items()}, "inference": True}
    reference = ml.compile(model, ml.NumpyBackend(), **options)
    params = reference.randomize_params(seed=1)
    expected = reference.evaluate(params, {**data, **caches})
    for donate in ([], list(caches)):
        donated = {name: value.copy() for name, value in caches.items()}
        compiled = ml.compile(model, ml.GGMLBackend(), donate=donate, **options)
        actual = compiled.evaluate(params, {**data, **donated})
        for name, value in expected.items():
            np.testing.assert_allclose(actual[name], value, atol=1e-5)
        for name, old in donated.items():
            assert (actual[name.removeprefix("past_")] is old) == bool(donate)
            assert donate or np.array_equal(old, caches[name])


def test_arrays_and_ops_at_once_are_those_of_numpy():
    backend = ml.GGMLBackend(seed=3)
    assert type(backend.sqrt(backend.array([1.0, 4.0]))) is np.ndarray
    np.testing.assert_array_equal(backend.randn(3), ml.NumpyBackend(seed=3).randn(3))
    assert ml.get_backend("ggml", quantize="q4_k").quantize == [("*", "q4_K")]
    assert [name for name, _ in backend.ggml_devices] == ["CPU"]
    assert backend.capabilities()["ops"]["matmul"] == "native"


def test_how_ops_run():
    model = ml.Model()
    model |= ml.Linear(4)(input="input", output="hidden")
    model += ml.Relu()
    model += ml.Sort()(output="output")
    result = ml.check(model, "ggml", shapes={"input": [2, 3]})
    support = {row.op: row.support for row in result}
    assert support["relu"] == "native"
    assert support["sort"] == "reference"
    assert result.ok


def test_packed_parameters_stand_for_the_arrays():
    compiled = ml.compile(classifier(), ml.GGMLBackend(quantize="f16"), shapes={"input": [3, 5]}, inference=True)
    params, x = compiled.randomize_params(seed=1), normal(3, 5)
    expected = compiled.evaluate(params, {"input": x})["output"]
    packed = compiled.pack(params)
    np.testing.assert_array_equal(compiled.evaluate(packed, {"input": x})["output"], expected)
    assert 0 < packed.bytes < sum(value.nbytes for value in params.values())


def test_parameters_that_lie_in_another_way_are_copied_once():
    compiled = ml.compile(classifier(), ml.GGMLBackend(), shapes={"input": [3, 5]}, inference=True)
    params, x = compiled.randomize_params(seed=1), normal(3, 5)
    expected = compiled.evaluate(params, {"input": x})["output"]
    turned = {name: np.asfortranarray(value) for name, value in params.items()}
    np.testing.assert_array_equal(compiled.evaluate(turned, {"input": x})["output"], expected)
    # Copies of them are kept, so that writing into them would not be seen.
    assert not any(value.flags.writeable for value in turned.values())
    np.testing.assert_array_equal(compiled.evaluate(turned, {"input": x})["output"], expected)
    others = {name: np.asfortranarray(2 * value) for name, value in params.items()}
    assert np.abs(compiled.evaluate(others, {"input": x})["output"] - expected).max() > 1e-3
