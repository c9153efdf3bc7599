"""Files of GGUF and low-bit blocks, against the package gguf, which is the reference of the format in Python."""

from __future__ import annotations

import gguf
import mithril as ml
import numpy as np
import pytest
import torch
import transformers
from gguf.quants import dequantize, quantize
from mithril import _core
from mithril.__main__ import main
from mithril.checkpoints.gguf import write
from mithril.models import create_gpt, create_llama, from_config
from mithril.quantization.mixtures import MIXTURES, assigned
from mithril.quantization.parameters import FORMATS, QuantizedArray
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

METADATA = {
    "general.architecture": "test",
    "a.uint8": np.uint8(255),
    "a.int8": np.int8(-1),
    "a.uint16": np.uint16(7),
    "a.int16": np.int16(-7),
    "a.uint32": np.uint32(2**32 - 1),
    "a.int32": np.int32(-(2**31)),
    "a.uint64": np.uint64(2**64 - 1),
    "a.int64": np.int64(-(2**63)),
    "a.float32": np.float32(0.1),
    "a.float64": np.float64(1e-300),
    "a.bool": True,
    "a.texts": ["é", "", "日本"],
    "a.ints": np.array([1, -2], np.int32),
    "a.floats": np.array([0.5, -1.5], np.float32),
    "a.truths": [True, False],
}


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tensors() -> dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]]:
    """Arrays of values, and the type that they have in a file."""
    kinds = gguf.GGMLQuantizationType
    return {
        "w.f32": (random(3, 5), kinds.F32),
        "w.f16": (random(2, 3, 4).astype(np.float16), kinds.F16),
        "w.bf16": (random(4, 6), kinds.BF16),
        "w.i32": (np.arange(6, dtype=np.int32).reshape(2, 3), kinds.I32),
        "w.q4_0": (random(4, 64), kinds.Q4_0),
        "w.q8_0": (random(2, 3, 32), kinds.Q8_0),
        "w.tq2_0": (random(2, 256), kinds.TQ2_0),
    }


