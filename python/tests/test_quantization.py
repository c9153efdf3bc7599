"""Low-bit weights: the arithmetic against NumPy's, whole models against float32, and what is refused."""

from pathlib import Path

import mithril as ml
import numpy as np
import pytest
from mithril import models
from mithril.backends.with_manualgrad.c_backend.quantization import rounded
from mithril.errors import InvalidValueError, MithrilError, ParameterError

SCHEMES = ("int8", "int8_weights", "int4_weights")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("MITHRIL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


def linear(scheme, rows, inputs, outputs, **options):
    model = ml.Model()
    model |= ml.Linear(outputs)(input="input", output="hidden")
    model += ml.Relu()(output="output")
    backend = ml.CBackend(quantize=scheme, num_threads=2, **options)
    compiled = ml.compile(model, backend, shapes={"input": [rows, inputs]}, inference=True)
    params = compiled.randomize_params(seed=1)
    return compiled, params, np.random.default_rng(0).standard_normal((rows, inputs)).astype(np.float32)


def as_bytes(x):
    """Rows as numbers from 0 to 255 with a scale and a zero each."""
    low, high = np.minimum(x.min(1, keepdims=True), 0), np.maximum(x.max(1, keepdims=True), 0)
    scale = (high - low) / np.float32(255)
    inverse = np.float32(255) / (high - low)
    zero = np.floor(np.float32(0.5) - low * inverse)
    # The product is rounded once, with what is added.
    numbers = np.floor((x.astype(np.float64) * inverse + (zero + 0.5)).astype(np.float32)).clip(0, 255)
    return (numbers - zero).astype(np.int64), scale


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("rows", [1, 19])
def test_products_are_those_of_the_rounded_numbers(scheme, rows):
    compiled, params, x = linear(scheme, rows, 300, 70)
    weight, bias = np.array(params["hidden.weight"] if "hidden.weight" in params else params["linear.weight"]), None
    bias = np.array(next(v for n, v in params.items() if n.endswith("bias"))).reshape(-1)
    if scheme == "int8":
        largest = np.abs(weight).max(1, keepdims=True)
        scales = largest / np.float32(127)
        whole = np.rint(rounded(weight, scheme).astype(np.float64) / scales).astype(np.int64)
        numbers, sizes = as_bytes(x)
        sums = (numbers @ whole.T) * (sizes.astype(np.float64) * scales.T)
    else:
        sums = x.astype(np.float64) @ rounded(weight, scheme).T.astype(np.float64)
    expected = np.maximum(sums + bias, 0)
    actual = compiled.evaluate(params, {"input": x})["output"]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_matrices_of_a_batch_are_quantized_one_by_one(scheme):
    model = ml.Model()
    weight = ml.IOKey("weight", shape=[3, 96, 40], differentiable=True)
    model |= ml.MatrixMultiply()(left="input", right=weight, output="output")
    backend = ml.CBackend(quantize=scheme, quantize_strict=True, num_threads=2)
    compiled = ml.compile(model, backend, shapes={"input": [3, 5, 96]}, inference=True)
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal(shape).astype(np.float32) for shape in ([3, 96, 40], [3, 5, 96]))
    w *= np.array([1, 1e-3, 1e3], np.float32)[:, None, None]
    kept = np.stack([rounded(one.T, scheme).T for one in w])
    numbers, sizes = as_bytes(x.reshape(15, 96)) if scheme == "int8" else (x, np.float32(1))
    expected = (numbers * sizes.astype(np.float64)).reshape(x.shape) @ kept.astype(np.float64)
    actual = compiled.evaluate({"weight": w}, {"input": x})["output"]
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-6 * np.abs(other).max())
    (row,) = ml.quantization_report(compiled, {"weight": w}).rows
    assert row.type == scheme
    np.testing.assert_allclose(row.rmse, np.sqrt(np.mean((w - kept) ** 2)), rtol=1e-4)


def test_what_is_not_finite_stays_so():
    compiled, params, x = linear("int8", 5, 40, 33)
    clean = compiled.evaluate(params, {"input": x})["output"]
    x[1, 3], x[2, 5], x[3, 7] = np.nan, np.inf, -np.inf
    output = compiled.evaluate(params, {"input": x})["output"]
    assert np.isnan(output[1:4]).all()
    np.testing.assert_array_equal(output[[0, 4]], clean[[0, 4]])
    for scheme in SCHEMES:
        compiled, params, x = linear(scheme, 4, 40, 33)
        broken = {name: np.array(value) for name, value in params.items()}
        name = next(n for n in broken if n.endswith("weight"))
        broken[name][7, 3], broken[name][9, 39] = np.nan, np.inf
        output = compiled.evaluate(broken, {"input": x})["output"]
        assert np.isnan(output[:, [7, 9]]).all(), scheme
        assert np.isfinite(np.delete(output, [7, 9], 1)).all(), scheme


