"""The pages of `mithril.examples.web`: what they do with their models, in Node.js and in Chromium."""

import json
import os
import shutil
import subprocess

import mithril as ml
import numpy as np
import pytest
from mithril.errors import BackendUnavailableError, InvalidValueError
from mithril.examples.web import image, text
from mithril.examples.web.__main__ import main
from mithril.generation import compile_decoder, generate_tokens
from mithril.models import create_gpt
from mithril.tools.web import compiler
from mithril.vision import Preprocess

from tools.browser import CHROMIUM, photograph

NODE = shutil.which("node")

DIGITS = """
import { readFileSync } from "node:fs";
import { load } from "./model/model.mjs";
import { Digits, shrink } from "./digits.mjs";

const digits = new Digits(await load(), new Uint8Array(readFileSync("digits.bin")));
let state = 1;
const random = () => (state = (state * 48271) % 2147483647) / 2147483647;
const before = await digits.accuracy();
const still = await digits.model.parameters();
const losses = [];
for (let i = 0; i < 10; i++) losses.push(await digits.epoch(random));
const after = await digits.accuracy();

// Recognising changes no parameter.
const trained = await digits.model.parameters();
const shares = await digits.recognise(digits.image(1500));
const again = await digits.model.parameters();
const equal = (a, b) => Object.keys(a).every((name) => a[name].every((x, i) => x === b[name][i]));

// A drawing is cut to its ink, wherever it lies and however large it is.
const square = (side, left, top, size) => {
  const ink = new Float32Array(side * side);
  for (let y = 0; y < size; y++) for (let x = 0; x < size; x++) ink[(top + y) * side + left + x] = 1;
  return Array.from(shrink(ink, side, side));
};
const line = new Float32Array(100 * 100);
for (let y = 10; y < 90; y++) for (let x = 45; x < 55; x++) line[y * 100 + x] = 1;

// A shape that is no digit is learned as the one that it is said to be.
const odd = Float32Array.from({ length: 64 }, (_, i) => (Math.floor(i / 8) + i) % 2);
await digits.teach(odd, 7, random);
await digits.teach(odd, 7, random);
const learned = await digits.recognise(odd);
console.log(JSON.stringify({
  before, after, losses, changed: !equal(still, trained), kept: equal(trained, again),
  sum: shares.reduce((a, b) => a + b),
  answer: shares.indexOf(Math.max(...shares)), label: digits.labels[1500],
  squares: [square(40, 3, 9, 16), square(90, 5, 2, 80)],
  line: Array.from(shrink(line, 100, 100)), empty: Array.from(shrink(new Float32Array(100), 10, 10)),
  learned: learned.indexOf(Math.max(...learned)), accuracy: await digits.accuracy(),
}));
"""