def write_by_package(path) -> None:
    writer = gguf.GGUFWriter(path, "test")
    for key, value in METADATA.items():
        kind = type(value).__name__
        if key == "general.architecture":
            continue
        if isinstance(value, (list, np.ndarray)):
            writer.add_array(key, [x.item() if isinstance(x, np.generic) else x for x in value])
        else:
            getattr(writer, f"add_{kind}")(key, value)
    for name, (values, kind) in tensors().items():
        plain = kind.name in ("F32", "F16", "I32")
        data = values if plain else quantize(values, kind)
        writer.add_tensor(name, data, raw_dtype=None if plain else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_values(name: str, values: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    if kind.name in ("F32", "F16", "I32"):
        return values
    return dequantize(quantize(values, kind), kind).reshape(values.shape)


def test_a_file_of_the_package_is_read_and_written_alike(tmp_path):
    theirs, ours = tmp_path / "theirs.gguf", tmp_path / "ours.gguf"
    write_by_package(theirs)
    opened = ml.weights.open(theirs)
    assert list(opened.metadata) == list(METADATA)
    for key, expected in METADATA.items():
        value = opened.metadata[key]
        assert type(value) is type(expected), key
        np.testing.assert_array_equal(value, expected)
    for name, (values, kind) in tensors().items():
        np.testing.assert_array_equal(opened[name].astype(np.float64), read_values(name, values, kind), err_msg=name)
    assert opened.quantized("w.f32") is None
    assert opened.quantized("w.q8_0").format.name == "q8_0"
    # Written again it is the same file, byte by byte.
    arrays = {name: opened[name] if opened.quantized(name) is None else opened.quantized(name) for name in opened}
    metadata = dict(opened.metadata)
    write(arrays, ours, metadata)
    assert ours.read_bytes() == theirs.read_bytes()
    assert list(ml.load(ours)) == sorted(opened)


def test_a_file_of_ours_is_read_by_the_package(tmp_path):
    path = tmp_path / "ours.gguf"
    arrays = {name: values for name, (values, _) in tensors().items()} | {
        "one": np.array([2.5]),
        "scalar": np.float32(3),
    }
    more = {"a.int": 3, "a.negative": -3, "a.large": 2**40, "a.float": 0.5, "a.empty": [], "a.ints": [1, 2]}
    report = ml.save_gguf(arrays, path, quantize={"w.q4_0": "q4_0", "w.q8_0": "Q8_0"}, metadata=METADATA | more)
    assert [row.type for row in report.rows] == ["q4_0", "q8_0"]
    reader = gguf.GGUFReader(path)
    for key, expected in (METADATA | more).items():
        field = reader.get_field(key)
        if key != "a.empty":
            np.testing.assert_array_equal(field.contents(), expected, err_msg=key)
    kinds = {key: reader.get_field(key).types[-1].name for key in more if key != "a.empty"}
    assert list(kinds.values()) == ["UINT32", "INT32", "UINT64", "FLOAT32", "INT32"]
    for tensor in reader.tensors:
        values = arrays[tensor.name]
        assert tuple(reversed(tensor.shape.tolist())) == np.shape(values)
        actual = tensor.data if tensor.tensor_type.name[0] in "FI" else dequantize(tensor.data, tensor.tensor_type)
        if tensor.name in ("w.q4_0", "w.q8_0"):
            plain = read_values(tensor.name, values, tensor.tensor_type)
            # The package looks for no better scales.
            assert np.square(actual.reshape(values.shape) - values).sum() <= np.square(plain - values).sum()
            continue
        np.testing.assert_array_equal(actual.reshape(np.shape(values)), values, err_msg=tensor.name)


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_blocks_are_those_of_the_package(form):
    known = getattr(gguf.GGMLQuantizationType, form.upper(), None)
    format = FORMATS[form]
    assert known is None or form == "q8_1" or gguf.GGML_QUANT_SIZES[known] == (format.values, format.bytes)
    blocks = np.random.default_rng(1).integers(0, 256, (6, 2 * format.bytes), np.uint8)
    if form in ("q1_0", "q2_0", "q8_1", "q8_k"):
        # The package does not read these; the test of the core compares them with ggml.
        return
    with np.errstate(all="ignore"):
        expected = dequantize(blocks, known)
    actual = QuantizedArray(blocks, form).dequantize()
    # Random blocks hold scales that are not numbers, which propagate in ways of their own.
    finite = np.isfinite(expected)
    assert finite.mean() > 0.5
    # Those forms multiply in another order there.
    if form in ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "q6_k", "nvfp4"):
        np.testing.assert_allclose(actual[finite], expected[finite], rtol=4e-7)
    else:
        np.testing.assert_array_equal(actual[finite], expected[finite])
    values = random(5, 2 * format.values) * np.geomspace(1e-3, 30, 5, dtype=np.float32)[:, None]
    try:
        theirs = quantize(values, known)
    except NotImplementedError:
        return
    ours = np.frombuffer(_core.quantize_blocks(form, values.tobytes()), np.uint8).reshape(theirs.shape)
    np.testing.assert_array_equal(ours, theirs)
    # What ggml makes is nearer, or the same.
    quantized = ml.quantize({"w": values}, form)["w"]
    plain = np.square(dequantize(theirs, known) - values).sum()
    assert np.square(np.asarray(quantized) - values).sum() <= plain
    assert form not in ("q4_0", "q4_1", "q5_0", "q5_1") or (quantized.blocks != theirs).any()


def test_every_form_goes_through_files(tmp_path):
    """Blocks written by us are read by the package, and those written by the package are read by us."""
    random_bits, kinds, arrays = np.random.default_rng(2), {}, {}
    for name, format in FORMATS.items():
        kind = getattr(gguf.GGMLQuantizationType, name.upper(), None)
        if kind is not None and gguf.GGML_QUANT_SIZES[kind] == (format.values, format.bytes):
            kinds[name] = kind
            arrays[name] = QuantizedArray(random_bits.integers(0, 256, (3, 2 * format.bytes), np.uint8), name)
    assert {name for name in FORMATS if name.startswith("iq")} <= set(kinds)
    ours, theirs = tmp_path / "ours.gguf", tmp_path / "theirs.gguf"
    ml.save_gguf(arrays, ours)
    read = {tensor.name: tensor for tensor in gguf.GGUFReader(ours).tensors}
    writer = gguf.GGUFWriter(theirs, "mithril")
    for name, kind in kinds.items():
        assert read[name].tensor_type == kind
        assert tuple(reversed(read[name].shape.tolist())) == arrays[name].shape
        np.testing.assert_array_equal(read[name].data.reshape(3, -1), arrays[name].blocks, err_msg=name)
        writer.add_tensor(name, arrays[name].blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    opened = ml.weights.open(theirs)
    for name, value in arrays.items():
        restored = opened.quantized(name)
        assert (restored.format, restored.shape) == (value.format, value.shape)
        np.testing.assert_array_equal(restored.blocks, value.blocks, err_msg=name)


# --- quantizing -------------------------------------------------------------------------------------------------


def test_report_of_quantizing():
    params = {
        "a.weight": random(8, 256),
        "b.weight": random(4, 96, seed=1).astype(np.float64),
        "conv": random(8, 3, 3, 3),
        "bias": random(256),
        "ids": np.arange(64).reshape(2, 32),
        "half": random(2, 32).astype(np.float16),
    }
    quantized = ml.quantize(params, {"a.*": "q4_k", "half": "bf16", "*": "q8_0"})
    rows = {row.path: row for row in quantized.report.rows}
    assert {path: row.type for path, row in rows.items()} == {
        "a.weight": "q4_k",
        "b.weight": "q8_0",
        "half": "bfloat16",
    }
    for path, row in rows.items():
        exact, approximate = np.float64(params[path]).ravel(), np.asarray(quantized[path], np.float64).ravel()
        np.testing.assert_allclose(row.rmse, np.sqrt(np.mean((exact - approximate) ** 2)), rtol=1e-12)
        cosine = exact @ approximate / np.linalg.norm(exact) / np.linalg.norm(approximate)
        np.testing.assert_allclose(row.cosine, cosine, rtol=1e-12)
        assert (row.before, row.after) == (params[path].nbytes, quantized[path].nbytes)
    assert (rows["a.weight"].bits, rows["b.weight"].bits) == (4.5, 8.5)
    assert [(skip.path, skip.type) for skip in quantized.report.skipped] == [("conv", "q8_0")]
    assert "rows of 3 cannot be cut into blocks of 32" in str(quantized.report)
    assert quantized["bias"] is params["bias"]
    assert quantized["ids"] is params["ids"]
    assert quantized.report.before == sum(value.nbytes for value in params.values())
    assert quantized.report.after == sum(value.nbytes for value in quantized.values())
    assert "| a.weight | q4_k | 8192 | 1152 | 4.5 |" in quantized.report.to_markdown()
    with pytest.raises(ml.errors.ParameterError, match="conv stays as it is"):
        ml.quantize(params, "q8_0", strict=True)
    ml.quantize(params, "q8_0", exclude="conv", strict=True)
    kept = ml.quantize(params, {"conv": None, "*": "q8_0"}, strict=True)
    assert kept["conv"] is params["conv"]
    with pytest.raises(ml.errors.InvalidValueError, match="pattern 3 is not a string"):
        ml.quantize(params, {3: "q8_0"})
    only = ml.quantize(params, "q8_0", include=["bias"])
    assert [row.path for row in only.report.rows] == ["bias"]


def test_what_cannot_be_quantized_says_why():
    params = {"nan": np.full((1, 32), np.nan, np.float32), "large": np.full((1, 32), 1e30, np.float32)}
    params |= {"empty": np.zeros((0, 32), np.float32)}
    params["done"] = ml.quantize({"w": random(1, 32)}, "q8_0")["w"]
    reasons = [skip.reason for skip in ml.quantize(params, "q4_0").report.skipped]
    assert ["not finite" in reasons[0], "too large" in reasons[1]] == [True, True]
    assert reasons[2:] == ["it is empty", "it is quantized already, as q8_0"]
    for wrong, message in [("q4_9", "did you mean"), ("q8_1", "not made here"), (4, "is not a string")]:
        with pytest.raises(ml.errors.InvalidValueError, match=message):
            ml.quantize({"w": random(1, 256)}, wrong)
    for options in (
        {"type": {"v*": "q8_0"}},
        {"type": "q8_0", "include": "v*"},
        {"type": "q8_0", "exclude": ["w", "v*"]},
    ):
        with pytest.raises(ml.errors.InvalidValueError, match="no array has a name like 'v\\*'"):
            ml.quantize({"w": random(1, 256)}, **options)
    with pytest.raises(ml.errors.ParameterError, match="params is a list"):
        ml.quantize([random(1, 256)], "q8_0")


# --- models -----------------------------------------------------------------------------------------------------

#: Models whose rows are whole blocks of any form, and the options of them.
LLAMA = {"vocab_size": 96, "dims": 256, "num_heads": 8, "num_kv_heads": 2, "num_layers": 2, "hidden": 512}
MODELS = {
    "gpt2": lambda: create_gpt(block_size=32, dims=256, num_heads=4, num_layers=2, vocab_size=96),
    "llama": lambda: create_llama(**LLAMA, rope_base=5000.0, eps=1e-6),
    "llama_tied": lambda: create_llama(**LLAMA, tied=True, head_dim=64),
    "qwen2": lambda: create_llama(**LLAMA, biases="qkv", tied=True),
}
TOKENS = np.random.default_rng(3).integers(0, 96, (2, 12))


def compiled(name: str, spread: float = 0.05) -> ml.PhysicalModel:
    model = ml.compile(MODELS[name](), ml.NumpyBackend(), shapes={"input": [2, 12]}, inference=True)
    scale = np.random.default_rng(5)
    # Biases and scales as they start would hide mistakes.
    model.load_params(
        {
            key: (value + scale.normal(0, spread, value.shape)).astype("f4")
            for key, value in model.get_parameters().items()
        }
    )
    return model


@pytest.mark.parametrize("name", MODELS)
def test_models_go_to_llama_cpp_and_back(name, tmp_path):
    model, path = compiled(name), tmp_path / "model.gguf"
    ml.save_gguf(model, path, metadata={"general.name": "small"})
    expected = model(TOKENS)
    again = ml.compile(from_config(path), ml.NumpyBackend(), shapes={"input": [2, 12]}, inference=True)
    report = ml.load_weights(again, path)
    assert (report.layout, report.is_complete) == ("llama.cpp", True)
    for key, value in model.get_parameters().items():
        np.testing.assert_array_equal(again.get_parameters()[key], value, err_msg=key)
    np.testing.assert_array_equal(again(TOKENS), expected)
    # Transformers reads such files on its own.
    config = load_gguf_checkpoint(path)["config"]
    kind = config.pop("model_type")
    # It asks a tokenizer for one of these, and nothing for the other.
    config |= {"vocab_size": 96} | ({"n_positions": config["n_ctx"]} if kind == "gpt2" else {})
    twin = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **config)).eval()
    read = load_gguf_checkpoint(path, return_tensors=True, model_to_load=twin)["tensors"]
    lacking, unexpected = twin.load_state_dict(read, strict=False)
    assert not unexpected
    assert set(lacking) <= {"lm_head.weight"}
    with torch.no_grad():
        actual = twin(torch.from_numpy(TOKENS)).logits.numpy()
    np.testing.assert_allclose(actual, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "form", "least"),
    [
        ("gpt2", "q8_0", 0.999),
        ("llama", "q8_0", 0.999),
        ("gpt2", "q4_k", 0.98),
        ("gpt2", "q4_k_m", 0.98),
        ("llama", "q4_k_s", 0.98),
        ("llama", "q4_k_m", 0.98),
        ("qwen2", "q4_k_m", 0.98),
    ],
)
def test_quantized_models_stay_close(name, form, least, tmp_path):
    model, path = compiled(name, 0), tmp_path / "model.gguf"
    expected = model(TOKENS).ravel()
    quantized = ml.quantize(model.get_parameters(), form, strict=True)
    assert ml.save_gguf(model, path, params=quantized) is quantized.report
    assert path.stat().st_size < 1.05 * quantized.report.after + 4096
    ml.load_weights(model, path)
    for key, value in quantized.items():
        np.testing.assert_array_equal(model.get_parameters()[key], np.asarray(value), err_msg=key)
    actual = model(TOKENS).ravel()
    assert actual @ expected / np.linalg.norm(actual) / np.linalg.norm(expected) > least
    model.load_params(quantized)
    np.testing.assert_array_equal(model(TOKENS).ravel(), actual)


