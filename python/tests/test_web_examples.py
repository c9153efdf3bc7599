"""The pages of `mithril.examples.web`: what they do with their models, in Node.js."""

import json
import shutil
import subprocess

import pytest
from mithril.errors import BackendUnavailableError
from mithril.examples.web.__main__ import main
from mithril.tools.web import compiler

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
    found = json.loads(done.stdout)
    assert found["before"] < 0.3
    assert found["after"] > 0.93
    assert found["losses"][-1] < found["losses"][0] / 5
    assert found["changed"]
    assert found["kept"]
    assert found["sum"] == pytest.approx(1, abs=1e-6)
    assert found["answer"] == found["label"]
    assert found["squares"] == [[1] * 64] * 2
    assert found["line"] == [0, 0, 0, 1 / 2, 1 / 2, 0, 0, 0] * 8
    assert found["empty"] == [0] * 64
    assert found["learned"] == 7
    assert found["accuracy"] > 0.85
