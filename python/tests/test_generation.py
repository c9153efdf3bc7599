"""Text generation: sampling and greedy decoding against transformers, cache against no cache, tokenizers, streams."""

import json

import decoders
import mithril as ml
import numpy as np
import pytest
import tokenizers
import torch
import transformers
from mithril.errors import (
    ConflictingOptionError,
    InvalidValueError,
    ModelFileError,
    NumericsError,
    ParameterError,
    ShapeError,
)
from mithril.generation import (
    EncoderDecoder,
    Sampling,
    TextGenerator,
    Tokenizer,
    compile_decoder,
    compile_encoder,
    generate_tokens,
)
from mithril.generation.text import Held
from mithril.models import create_gpt
from transformers.generation import logits_process as theirs

BACKENDS = ["numpy", "torch", "jax", "mlx"]

# --- sampling ---------------------------------------------------------------------------------------------------

OPTIONS = [
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.0, "top_k": 1000},
    {"temperature": 1.3, "top_p": 0.8},
    {"temperature": 1.0, "top_p": 1e-6},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 2.0, "min_p": 1.0},
    {"temperature": 1.0, "repetition_penalty": 1.8},
    {"temperature": 1.0, "repetition_penalty": 0.5},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_distributions_are_those_of_transformers(options):
    rng = np.random.default_rng(0)
    for _ in range(20):
        logits = rng.normal(0, 3, 100)
        seen = rng.integers(0, 100, 12)
        steps = theirs.LogitsProcessorList()
        if "repetition_penalty" in options:
            steps.append(theirs.RepetitionPenaltyLogitsProcessor(options["repetition_penalty"]))
        steps.append(theirs.TemperatureLogitsWarper(options["temperature"]))
        for name, kind in (
            ("top_k", theirs.TopKLogitsWarper),
            ("top_p", theirs.TopPLogitsWarper),
            ("min_p", theirs.MinPLogitsWarper),
        ):
            if name in options:
                steps.append(kind(options[name]))
        expected = steps(torch.from_numpy(seen)[None], torch.from_numpy(logits)[None])
        actual = Sampling(**options).probabilities(logits, seen)
        np.testing.assert_allclose(actual, torch.softmax(expected[0], -1).numpy(), rtol=1e-10, atol=1e-15)


def test_tokens_are_drawn_as_often_as_they_are_probable():
    logits = np.array([2.0, 0.5, -1.0, 1.0, -np.inf])
    sampling = Sampling(temperature=1.5, top_k=3)
    choose = sampling.chooser()
    actual = np.bincount([choose(logits, ()) for _ in range(20_000)], minlength=5) / 20_000
    expected = sampling.probabilities(logits)
    # Four standard deviations.
    assert (np.abs(actual - expected) <= 4 * np.sqrt(expected * (1 - expected) / 20_000)).all()


def test_greedy_takes_the_likeliest_and_the_penalty_counts():
    logits = np.array([1.0, 3.0, 2.9])
    assert Sampling().chooser()(logits, [1]) == 1
    assert Sampling(repetition_penalty=1.1).chooser()(logits, [1]) == 2
    assert Sampling().probabilities(logits).tolist() == [0, 1, 0]


def test_the_seed_decides():
    logits = np.zeros(50)

    def draw(seed, row):
        choose = Sampling(temperature=1.0, seed=seed).chooser(row)
        return [choose(logits, ()) for _ in range(20)]

    assert draw(1, 0) == draw(1, 0)
    assert len({tuple(draw(seed, row)) for seed in range(3) for row in range(3)}) == 9


def test_errors_of_sampling():
    wrong = [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"temperature": "hot"},
        {"temperature": 1.0, "top_k": 0},
        {"temperature": 1.0, "top_k": 2.5},
        {"temperature": 1.0, "top_p": 0.0},
        {"temperature": 1.0, "top_p": 1.1},
        {"temperature": 1.0, "min_p": -0.1},
        {"repetition_penalty": 0},
        {"seed": -1},
        {"seed": True},
    ]
    for options in wrong:
        with pytest.raises(InvalidValueError, match=list(options)[-1]):
            Sampling(**options)
    with pytest.raises(ConflictingOptionError, match="top_p"):
        Sampling(top_p=0.5)


