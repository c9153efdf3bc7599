"""Decoders with caches for the web: what Node.js generates is what Python generates."""

import functools
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import mithril as ml
import numpy as np
import pytest
from mithril.__main__ import main
from mithril.errors import BackendUnavailableError, ConflictingOptionError, InvalidValueError, ParameterError
from mithril.examples.web import text as text_page
from mithril.generation import TextGenerator, Tokenizer, compile_decoder, export_decoder, generate_tokens
from mithril.models import create_gpt, create_llama
from mithril.tools.web import compiler

tokenizers = pytest.importorskip("tokenizers")
NODE = shutil.which("node")


def lacking():
    """What is missing here."""
    if NODE is None:
        return "Node.js is not installed"
    try:
        compiler.find(None)
    except BackendUnavailableError as error:
        return str(error.message)
    return ""


pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking() or "all is there")
CONTEXT = 48
TEXTS = ["Hello world", "  It's 12345 — don't\n\n\tgo ", "été 日本語 😀👩‍👧 ½", "a\u00a0b", "return self._x[0]"]


def node(folder, code):
    """Run a program, whose `result` is what it tells."""
    program = (
        'import { load, loadInWorker, ModelError } from "./model.mjs";\n'
        "const failure = async (f) => {\n"
        "  try { await f(); return null } catch (e) { return `${e.name}: ${e.message}` }\n};\n"
        "const plain = (key, x) => (ArrayBuffer.isView(x) ? Array.from(x) : x);\n"
        f"let result;\n{code}\nconsole.log(JSON.stringify(result, plain));\n"
    )
    path = Path(folder) / "test.mjs"
    path.write_text(program)
    completed = subprocess.run([NODE, path.name], cwd=folder, capture_output=True, text=True, timeout=60)
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


@functools.cache
def byte_pairs():
    return text_page.tokenizer_of_sources(600)


@functools.cache
def writer():
    """A generator with a tokenizer of byte pairs, and the folder it was exported into; made once."""
    gpt = create_gpt(block_size=CONTEXT, dims=64, num_heads=2, num_layers=2, vocab_size=600, cache=True, last_only=True)
    decoder = compile_decoder(gpt, ml.NumpyBackend())
    params = {name: 4 * array for name, array in decoder.randomize_params(seed=3).items()}
    decoder.load_params(params)
    generator = TextGenerator(decoder, byte_pairs(), context=CONTEXT, stop_tokens=[7], start_token=0)
    folder = tempfile.mkdtemp(prefix="mithril-web-")
    return generator, folder, generator.export(folder, prefix="writer", chunk=8)


def test_the_package_and_what_it_says():
    _, folder, package = writer()
    manifest = json.loads((Path(folder) / "package.json").read_text())
    assert manifest["name"] == "writer"
    assert {path.name for path in package.files} == {p.name for p in Path(folder).iterdir()} - {"test.mjs"}
    assert all((Path(folder) / name).is_file() for name in manifest["files"])
    assert package.code_bytes < 120_000
    assert package.check.splitlines()[-1] == "ok"
    for name in ("model.mjs", "model.d.ts", "check.mjs", "index.html", "README.md"):
        words = (Path(folder) / name).read_text()
        assert "@title@" not in words
        assert "@name@" not in words
    # Both programs read the weights that are there once.
    description = (Path(folder) / "model.mjs").read_text()
    assert '"writer_1"' in description
    assert '"writer_8"' in description