def test_mixtures_are_those_of_llama_cpp(tmp_path):
    """Types of tensors as published files of Llama 7B have them: https://huggingface.co/TheBloke/Llama-2-7B-GGUF."""
    names = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    shapes = {f"blk.{i}.{name}.weight": (256, 256) for i in range(32) for name in names}
    shapes |= {"token_embd.weight": (96, 256), "output.weight": (96, 256), "output_norm.weight": (256,)}
    formats = assigned("q4_k_m", shapes)
    six = {i for i in range(32) if formats[f"blk.{i}.ffn_down.weight"] == "q6_k"}
    assert six == {0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31}
    assert six == {i for i in range(32) if formats[f"blk.{i}.attn_v.weight"] == "q6_k"}
    assert (formats["token_embd.weight"], formats["output.weight"]) == ("q4_k", "q6_k")
    assert sum(form == "q6_k" for form in formats.values()) == 33
    # Names of published checkpoints mean the same.
    ends = {"attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_down": "mlp.down_proj"}
    ours = {f"model.layers.{i}.{theirs}.weight": (256, 256) for i in range(32) for theirs in ends.values()}
    for mixture in MIXTURES:
        theirs, of_ours = assigned(mixture, shapes), assigned(mixture, {**ours, "lm_head.weight": (96, 256)})
        for i in range(32):
            for name, end in ends.items():
                assert of_ours[f"model.layers.{i}.{end}.weight"] == theirs[f"blk.{i}.{name}.weight"]
    # Rows that are not whole blocks of 256 get blocks of 32, and positions stay floats.
    short = assigned("q4_k_m", {"transformer.wte.weight": (96, 96), "transformer.wpe.weight": (8, 96)})
    assert short == {"transformer.wte.weight": "q8_0", "transformer.wpe.weight": None}