# --- decoding ---------------------------------------------------------------------------------------------------


def gpt2(seed=0, **options):
    torch.manual_seed(seed)
    sizes = {"n_positions": 64, "n_embd": 24, "n_head": 3, "n_layer": 2, "vocab_size": 50, "initializer_range": 0.4}
    config = transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None, pad_token_id=0, **options)
    return transformers.GPT2LMHeadModel(config).eval()


def parameters(network):
    """Weights of transformers' GPT-2 by our names; its matrices are laid out the other way."""
    turned = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    state = {n: v.T if n.endswith(turned) else v for n, v in network.state_dict().items() if n != "lm_head.weight"}
    return {n: v.contiguous() for n, v in state.items()}


def our_gpt2(network, backend, **options):
    c = network.config
    sizes = {"block_size": c.n_positions, "dims": c.n_embd, "num_heads": c.n_head, "num_layers": c.n_layer}
    compiled = compile_decoder(create_gpt(**sizes, vocab_size=c.vocab_size), backend, **options)
    compiled.load_params(parameters(network))
    return compiled


def backend(name):
    try:
        return ml.get_backend(name)
    except ml.errors.BackendUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", BACKENDS)
def test_greedy_tokens_are_those_of_transformers(name):
    network = gpt2()
    compiled = our_gpt2(network, backend(name), jit=name == "jax")
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6], [7], [31, 41, 5]]
    actual = generate_tokens(compiled, prompts, 32, context=64)
    steps = list(actual)
    assert len(steps) == 32
    for prompt, tokens in zip(prompts, actual.tokens, strict=True):
        expected = network.generate(torch.tensor([prompt]), max_new_tokens=32, do_sample=False)
        assert tokens == expected[0, len(prompt) :].tolist()
    assert len(set(actual.tokens[0])) > 5
    assert [list(row) for row in zip(*steps, strict=True)] == actual.tokens


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("last_only", [False, True])
def test_with_and_without_cache_the_tokens_are_the_same(name, jit, last_only):
    if jit and name == "torch":
        pytest.skip("torch.compile takes longer than a test may; see test_gpt_with_cache")
    params = decoders.weights()
    prompts = [[1, 2, 3, 4, 5], [6], [7, 8]]
    sampling = Sampling(temperature=1.0, seed=3)
    options = {"sampling": sampling, "context": decoders.CONTEXT}
    plain = compile_decoder(decoders.tiny_decoder(), ml.NumpyBackend())
    plain.load_params(params)
    expected = generate_tokens(plain, prompts, 90, **options)
    list(expected)
    cached = compile_decoder(decoders.tiny_decoder(cache=True, last_only=last_only), backend(name), jit=jit)
    cached.load_params(params)
    actual = generate_tokens(cached, prompts, 90, **options)
    list(actual)
    # 90 tokens: the cache has grown once, from 64 to 128.
    assert actual.tokens == expected.tokens
    assert len(set(actual.tokens[0])) > 5


def test_few_programs_are_compiled():
    cached = compile_decoder(decoders.tiny_decoder(cache=True), ml.get_backend("jax"), jit=True)
    for length in (3, 4, 5, 7, 8):
        list(generate_tokens(cached, [[1] * length], 60))
    # Prompts of 4 and 8 tokens, and caches of 64 and 128 for single tokens.
    assert sum(c.what == "evaluate" for c in cached.compile_stats.compilations) == 4