def test_the_likeliest_tokens_are_those_of_python():
    generator, folder, _ = writer()
    random = np.random.default_rng(0)
    # Single tokens, part of a chunk, a chunk, chunks with a rest that is padded or not, and the whole context.
    prompts = [[int(t) for t in random.integers(8, 600, n)] for n in (1, 3, 5, 8, 9, 15, 16, 30, 45, CONTEXT)]
    code = f"""
    const model = await load();
    result = [model.context, model.vocabulary, model.hasTokenizer];
    for (const prompt of {json.dumps(prompts)}) {{
      const {{ tokens, text, finishReason }} = await model.generate(prompt, {{ maxTokens: 12 }});
      // What is known is not read again, and gives the same.
      const again = await model.generate(prompt, {{ maxTokens: 12 }});
      await model.reset();
      const anew = await model.generate(prompt, {{ maxTokens: 12 }});
      result.push([tokens, text, finishReason, again.tokens, anew.tokens]);
    }}
    """
    context, vocabulary, has_tokenizer, *actual = node(folder, code)
    assert (context, vocabulary, has_tokenizer) == (CONTEXT, 600, True)
    expected = [generator.generate(prompt, 12) for prompt in prompts]
    assert {answer.finish_reason for answer in expected} == {"length", "context"}
    for answer, (tokens, text, reason, again, anew) in zip(expected, actual, strict=True):
        assert tokens == list(answer.tokens)
        assert (text, reason) == (answer.text, answer.finish_reason)
        assert again == anew == tokens


def test_texts_are_those_of_python():
    generator, folder, _ = writer()
    code = f"""
    const model = await loadInWorker();
    result = [];
    for (const text of {json.dumps(TEXTS)}) {{
      const tokens = await model.encode(text);
      const pieces = [];
      const onToken = (step) => pieces.push(step);
      const generated = await model.generate(text, {{ maxTokens: 9, stopTokens: [], onToken }});
      result.push([tokens, await model.decode(tokens), generated.text, pieces]);
    }}
    const stopStrings = [result[0][2].slice(4, 7)];
    result.push(await model.generate("Hello", {{ maxTokens: 20, stopTokens: [], stopStrings }}));
    result.push((await model.generate("", {{ maxTokens: 3, stopTokens: [] }})).tokens);
    await model.close();
    """
    *actual, stopped, empty = node(folder, code)
    for text, (tokens, back, written, pieces) in zip(TEXTS, actual, strict=True):
        assert tokens == generator.tokenizer.encode(text)
        assert back == text
        answer = generator.generate(text, 9, stop_tokens=[])
        assert written == answer.text
        assert "".join(piece["text"] for piece in pieces) == written
        assert [piece["token"] for piece in pieces] == list(answer.tokens)
    expected = generator.generate("Hello", 20, stop_tokens=[], stop_strings=[actual[0][2][4:7]])
    assert (stopped["text"], stopped["finishReason"]) == (expected.text, expected.finish_reason)
    assert empty == list(generator.generate("", 3, stop_tokens=[]).tokens)


def test_sampling_is_that_of_python():
    """The same seed draws the same tokens; how often each is drawn follows the probabilities of Python."""
    _, folder, _ = writer()
    options = {"temperature": 1.5, "topK": 6, "topP": 0.9, "minP": 0.02, "repetitionPenalty": 1.2}
    code = f"""
    import {{ chooser, optionsOf }} from "./generation.mjs";
    const model = await load();
    const drawn = async (seed) => (await model.generate([9, 10], {{ maxTokens: 9, temperature: 2, seed }})).tokens;
    const logits = await model.logits([9, 10, 11]);
    const choose = chooser(optionsOf({{ ...{json.dumps(options)}, seed: 1 }}));
    const counts = {{}};
    for (let i = 0; i < 20000; i++) {{ const t = choose(logits, [9, 10, 11]); counts[t] = (counts[t] ?? 0) + 1; }}
    result = [await drawn(1), await drawn(1), await drawn(2), Array.from(logits), counts];
    """
    first, again, other, logits, counts = node(folder, code)
    assert first == again != other
    sampling = ml.generation.Sampling(temperature=1.5, top_k=6, top_p=0.9, min_p=0.02, repetition_penalty=1.2)
    expected = sampling.probabilities(np.array(logits), [9, 10, 11])
    assert {int(token) for token in counts} == set(np.flatnonzero(expected))
    for token, count in counts.items():
        assert count / 20000 == pytest.approx(expected[int(token)], abs=0.015)