def test_a_file_says_of_what_types_it_is(tmp_path):
    model, path = compiled("llama", 0), tmp_path / "model.gguf"
    for form, number in [
        (None, "ALL_F32"),
        ("bf16", "MOSTLY_BF16"),
        ("q8_0", "MOSTLY_Q8_0"),
        ("q4_k_m", "MOSTLY_Q4_K_M"),
    ]:
        report = ml.save_gguf(model, path, quantize=form, strict=True)
        assert ml.weights.open(path).metadata["general.file_type"] == gguf.LlamaFileType[number]
    assert {row.type for row in report.rows} == {"q4_k", "q6_k"}
    # GGML keeps weights so, too.
    few = ml.compile(MODELS["llama"](), ml.GGMLBackend(quantize="q4_k_m"), shapes={"input": [2, 12]}, inference=True)
    kept = ml.quantization_report(few, model.get_parameters())
    assert {row.path: row.type for row in kept.rows} == {row.path: row.type for row in report.rows}
    assert main(["quantize", str(path), str(tmp_path / "less.gguf"), "--type", "q4_0"]) == 0
    assert ml.weights.open(tmp_path / "less.gguf").metadata["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q4_K_M


def test_slowed_rotary_embedding_is_told(tmp_path):
    options = LLAMA | {"rope_factor": 8.0, "rope_length": 64, "rope_base": 10000.0}
    model = ml.compile(create_llama(**options), ml.NumpyBackend(), shapes={"input": [1, 4]}, inference=True)
    path = tmp_path / "model.gguf"
    ml.save_gguf(model, path)
    factors = ml.weights.open(path)["rope_freqs.weight"]
    # Speeds of transformers, by which those without slowing down are divided.
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 64, "rope_theta": 10000.0}
    config = transformers.LlamaConfig(
        hidden_size=256, num_attention_heads=8, rope_parameters=rope, max_position_embeddings=512
    )
    speeds, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 10000.0 ** (-np.arange(0, 32, 2) / 32)
    np.testing.assert_allclose(factors, plain / speeds.numpy(), rtol=1e-5)
    assert ml.load_weights(model, path).ignored == ("rope_freqs.weight",)
    with pytest.raises(ml.errors.InvalidValueError, match="does not say by what"):
        from_config(path)
    from_config(path, rope_factor=8.0, rope_length=64)


