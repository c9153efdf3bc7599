"""Text from a file of GGUF: its tokenizer against the one it was written of, and what `mithril generate` prints."""

import json

import mithril as ml
import pytest
import sentencepiece
import tokenizers
import torch
import transformers
from mithril.__main__ import main
from mithril.command import backends as command_backends
from mithril.errors import BackendUnavailableError, InvalidValueError, ModelFileError
from mithril.generation import TextGenerator
from mithril.models import from_config
from mithril.tokenizers import llama_cpp as llama_tokenizer
from mithril.tokenizers.gguf import tokenizer_of
from test_front import SHARED, write_tokenizer
from test_gguf_tokenizers import JOINED, TEXTS, train

MORE = [*TEXTS, "", " ", "a", "  leading and trailing  ", "tabs\tand\nlines", "日本語 🙂 é"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_positions=64, n_embd=64, n_head=4, n_layer=2, eos_token_id=1, **SHARED)
    transformers.GPT2LMHeadModel(config).save_pretrained(path)
    write_tokenizer(path, 300)
    return path


@pytest.fixture(scope="module")
def file(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    compiled = ml.compile(from_config(folder), ml.NumpyBackend(), shapes={"input": [1, 4]}, inference=True)
    ml.load_weights(compiled, folder)
    ml.save_gguf(compiled, path, tokenizer=folder)
    return path


def generate(path, *words):
    return main(["generate", str(path), "--prompt", "Hello world", "--max-new-tokens", "12", *words])


def test_byte_pairs_are_those_of_the_folder(folder, file):
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ours = tokenizer_of(ml.weights.open(file).metadata, str(file))
    for text in MORE:
        assert ours.encode(text).ids == theirs.encode(text).ids, text
        assert ours.decode(theirs.encode(text).ids) == theirs.decode(theirs.encode(text).ids)


@pytest.mark.parametrize("cut", ["llama-bpe", "qwen2"])
def test_words_are_cut_as_the_file_says(folder, cut):
    pattern = next(pattern for pattern, name in llama_tokenizer.CUTS.items() if name == cut)
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")
    bytes_of = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, bytes_of])
    metadata = llama_tokenizer.metadata(folder, 300) | {"tokenizer.ggml.pre": cut}
    ours = tokenizer_of(metadata, "x.gguf")
    differs = False
    for text in [*MORE, "it's 12345678 words'LL", "a.b,c"]:
        assert ours.encode(text).ids == theirs.encode(text).ids, text
        differs = differs or [p for p, _ in split.pre_tokenize_str(text)] != text.split()
    assert differs


def test_sentence_pieces_are_those_of_the_library(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(train(JOINED))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    metadata = llama_tokenizer.metadata(tmp_path, 345)
    ours = tokenizer_of(metadata | {"tokenizer.ggml.add_bos_token": False}, "x.gguf")
    for text in MORE:
        ids = ours.encode(text).ids
        assert ids == theirs.encode(text) or not text, text
        assert ours.decode(ids) == theirs.decode(theirs.encode(text)), text
    begun = tokenizer_of(metadata, "x.gguf").encode("the cat").ids
    assert begun == [theirs.bos_id(), *theirs.encode("the cat")]


def test_the_text_is_that_of_the_folder(folder, file, capsys):
    assert generate(folder, "--backend", "numpy") == 0
    expected = capsys.readouterr().out
    assert len(expected.strip()) > 4
    assert generate(file, "--backend", "numpy") == 0
    assert capsys.readouterr().out == expected
    # Without a name it runs where low-bit weights stay so.
    assert generate(file) == 0
    printed = capsys.readouterr()
    assert printed.out == expected
    assert "backend: ggml" in printed.err
    generator = TextGenerator.from_folder(file, ml.NumpyBackend())
    assert generator.context == 64
    assert generator.stop_tokens == {1}


def test_a_backend_that_is_installed_is_taken(folder, capsys, monkeypatch):
    asked = []
    real = command_backends.get_backend

    def get_backend(name, **options):
        asked.append(name)
        if name != "numpy":
            raise BackendUnavailableError(f"{name} is not installed")
        return real(name, **options)

    monkeypatch.setattr(command_backends, "get_backend", get_backend)
    assert generate(folder) == 0
    assert asked == ["torch", "mlx", "jax", "numpy"]
    assert "backend: numpy" in capsys.readouterr().err
    # A name is a name.
    assert generate(folder, "--backend", "torch") == 1
    assert "torch is not installed" in capsys.readouterr().err
    assert generate(folder, "--threads", "1") == 1
    assert "ggml is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("pair", [{}, {"is_encoder_decoder": True}])
def test_a_model_that_there_is_not_is_said_before_what_is_missing(tmp_path, capsys, pair):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba9", **pair}))
    assert generate(tmp_path, "--backend", "numpy") == 1
    printed = capsys.readouterr().err
    assert "mamba9" in printed
    assert "tokenizer" not in printed


def test_files_without_a_tokenizer_or_with_another_kind(file, tmp_path, folder, capsys):
    compiled = ml.compile(from_config(folder), ml.NumpyBackend(), shapes={"input": [1, 4]}, inference=True)
    compiled.get_parameters()
    ml.save_gguf(compiled, tmp_path / "bare.gguf")
    assert generate(tmp_path / "bare.gguf", "--backend", "numpy") == 1
    assert "holds no tokenizer" in capsys.readouterr().err
    whole = dict(ml.weights.open(file).metadata)
    for changes, kind, text in [
        ({"tokenizer.ggml.model": "bert"}, InvalidValueError, "'bert'"),
        ({"tokenizer.ggml.pre": "unheard-of"}, InvalidValueError, "'unheard-of'"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, ModelFileError, "distinct strings"),
        ({"tokenizer.ggml.token_type": [1]}, ModelFileError, "1 kinds"),
        ({"tokenizer.ggml.merges": ["no merge of these"]}, ModelFileError, "damaged"),
    ]:
        with pytest.raises(kind, match=text):
            tokenizer_of(whole | changes, "x.gguf")
