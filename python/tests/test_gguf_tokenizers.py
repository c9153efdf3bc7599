"""Tokenizers of SentencePiece in files of GGUF, against the library `sentencepiece` and what transformers reads."""

from __future__ import annotations

import io
import json

import mithril as ml
import numpy as np
import pytest
import sentencepiece
import transformers
from mithril.__main__ import main
from mithril.models import create_llama
from mithril.tokenizers import llama_cpp as llama_tokenizer

CORPUS = ["the cat sat on the mat, didn't it?", "Numbers: 12345 67 890.", "naïve café 日本語 two  spaces"] * 20
TEXTS = ["Hello world, it's 12345!", "the cat\n\n sat  on 日本 the mat", "café π≠3"]
JOINED = {"model_type": "bpe", "vocab_size": 340, "byte_fallback": True, "normalization_rule_name": "identity"}
JOINED |= {"remove_extra_whitespaces": False}
LIKELIEST = {"model_type": "unigram", "vocab_size": 80, "hard_vocab_limit": False, "pad_id": 0, "eos_id": 1}
LIKELIEST |= {"unk_id": 2, "bos_id": -1}
KINDS = {
    "llama": (JOINED, "tokenizer.model", transformers.LlamaTokenizer),
    "t5": (LIKELIEST, "spiece.model", transformers.T5Tokenizer),
}
NAMES = ("tokens", "scores", "token_type")


def train(options):
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=written, minloglevel=2, **options
    )
    return written.getvalue()


@pytest.fixture(scope="module", params=KINDS)
def kind(request, tmp_path_factory):
    options, name, reader = KINDS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    (folder / name).write_bytes(train(options))
    return request.param, folder, sentencepiece.SentencePieceProcessor(model_file=str(folder / name)), reader


def test_pieces_are_those_of_the_library(kind, tmp_path):
    name, folder, expected, _ = kind
    entries = llama_tokenizer.metadata(folder, 345)
    texts, scores, kinds = (entries[f"tokenizer.ggml.{end}"] for end in NAMES)
    count = expected.get_piece_size()
    assert entries["tokenizer.ggml.model"] == name
    assert texts[:count] == [expected.id_to_piece(i) for i in range(count)]
    np.testing.assert_array_equal(scores[:count], np.float32([expected.get_score(i) for i in range(count)]))
    for i in range(count):
        flags = {2: expected.is_unknown(i), 3: expected.is_control(i), 5: expected.is_unused(i), 6: expected.is_byte(i)}
        assert kinds[i] == next((number for number, flag in flags.items() if flag), 1)
    assert set(kinds[count:]) == {5}
    assert (entries["tokenizer.ggml.add_bos_token"], entries["tokenizer.ggml.add_eos_token"]) == (
        name == "llama",
        name == "t5",
    )


def test_transformers_reads_texts_with_a_file_of_ours(kind, tmp_path):
    name, folder, expected, _ = kind
    sizes = {"vocab_size": 345, "dims": 32, "num_heads": 2, "num_layers": 1, "hidden": 32}
    model = ml.compile(create_llama(**sizes), ml.NumpyBackend(), shapes={"input": [1, 4]}, inference=True)
    ml.save_gguf(model, tmp_path / "model.gguf", tokenizer=folder)
    restored = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in TEXTS:
        # It forgets the space before texts of a Llama.
        read = restored(text if name == "t5" else f" {text}", add_special_tokens=False).input_ids
        assert read == expected.encode(text)


def test_json_says_the_same(kind, tmp_path):
    _, folder, _, reader = kind
    reader.from_pretrained(folder).save_pretrained(tmp_path)
    ours, theirs = (llama_tokenizer.metadata(path, 345) for path in (tmp_path, folder))
    plain = [i for i, number in enumerate(theirs["tokenizer.ggml.token_type"]) if number == 1]
    [(texts, scores), (expected, order)] = [
        ([entries["tokenizer.ggml.tokens"][i] for i in plain], entries["tokenizer.ggml.scores"][plain])
        for entries in (ours, theirs)
    ]
    assert texts == expected
    longer = [i for i, text in enumerate(texts) if len(text) > 1]
    assert np.argsort(-scores[longer], kind="stable").tolist() == np.argsort(-order[longer], kind="stable").tolist()
    for end in ("model", "add_space_prefix", "remove_extra_whitespaces", "add_eos_token", "precompiled_charsmap"):
        key = f"tokenizer.ggml.{end}"
        np.testing.assert_array_equal(ours.get(key, 0), theirs.get(key, 0), err_msg=key)


UNWRITTEN = {
    "words": (JOINED | {"normalization_rule_name": "nmt_nfkc"}, "changes characters"),
    "no bytes": (JOINED | {"byte_fallback": False, "vocab_size": 90}, "no pieces for single bytes"),
    "both": (LIKELIEST | {"byte_fallback": True, "vocab_size": 340}, "falls back to bytes"),
    "characters": ({"model_type": "char", "vocab_size": 40}, "words or characters"),
}


@pytest.mark.parametrize("case", UNWRITTEN)
def test_what_llama_cpp_would_read_otherwise_is_not_written(case, tmp_path):
    options, reason = UNWRITTEN[case]
    (tmp_path / "tokenizer.model").write_bytes(train(options))
    with pytest.raises(llama_tokenizer.UnwrittenTokenizerError, match=reason):
        llama_tokenizer.metadata(tmp_path, 400)


def test_files_that_are_damaged(tmp_path, capsys):
    whole = train(JOINED)
    for data in (whole[:1000], b"", b"\xff" * 40, b"\x0a\x05abc", whole[:5000] + b"\x07" + whole[5000:]):
        (tmp_path / "tokenizer.model").write_bytes(data)
        with pytest.raises(ml.errors.ModelFileError, match=r"SentencePiece|holds no pieces"):
            llama_tokenizer.metadata(tmp_path, 400)
    with pytest.raises(ml.errors.ModelFileError, match="holds no tokenizer"):
        llama_tokenizer.metadata(tmp_path / "absent", 400)
    # The model is written all the same, and what is left out is said.
    (tmp_path / "tokenizer.model").write_bytes(train(JOINED | {"normalization_rule_name": "nmt_nfkc"}))
    config = transformers.LlamaConfig(
        vocab_size=345, hidden_size=32, num_attention_heads=2, num_hidden_layers=1, intermediate_size=32
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    target = tmp_path / "out.gguf"
    assert main(["quantize", str(tmp_path), str(target), "--type", "q8_0"]) == 0
    assert "no tokenizer is written: the tokenizer of" in capsys.readouterr().out
    assert ml.weights.open(target).metadata["tokenizer.ggml.model"] == "no_vocab"
    (tmp_path / "tokenizer.model").write_bytes(whole)
    assert main(["quantize", str(tmp_path), str(target), "--type", "q8_0"]) == 0
    entries = ml.weights.open(target).metadata
    assert (entries["tokenizer.ggml.model"], len(entries["tokenizer.ggml.tokens"])) == ("llama", 345)
    assert entries["tokenizer.ggml.bos_token_id"] == json.loads((tmp_path / "config.json").read_text())["bos_token_id"]