@pytest.mark.parametrize("cache", [False, True])
def test_texts_end_where_they_should(cache):
    compiled = compile_decoder(decoders.tiny_decoder(cache), ml.NumpyBackend())
    compiled.load_params(decoders.weights())
    prompts = [[1] * 198, [2, 3], [4]]
    free = generate_tokens(compiled, prompts, 30, context=200)
    list(free)
    assert [len(tokens) for tokens in free.tokens] == [3, 30, 30]
    assert free.finish_reasons == ["context", "length", "length"]
    stop = {free.tokens[1][10], free.tokens[2][20]}
    continuation = generate_tokens(compiled, prompts, 30, context=200, stop_tokens=stop)
    steps = list(continuation)
    for tokens, all_tokens, reason in zip(continuation.tokens, free.tokens, continuation.finish_reasons, strict=True):
        end = next((i + 1 for i, token in enumerate(all_tokens) if token in stop), len(all_tokens))
        assert tokens == all_tokens[:end]
        assert (reason == "stop") == (tokens[-1] in stop)
    assert len(steps) == max(map(len, continuation.tokens))
    with pytest.raises(StopIteration):
        next(continuation)


def test_what_others_write_does_not_matter():
    compiled = compile_decoder(decoders.tiny_decoder(cache=True), ml.NumpyBackend())
    compiled.load_params(decoders.weights())
    sampling = Sampling(temperature=1.5, seed=8, repetition_penalty=1.2)
    both = generate_tokens(compiled, [[1, 2], [3, 4, 5, 6]], 20, sampling=sampling)
    list(both)
    alone = generate_tokens(compiled, [[1, 2]], 20, sampling=sampling)
    list(alone)
    assert alone.tokens[0] == both.tokens[0]


def test_errors_of_tokens():
    compiled = compile_decoder(decoders.tiny_decoder(), ml.NumpyBackend())
    wrong = {
        "no prompts": [],
        "prompt is empty": [[]],
        "prompt 1 is empty": [[1], []],
        "token 11; the model knows 0 to 10": [[1, 11]],
        "token -1": [[-1]],
        "holds 1.5": [[1.5]],
        "holds True": [[True]],
        "a prompt is 'abc'": ["abc"],
        "a prompt is 5": [5],
        "has 201 tokens, and the model reads at most 200": [[1] * 201],
    }
    for message, prompts in wrong.items():
        with pytest.raises(InvalidValueError, match=message):
            generate_tokens(compiled, prompts, context=200)
    for options in ({"max_new_tokens": 0}, {"max_new_tokens": 1.5}, {"context": 0}):
        with pytest.raises(InvalidValueError, match=next(iter(options))):
            generate_tokens(compiled, [[1]], **options)
    cached = decoders.tiny_decoder(cache=True)
    cached.set_outputs("output", "key_0")
    with pytest.raises(ParameterError, match="value_0"):
        next(generate_tokens(compile_decoder(cached, ml.NumpyBackend()), [[1]]))
    params = decoders.weights()
    params["head.bias"] = params["head.bias"] * np.nan
    compiled.load_params(params)
    with pytest.raises(NumericsError, match="not finite"):
        next(generate_tokens(compiled, [[1]]))


# --- tokenizers -------------------------------------------------------------------------------------------------

CORPUS = ["Hello world, hello there!", "Grüße aus Köln, 日本語 and 🙂🙃 emoji", "it's don't we'll 12345 done"] * 4