@pytest.mark.skipif(NODE is None, reason="Node.js is not installed")
def test_digits_are_learned_in_the_page(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn has the images")
    try:
        compiler.find(None)
    except BackendUnavailableError as error:
        pytest.skip(str(error.message))
    folder = tmp_path / "digits"
    assert main(["digits", str(folder)]) == 0
    (folder / "test.mjs").write_text(DIGITS)
    done = subprocess.run([NODE, "test.mjs"], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["before"] < 0.3
    assert result["after"] > 0.93
    assert result["losses"][-1] < result["losses"][0] / 5
    assert result["changed"]
    assert result["kept"]
    assert result["sum"] == pytest.approx(1, abs=1e-6)
    assert result["answer"] == result["label"]
    assert result["squares"] == [[1] * 64] * 2
    assert result["line"] == [0, 0, 0, 1 / 2, 1 / 2, 0, 0, 0] * 8
    assert result["empty"] == [0] * 64
    assert result["learned"] == 7
    assert result["accuracy"] > 0.85


def needs_compiler():
    try:
        compiler.find(None)
    except BackendUnavailableError as error:
        pytest.skip(str(error.message))


def small_classifier():
    model = ml.Model()
    model |= ml.Conv2d(8, 3, stride=4)(input="input", output="features")
    model += ml.Relu()
    model += ml.Flatten()
    model += ml.Linear(6)(output="logits")
    return model


IMAGE = """
import { readFileSync } from "node:fs";
import { load } from "./model/model.mjs";
import { likeliest, preprocess } from "./image.mjs";

const pictures = [];
const options = JSON.parse(readFileSync("image.json"));
for (const { name, width, height, ...others } of JSON.parse(readFileSync("given.json"))) {
  const data = new Uint8ClampedArray(readFileSync(name));
  pictures.push(Array.from(preprocess({ data, width, height }, { ...options, ...others })));
}
const model = await load();
const outputs = await model.run({ [options.input]: Float32Array.from(pictures[0]) });
console.log(JSON.stringify([pictures, likeliest(outputs[options.output], options.labels, 3)]));
"""


@pytest.mark.skipif(NODE is None, reason="Node.js is not installed")
def test_pictures_are_preprocessed_as_in_python(tmp_path):
    library = pytest.importorskip("PIL.Image")
    needs_compiler()
    usual = Preprocess(resize=40, crop=(32, 24), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
    names = tmp_path / "names.txt"
    names.write_text("cat\ndog\nbird\nfish\nfrog\nhorse\n")
    image.write(tmp_path, model=small_classifier(), labels=names, preprocess=usual)
    random = np.random.default_rng(0)
    cases = [
        # Smaller, larger, already right, with borders of black, and along one axis only.
        ((90, 130), {}),
        ((131, 77), {}),
        ((20, 21), {}),
        ((40, 50), {}),
        ((60, 61), {"interpolation": "bicubic"}),
        ((21, 30), {"interpolation": "bicubic"}),
        ((90, 47), {"interpolation": "box"}),
        ((30, 28), {"resize": None}),
        ((70, 90), {"resize": (50, 31), "crop_rounding": "down"}),
    ]
    pictures, expected = [], []
    for number, ((height, width), options) in enumerate(cases):
        pixels = random.integers(0, 256, (height, width, 4), np.uint8)
        pixels[..., 3] = 255
        (tmp_path / f"{number}.rgba").write_bytes(pixels.tobytes())
        changed = {"rounding" if name == "crop_rounding" else name: value for name, value in options.items()}
        pictures.append({"name": f"{number}.rgba", "width": width, "height": height, **changed})
        settings = {name: getattr(usual, name) for name in ("resize", "crop", "mean", "std")} | options
        expected.append(Preprocess(**settings)(library.fromarray(pixels[..., :3]))[0])
    (tmp_path / "given.json").write_text(json.dumps(pictures))
    (tmp_path / "test.mjs").write_text(IMAGE.replace("await load()", 'await load("model")'))
    done = subprocess.run([NODE, "test.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    actual, best = json.loads(done.stdout)
    for case, one, other in zip(cases, actual, expected, strict=True):
        np.testing.assert_allclose(one, other.ravel(), atol=1e-6, err_msg=str(case))
    assert len(best) == 3
    assert best[0]["label"] in names.read_text().split()
    assert best[0]["probability"] >= best[1]["probability"] >= best[2]["probability"] > 0


def test_pages_refuse_what_they_cannot_do(tmp_path, capsys):
    with pytest.raises(InvalidValueError, match="there is no model 'resnet19'"):
        image.write(tmp_path / "page", model="resnet19")
    with pytest.raises(InvalidValueError, match="any size"):
        image.write(tmp_path / "page", model=small_classifier(), preprocess=Preprocess(resize=40))
    with pytest.raises(InvalidValueError, match="lanczos"):
        image.write(
            tmp_path / "page", model=small_classifier(), preprocess=Preprocess(crop=40, interpolation="lanczos")
        )
    assert main(["digits", str(tmp_path / "page"), "--context", "9"]) == 1
    assert "--context is not an option of the page digits" in capsys.readouterr().err


SIZES = {"block_size": 32, "dims": 64, "num_heads": 2, "num_layers": 1, "vocab_size": 500}


@pytest.mark.skipif(NODE is None, reason="Node.js is not installed")
def test_the_page_of_texts_writes_what_python_writes(tmp_path):
    pytest.importorskip("tokenizers")
    needs_compiler()
    exported = text.write(tmp_path, sizes=SIZES, context=24)
    assert exported.is_random
    page = (tmp_path / "index.html").read_text()
    assert "Once upon a time" in page
    code = """
    import { load } from "./model.mjs";
    const model = await load();
    const prompt = await model.encode("Once upon a time");
    console.log(JSON.stringify([prompt, await model.generate("Once upon a time", { maxTokens: 8 })]));
    """
    (tmp_path / "test.mjs").write_text(code)
    done = subprocess.run([NODE, "test.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    prompt, written = json.loads(done.stdout)
    tokenizer = text.tokenizer_of_sources(SIZES["vocab_size"])
    assert prompt == tokenizer.encode("Once upon a time")
    decoder = compile_decoder(create_gpt(**SIZES, cache=True, last_only=True), ml.NumpyBackend())
    run = generate_tokens(decoder, [prompt], 8, context=24)
    assert len(list(run)) == len(written["tokens"])
    assert written["tokens"] == run.tokens[0]
    assert written["text"] == tokenizer.decode(written["tokens"])


#: When a page has shown what it does, or what went wrong.
READY = "page.dataset.done || page.querySelector('#problem')?.textContent"


@pytest.mark.skipif(not os.environ.get("MITHRIL_TEST_ALL"), reason="takes long: MITHRIL_TEST_ALL=1 runs it")
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_pages_in_chromium(tmp_path):
    """Pictures are classified and texts are written; nothing goes wrong."""
    pytest.importorskip("tokenizers")
    needs_compiler()
    image.write(tmp_path / "image", model=small_classifier(), preprocess=Preprocess(resize=40, crop=32))
    page = photograph(tmp_path / "image", "index.html#demo", tmp_path / "image.png", READY)
    assert page.count("class ") == 5
    assert "The model took" in page
    text.write(tmp_path / "text", sizes=SIZES, context=24)
    page = photograph(tmp_path / "text", "index.html#demo", tmp_path / "text.png", READY)
    assert "tokens per second" in page
    assert "Once upon a time" in page
