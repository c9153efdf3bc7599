"""GGML: weights that are given in low-bit blocks, of files and of `mithril.quantize`, stay as they are."""

from pathlib import Path

import mithril as ml
import numpy as np
import pytest
from mithril import _core, models
from mithril.errors import MithrilError
from mithril.quantization.parameters import FORMATS, QuantizedArray

GGML = {name.lower() for name in _core.ggml_types()} & set(FORMATS)
#: Forms of files that ggml has no products for.
UNKNOWN = ("q8_1", "q1_0")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def linear(backend=None, **options):
    model = ml.Model()
    model |= ml.Linear(64, name="up")(input="input", output="hidden")
    model += ml.Relu()
    model += ml.Linear(32, name="down")(output="output")
    return ml.compile(
        model, backend or ml.GGMLBackend(num_threads=2), shapes={"input": [3, 256]}, inference=True, **options
    )


def blocks_of(form, rows, columns, seed=0):
    """Blocks of a form, of values if it can be made, or at random with scales that are numbers."""
    if FORMATS[form].is_writable:
        return ml.quantize({"w": normal(rows, columns, seed=seed) / 16}, form)["w"]
    known = FORMATS[form]
    bits = np.random.default_rng(seed).integers(0, 256, (rows, columns // known.values, known.bytes), np.uint8)
    # Numbers of 16 bits near 0.01 at the start of each block.
    bits[..., 0:2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    if form == "q8_1":
        bits[..., 2:4] = 0
    return QuantizedArray(bits.reshape(rows, -1), form)


def cosine(actual, expected):
    actual, expected = np.asarray(actual, np.float64).ravel(), np.asarray(expected, np.float64).ravel()
    return actual @ expected / np.linalg.norm(actual) / np.linalg.norm(expected)


@pytest.mark.parametrize("form", sorted({*GGML, *UNKNOWN}))
def test_blocks_are_read_as_they_are(form):
    compiled, exact = linear(), linear(ml.NumpyBackend())
    params = dict(exact.randomize_params(seed=0))
    quantized = {**params, "up.weight": blocks_of(form, 64, 256)}
    x = normal(3, 256)
    actual = compiled.evaluate(quantized, {"input": x})["output"]
    expected = exact.evaluate({**params, "up.weight": np.asarray(quantized["up.weight"])}, {"input": x})["output"]
    # ggml rounds what is multiplied with them to 8 bits.
    assert cosine(actual, expected) > 0.999
    if form in GGML:
        # What quantizes the same values has the same blocks; interleaved, they would be added in another order.
        same = linear(ml.GGMLBackend(quantize={"up.weight": form}, num_threads=2, repack=False))
        values = {**params, "up.weight": normal(64, 256) / 16}
        np.testing.assert_array_equal(same.evaluate(values, {"input": x})["output"], actual)
    report = ml.quantization_report(compiled, quantized, {"input": x})
    kept = [(row.path, row.type, row.after, row.rmse) for row in report.rows]
    assert kept == ([] if form in UNKNOWN else [("up.weight", form, quantized["up.weight"].nbytes, 0.0)])
    assert abs(report.outputs[0].cosine - cosine(actual, expected)) < 1e-6


def test_forms_may_change_from_call_to_call():
    compiled, x = linear(), normal(3, 256)
    params = dict(compiled.randomize_params(seed=0))
    outputs = {}
    # Blocks of both have 18 bytes.
    bits = blocks_of("q4_0", 64, 256).blocks
    for form in ("q4_0", "iq4_nl", None, "q4_0"):
        weight = normal(64, 256) if form is None else QuantizedArray(bits.copy(), form)
        output = compiled.evaluate({**params, "up.weight": weight}, {"input": x})["output"]
        packed = compiled.pack({**params, "up.weight": weight})
        np.testing.assert_array_equal(compiled.evaluate(packed, {"input": x})["output"], output)
        np.testing.assert_array_equal(outputs.setdefault(form, output), output)
    assert np.abs(outputs["q4_0"] - outputs["iq4_nl"]).max() > 1e-3
    for shape in ((64, 288), (32, 256)):
        with pytest.raises(MithrilError, match=r"up\.weight"):
            compiled.evaluate({**params, "up.weight": blocks_of("q8_0", *shape)}, {"input": x})


def test_columns_that_are_read_as_rows_are_made_anew():
    model = ml.Model()
    weight = ml.IOKey("weight", shape=[256, 256], trainable=True)
    model |= ml.MatMul()(left="input", right=weight, output="output")
    compiled = ml.compile(model, ml.GGMLBackend(), shapes={"input": [2, 256]}, inference=True)
    x = normal(2, 256)
    for form in ("q8_0", "q6_k"):
        weight = blocks_of(form, 256, 256)
        output = compiled.evaluate({"weight": weight}, {"input": x})["output"]
        assert cosine(output, x @ np.asarray(weight)) > 0.999
        report = ml.quantization_report(compiled, {"weight": weight}, {"input": x})
        assert (report.rows[0].type, report.rows[0].rmse > 0) == (form, True)


def test_a_model_in_training_reads_the_values():
    model = ml.Linear(32, name="fc")
    compiled = ml.compile(model, ml.GGMLBackend(), shapes={"input": [2, 64]})
    exact = ml.compile(model, ml.NumpyBackend(), shapes={"input": [2, 64]})
    weight, x = blocks_of("q8_0", 32, 64), normal(2, 64)
    name = next(n for n in compiled.parameter_keys if n.endswith("weight"))
    params = {**exact.randomize_params(seed=0), name: weight}
    actual = compiled.evaluate(params, {"input": x}, True)
    expected = exact.evaluate({**params, name: np.asarray(weight)}, {"input": x}, True)
    for ours, theirs in zip(actual, expected, strict=True):
        for key, value in theirs.items():
            np.testing.assert_allclose(ours[key], value, rtol=1e-4, atol=1e-5)


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_memory_is_not_doubled():
    rows = 4096
    model = ml.Linear(rows, name="fc", use_bias=False)
    compiled = ml.compile(model, ml.GGMLBackend(num_threads=1), shapes={"input": [1, 8192]}, inference=True)
    [name] = compiled.parameter_keys
    blocks = np.zeros((rows, 8192 // 32 * 34), np.uint8)
    blocks[...] = 7
    weight = QuantizedArray(blocks, "q8_0")
    before = resident()
    compiled.evaluate({name: weight}, {"input": normal(1, 8192)})
    # The weight has 36 MB, and would have 134 as floats.
    assert resident() - before < 8e6
    program = compiled._known().module.source
    program.prepare({"input": (1, 8192), name: (rows, 8192)}, {name: weight})
    assert program.weight_bytes == blocks.nbytes
    packed = compiled.pack({name: weight})
    assert packed.bytes == blocks.nbytes
    assert packed[name] is weight
    assert not blocks.flags.writeable


def owner(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


@pytest.mark.parametrize("form", ["f16", "bf16"])
def test_floats_of_16_bits_of_a_file_stay_so(form, tmp_path):
    path, x = tmp_path / "model.gguf", normal(3, 256)
    exact = linear(ml.NumpyBackend())
    exact.load_params(exact.randomize_params(seed=0))
    ml.save_gguf(exact, path, quantize=form)
    compiled = linear()
    for source in (path, ml.weights.open(path)):
        ml.load_weights(compiled, source)
        weight = compiled.get_parameters()["up.weight"]
        assert weight.dtype.name == {"f16": "float16", "bf16": "bfloat16"}[form]
        output = compiled.evaluate({}, {"input": x})["output"]
        assert cosine(output, exact.evaluate({}, {"input": x})["output"]) > 0.9999
        report = ml.quantization_report(compiled)
        kept = {row.path: (row.type, row.bits, row.rmse) for row in report.rows}
        assert kept == dict.fromkeys(("up.weight", "down.weight"), (form, 16, 0.0))
        assert report.after < 0.51 * report.before
    # Biases are read as float32.
    assert compiled.get_parameters()["up.bias"].dtype == np.float32
    assert compiled._known().module.source.weight_bytes <= report.after + 64


LLAMA = {"vocab_size": 96, "dims": 256, "num_heads": 8, "num_kv_heads": 2, "num_layers": 1, "hidden": 512}
MIXED = {"*embed_tokens*": "q6_k", "*down*": "q5_0", "*q_proj*": "q8_0", "*": "q4_k"}


def test_weights_of_a_file_stay_as_they_are(tmp_path):
    tokens, path = np.arange(12)[None], tmp_path / "model.gguf"
    options = {"shapes": {"input": [1, 12]}, "inference": True}
    exact = ml.compile(models.create_llama(**LLAMA), ml.NumpyBackend(), **options)
    exact.load_params(exact.randomize_params(seed=0))
    quantized = ml.quantize(exact.get_parameters(), MIXED)
    ml.save_gguf(exact, path, params=quantized)
    compiled = ml.compile(models.create_llama(**LLAMA), ml.GGMLBackend(), **options)
    ml.load_weights(compiled, path)
    loaded = compiled.get_parameters()
    for name, value in quantized.items():
        if isinstance(value, QuantizedArray):
            assert loaded[name].format == value.format
            np.testing.assert_array_equal(loaded[name].blocks, value.blocks)
            # Views of the file, but for what it has in another order.
            is_paired = "q_proj" in name or "k_proj" in name
            assert owner(loaded[name].blocks).flags.owndata == is_paired
    report = ml.quantization_report(compiled)
    assert {row.path: row.type for row in report.rows} == {row.path: row.type for row in quantized.report.rows}
    assert report.after == quantized.report.after
    ml.load_weights(exact, path)
    expected = exact(tokens)
    assert cosine(compiled(tokens), expected) > 0.999
    # An open file, and a mapping of arrays, give the same.
    actual = compiled(tokens)
    for source in (ml.weights.open(path), quantized):
        other = ml.compile(models.create_llama(**LLAMA), ml.GGMLBackend(), **options)
        ml.load_weights(other, source)
        np.testing.assert_array_equal(other(tokens), actual)
    other.load_params(quantized)
    np.testing.assert_array_equal(other(tokens), actual)
    # The blocks go back to a file as they came.
    again = tmp_path / "again.gguf"
    ml.save_gguf(compiled, again)
    assert again.read_bytes() == path.read_bytes()
    # What is asked for counts more than what the file has.
    small = ml.compile(models.create_llama(**LLAMA), ml.GGMLBackend(quantize={"*q_proj*": "q4_0"}), **options)
    ml.load_weights(small, path)
    types = {row.path: row.type for row in ml.quantization_report(small).rows}
    assert {t for p, t in types.items() if "q_proj" in p} == {"q4_0"}
    assert {t for p, t in types.items() if "down" in p} == {"q5_0"}