def test_a_signal_ends_the_text_and_mistakes_are_refused():
    _, folder, _ = writer()
    code = """
    const stopAfterThree = async (model) => {
      const stopping = new AbortController();
      let count = 0;
      const onToken = () => { if (++count === 3) stopping.abort(); };
      const options = { maxTokens: 40, stopTokens: [], signal: stopping.signal, onToken };
      const { finishReason, tokens } = await model.generate("Hello", options);
      return [finishReason, tokens.length, count];
    };
    result = [await stopAfterThree(await load())];
    const model = await loadInWorker();
    result.push(await stopAfterThree(model));
    // Aborted before the first token.
    const never = await model.generate("Hello", { maxTokens: 40, stopTokens: [], signal: AbortSignal.abort() });
    result.push([never.finishReason, never.tokens.length]);
    // Two at once do not disturb each other.
    const one = await model.generate("Hello", { maxTokens: 9 });
    const [a, b] = await Promise.all(["Hello", "World"].map((text) => model.generate(text, { maxTokens: 9 })));
    result.push(String(a.tokens) === String(one.tokens));
    const wrong = [[[600], {}], [[], {}], [new Array(49).fill(1), {}], [7, {}],
                   ["a", { maxTokens: 0 }], ["a", { topk: 3 }],
                   ["a", { topK: 3 }], ["a", { temperature: "hot" }], ["a", { stopStrings: "x" }]];
    for (const [prompt, options] of wrong) result.push(await failure(() => model.generate(prompt, options)));
    await model.close();
    result.push(await failure(() => model.generate("a")));
    """
    inside, beside, never, undisturbed, *wrong = node(folder, code)
    assert inside == ["aborted", 3, 3]
    # The worker is ahead of what the page knows, and may end the text first; the page hears no more of it.
    reason, length, count = beside
    assert reason == "aborted" or (reason == "length" and length == 40)
    assert length >= count == 3
    assert never == ["aborted", 0]
    assert undisturbed
    expected = [
        "holds the token 600; the model knows 0 to 599",
        None,
        "has 49 tokens, and the model reads at most 48",
        "the prompt is a number: give text, or a list of tokens",
        "maxTokens is 0: give a positive integer",
        'there is no option "topk": did you mean "topK"?',
        "topK is given, but nothing is drawn with a temperature of 0",
        "temperature is hot: give 0 or more",
        "stopStrings is x: give a list of strings",
        "the model was closed",
    ]
    for message, part in zip(wrong, expected, strict=True):
        assert (message is None) if part is None else part in message