def test_what_the_zoo_does_not_have_is_no_model(tmp_path):
    path = tmp_path / "x.gguf"
    model = compiled("llama", 0)
    for key, value, message in [
        ("general.architecture", "mamba", "'mamba', which the zoo does not support"),
        ("llama.expert_count", 8, "expert_count is 8"),
        ("llama.rope.scaling.type", "yarn", "scaling.type is 'yarn'"),
        ("llama.rope.dimension_count", 16, "dimension_count is 16, and keys have 32"),
        ("llama.attention.value_length", 64, "value_length is 64"),
        ("llama.feed_forward_length", np.array([512, 256], np.int32), "a value for each layer"),
        ("llama.rope.freq_base", np.float32(np.nan), "freq_base of .* is nan"),
        ("llama.attention.layer_norm_rms_epsilon", np.float32(-1), "epsilon of .* is -1.0"),
    ]:
        ml.save_gguf(model, path, metadata={key: value})
        with pytest.raises(ValueError, match=message) as error:
            from_config(path)
        assert isinstance(error.value, ml.errors.MithrilError)
    ml.save_gguf({"token_embd.weight": random(4, 8)}, path, metadata={"general.architecture": "llama"})
    with pytest.raises(ml.errors.ModelFileError, match="does not say llama"):
        from_config(path)
    ml.save_gguf({"blk.0.attn_q.weight": random(256, 256)}, path, metadata={"general.architecture": "llama"})
    with pytest.raises(ml.errors.ParameterError, match="does not say"):
        ml.load_weights(model, path, strict=False)


