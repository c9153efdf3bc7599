"""Models of other frameworks, wherever a model is named: with their weights, and a word on how they were read."""

import json

import mithril as ml
import numpy as np
import pytest
from mithril.__main__ import main

torch = pytest.importorskip("torch")


@pytest.fixture
def program(tmp_path):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    path = tmp_path / "network.pt2"
    torch.export.save(torch.export.export(module.eval(), (torch.ones(3, 4),)), path)
    return module, path


@pytest.fixture
def folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPTNeoXConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
    )
    module = transformers.GPTNeoXForCausalLM(config).eval()
    module.save_pretrained(tmp_path / "neox")
    return module, tmp_path / "neox"


def test_load_reads_a_program_with_its_weights(program):
    module, path = program
    model, params = ml.load(path)
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    output = ml.compile(model, ml.CBackend()).evaluate(params, {"input": x.numpy()})["output"]
    np.testing.assert_allclose(output, module(x).detach().numpy(), rtol=0, atol=1e-5)


def test_load_reads_a_folder_of_an_unknown_architecture(folder):
    module, path = folder
    model, params = ml.load(path)
    ids = (torch.arange(16) * 7 % 40)[None]
    for backend in (ml.NumpyBackend(), ml.CBackend()):
        output = ml.compile(model, backend).evaluate(params, {"input_ids": ids.numpy()})["logits"]
        np.testing.assert_allclose(output, module(ids).logits.detach().numpy(), rtol=0, atol=1e-5)


def test_load_reads_a_folder_of_the_zoo(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=4, n_positions=32)
    module = transformers.GPT2LMHeadModel(config).eval()
    module.save_pretrained(tmp_path)
    model, params = ml.load(tmp_path)
    ids = torch.arange(10)[None]
    output = ml.compile(model, ml.NumpyBackend(), inference=True)(ids.numpy(), params=params)
    np.testing.assert_allclose(output, module(ids).logits.detach().numpy(), rtol=0, atol=1e-5)


def test_load_knows_the_names_of_the_zoo(tmp_path):
    assert isinstance(ml.load("resnet18"), ml.Model)
    with pytest.raises(ml.errors.ModelFileError, match=r"holds no config\.json"):
        ml.load(tmp_path)


@pytest.mark.parametrize("kind", ["program", "folder"])
def test_commands_use_the_weights(kind, request, tmp_path, capsys):
    module, path = request.getfixturevalue(kind)
    assert main(["summary", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "0" in out
    assert ("torch.export" if kind == "program" else "transformers and ml.from_torch, with its weights") in err
    assert main(["profile", str(path), "--num-runs", "2"]) == 0
    assert f"weights: {path}" in capsys.readouterr().out
    assert main(["check", str(path), "--backend", "c"]) == 0
    assert main(["export", str(path), str(tmp_path / "out")]) == 0
    assert f"weights: {path}" in capsys.readouterr().out
    weight = next(p for p in module.parameters() if p.dim() == 2).detach().numpy()
    written = b"".join(file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file())
    assert weight[:1, :4].tobytes() in written or f"{weight[0, 0]:.6g}"[:7].encode() in written


def test_a_file_of_onnx_comes_with_its_weights(tmp_path, capsys):
    onnx = pytest.importorskip("onnx", reason="onnx writes the file")
    pytest.importorskip("onnx.parser")
    text = """<ir_version: 10, opset_import: ["": 21]> net (float[3, 4] x) => (float[3, 2] y) { y = MatMul (x, w) }"""
    file = onnx.parser.parse_model(text)
    weight = np.arange(8, dtype=np.float32).reshape(4, 2)
    file.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    path = tmp_path / "net.onnx"
    path.write_bytes(file.SerializeToString())
    model, params = ml.load(path)
    x = np.ones((3, 4), np.float32)
    np.testing.assert_allclose(ml.compile(model, ml.NumpyBackend()).evaluate(params, {"x": x})["y"], x @ weight)
    assert main(["compare", str(path), "--backend", "numpy", "--backend", "c"]) == 0
    out, err = capsys.readouterr()
    assert f"weights: {path}" in out
    assert "a file of ONNX, with its weights" in err


def test_a_program_is_compared(program, capsys):
    _, path = program
    assert main(["compare", str(path), "--backend", "numpy", "--backend", "torch"]) == 0
    assert f"weights: {path}" in capsys.readouterr().out


def test_a_program_is_quantized(program, tmp_path):
    _, path = program
    assert main(["quantize", str(path), str(tmp_path / "out.gguf"), "--type", "q8_0"]) == 0
    assert set(ml.load(tmp_path / "out.gguf")) == set(ml.load(path)[1])


def test_shapes_say_what_is_traced(folder, capsys):
    _, path = folder
    assert main(["bench", str(path), "--backend", "numpy", "--num-runs", "2", "--shape", "input_ids=2,9"]) == 0
    assert main(["summary", str(path), "--shape", "input_ids=batch,9"]) == 1
    assert "traced with numbers" in capsys.readouterr().err


def test_what_neither_knows_is_an_error(tmp_path, capsys):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "strange", "architectures": ["StrangeModel"]}))
    assert main(["summary", str(tmp_path)]) == 1
    assert "neither the zoo nor transformers" in capsys.readouterr().err
    (tmp_path / "bad.pt2").write_text("text")
    assert main(["summary", str(tmp_path / "bad.pt2")]) == 1
    assert "is not a file of torch.export" in capsys.readouterr().err