def llama_tokenizer():
    """A tokenizer as that of Llama 2: byte pairs of SentencePiece, with bytes for what it does not know."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdeHlort", "▁a", "el", "▁H"]
    pieces += ["el" + "l", "lo", "▁to"]
    merges = [("▁", "a"), ("e", "l"), ("▁", "H"), ("el", "l"), ("l", "o"), ("▁", "t"), ("▁t", "o")]
    pieces.insert(-1, "▁t")
    model = tokenizers.models.BPE(
        {piece: number for number, piece in enumerate(pieces)},
        merges,
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = tokenizers.Tokenizer(model)
    forms = tokenizers.normalizers
    tokenizer.normalizer = forms.Sequence([forms.Prepend("▁"), forms.Replace(" ", "▁")])
    steps = tokenizers.decoders
    tokenizer.decoder = steps.Sequence(
        [steps.Replace("▁", " "), steps.ByteFallback(), steps.Fuse(), steps.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(tokenizer)


@pytest.mark.parametrize("quantize", [None, "int8_weights"])
def test_llama_with_bytes_for_unknown_letters(quantize, tmp_path):
    tokenizer = llama_tokenizer()
    sizes = {"dims": 128, "num_heads": 4, "num_kv_heads": 2, "num_layers": 1, "hidden": 96}
    llama = create_llama(**sizes, vocab_size=tokenizer.vocab_size, cache=True, last_only=True)
    backend = ml.NumpyBackend() if quantize is None else ml.CBackend(quantize=quantize, num_threads=1)
    decoder = compile_decoder(llama, backend)
    params = {name: np.array(array) for name, array in decoder.randomize_params(seed=1).items()}
    decoder.load_params(params)
    generator = TextGenerator(decoder, tokenizer, context=32, stop_tokens=[2])
    exported = generator.export(tmp_path, prefix="llama", chunk=4)
    assert exported.packed_bytes < (0.5 if quantize else 1.1) * sum(array.nbytes for array in params.values())
    texts = ["Hello to a cat", "été 日本", " two  spaces "]
    code = f"""
    const model = await load();
    result = [];
    for (const text of {json.dumps(texts)})
      result.push([await model.encode(text), await model.decode(await model.encode(text)),
                   await model.generate(text, {{ maxTokens: 4 }})]);
    """
    for text, (tokens, back, written) in zip(texts, node(tmp_path, code), strict=True):
        assert tokens == tokenizer.encode(text)
        assert back == tokenizer.decode(tokens)
        answer = generator.generate(text, 4)
        assert written["tokens"] == list(answer.tokens)
        assert written["text"] == answer.text


def test_without_a_tokenizer_tokens_are_taken(tmp_path):
    sizes = {"block_size": 16, "dims": 16, "num_heads": 2, "num_layers": 1, "vocab_size": 20}
    decoder = compile_decoder(create_gpt(**sizes, cache=True), ml.NumpyBackend())
    decoder.load_params(decoder.randomize_params(seed=2))
    # A chunk that is longer than the context is never read.
    export_decoder(decoder, tmp_path, context=16, chunk=4)
    assert not (tmp_path / "tokenizer.json").exists()
    code = """
    const model = await load();
    result = [await model.generate([1, 2, 3, 4, 5, 6], { maxTokens: 5 }), await failure(() => model.generate("text")),
              await failure(() => model.decode([1]))];
    """
    actual, *wrong = node(tmp_path, code)
    [expected] = (run := generate_tokens(decoder, [[1, 2, 3, 4, 5, 6]], 5, context=16)) and [
        list(run) and run.tokens[0]
    ]
    assert (actual["tokens"], actual["text"], actual["finishReason"]) == (expected, "", "length")
    assert all("without a tokenizer" in message for message in wrong)


def test_mistakes_of_an_export(tmp_path):
    sizes = {"block_size": 16, "dims": 16, "num_heads": 2, "num_layers": 1, "vocab_size": 20}
    plain = compile_decoder(create_gpt(**sizes), ml.NumpyBackend())
    with pytest.raises(ParameterError, match="not a decoder with a cache"):
        export_decoder(plain, tmp_path / "out", context=16)
    cached = compile_decoder(create_gpt(**sizes, cache=True), ml.NumpyBackend())
    with pytest.raises(InvalidValueError, match="context is 0"):
        export_decoder(cached, tmp_path / "out", context=0)
    with pytest.raises(ParameterError, match="params lacks"):
        export_decoder(cached, tmp_path / "out", context=16, params={})
    generator = TextGenerator(cached, byte_pairs(), context=16)
    with pytest.raises(InvalidValueError, match="reads at most 16"):
        generator.export(tmp_path / "out", context=17)
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path, capsys):
    generator, _, _ = writer()
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    sizes = {"n_positions": CONTEXT, "n_embd": 64, "n_head": 2, "n_layer": 2, "vocab_size": 600}
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes, "eos_token_id": 7}))
    generator.tokenizer.tokenizer.save(str(folder / "tokenizer.json"))
    ml.save(generator.model.get_parameters(), folder / "model.safetensors")
    words = ["export", str(folder), str(tmp_path / "out"), "--context", "32"]
    assert main([*words, "--target", "web", "--prefix", "tiny"]) == 0
    result = node(tmp_path / "out", 'result = await (await load()).generate("Hello", { maxTokens: 6 });')
    assert result["tokens"] == list(generator.generate("Hello", 6).tokens)
    assert main(words) == 1
    assert "--context is for the web" in capsys.readouterr().err
    assert main([*words, "--target", "web", "--lanes", "4"]) == 1
    assert "--lanes" in capsys.readouterr().err
    assert ConflictingOptionError is not None