@pytest.mark.parametrize(("scheme", "least"), [("int8", 0.999), ("int8_weights", 0.9999), ("int4_weights", 0.98)])
def test_the_report_tells_sizes_and_errors(scheme, least):
    model = models.create_gpt(vocab_size=101, num_heads=4, num_layers=2, dims=64, block_size=32)
    rules = {"*wte*": None, "*": scheme}
    compiled = ml.compile(model, ml.CBackend(quantize=rules), shapes={"input": [1, 12]}, inference=True)
    params = compiled.randomize_params(seed=0)
    report = ml.quantization_report(compiled, params, {"input": np.arange(12, dtype=np.int64)[None] * 7})
    quantized = [w for w in report.rows if w.type == scheme]
    assert len(quantized) >= 8
    assert report.after < report.before
    assert all(0.99 < w.cosine < 1 and w.rmse > 0 for w in quantized)
    assert all(skip.reason and skip.type == "float32" for skip in report.skipped)
    assert report.outputs
    assert all(least < o.cosine < 1 for o in report.outputs)
    assert "arrays quantized" in str(report)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_weight_is_quantized_or_has_a_reason(scheme):
    model = ml.Model()
    model |= ml.Linear(64)(input="input", output="hidden")
    model += ml.Relu()
    model += ml.Linear(32)(output="output")

    def compile(rows, **options):
        backend = ml.CBackend(quantize=scheme, num_threads=1, **options)
        return ml.compile(model, backend, shapes={"input": [rows, 200]}, inference=True)

    def outcome(rows):
        compiled = compile(rows)
        report = ml.quantization_report(compiled, compiled.randomize_params(seed=0))
        return {row.path for row in report.rows}, {skip.path: skip.reason for skip in report.skipped}

    quantized, skipped = outcome(1)
    assert quantized == {"linear.weight"}
    assert "its product has 2048 multiplications" in skipped["linear_1.weight"]
    assert "no product" in skipped["linear_1.bias"]
    quantized, skipped = outcome(2)
    assert quantized == {"linear.weight", "linear_1.weight"}
    with pytest.raises(MithrilError, match=r"linear_1\.weight: its product has 2048"):
        compile(1, quantize_strict=True)


def test_options_that_do_not_work():
    with pytest.raises(InvalidValueError, match="quantize is 'int3'"):
        ml.CBackend(quantize="int3")
    model = ml.Model()
    model |= ml.Linear(64)(input="input", output="output")
    with pytest.raises(MithrilError, match="inference=True"):
        ml.compile(model, ml.CBackend(quantize="int8"), shapes={"input": [4, 64]})
    grouped = ml.Model()
    grouped |= ml.Convolution2D(16, 3, groups=2)(input="input", output="output")
    settings = {"shapes": {"input": [1, 8, 16, 16]}, "inference": True}
    transposed = ml.Model()
    transposed |= ml.ConvTranspose2d(16, 4, stride=2)(input="input", output="output")
    with pytest.raises(MithrilError, match="weight: parts of it are brought into another order"):
        ml.compile(transposed, ml.CBackend(quantize="int8", quantize_strict=True), **settings)
    with pytest.raises(MithrilError, match="weight: it is not of float32"):
        ml.compile(grouped, ml.CBackend(dtype=ml.float64, quantize="int8", quantize_strict=True), **settings)
    for options, message in [
        ({"quantize": {"conv.*": "int8"}}, 'no parameter of the model has a name like "conv.*"'),
        ({"quantize": "int8", "quantize_ranges": {"weight": (0, 1)}}, 'the model has no parameter "weight"'),
    ]:
        with pytest.raises(MithrilError, match=message):
            ml.compile(grouped, ml.CBackend(**options), **settings)
    for wrong in ({"weight": (1, 0)}, {"weight": (0, np.nan)}, {"weight": 3}, [1, 2]):
        with pytest.raises(InvalidValueError, match="quantize_ranges"):
            ml.CBackend(quantize="int8", quantize_ranges=wrong)
    with pytest.raises(InvalidValueError, match="no effect without quantize"):
        ml.CBackend(quantize_ranges={"weight": (0, 1)})