def test_other_models_keep_their_names(tmp_path):
    model = ml.compile(ml.Linear(4, name="fc"), ml.NumpyBackend(), shapes={"input": [1, 32]}, inference=True)
    path = tmp_path / "model.gguf"
    ml.save_gguf(model, path, quantize="q8_0")
    assert set(ml.weights.open(path)) == set(model.get_parameters())
    assert ml.load_weights(model, path).is_complete
    with pytest.raises(ml.errors.InvalidValueError, match="no layout"):
        ml.save_gguf(model, path, layout="transformers")
    with pytest.raises(ml.errors.MithrilError, match="bool"):
        ml.save_gguf({"a": np.array([True])}, path)
    gpt = create_gpt(block_size=8, dims=32, num_heads=2, num_layers=1, vocab_size=10, bias=False)
    plain = ml.compile(gpt, ml.NumpyBackend(), shapes={"input": [1, 4]}, inference=True)
    with pytest.raises(ml.errors.ParameterError, match="biases alone"):
        ml.save_gguf(plain, path)
    ml.save_gguf(plain, path, layout=None)
    with pytest.raises(ml.errors.InvalidValueError, match="metadata is a int"):
        ml.save_gguf({"w": np.ones(2, np.float32)}, path, metadata=3)
    for value, message in [({1, 2}, "set"), (2**70, "64 bits"), ([1, "a"], "mixes"), (np.float16(1), "float16")]:
        with pytest.raises(ml.errors.InvalidValueError, match=message):
            ml.save_gguf({"w": np.ones(2, np.float32)}, path, metadata={"key": value})


