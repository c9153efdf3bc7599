"""The command line on GGML, from a folder of transformers to text: what it prints, and what it says is wrong."""

import json
import shutil

import mithril as ml
import numpy as np
import pytest
import torch
import transformers
from mithril.__main__ import main
from test_front import SHARED, write_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A GPT-2 whose rows are whole blocks of 32."""
    path = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_positions=64, n_embd=64, n_head=4, n_layer=2, eos_token_id=1, **SHARED)
    transformers.GPT2LMHeadModel(config).save_pretrained(path)
    write_tokenizer(path, 300)
    return path


def generate(folder, *words):
    return main(["generate", str(folder), "--prompt", "Hello world", "--max-new-tokens", "12", *words])


def test_text_is_generated(folder, tmp_path, capsys):
    assert generate(folder, "--backend", "numpy") == 0
    expected = capsys.readouterr().out
    assert len(expected.strip()) > 4
    assert generate(folder, "--backend", "ggml") == 0
    assert capsys.readouterr().out == expected
    # The weights of a file of few bits stay as they are; the same type chosen for floats gives the same text.
    assert main(["quantize", str(folder), str(tmp_path / "model.gguf"), "--type", "q8_0", "--strict"]) == 0
    assert "q8_0" in capsys.readouterr().out
    known = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    entries = ml.weights.open(tmp_path / "model.gguf").metadata
    assert (entries["tokenizer.ggml.model"], entries["tokenizer.ggml.pre"]) == ("gpt2", "gpt-2")
    assert [known.get(token) for token in entries["tokenizer.ggml.tokens"]] == list(range(300))
    assert (entries["tokenizer.ggml.bos_token_id"], entries["tokenizer.ggml.add_bos_token"]) == (1, False)
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(folder / name, tmp_path)
    assert generate(tmp_path, "--backend", "ggml") == 0
    from_file = capsys.readouterr().out
    words = ("--quantize", "*h.0.*=q8_0", "--quantize", "q8_0", "--threads", "1", "--memory-limit", "1GB")
    assert generate(folder, "--backend", "ggml", *words) == 0
    assert capsys.readouterr().out == from_file
    assert generate(tmp_path, "--backend", "numpy") == 0
    assert len(capsys.readouterr().out) > 4


WRONG = {
    "type": (["--backend", "ggml", "--quantize", "q9"], "quantize is 'q9'"),
    "rows": (["--backend", "ggml", "--quantize", "q4_k_x"], "did you mean 'q4_k_s'"),
    "dtype": (["--backend", "ggml", "--dtype", "float64"], "ggml computes in float32"),
    "backend": (["--backend", "gglm"], "did you mean 'ggml'"),
    "option": (["--backend", "numpy", "--quantize", "q8_0"], "give one of int8, int8_weights"),
    "threads": (["--backend", "numpy", "--threads", "2"], "--threads and --memory-limit are for ggml and c"),
    "memory": (["--backend", "ggml", "--memory-limit", "10KB"], "the limit is 10000"),
    "pattern": (["--backend", "ggml", "--quantize", "*nope*=q8_0"], "no parameter of the model has a name like"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_said(wrong, folder, capsys):
    words, message = WRONG[wrong]
    assert generate(folder, *words) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("config", [None, {"model_type": "gpt_neox"}, "model"])
def test_folders_of_other_models_are_quantized(config, tmp_path, capsys):
    """A model that was converted, and saved with its weights: beside a configuration, and as one."""
    model = ml.Model()
    model |= ml.Linear(32)(input="input", output="output")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [1, 64]})
    params = compiled.randomize_params(seed=0)
    ml.save(params, tmp_path / "model.safetensors")
    ml.save(model, tmp_path / ("config.json" if config == "model" else "model.json"))
    if isinstance(config, dict):
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    target = tmp_path / "out.gguf"
    assert main(["quantize", str(tmp_path), str(target), "--type", "q8_0"]) == 0
    printed = capsys.readouterr()
    assert "1 arrays quantized" in printed.out
    assert ("the arrays keep their names" in printed.out + printed.err) == (config is not None)
    opened = ml.weights.open(target)
    assert set(opened) == set(params)
    np.testing.assert_allclose(opened["linear.weight"], params["linear.weight"], atol=0.01)


def test_folders_and_files_that_are_wrong(folder, tmp_path, capsys):
    target = str(tmp_path / "out.gguf")
    assert generate(tmp_path, "--backend", "ggml") == 1
    assert "config.json" in capsys.readouterr().err
    assert main(["quantize", str(tmp_path / "absent"), target, "--type", "q8_0"]) == 1
    assert "absent" in capsys.readouterr().err
    assert main(["quantize", str(folder), target, "--type", "q9_0"]) == 1
    assert "did you mean" in capsys.readouterr().err
    assert main(["quantize", str(folder), target, "--type", "q4_k", "--strict"]) == 1
    assert "blocks of 256" in capsys.readouterr().err
    odd = tmp_path / "odd"
    shutil.copytree(folder, odd)
    (odd / "tokenizer.json").write_text('{"model": {"type": "Unigram"}}', encoding="utf-8")
    assert main(["quantize", str(odd), target, "--type", "q8_0"]) == 0
    assert "no tokenizer is written" in capsys.readouterr().out
    assert "tokenizer.ggml.tokens" not in ml.weights.open(target).metadata
    damaged = tmp_path / "model.gguf"
    assert main(["quantize", str(folder), str(damaged), "--type", "q8_0"]) == 0
    damaged.write_bytes(damaged.read_bytes()[:-100])
    shutil.copy(folder / "config.json", tmp_path)
    shutil.copy(folder / "tokenizer.json", tmp_path)
    capsys.readouterr()
    assert generate(tmp_path, "--backend", "ggml") == 1
    assert "model.gguf" in capsys.readouterr().err