def images(layer, shape, scheme="int8"):
    model = ml.Model()
    model |= layer(input="input", output="output")
    backend = ml.CBackend(quantize=scheme, quantize_strict=True, num_threads=2)
    compiled = ml.compile(model, backend, shapes={"input": list(shape)}, inference=True)
    params = compiled.randomize_params(seed=1)
    return compiled, params, np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def kept(compiled, params):
    """How the weights are kept."""
    return {row.path.rpartition(".")[2]: row.type for row in ml.quantization_report(compiled, params).rows}


def needs_whole_numbers(compiled, params):
    if "int8" not in kept(compiled, params).values():
        pytest.skip("this processor has no instruction that multiplies four bytes at once")


@pytest.mark.parametrize("scheme", [*SCHEMES, "int8 calibrated"])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (ml.Convolution2D(40, 3, stride=2, padding=1), (2, 6, 17, 20)),
        (ml.Convolution2D(33, 1, stride=2), (2, 32, 9, 9)),
        (ml.Convolution1D(24, 5, padding=2), (3, 7, 40)),
        (ml.Convolution2D(36, 3, stride=2, padding=1, groups=3), (2, 18, 17, 20)),
        (ml.Convolution2D(64, 3, stride=2, padding=1, groups=2), (2, 16, 17, 20)),
        (ml.Convolution2D(32, 3, stride=2, padding=1, groups=32), (2, 32, 9, 10)),
    ],
    ids=["3x3", "1x1", "line", "grouped", "groups of many", "depth"],
)
def test_convolutions_are_those_of_the_rounded_numbers(layer, shape, scheme):
    import torch

    compiled, params, x = images(layer, shape, scheme.split()[0])
    names = {name.rpartition(".")[2]: np.array(value) for name, value in params.items()}
    weight, bias = names["weight"], names["bias"].reshape(-1)
    flat, image = x.reshape(shape[0], -1), x.astype(np.float64)
    scheme_kept = kept(compiled, params)["weight"]
    groups = shape[1] // weight.shape[1]
    assert scheme_kept in (scheme.split()[0], "int8_weights")
    if groups == shape[1]:
        assert scheme_kept != "int8"
    if "calibrated" in scheme and scheme_kept == "int8":
        # One range for all images.
        flat = x.reshape(1, -1)
        compiled = ml.calibrate(compiled, params, [{"input": x}, {"input": 0.5 * x}])
    if scheme_kept == "int8":
        numbers, sizes = as_bytes(flat)
        image = (numbers * sizes.astype(np.float64)).reshape(shape)
    weights = rounded(weight.reshape(len(weight), -1), scheme_kept).reshape(weight.shape).astype(np.float64)
    function = torch.nn.functional.conv1d if len(shape) == 3 else torch.nn.functional.conv2d
    stride, padding = (2 if len(shape) == 4 else 1), {3: 1, 1: 0, 5: 2}[weight.shape[-1]]
    tensors = map(torch.from_numpy, (image, weights))
    expected = function(*tensors, stride=stride, padding=padding, groups=groups).numpy()
    expected += bias.reshape(-1, *[1] * (len(shape) - 2))
    actual = compiled.evaluate(params, {"input": x})["output"]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("is_calibrated", [False, True])
def test_images_that_are_not_finite(is_calibrated):
    compiled, params, x = images(ml.Convolution2D(32, 3, padding=1), (4, 16, 8, 8))
    needs_whole_numbers(compiled, params)
    if is_calibrated:
        compiled = ml.calibrate(compiled, params, {"input": x})
    clean = compiled.evaluate(params, {"input": x})["output"]
    x[1, 3, 4, 4], x[2, 5, 0, 0] = np.nan, np.inf
    output = compiled.evaluate(params, {"input": x})["output"]
    assert np.isnan(output[1]).all()
    # What is beyond the known range is cut off.
    assert np.isfinite(output[2]).all() if is_calibrated else np.isnan(output[2]).all()
    np.testing.assert_array_equal(output[[0, 3]], clean[[0, 3]])


