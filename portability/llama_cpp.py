"""Files of GGUF that Mithril writes, in llama.cpp itself: `make test-llama`.

llama.cpp is built from the sources that the package of ggml carries (a minute and a half of one processor, once) and
linked with the ggml of the extension module. It loads each file and computes logits, which are compared with ours.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mithril as ml
import numpy as np
import sentencepiece
import tokenizers
import transformers
from mithril.models import create_gpt, create_llama

from .ggml import ROOT, linked, sources

#: What is built is kept here.
BUILT = ROOT / "target/llama.cpp"
#: Sources of llama.cpp that one call of the compiler reads: it repeats what they include only so often.
TOGETHER = {"src": 10, "src/models": 40}
TOKENS = np.random.default_rng(3).integers(0, 96, 12)
#: Types of weights, and the least cosine of the logits with those of NumPy, which has the same weights: llama.cpp
#: rounds what is multiplied with them, to 8 bits or to those of bf16. Without rounding logits are within `EXACT`.
TYPES = {None: 1.0 - 1e-6, "q8_0": 0.999, "q4_k": 0.999, "q4_k_m": 0.999, "bf16": 0.9999}
#: Least cosine with those of GGML, which rounds likewise. (llama.cpp reads the GELU of GPT-2 from a table of 16 bits.)
ON_GGML = 0.9998
#: How far logits may be from those of NumPy with weights in float32, in parts of the largest.
EXACT = 1e-3

LLAMA: dict[str, Any] = {"vocab_size": 96, "dims": 256, "num_heads": 8, "num_layers": 2, "hidden": 512}
MODELS: dict[str, Callable[[], ml.Model]] = {
    "gpt2": lambda: create_gpt(block_size=32, dims=256, num_heads=4, num_layers=2, vocab_size=96),
    "llama": lambda: create_llama(**LLAMA, num_kv_heads=2, rope_base=5000.0, eps=1e-6),
    "llama, tied, wide heads": lambda: create_llama(**LLAMA, num_kv_heads=2, tied=True, head_dim=64),
    "llama, slowed rotation": lambda: create_llama(**LLAMA, rope_factor=8.0, rope_length=8),
    "qwen2": lambda: create_llama(**LLAMA, num_kv_heads=4, biases="qkv", tied=True),
}
#: How texts are cut into words before BPE, of GPT-2, Llama 3 and Qwen2.
CUTS = {
    "gpt2": None,
    "llama": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
#: Tokenizers of SentencePiece: how they are trained, and with what texts begin and end.
_JOINED: dict[str, Any] = {"model_type": "bpe", "vocab_size": 340, "byte_fallback": True}
_JOINED |= {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
_LIKELIEST: dict[str, Any] = {"model_type": "unigram", "vocab_size": 80, "hard_vocab_limit": False}
_LIKELIEST |= {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
PIECES: dict[str, tuple[dict[str, Any], list[int], list[int]]] = {
    "llama 2": (_JOINED, [1], []),
    "llama 2, json": (_JOINED, [], []),
    "t5": (_LIKELIEST, [], [1]),
    "t5, json": (_LIKELIEST, [], [1]),
}
#: What tokenizers learn, and what is read with them.
CORPUS = ["the cat sat on the mat, didn't it?", "Numbers: 12345 67 890.", "naïve café 日本語 \n\n  two  spaces"] * 3
TEXTS = ["Hello world, it's 12345!", "the cat\n\n sat  on 日本 <|end|>the mat", " didn't   café\n"]


def program() -> Path:
    """Return the program, which is built if it is not there."""
    binary, own = BUILT / "logits", Path(__file__).with_suffix(".cpp")
    if not binary.exists() or binary.stat().st_mtime < own.stat().st_mtime:
        build(binary, own, "-O0", [], linked())
    return binary


def build(
    binary: Path, own: Path, optimization: str, compiled: Sequence[Sequence[str]], libraries: Sequence[str]
) -> None:
    """Compile a program and llama.cpp, run commands that compile what else it needs, and link all of it."""
    root, folder = sources(), binary.with_suffix(".objects")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "llama-version.h").write_text('#define LLAMA_VERSION "0.6.0"\n#define LLAMA_COMMIT "unknown"\n')
    units = [[own], [root / "ggml/src/gguf.cpp", root / "ggml/src/ggml-opt.cpp"]]
    for name, size in TOGETHER.items():
        files = sorted((root / name).glob("*.cpp"))
        units += [files[i : i + size] for i in range(0, len(files), size)]
    places = [folder, *(root / name for name in ("include", "src", "ggml/include", "ggml/src"))]
    flags = ["-std=c++17", optimization, "-w", *(f"-I{place}" for place in places)]
    commands = [*compiled, *([["g++", *flags, "-x", "c++", "-c", "-"]] * len(units))]
    texts = [""] * len(compiled) + ["".join(f'#include "{path}"\n' for path in unit) for unit in units]
    objects = [str(folder / f"unit{number}.o") for number in range(len(commands))]

    def run(command: Sequence[str], text: str, target: str) -> None:
        subprocess.run([*command, "-o", target], input=text, text=True, check=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, commands, texts, objects))
    subprocess.run(["g++", *objects, *libraries, "-ldl", "-o", str(binary)], check=True)


def logits(file: Path) -> np.ndarray[Any, Any]:
    """Return the logits of llama.cpp, a row for each token."""
    done = subprocess.run([str(program()), str(file), *map(str, TOKENS)], capture_output=True, timeout=120)
    if done.returncode:
        raise RuntimeError(done.stderr.decode()[-2000:])
    return np.frombuffer(done.stdout, np.float32).reshape(len(TOKENS), -1)


def compiled(name: str) -> ml.PhysicalModel:
    """Return a model with biases and scales that are not those of the start, which would hide mistakes."""
    model = ml.compile(MODELS[name](), ml.NumpyBackend(), shapes={"input": [1, len(TOKENS)]}, inference=True)
    random = np.random.default_rng(5)
    values = model.get_parameters().items()
    model.load_params({key: (value + random.normal(0, 0.05, value.shape)).astype("f4") for key, value in values})
    return model


def bytes_of(name: str, folder: Path) -> Callable[[str], list[int]]:
    """Write a tokenizer of bytes; what the library that it was made with reads."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    steps = tokenizers.pre_tokenizers
    cut = CUTS[name]
    tokenizer.pre_tokenizer = steps.ByteLevel(add_prefix_space=False)
    if cut is not None:
        split = steps.Split(tokenizers.Regex(cut), "isolated")
        tokenizer.pre_tokenizer = steps.Sequence([split, steps.ByteLevel(add_prefix_space=False, use_regex=False)])
    alphabet = sorted(steps.ByteLevel.alphabet())
    special = ["<|start|>", "<|end|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=340, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if name == "llama":
        ends = [("<|start|>", 0)]
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<|start|> $A", special_tokens=ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"bos_token_id": 0, "eos_token_id": 1}')
    return lambda text: list(tokenizer.encode(text).ids)


def pieces_of(name: str, folder: Path) -> Callable[[str], list[int]]:
    """Write a tokenizer of SentencePiece, as the file of it or as the JSON that transformers makes of that."""
    written = io.BytesIO()
    options, begin, end = PIECES[name]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 10), model_writer=written, minloglevel=2, **options
    )
    file = folder / ("spiece.model" if end else "tokenizer.model")
    file.write_bytes(written.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    if "json" in name:
        kind = transformers.T5Tokenizer if end else transformers.LlamaTokenizer
        kind.from_pretrained(folder).save_pretrained(folder)
        file.unlink()
    return lambda text: [*begin, *processor.encode(text), *end]


def texts(name: str) -> tuple[str, str]:
    """Write a model with a tokenizer; whether llama.cpp reads texts as the library does that it was made with."""
    build = create_gpt if name == "gpt2" else create_llama
    sizes: dict[str, Any] = {"vocab_size": 350, "dims": 32, "num_heads": 2, "num_layers": 1}
    sizes |= {"block_size": 16} if name == "gpt2" else {"hidden": 32}
    sizes |= {"biases": "qkv"} if name == "qwen2" else {}
    model = ml.compile(build(**sizes), ml.NumpyBackend(), shapes={"input": [1, 4]}, inference=True)
    with tempfile.TemporaryDirectory() as folder:
        read = (bytes_of if name in CUTS else pieces_of)(name, Path(folder))
        path = f"{folder}/model.gguf"
        ml.save_gguf(model, path, tokenizer=folder)
        wrong = []
        for text in TEXTS if name in CUTS else [text.replace("<|end|>", "") for text in TEXTS]:
            done = subprocess.run([str(program()), "--text", text, path], capture_output=True, timeout=120)
            if done.returncode:
                raise RuntimeError(done.stderr.decode()[-2000:])
            actual, expected = np.frombuffer(done.stdout, np.int32).tolist(), read(text)
            wrong += [f"{text!r} is {actual}, not {expected}"] if actual != expected else []
    return "WRONG" if wrong else "ok", "; ".join(wrong)


def compare(name: str, type: str | None) -> tuple[float, float, float]:
    """Write a model; how far llama.cpp is from NumPy in parts of the largest logit, the cosine, and that with GGML."""
    model = compiled(name)
    ggml = ml.compile(MODELS[name](), ml.GGMLBackend(), shapes={"input": [1, len(TOKENS)]}, inference=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        ml.save_gguf(model, path, quantize=type, strict=True)
        ml.load_weights(model, path)
        ml.load_weights(ggml, path)
        actual = logits(path)
    expected, ours = (np.asarray(each(TOKENS[None]))[0] for each in (model, ggml))
    if actual.shape != expected.shape:
        raise RuntimeError(f"{name}: llama.cpp gives logits of shape {actual.shape}, not {expected.shape}")
    return (
        float(np.abs(actual - expected).max() / np.abs(expected).max()),
        cosine(actual, expected),
        cosine(actual, ours),
    )


def cosine(actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """Cosine of the angle between two arrays."""
    return float(actual.ravel() @ expected.ravel() / np.linalg.norm(actual) / np.linalg.norm(expected))


def main(words: Sequence[str]) -> int:
    """Run all models, or those whose names contain a word; 0 if llama.cpp computes what we do."""
    wrong = 0
    for name in MODELS:
        if words and not any(word in name for word in words):
            continue
        for type in TYPES:
            error, numpy, ggml = compare(name, type)
            is_near = numpy >= TYPES[type] and ggml >= ON_GGML and (type is not None or error <= EXACT)
            outcome = "ok" if is_near else "WRONG"
            wrong += outcome == "WRONG"
            cosines = f"cosine {numpy:.6f} with NumPy, {ggml:.6f} with GGML"
            print(f"{name:24}  {type or 'f32':9}  {outcome:5}  largest error {error:.1e}, {cosines}", flush=True)
    for name in (*CUTS, *PIECES):
        if not words or any(word in name for word in words):
            outcome, told = texts(name)
            wrong += outcome == "WRONG"
            print(f"{name:24}  {'tokenizer':9}  {outcome:5}  {told}".rstrip(), flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