def test_command_line(tmp_path, capsys):
    source, target, again = tmp_path / "x.safetensors", tmp_path / "x.gguf", tmp_path / "y.gguf"
    params = {"a.weight": random(2, 256), "b.weight": random(2, 64), "bias": random(3)}
    ml.save(params, source, metadata={"license": "MIT"})
    assert main(["quantize", str(source), str(target), "--type", "q8_0", "--type", "a.*=q4_k"]) == 0
    told = capsys.readouterr().out
    assert "2 arrays quantized" in told
    opened = ml.weights.open(target)
    assert {name: str(opened.quantized(name)) for name in opened if opened.quantized(name)} == {
        "a.weight": "QuantizedArray([2, 256], q4_k, 288 bytes)",
        "b.weight": "QuantizedArray([2, 64], q8_0, 136 bytes)",
    }
    assert opened.metadata["license"] == "MIT"
    assert main(["quantize", str(target), str(again), "--type", "q8_0"]) == 0
    assert "a.weight stays as it is: it is quantized already, as q4_k" in capsys.readouterr().out
    assert again.read_bytes() == target.read_bytes()
    assert main(["quantize", str(source), str(target), "--type", "q4_k", "--strict"]) == 1
    assert "rows of 64 cannot be cut into blocks of 256" in capsys.readouterr().err


def test_command_line_on_a_folder(tmp_path, capsys):
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "n_embd": 32, "n_head": 2, "n_layer": 1, "n_positions": 16}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).save_pretrained(tmp_path)
    target = tmp_path / "out.gguf"
    assert main(["quantize", str(tmp_path), str(target), "--type", "q8_0", "--strict", "--markdown"]) == 0
    assert "| transformer.wte.weight | q8_0 |" in capsys.readouterr().out
    opened = ml.weights.open(target)
    assert opened.metadata["gpt2.block_count"] == 1
    assert opened.quantized("blk.0.attn_qkv.weight").shape == (96, 32)


def test_the_report_tells_how_far_outputs_are():
    model = ml.Model()
    model |= ml.Linear(64)(input="input", output="output")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [3, 96]})
    params = compiled.randomize_params(seed=0)
    x = np.random.default_rng(0).standard_normal((3, 96)).astype(np.float32)
    quantized = ml.quantize(params, "q4_0", model=compiled, data={"input": x})
    [output] = quantized.report.outputs
    expected, actual = (x @ np.asarray(p["linear.weight"]).T for p in (params, quantized))
    bias = np.asarray(params["linear.bias"])
    error = actual - expected
    assert output.name == "output"
    np.testing.assert_allclose(output.rmse, np.sqrt((error**2).mean()), rtol=1e-4)
    np.testing.assert_allclose(output.largest, np.abs(error).max() / np.abs(expected + bias).max(), rtol=1e-4)
    assert 0.9 < output.cosine < 1
    assert "output output: largest error" in str(quantized.report)
    assert "- output output" in quantized.report.to_markdown()


def test_samples_tell_which_columns_count():
    model = ml.Model()
    model |= ml.Linear(64)(input="input", output="output")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [16, 256]})
    params = compiled.randomize_params(seed=0)
    # A few columns are multiplied with what is much larger.
    samples = [random(16, 256, seed=seed) * np.where(np.arange(256) % 16 == 0, 20, 1).astype("f4") for seed in range(3)]
    errors = []
    for calibration in (None, [{"input": x} for x in samples[:2]]):
        options = {"model": compiled, "data": {"input": samples[2]}, "calibration": calibration}
        errors.append(
            [ml.quantize(params, form, **options).report.outputs[0].rmse for form in ("q4_0", "q3_k", "iq2_xs")]
        )
    assert (np.array(errors[1]) < 0.8 * np.array(errors[0])).all(), errors
    with pytest.raises(ml.errors.InvalidValueError, match="calibration runs a model"):
        ml.quantize(params, "q4_k", calibration=[{"input": samples[0]}])
    with pytest.raises(ml.errors.InvalidValueError, match=r"sample 0: .* is not finite"):
        ml.quantize(params, "q4_k", model=compiled, calibration={"input": np.full((16, 256), np.nan, "f4")})