def test_a_network_of_images_in_whole_numbers(tmp_path):
    needs_whole_numbers(*images(ml.Convolution2D(16, 3), (1, 8, 8, 8))[:2])
    model = models.resnet18(num_classes=50)
    options = {"shapes": {"input": [1, 3, 64, 64]}, "inference": True}
    x = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype(np.float32)
    exact = ml.compile(model, ml.CBackend(num_threads=2), **options)
    compiled = ml.compile(model, ml.CBackend(quantize="int8", quantize_strict=True, num_threads=2), **options)
    params = compiled.randomize_params(seed=0)
    expected = exact.evaluate(params, {"input": x})["output"].reshape(-1).astype(np.float64)
    calibrated = ml.calibrate(compiled, params, ({"input": size * x} for size in (0.5, 1)))
    assert len(calibrated.backend.quantize_ranges) == 20
    for each in (compiled, calibrated):
        actual = each.evaluate(params, {"input": x})["output"].reshape(-1)
        assert actual @ expected > 0.999 * np.linalg.norm(actual) * np.linalg.norm(expected)
    exported = calibrated.export(tmp_path, data={"input": x}, params=params, lanes=4)
    assert "output" in exported.check
    code = (tmp_path / "model.c").read_text()
    assert "mithril_int8_conv_" in code
    assert "mithril_range_" not in code
    if "avx512" in Path("/proc/cpuinfo").read_text():
        # For AVX2, most of which has no dot products of bytes: the weights alone are in low precision.
        other = calibrated.export(tmp_path / "avx2", data={"input": x}, params=params, lanes=8)
        assert "output" in other.check
        assert other.packed_bytes < params_bytes(params) / 3.5
        assert "mithril_unpack_int8_weights_scaled(" in (tmp_path / "avx2" / "model.c").read_text()


def mobile(channels, expand):
    """A block of a network for phones, and its batch norms."""
    model = ml.Model()
    wide = channels * expand
    model |= ml.Convolution2D(wide, 1, bias=False)(input="input", output="h0")
    model += ml.BatchNorm2d()
    model += ml.Relu6()
    model += ml.Convolution2D(wide, 3, padding=1, groups=wide, bias=False)
    model += ml.BatchNorm2d()
    model += ml.Relu6()
    model += ml.Convolution2D(channels, 1, bias=False)
    model += ml.BatchNorm2d()(output="made")
    model |= ml.Add()(left="input", right="made", output="output")
    return model


@pytest.mark.parametrize(("scheme", "least"), [("int8", 0.9999), ("int8_weights", 0.9999), ("int4_weights", 0.98)])
def test_convolutions_in_blocks_keep_their_weights_in_few_bits(tmp_path, scheme, least):
    backend = ml.CBackend(quantize=scheme, quantize_strict=True, num_threads=2)
    compiled = ml.compile(mobile(32, 4), backend, shapes={"input": [2, 32, 14, 14]}, inference=True)
    params = compiled.randomize_params(seed=3)
    x = np.random.default_rng(0).standard_normal((2, 32, 14, 14)).astype(np.float32)
    report = ml.quantization_report(compiled, params, {"input": x})
    assert len(report.rows) == 3
    assert report.outputs[0].cosine > least
    # Of 9 terms, 3 more to fill a word; each filter with a scale, and for integers its sum.
    assert all(row.bits < (14.5 if row.before < 6000 else 10.1) for row in report.rows)
    for lanes in (1, 4, 8):
        exported = compiled.export(tmp_path / str(lanes), data={"input": x}, params=params, lanes=lanes)
        assert "output" in exported.check
        assert exported.packed_bytes < 0.45 * params_bytes(params)


def as_known(x, low, high):
    """Numbers as those that the bytes of a known range stand for."""
    scale = (high - low) / 255
    zero = np.floor(0.5 - low / scale)
    return (np.floor(x / scale + zero + 0.5).clip(0, 255) - zero) * scale


def chain():
    """Convolutions that hand each other bytes once their ranges are known."""
    model = ml.Model()
    model |= ml.Convolution2D(64, 3, padding=1, name="first")(input="input", output="h0")
    model += ml.Relu6()
    model += ml.Convolution2D(64, 3, stride=2, padding=1, name="second")
    model += ml.Relu()
    model += ml.Convolution2D(96, 5, padding=2, name="wide")
    model += ml.Convolution2D(24, 1, name="last")(output="output")
    options = {"shapes": {"input": [3, 8, 21, 19]}, "inference": True}
    compiled = ml.compile(model, ml.CBackend(quantize="int8", num_threads=2), **options)
    params = compiled.randomize_params(seed=5)
    x = np.random.default_rng(0).standard_normal((3, 8, 21, 19)).astype(np.float32)
    needs_whole_numbers(compiled, params)
    return compiled, params, x


