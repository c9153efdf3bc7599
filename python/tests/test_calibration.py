"""Ranges of int8 convolutions from samples: histograms, percentiles and relative entropy by direct computations."""

import json
import math

import mithril as ml
import numpy as np
import pytest
from mithril.__main__ import main
from mithril.errors import ConflictingOptionError, InvalidValueError
from mithril.quantization.calibration import Histogram, range_method

SHAPE = [2, 16, 24, 24]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("MITHRIL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


def values(seed=0, count=50_000):
    """Numbers with heavy tails, some of which are 0, in batches whose ranges grow."""
    rng = np.random.default_rng(seed)
    x = rng.standard_t(3, count).astype(np.float32)
    x[rng.random(count) < 0.2] = 0
    return np.array_split(x[np.argsort(np.abs(x) + rng.random(count))], 7)


def test_histograms_do_not_depend_on_batches():
    batches = [np.zeros(3, np.float32), *values()]
    x = np.concatenate(batches)
    grown, backwards, whole = Histogram(bins=256), Histogram(bins=256), Histogram(bins=256)
    for batch in batches:
        grown.add(batch.reshape(1, -1))
    for batch in batches[::-1]:
        backwards.add(batch.astype(np.float64)[::-1])
    whole.add(x)
    edges = np.arange(-256, 257) * grown.width
    # Bins are half open, and none of the numbers is the greatest edge.
    expected = np.histogram(x, edges)[0]
    for each in (grown, backwards, whole):
        np.testing.assert_array_equal(each.counts, expected)
        assert (each.low, each.high, each.count) == (x.min(), x.max(), x.size)
        assert each.zeros == (x == 0).sum()
        # A power of two, of which no smaller one holds all numbers.
        assert each.width * 128 <= np.abs(x).max() < each.width * 256


@pytest.mark.parametrize("size", [1e-44, 1e-20, 1.0, 3e38])
def test_histograms_of_any_size(size):
    x = np.array([-0.25, 0, 0.5, 1], np.float64) * size
    histogram = Histogram()
    histogram.add(x.astype(np.float32))
    histogram.add([])
    assert histogram.counts.sum() == histogram.count == 4
    for method in ("percentile", "entropy"):
        low, high = range_method(method).range(histogram)
        assert x[0] * 1.5 <= low <= 0 <= high <= x[-1] * 1.5
    empty = Histogram()
    empty.add(np.zeros(5))
    for method in ("minmax", "percentile", "entropy"):
        assert range_method(method).range(empty) == (0, 0)


@pytest.mark.parametrize("percentile", [50, 90, 99, 99.9, 99.99, 100])
@pytest.mark.parametrize("sign", [0, 1, -1])
def test_percentiles_are_those_of_numpy(percentile, sign):
    batches = values() if not sign else [sign * np.abs(batch) for batch in values()]
    histogram = Histogram()
    for batch in batches:
        histogram.add(batch)
    x = np.concatenate(batches).astype(np.float64)
    tail = (100 - percentile) / 2
    low, high = range_method("percentile", percentile).range(histogram)
    # Between neighbors NumPy interpolates, and bins round.
    for share, actual in ((tail, low), (100 - tail, high)):
        lower, higher = (np.percentile(x, share, method=method) for method in ("lower", "higher"))
        assert min(lower, 0 if share < 50 else lower) - histogram.width <= actual
        assert actual <= max(higher, 0 if share > 50 else higher) + histogram.width
    if percentile == 100:
        assert (low, high) == range_method("minmax").range(histogram)


def divergence(counts, low, high, levels):
    """Relative entropy by its definition, bin by bin; bins are numbered from below 0."""
    clipped = [0.0] * (high - low)
    for number, count in counts.items():
        clipped[min(max(number, low), high - 1) - low] += count
    bins_of = {}
    for place in range(high - low):
        bins_of.setdefault(math.floor((place + 0.5) * levels / (high - low)), []).append(place + low)
    quantized = [0.0] * (high - low)
    for bins in bins_of.values():
        used = [number for number in bins if counts.get(number)]
        for number in used:
            quantized[number - low] = sum(counts[n] for n in used) / len(used)
    total = 0.0
    for p, q in zip(clipped, quantized, strict=True):
        p, q = p / sum(clipped), q / sum(clipped)
        if p and not q:
            return math.inf
        total += p * math.log(p / q) if p else 0.0
    return total


@pytest.mark.parametrize("seed", range(12))
def test_least_relative_entropy_is_that_of_a_direct_search(seed):
    rng = np.random.default_rng(seed)
    x = rng.laplace(0, 6, 300) if seed % 3 else np.abs(rng.laplace(0, 9, 300))
    # Integers, so that a bin is a number; and outliers, all on one side if there are some.
    x = np.concatenate([np.floor(x).clip(-63, 63), [0] * 40, [0, 60, 61][: seed % 4]])
    histogram = Histogram(bins=64)
    histogram.add([63.5, *x])
    assert histogram.width == 1
    numbers, amounts = np.unique([63, *x[x != 0]], return_counts=True)
    counts = dict(zip(numbers.astype(int).tolist(), amounts.tolist(), strict=True))
    below, above = max(-min(counts), 0), max(counts) + 1
    levels, candidates = 8, {}
    for threshold in range(1, 65):
        low, high = -min(threshold, below), min(threshold, above)
        candidates[threshold] = divergence(counts, low, high, levels)
    least = min(candidates.values())
    # 1.01 times less than 100 is the next integer: all thresholds are compared.
    low, high = histogram.least_entropy_range(levels, 64)
    chosen = [t for t, value in candidates.items() if value <= least + 1e-12]
    assert (low, high) == (max(min(x), -max(chosen)), min(63.5, max(chosen)))


def test_entropy_clips_outliers_and_nothing_else():
    rng = np.random.default_rng(0)
    histogram, body = Histogram(), np.abs(rng.standard_normal(200_000))
    histogram.add(body)
    _, high = histogram.least_entropy_range()
    assert 0.6 * body.max() < high <= body.max()
    histogram.add(rng.uniform(20, 100, 20))
    _, clipped = histogram.least_entropy_range()
    assert 2.5 < clipped < 10


def network(outliers=True):
    """Two convolutions, their parameters, samples in which a few values are large, and the float32 outputs."""
    import torch

    model = ml.Model()
    model |= ml.Convolution2D(32, 3, name="first")(input="input", output="h0")
    model += ml.Relu()(output="hidden")
    model += ml.Convolution2D(16, 1, name="second")(output="output")
    compiled = ml.compile(model, ml.CBackend(quantize="int8", num_threads=1), shapes={"input": SHAPE}, inference=True)
    params = compiled.randomize_params(seed=3)
    if "int8" not in {row.type for row in ml.quantization_report(compiled, params).rows}:
        pytest.skip("this processor has no instruction that multiplies four bytes at once")
    rng = np.random.default_rng(1)
    samples = [rng.standard_normal(SHAPE).astype(np.float32) for _ in range(3)]
    for sample in samples if outliers else []:
        sample[0, 3, 5, :2] = (-70, 90)
    tensor = {name: torch.from_numpy(np.array(value)) for name, value in params.items()}
    hidden, outputs = [], []
    for sample in samples:
        first = torch.from_numpy(sample), tensor["first.weight"], tensor["first.bias"].reshape(-1)
        hidden.append(torch.nn.functional.conv2d(*first).relu())
        second = hidden[-1], tensor["second.weight"], tensor["second.bias"].reshape(-1)
        outputs.append(torch.nn.functional.conv2d(*second).numpy())
    return compiled, params, [{"input": s} for s in samples], [h.numpy() for h in hidden], outputs


def test_methods_on_a_network(tmp_path, capsys):
    compiled, params, samples, hidden, outputs = network()
    # The median: an error in the few outputs that an outlier is in does not count.
    errors = {}
    for method in ("minmax", "percentile", "entropy"):
        option = {"percentile": 99.9} if method == "percentile" else {}
        calibrated = ml.calibrate(compiled, params, iter(samples), method=method, **option)
        ranges = calibrated.backend.quantize_ranges
        actual = calibrated.evaluate(params, samples[0])["output"]
        errors[method] = np.median(np.abs(actual - outputs[0]))
        report = ml.quantization_report(calibrated, params)
        assert [row.range for row in report.rows] == [ranges["first.weight"], ranges["second.weight"]]
        assert {row.method for row in report.rows} == {"percentile 99.9" if option else method}
        assert f"{ranges['first.weight'][0]:.4g} to {ranges['first.weight'][1]:.4g}" in str(report)
        assert ("percentile 99.9" if option else method) in report.to_markdown()
        if method == "percentile":
            images = {"first.weight": [s["input"] for s in samples], "second.weight": hidden}
            for weight, all_values in images.items():
                expected = np.percentile(np.stack(all_values), [0.05, 99.95]).astype(np.float32)
                np.testing.assert_allclose(ranges[weight], expected.clip([-99, 0], [0, 99]), atol=0.02)
            again = ml.calibrate(compiled, params, samples[::-1], method=method, **option)
            assert again.backend.quantize_ranges == ranges
        if method == "minmax":
            assert ranges["first.weight"] == (-70, 90)
    assert errors["percentile"] < errors["minmax"] / 4
    assert errors["entropy"] < errors["minmax"] / 4
    # Ranges that are not of a method, and none.
    backend = ml.CBackend(quantize="int8", num_threads=1, quantize_ranges={"first.weight": (-1, 1)})
    model = ml.Model()
    model |= ml.Convolution2D(32, 3, name="first")(input="input", output="h0")
    other = ml.compile(model, backend, shapes={"input": SHAPE}, inference=True)
    (row,) = ml.quantization_report(other, {n: v for n, v in params.items() if n.startswith("first")}).rows
    assert (row.range, row.method) == ((-1, 1), "quantize_ranges")
    assert {(row.range, row.method) for row in ml.quantization_report(compiled, params).rows} == {(None, "each call")}


def test_options_of_calibrate():
    compiled, params, samples, *_ = network()
    for options, message, hint in [
        ({"method": "minmx"}, "method is 'minmx'", "did you mean 'minmax'"),
        ({"method": None}, "method is None", "minmax, percentile, entropy"),
        ({"percentile": 99.9}, "percentile has no effect with method='minmax'", 'method="percentile"'),
        ({"method": "percentile", "percentile": 0.999}, "percentile is 0.999", "from 50 to 100, e.g. 99.99"),
        ({"method": "percentile", "percentile": 100.1}, "percentile is 100.1", "from 50 to 100"),
        ({"method": "percentile", "percentile": math.nan}, "percentile is nan", "from 50 to 100"),
        ({"method": "percentile", "percentile": True}, "percentile is True", "from 50 to 100"),
        ({"method": "percentile", "percentile": "99"}, "percentile is '99'", "from 50 to 100"),
    ]:
        with pytest.raises(InvalidValueError) as caught:
            ml.calibrate(compiled, params, samples, **options)
        assert message in str(caught.value), options
        assert hint in str(caught.value), options
    assert issubclass(ConflictingOptionError, InvalidValueError)
    broken = {"input": samples[0]["input"] * np.float32(np.nan)}
    with pytest.raises(InvalidValueError, match=r"sample 2: .* holds NaN"):
        ml.calibrate(compiled, params, [*samples[:2], broken], method="entropy")


def test_the_command_line_calibrates(tmp_path, capsys):
    model = ml.Model()
    model |= ml.Convolution2D(16, 3)(input="input", output="output")
    ml.save(model, tmp_path / "model.json")
    image = np.linspace(-1, 1, 8 * 100, dtype=np.float32).reshape(1, 8, 10, 10)
    for number in range(2):
        np.savez(tmp_path / f"{number}.npz", input=image * (1 + number))

    def export(*words):
        place = [str(tmp_path / "model.json"), str(tmp_path / "out"), "--random-weights", "--shape", "input=1,8,10,10"]
        code = main(["export", *place, *words])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    files = ("--calibrate", str(tmp_path / "0.npz"), "--calibrate", str(tmp_path / "1.npz"))
    codes = []
    for further in ((), ("--calibrate-method", "percentile", "--calibrate-percentile", "98")):
        code, text = export("--quantize", "int8", *files, *further, "--json")
        if "no convolution of the model runs in integers" in text:
            pytest.skip("this processor has no instruction that multiplies four bytes at once")
        assert code == 0, text
        assert json.loads(text[text.index("{") : text.rindex("}") + 1])["check"]
        codes.append((tmp_path / "out" / "model.c").read_text())
        assert "mithril_range_" not in codes[-1]
    assert codes[0] != codes[1]
    for words, message in {
        files: "--calibrate determines ranges for int8",
        ("--quantize", "int8", "--calibrate-method", "entropy"): "--calibrate-method has no effect without --calibrate",
        ("--quantize", "int8", *files, "--calibrate-method", "kl"): "method is 'kl'",
        ("--quantize", "int8", "--calibrate", "x.txt"): "--calibrate is 'x.txt'",
        ("--target", "onnx", "--quantize", "int8", *files): "--calibrate is for C",
    }.items():
        code, text = export(*words)
        assert (code, message in text) == (1, True), text