def byte_level(vocab_size=330):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def sentence_piece():
    """Words begin with a mark, as in T5 and Llama; what is not known is written byte by byte."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("▁hello", -1.0), ("▁world", -1.0), ("▁", -2.0), ("lo", -2.0)]
    pieces += [(f"<0x{i:02X}>", -9.0) for i in range(256)]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    decoders_ = tokenizers.decoders
    tokenizer.decoder = decoders_.Sequence([decoders_.ByteFallback(), decoders_.Metaspace()])
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer


TEXTS = ["", "Hello world", "it's we'll 123", "Grüße 日本語 🙂", "  two  spaces\n\tnew", "a<|endoftext|>b", "\0\x7f"]


def test_gpt2_from_lists_of_tokens_and_merges(tmp_path):
    byte_level().model.save(str(tmp_path))
    fast = transformers.GPT2TokenizerFast(
        vocab=str(tmp_path / "vocab.json"), merges=str(tmp_path / "merges.txt"), add_prefix_space=False
    )
    ours = Tokenizer.from_folder(tmp_path)
    for text in TEXTS:
        assert ours.encode(text) == fast.encode(text)
        assert ours.decode(ours.encode(text)) == fast.decode(fast.encode(text), skip_special_tokens=True)


def test_clip_from_lists_of_tokens_and_merges(tmp_path):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    ends = [f"{letter}</w>" for letter in alphabet]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator([text.lower() for text in CORPUS], trainer)
    tokenizer.model.save(str(tmp_path))
    words = json.loads((tmp_path / "vocab.json").read_text())
    for word in [*ends, "<|startoftext|>", "<|endoftext|>"]:
        words.setdefault(word, len(words))
    (tmp_path / "vocab.json").write_text(json.dumps(words))
    theirs = transformers.CLIPTokenizerFast(vocab=str(tmp_path / "vocab.json"), merges=str(tmp_path / "merges.txt"))
    ours = Tokenizer.from_folder(tmp_path)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
    [row] = ours.padded("Hello WORLD", 77)
    assert len(row) == 77
    assert row[0] == words["<|startoftext|>"]
    assert row.index(words["<|endoftext|>"]) == len(ours.encode("Hello WORLD")) - 1
    with pytest.raises(InvalidValueError, match="text 1 has"):
        ours.padded(["a", "a b c d e f"], 5)
    with pytest.raises(InvalidValueError, match="no texts"):
        ours.padded([], 5)


def test_tokenizer_file(tmp_path):
    tokenizer = byte_level()
    tokenizer.enable_truncation(3)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.from_folder(tmp_path)
    tokenizer.no_truncation()
    for text in TEXTS:
        assert ours.encode(text) == tokenizer.encode(text).ids
    assert ours.vocab_size == tokenizer.get_vocab_size()
    assert ours.token("<|endoftext|>") == 0
    with pytest.raises(ml.errors.KeyNotFoundError, match="<pad>"):
        ours.token("<pad>")


def test_errors_of_tokenizers(tmp_path):
    with pytest.raises(ModelFileError, match="is not a folder"):
        Tokenizer.from_folder(tmp_path / "absent")
    with pytest.raises(ModelFileError, match=r"tokenizer\.json, and for vocab\.json with merges\.txt"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "spiece.model").write_text("")
    with pytest.raises(ModelFileError, match=r"make a tokenizer\.json of spiece\.model"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    with pytest.raises(ModelFileError, match=r"not there: merges\.txt"):
        Tokenizer.from_folder(tmp_path)
    for words, merges in (("{", ""), ('{"a": 0}', "x y z q\nno"), ("[1]", "")):
        (tmp_path / "vocab.json").write_text(words)
        (tmp_path / "merges.txt").write_text(merges)
        with pytest.raises(ModelFileError, match="is not a tokenizer"):
            Tokenizer.from_folder(tmp_path)
    for text in ("", "{}", "[]", '{"model": {"type": "BPE"}}'):
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(ModelFileError, match="is not a tokenizer"):
            Tokenizer.from_folder(tmp_path)
    tokenizer = Tokenizer(byte_level())
    with pytest.raises(InvalidValueError, match="give a string"):
        tokenizer.encode(b"abc")
    with pytest.raises(InvalidValueError, match="surrogates"):
        tokenizer.encode("\ud800")
    with pytest.raises(InvalidValueError, match="from_folder"):
        Tokenizer("gpt2")


@pytest.mark.parametrize("make", [byte_level, sentence_piece])
def test_streams_give_the_text_character_by_character(make):
    tokenizer = Tokenizer(make())
    text = "hello world 日本語 🙂 héllo  hello"
    tokens = tokenizer.encode(text)
    whole, clean = tokenizer.decode(tokens), ""
    for cut in range(len(tokens)):
        stream = tokenizer.stream(tokens[:cut])
        pieces = [stream.push(token) for token in tokens[cut:]]
        assert not stream.end()
        assert not any("\ufffd" in piece for piece in pieces)
        # Of what a prompt leaves of a character, all comes with its last byte.
        start = tokenizer.decode(tokens[:cut])
        clean = clean if start.endswith("\ufffd") else start
        assert clean + "".join(pieces) == whole


def test_streams_end_with_half_a_character():
    tokenizer = Tokenizer(byte_level(257))
    stream = tokenizer.stream()
    tokens = tokenizer.encode("a日")
    assert [stream.push(token) for token in tokens[:-1]] == ["a", "", ""]
    assert stream.end() == tokenizer.decode(tokens[:-1])[1:] == "\ufffd"


def test_text_is_held_back_while_it_may_be_a_stop():
    held = Held(["STOP", "TOO"])
    assert [held.push(text) for text in ("a", "S", "T", "x", "ST", "OO", "b")] == ["a", "", "", "STx", "", "S", ""]
    assert held.is_stopped
    held = Held(["STOP"])
    assert held.push("xSTO") + held.end() == "xSTO"
    rng = np.random.default_rng(0)
    for _ in range(300):
        text, stops = "".join(rng.choice(list("ab"), 12)), ["".join(rng.choice(list("ab"), 4)) for _ in range(2)]
        held = Held(stops)
        actual = "".join(held.push(letter) for letter in text) + held.end()
        ends = [place for place in map(text.find, stops) if place >= 0]
        # Both have four letters: the first that is complete is the first that begins.
        assert actual == text[: min(ends, default=len(text))]


# --- texts ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def generator():
    tokenizer = Tokenizer(byte_level(300))
    torch.manual_seed(0)
    sizes = {"block_size": 64, "dims": 16, "num_heads": 2, "num_layers": 1, "vocab_size": 300}
    compiled = compile_decoder(create_gpt(**sizes), ml.NumpyBackend())
    compiled.load_params({n: v * 5 for n, v in compiled.randomize_params(seed=1).items()})
    return TextGenerator(compiled, tokenizer, context=64, stop_tokens=[0], start_token=0)


def test_text_in_text_out(generator):
    continuation = generator.generate("Hello", 20, temperature=1.0, seed=4)
    assert continuation == generator.generate(generator.tokenizer.encode("Hello"), 20, temperature=1.0, seed=4)
    assert continuation.finish_reason in ("stop", "length")
    assert continuation.text == generator.tokenizer.decode(continuation.tokens)
    assert "".join(generator.stream("Hello", 20, temperature=1.0, seed=4)) == continuation.text
    several = generator.generate(["Hello", "it's 日本", ""], 20, temperature=1.0, seed=4)
    assert several[0] == continuation
    assert len(several) == 3


def test_stop_strings(generator):
    options = {"max_new_tokens": 40, "temperature": 1.0, "seed": 2, "stop_tokens": []}
    free = generator.generate("Hello", **options)
    assert free.finish_reason == "length"
    # Cut within and across tokens.
    for start in range(2, 30, 3):
        stop = free.text[start : start + 3]
        continuation = generator.generate("Hello", **options, stop_strings=["never to come", stop])
        assert continuation.text == free.text[: free.text.find(stop)]
        assert continuation.finish_reason == "stop"
        assert continuation.tokens == free.tokens[: len(continuation.tokens)]
        assert "".join(generator.stream("Hello", **options, stop_strings=stop)) == continuation.text


def test_errors_of_texts(generator):
    for prompts in ([], 5, b"abc", [5.5], [None]):
        with pytest.raises(InvalidValueError, match="prompt"):
            generator.generate(prompts)
    with pytest.raises(InvalidValueError, match="reads at most 64"):
        generator.stream("a" * 300)
    with pytest.raises(InvalidValueError, match="answers one prompt"):
        generator.stream(["a", "b"])
    for stops in ("", [""], [5]):
        with pytest.raises(InvalidValueError, match="stop_strings"):
            generator.generate("a", stop_strings=stops or [""])
    with pytest.raises(TypeError, match="did you mean `top_p`"):
        generator.generate("a", topp=0.5)
    without = TextGenerator(generator.model, generator.tokenizer)
    with pytest.raises(InvalidValueError, match="prompt 0 is empty"):
        without.generate("")
    large = Tokenizer(byte_level(330))
    outside = next(text for text in CORPUS[0].split() if max(large.encode(" " + text)) >= 300)
    with pytest.raises(InvalidValueError, match="the model knows 0 to 299"):
        TextGenerator(generator.model, large).generate(" " + outside)


def test_encoder_and_decoder():
    """The answer depends on the prompt through the memory, whose padding is not seen."""
    source = ml.IOKey("input", shape=[None, None], dtype="int64")
    kept = ml.IOKey("mask", shape=[None, None], dtype="bool").cast("float32")
    words = ml.Embedding(300, 6, name="words")(source) * kept.reshape((source.shape[0], source.shape[1], 1))
    encoder = compile_encoder(ml.Model.create(output=words), ml.NumpyBackend())
    tokens = ml.IOKey("input", shape=[None, None], dtype="int64")
    memory, mask = ml.IOKey("memory", shape=[None, None, 6]), ml.IOKey("memory_mask", shape=[None, None], dtype="bool")
    seen = memory * mask.reshape((tokens.shape[0], memory.shape[1], 1)).cast("float32")
    mean = seen.sum(axis=1, keepdim=True)
    output = ml.Linear(300, name="head")(ml.Embedding(300, 6, name="answer")(tokens) + mean)
    decoder = compile_decoder(ml.Model.create(output=output), ml.NumpyBackend())
    decoder.load_params({n: v * 5 for n, v in decoder.randomize_params(seed=1).items()})
    both = EncoderDecoder(encoder, decoder, Tokenizer(byte_level(300)), start_token=0)
    prompts = ["Hello", "it's 12345 done", "world"]
    together = both.generate(prompts, 12)
    blind = compile_encoder(ml.Model.create(output=ml.Embedding(300, 6, name="words")(source)), ml.NumpyBackend())
    with pytest.raises(InvalidValueError, match="mask=True"):
        EncoderDecoder(blind, decoder, both.tokenizer).generate(prompts, 12)
    assert together == [both.generate(prompt, 12) for prompt in prompts]
    assert len({actual.tokens for actual in together}) == 3
    table, words = decoder.parameters, encoder.parameters["words.weight"]
    token, expected = 0, []
    for _ in range(12):
        x = table["answer.weight"][token] + words[both.tokenizer.encode("Hello")].sum(axis=0)
        token = int(np.argmax(table["head.weight"] @ x + table["head.bias"]))
        expected.append(token)
    assert list(together[0].tokens) == expected


@pytest.mark.parametrize("name", BACKENDS)
def test_what_the_model_has_no_place_for_is_an_error_on_every_backend(name):
    sizes = {"block_size": 8, "dims": 8, "num_heads": 2, "num_layers": 1, "vocab_size": 10}
    backend = ml.backends.get_backend(name)
    plain = compile_decoder(create_gpt(**sizes), backend)
    assert plain.evaluate({}, {"input": np.zeros((1, 8), int)})["output"].shape == (1, 8, 10)
    with pytest.raises(ShapeError, match=r"slice gives \[8, 8\].*needed in `transformer.wpe.slice`") as problem:
        plain.evaluate({}, {"input": np.zeros((2, 12), int)})
    assert "length is at most 8" in problem.value.hint

    cached = compile_decoder(create_gpt(**sizes, cache=True), backend)

    def call(length, position, padding, capacity):
        caches = {f"past_{kind}_0": np.zeros((1, 2, capacity, 4), "float32") for kind in ("key", "value")}
        data = {"input": np.zeros((1, length), int), "position": position, "padding": [padding], **caches}
        return cached.evaluate({}, data)

    call(4, 4, 0, 8)
    call(4, 6, 2, 16)  # Padding takes places of the cache, but none of the model.
    with pytest.raises(InvalidValueError, match=r"embedding needs index 8 of an axis of size 8") as problem:
        call(4, 5, 0, 16)
    assert (problem.value.path, problem.value.code) == ("transformer.wpe", "M0504")
    assert "position is 5" in str(problem.value)
    with pytest.raises(InvalidValueError, match=r"index_copy needs index 8 of an axis of size 8"):
        call(4, 5, 3, 8)
    with pytest.raises(InvalidValueError, match="needs index 8"):
        list(generate_tokens(cached, [[1, 2]], 12))