def test_convolutions_hand_on_bytes(tmp_path):
    import torch

    compiled, params, x = chain()
    calibrated = ml.calibrate(compiled, params, {"input": x})
    assert {row.type for row in ml.quantization_report(calibrated, params).rows} == {"int8"}
    actual = calibrated.evaluate(params, {"input": x})["output"]
    expected = x.astype(np.float64)
    after = {"first": lambda t: t.clip(0, 6), "second": lambda t: t.clip(0, None)}
    strides = {"second": (2, 1), "wide": (1, 2), "first": (1, 1), "last": (1, 0)}
    for name in ("first", "second", "wide", "last"):
        weight, bias = (np.asarray(params[f"{name}.{kind}"]) for kind in ("weight", "bias"))
        whole = rounded(weight.reshape(len(weight), -1), "int8").reshape(weight.shape).astype(np.float64)
        image = torch.from_numpy(as_known(expected, *calibrated.backend.quantize_ranges[f"{name}.weight"]))
        stride, padding = strides[name]
        groups = image.shape[1] // weight.shape[1]
        convolution = torch.nn.functional.conv2d(
            image, torch.from_numpy(whole), stride=stride, padding=padding, groups=groups
        )
        expected = after.get(name, lambda t: t)(convolution.numpy() + bias.reshape(1, -1, 1, 1))
    error = np.abs(actual - expected) / np.abs(expected).max()
    # A number in the middle between two bytes may become either.
    assert np.quantile(error, 0.9) < 1e-5
    assert error.max() < 0.02
    for lanes in (4, 8, 16) if "avx512" in Path("/proc/cpuinfo").read_text() else (4,):
        exported = calibrated.export(tmp_path / str(lanes), data={"input": x}, params=params, lanes=lanes)
        assert "output" in exported.check
        assert ("mithril_store_words(out" in (tmp_path / str(lanes) / "model.c").read_text()) == (lanes != 8)


def test_bytes_tell_which_images_are_not_finite():
    compiled, params, x = chain()
    calibrated = ml.calibrate(compiled, params, {"input": x})
    clean = calibrated.evaluate(params, {"input": x})["output"]
    x[1, 3, 20, 18] = np.nan
    output = calibrated.evaluate(params, {"input": x})["output"]
    assert np.isnan(output[1]).all()
    np.testing.assert_array_equal(output[[0, 2]], clean[[0, 2]])
    # A filter that is not finite makes NaN of its channel, and so of all that is made of it.
    broken = {name: np.array(value) for name, value in params.items()}
    broken["second.weight"][5, 0, 1, 1] = np.inf
    assert np.isnan(calibrated.evaluate(broken, {"input": x})["output"]).all()


def test_samples_that_do_not_calibrate():
    compiled, params, x = images(ml.Convolution2D(16, 3), (1, 8, 8, 8))
    needs_whole_numbers(compiled, params)
    for nothing in (None, [], 3, [x]):
        with pytest.raises(InvalidValueError, match=r"no samples to calibrate with|a sample is a ndarray"):
            ml.calibrate(compiled, params, nothing)
    with pytest.raises(MithrilError, match="input"):
        ml.calibrate(compiled, params, {"input": x[:, :3]})
    broken = x.copy()
    broken[0, 0, 0, 0] = np.nan
    with pytest.raises(InvalidValueError, match=r"sample 1: .* holds NaN"):
        ml.calibrate(compiled, params, [{"input": x}, {"input": broken}])
    products, params, rows = linear("int8", 4, 96, 64)
    with pytest.raises(InvalidValueError, match="no convolution of the model runs in integers"):
        ml.calibrate(products, params, {"input": rows})


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_exported_is_quantized(tmp_path, scheme):
    compiled, params, x = linear(scheme, 3, 96, 40)
    exported = compiled.export(tmp_path, data={"input": x}, params=params, lanes=4)
    assert "output" in exported.check
    assert exported.packed_bytes < params_bytes(params) / 3
    assert f"mithril_{scheme}_" in (tmp_path / "model.c").read_text()


def test_a_report_looks_at_the_parameters_of_the_model():
    compiled, params, _ = linear("int8", 3, 96, 40)
    name = next(name for name in params if name.endswith("weight"))
    with pytest.raises(ParameterError, match="params has no"):
        ml.quantization_report(compiled, {})
    with pytest.raises(ParameterError, match=r"is \[2, 2\], the model needs \[40, 96\]"):
        ml.quantization_report(compiled, {**params, name: np.zeros((2, 2), np.float32)})
    model = ml.Model()
    model |= ml.Convolution2D(16, 3)(input="input", output="output")
    backend = ml.CBackend(quantize="int8_weights", num_threads=1, dtype=ml.float16)
    half = ml.compile(model, backend, shapes={"input": [1, 8, 12, 12]}, inference=True)
    report = ml.quantization_report(half, drawn := half.randomize_params(seed=0))
    assert report.before == params_bytes(drawn)
    assert {row.path for row in report.rows} | {skip.path for skip in report.skipped} == set(drawn)


def params_bytes(params):
    return sum(value.nbytes for value in params.values())
