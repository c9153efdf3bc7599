"""The web target of `export`: WebAssembly in Node.js and in Chromium computes what NumPy computes."""

import functools
import http.server
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import mithril as ml
import numpy as np
import pytest
from mithril.__main__ import main
from mithril.errors import BackendUnavailableError, CompilerError, InvalidValueError, ModelFileError
from mithril.tools.web import compiler

from tools.browser import CHROMIUM, posted

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
#: How arrays are written for JavaScript.
KINDS = {
    "float32": "Float32Array",
    "float64": "Float64Array",
    "float16": "Uint16Array",
    "int32": "Int32Array",
    "int64": "BigInt64Array",
    "bool": "Uint8Array",
    "uint8": "Uint8Array",
}


def text(array):
    """An array as an expression of JavaScript."""
    array = np.asarray(array)
    kind = KINDS[array.dtype.name]
    bits = array.view(np.uint16) if array.dtype == np.float16 else array
    numbers = ",".join(f"{n}n" if kind.startswith("Big") else repr(float(n)) for n in bits.ravel())
    return f"new {kind}([{numbers}])"


def as_javascript(data):
    """Data by name as an expression of JavaScript."""
    return "{" + ",".join(f"{json.dumps(name)}: {text(array)}" for name, array in data.items()) + "}"


def node(folder, code):
    """Run a program, whose `result` is what it tells."""
    program = (
        'import { ARRAYS, load, loadInWorker, ModelError } from "./model.mjs";\n'
        "const plain = (key, x) => typeof x === 'bigint' ? Number(x) : ArrayBuffer.isView(x) ? Array.from(x) : x;\n"
        "const failure = async (f) => {\n"
        "  try { await f(); return null } catch (e) { return `${e.name}: ${e.message}` }\n};\n"
        f"let result;\n{code}\nconsole.log(JSON.stringify(result, plain));\n"
    )
    path = Path(folder) / "test.mjs"
    path.write_text(program)
    completed = subprocess.run([NODE, path.name], cwd=folder, capture_output=True, text=True, timeout=60)
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def conv():
    model = ml.Model()
    model |= ml.Conv2d(8, 3, padding=1)(input="image", output="stem")
    model |= ml.BatchNorm2d(8)(input="stem", output="normal")
    model |= ml.Relu()(input="normal", output="active")
    model |= ml.MaxPool2d(2)(input="active", output="pooled")
    model |= ml.Flatten()(input="pooled", output="flat")
    model |= ml.Linear(5)(input="flat", output="output")
    return model, {"image": [1, 3, 12, 12]}


def text_model():
    model = ml.Model()
    model |= ml.Embedding(11, 16)(input="tokens", output="embedded")
    model |= ml.TransformerEncoderLayer(16, 2, 32, 0.0)(input="embedded", output="mixed")
    model |= ml.Linear(11)(input="mixed", output="logits")
    return model, {"tokens": [1, 7]}


@functools.cache
def place(name):
    """A compiled model, and the folder it was exported into; made once."""
    model, shapes = {"conv": conv, "text": text_model}[name]()
    dtypes = {"tokens": "int64"} if name == "text" else {}
    compiled = ml.compile(model, ml.NumpyBackend(), shapes=shapes, dtypes=dtypes, inference=True)
    folder = tempfile.mkdtemp(prefix="mithril-web-")
    params = compiled.get_parameters()
    data = {"tokens": np.arange(7)[None] * 3 % 11} if name == "text" else None
    exported = compiled.export(folder, target="web", prefix=name, data=data, params=params)
    return compiled, folder, exported


def test_the_folder_is_an_npm_package():
    _, folder, package = place("conv")
    manifest = json.loads((Path(folder) / "package.json").read_text())
    assert manifest["name"] == "conv"
    assert manifest["type"] == "module"
    assert manifest["main"] == "model.mjs"
    assert {path.name for path in package.files} == {p.name for p in Path(folder).iterdir()} - {"test.mjs"}
    assert all((Path(folder) / name).is_file() for name in manifest["files"])
    assert package.code_bytes < 20_000
    assert package.check.splitlines()[-1] == "ok"
    assert "model.wasm" in str(package)
    types = (Path(folder) / "model.d.ts").read_text()
    assert '"image": Float32Array;' in types
    assert "@" not in types
    module = WASM_IMPORTS % json.dumps(str(Path(folder) / "model.wasm"))
    # Nothing is asked of the page, and vectors are there: v128.load is fd 00.
    assert node(folder, module) == [[], True]


WASM_IMPORTS = """
import { readFileSync } from "node:fs";
const code = readFileSync(%s);
result = [WebAssembly.Module.imports(new WebAssembly.Module(code)), code.includes(Buffer.from([0xfd, 0x00]))];
"""


def test_a_convolutional_network():
    compiled, folder, _ = place("conv")
    data = {"image": draw(1, 3, 12, 12)}
    code = f"""
    const seen = [];
    const model = await load(undefined, {{ onProgress: (p) => seen.push(p) }});
    const data = {as_javascript(data)};
    const first = await model.run(data), again = await model.run({{ image: data.image.map((x) => 2 * x) }});
    result = {{ inputs: model.inputs, outputs: model.outputs, seen, first, again, trains: model.trains }};
    """
    actual = node(folder, code)
    assert actual["inputs"] == [{"name": "image", "dtype": "float32", "shape": [1, 3, 12, 12]}]
    assert actual["outputs"] == [{"name": "output", "dtype": "float32", "shape": [1, 5]}]
    assert actual["trains"] is False
    expected = compiled.evaluate(compiled.get_parameters(), data)["output"].ravel()
    np.testing.assert_allclose(actual["first"]["output"], expected, rtol=1e-4, atol=1e-5)
    # The arrays of a call are its own.
    twice = compiled.evaluate(compiled.get_parameters(), {"image": 2 * data["image"]})["output"].ravel()
    np.testing.assert_allclose(actual["again"]["output"], twice, rtol=1e-4, atol=1e-5)
    seen = actual["seen"]
    size = (Path(folder) / "weights.bin").stat().st_size
    assert seen[0] == {"loaded": 0, "total": size, "fraction": 0}
    assert seen[-1] == {"loaded": size, "total": size, "fraction": 1}


def test_wrong_inputs_are_refused():
    _, folder, _ = place("conv")
    code = """
    const model = await load();
    const right = new Float32Array(432);
    const cases = [{ imgae: right }, {}, { image: new Float64Array(432) }, { image: right.subarray(1) },
                   { image: [1, 2] }, { image: null }, { image: 3 }, right, undefined];
    result = [];
    for (const data of cases) result.push(await failure(() => model.run(data)));
    result.push(await failure(() => model.step({ image: right })));
    result.push(await failure(() => model.parameters()));
    result.push(await failure(() => model.assign({ nothing: right })));
    result.push(await failure(() => load("nowhere")));
    await model.close();
    result.push(await failure(() => model.run({ image: right })));
    """
    expected = [
        'there is no input "imgae": did you mean "image"?',
        'input "image" is missing: give a Float32Array for float32 of shape [1, 3, 12, 12]',
        'input "image" is a Float64Array; give a Float32Array',
        'input "image" has 431 elements, but shape [1, 3, 12, 12] has 432',
        'input "image" is an Array; give a Float32Array',
        'input "image" is missing',
        'input "image" is a Number; give a Float32Array',
        "give inputs by name: { image: … }",
        "give inputs by name: { image: … }",
        "this model does not train: export it with an optimizer, or call run(…)",
        "is packed in the order of the kernels",
        'there is no parameter or state "nothing"',
        "cannot be read",
        "the model was closed",
    ]
    actual = node(folder, code)
    assert len(actual) == len(expected)
    for line, message in zip(actual, expected, strict=True):
        assert line.startswith("ModelError: ")
        assert message in line


def test_integers_and_errors_of_the_code():
    compiled, folder, _ = place("text")
    tokens = np.array([[1, 5, 10, 0, 3, 3, 7]])
    code = f"""
    const model = await load({json.dumps(folder)});
    const outputs = await model.run({as_javascript({"tokens": tokens})});
    const wrong = await failure(() => model.run({as_javascript({"tokens": tokens + 1})}));
    const kind = await failure(() => model.run({{ tokens: new Int32Array(7) }}));
    result = [outputs, wrong, kind, await model.run({as_javascript({"tokens": tokens})})];
    """
    outputs, wrong, kind, again = node(folder, code)
    expected = compiled.evaluate(compiled.get_parameters(), {"tokens": tokens})["logits"].ravel()
    np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-4, atol=1e-5)
    assert "index" in wrong
    assert outputs == again
    assert "is an Int32Array; give a BigInt64Array for int64" in kind


def test_files_that_do_not_belong_together(tmp_path):
    _, folder, _ = place("conv")
    mixed = shutil.copytree(folder, tmp_path / "mixed")
    weights = mixed / "weights.bin"
    whole = weights.read_bytes()
    failures = []
    for content in (whole[:-1], whole + b"0", bytes(64) + whole[64:]):
        weights.write_bytes(content)
        failures.append(node(mixed, "result = await failure(() => load());"))
    assert "ends after" in failures[0]
    assert "more than" in failures[1]
    assert "another export" in failures[2]


def test_the_worker_has_the_same_interface():
    compiled, folder, _ = place("conv")
    data = {"image": draw(1, 3, 12, 12)}
    code = f"""
    const seen = [];
    const model = await loadInWorker(undefined, {{ onProgress: (p) => seen.push(p.fraction) }});
    const data = {as_javascript(data)};
    const [first, second] = await Promise.all([model.run(data), model.run(data)]);
    const wrong = await failure(() => model.run({{ imgae: data.image }}));
    const here = await load();
    result = {{ first, second, wrong, seen, length: data.image.length,
                same: JSON.stringify([model.inputs, model.outputs]) === JSON.stringify([here.inputs, here.outputs]),
                nowhere: await failure(() => loadInWorker("nowhere")) }};
    await model.close();
    result.closed = await failure(() => model.run(data));
    """
    actual = node(folder, code)
    expected = compiled.evaluate(compiled.get_parameters(), data)["output"].ravel()
    np.testing.assert_allclose(actual["first"]["output"], expected, rtol=1e-4, atol=1e-5)
    assert actual["first"] == actual["second"]
    assert actual["same"]
    assert actual["length"] == 432
    assert 'did you mean "image"?' in actual["wrong"]
    assert actual["seen"][0] == 0
    assert actual["seen"][-1] == 1
    assert "cannot be read" in actual["nowhere"]
    assert "closed" in actual["closed"]


def test_a_training_step(tmp_path):
    model = ml.Model()
    model |= ml.Linear(6)(input="input", output="hidden")
    model += ml.Tanh()
    model += ml.Linear(3)(output="logits")
    model |= ml.CrossEntropy()(input="logits", target="target", output="loss")
    shapes, dtypes = {"input": [8, 5], "target": [8]}, {"target": "int64"}
    compiled = ml.compile(model, ml.NumpyBackend(), shapes=shapes, dtypes=dtypes)
    params = {name: np.array(array) for name, array in compiled.get_parameters().items()}
    data = {"input": draw(8, 5), "target": np.arange(8) % 3}
    compiled.export(tmp_path, target="web", optimizer=ml.optim.Adam(0.05), loss="loss", params=params, data=data)
    code = f"""
    const model = await load();
    const data = {as_javascript(data)};
    result = {{ inputs: model.inputs, losses: [], slower: [], before: await model.parameters() }};
    for (let i = 0; i < 5; i++) result.losses.push((await model.step(data)).loss[0]);
    result.after = await model.parameters();
    result.states = Object.keys(await model.states());
    result.run = await failure(() => model.run(data));
    await model.reset();
    result.reset = await model.parameters();
    result.again = (await model.step(data)).loss[0];
    await model.reset();
    for (let i = 0; i < 2; i++) result.slower.push((await model.step({{ ...data, learning_rate: 0 }})).loss[0]);
    await model.assign(Object.fromEntries(Object.entries(result.after).map(([k, v]) => [k, Float32Array.from(v)])));
    result.assigned = (await model.step(data)).loss[0];
    """
    result = node(tmp_path, code)
    step = ml.train.TrainingStep(compiled, ml.optim.Adam(0.05), loss="loss")
    losses = [float(step(data)["loss"]) for _ in range(5)]
    np.testing.assert_allclose(result["losses"], losses, rtol=1e-4)
    trained = compiled.get_parameters()
    assert result["after"].keys() == trained.keys()
    for name, array in trained.items():
        np.testing.assert_allclose(result["before"][name], np.ravel(params[name]), rtol=1e-6)
        np.testing.assert_allclose(result["after"][name], np.ravel(array), rtol=1e-3, atol=1e-5)
    rate = next(port for port in result["inputs"] if port["name"] == "learning_rate")
    assert rate["default"] == pytest.approx(0.05)
    assert "step(…)" in result["run"]
    assert "step" in result["states"]
    assert result["reset"] == result["before"]
    assert result["again"] == result["losses"][0]
    assert result["slower"][0] == result["slower"][1]
    assert result["assigned"] == pytest.approx(float(step(data)["loss"]), rel=1e-4)


def test_states_stay_in_the_model_until_reset(tmp_path):
    """Running statistics and the key of dropout change from step to step, and come back."""
    model = ml.Model()
    model |= ml.Conv2d(4, 3)(input="input", output="features")
    model |= ml.BatchNorm2d(4)(input="features", output="normal")
    model |= ml.Dropout(0.5)(input="normal", output="dropped")
    model |= ml.Mean()(input="dropped", output="loss")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [4, 1, 6, 6]})
    compiled.export(tmp_path, target="web", optimizer=ml.optim.SGD(0.1), loss="loss")
    code = f"""
    const model = await load();
    const data = {as_javascript({"input": draw(4, 1, 6, 6)})};
    result = {{ states: [await model.states()], losses: [] }};
    for (let i = 0; i < 4; i++) {{
      if (i === 2) await model.reset();
      result.losses.push((await model.step({{ ...data, learning_rate: 0 }})).loss[0]);
      result.states.push(await model.states());
    }}
    """
    result = node(tmp_path, code)
    start, first, second, again, once_more = result["states"]
    assert any(name.endswith("running_mean") for name in start)
    assert start != first
    assert first != second
    assert (again, once_more) == (first, second)
    assert result["losses"][:2] == result["losses"][2:]
    assert result["losses"][0] != result["losses"][1]


def test_arrays_of_other_dtypes(tmp_path):
    """Data of bool, int64 and float16: whole 64-bit numbers, and the bits of halves."""
    model = ml.Model()
    wide = ml.IOKey("narrow", shape=[3], dtype="float16")
    whole = ml.IOKey("whole", shape=[3], dtype="int64")
    is_chosen = ml.IOKey("is_chosen", shape=[3], dtype="bool")
    model |= ml.Where()(condition=is_chosen, input=whole, other=7, output="picked")
    model |= ml.Multiply()(left=wide, right=2.0, output="doubled")
    model.set_outputs("picked", "doubled")
    compiled = ml.compile(model, ml.NumpyBackend(), inference=True)
    values = {
        "narrow": np.array([1.5, -2, 0.25], np.float16),
        "whole": np.array([2**60, -5, 9]),
        "is_chosen": np.array([True, False, True]),
    }
    compiled.export(tmp_path, target="web", data=values)
    code = f"""
    const model = await load();
    const data = {as_javascript(values)};
    const outputs = await model.run(data);
    result = [outputs.doubled, Array.from(outputs.picked, String), outputs.doubled.constructor.name,
              await failure(() => model.run({{ ...data, is_chosen: new Uint8Array([0, 1, 2]) }}))];
    """
    doubled, picked, kind, wrong = node(tmp_path, code)
    assert np.array(doubled, np.uint16).view(np.float16).tolist() == [3, -4, 0.5]
    assert kind == "Uint16Array"
    assert picked == [str(2**60), "7", "9"]
    assert "0 and 1" in wrong


def test_mixed_precision_is_checked_as_exactly_as_it_computes(tmp_path):
    """Data and outputs are float32, and products are rounded to bfloat16: at other places than NumPy rounds them."""
    model = ml.Model()
    model |= ml.Linear(64)(input="input", output="hidden")
    model += ml.Gelu()
    model += ml.Linear(8)(output="output")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [4, 64]}, inference=True, precision="bfloat16")
    compiled.randomize_params(seed=0)
    compiled.export(tmp_path, target="web")
    code = """
    const { check } = await import("./check.mjs");
    result = await check(await load());
    """
    result = node(tmp_path, code)
    assert result["ok"]
    assert 0 <= result["errors"]["output"] <= 0.1


def test_any_number_of_rows_and_quantized_weights(tmp_path):
    model = ml.Model()
    model |= ml.Linear(128)(input="input", output="hidden")
    model += ml.Relu()
    model += ml.Linear(64)(output="output")
    data = {"input": draw(9, 64)}
    backend = ml.CBackend(quantize="int8", num_threads=1)
    open_size = ml.compile(model, ml.NumpyBackend(), shapes={"input": ["batch", 64]}, inference=True)
    params = {name: np.array(array) for name, array in open_size.randomize_params(seed=0).items()}
    open_size.export(tmp_path / "rows", target="web", batch="batch", block=4, params=params)
    code = f"""
    const model = await load();
    const data = {as_javascript(data)}.input;
    result = [model.inputs[0].shape, model.outputs[0].shape];
    for (const rows of [9, 1, 4]) result.push((await model.run({{ input: data.slice(0, 64 * rows) }})).output);
    result.push(await failure(() => model.run({{ input: data.slice(1) }})));
    """
    taken, output_shape, *outputs, wrong = node(tmp_path / "rows", code)
    assert (taken, output_shape) == (["batch", 64], ["batch", 64])
    assert "a multiple of 64" in wrong
    expected = np.asarray(open_size.evaluate(params, data)["output"])
    for rows, output in zip([9, 1, 4], outputs, strict=True):
        np.testing.assert_allclose(output, expected[:rows].ravel(), rtol=1e-4, atol=1e-5)

    quantized = ml.compile(model, backend, shapes={"input": [9, 64]}, inference=True)
    actual = quantized.export(tmp_path / "int8", target="web", params=params)
    assert actual.packed_bytes < 0.5 * sum(array.nbytes for array in params.values())
    ((small),) = node(tmp_path / "int8", f"result = [(await (await load()).run({as_javascript(data)})).output];")
    assert np.abs(np.array(small) - expected.ravel()).max() < 0.03 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"target": "wasm"}, InvalidValueError, "available: c, web"),
        ({"lanes": 8}, InvalidValueError, "hold 4 floats"),
        ({"threads": -1}, InvalidValueError, "give a positive number"),
        ({"weights_inside": True}, InvalidValueError, "beside the code"),
        ({"autotune": True}, InvalidValueError, "on this machine"),
        ({"cc": "no-such-compiler"}, BackendUnavailableError, "ziglang"),
        ({"flags": ["--no-such-flag"]}, CompilerError, "no-such-flag"),
    ],
)
def test_mistakes(options, kind, message, tmp_path):
    model = ml.Model()
    model |= ml.Linear(2)(input="input", output="output")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [1, 3]}, inference=True)
    with pytest.raises(ml.errors.MithrilError, match=message) as caught:
        compiled.export(tmp_path / "out", **{"target": "web", **options})
    assert isinstance(caught.value, kind)
    assert not list(tmp_path.glob("out/*"))


def test_files_of_others_are_kept(tmp_path):
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(ModelFileError, match=r"index\.html already exists"):
        place("conv")[0].export(tmp_path, target="web")
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]


def test_the_command(tmp_path):
    model = ml.Model()
    model |= ml.Linear(2)(input="input", output="output")
    ml.save(model, tmp_path / "model.json")
    words = ["export", str(tmp_path / "model.json"), str(tmp_path / "out"), "--target", "web", "--shape", "input=1,3"]
    assert main([*words, "--random-weights", "--prefix", "tiny"]) == 0
    assert json.loads((tmp_path / "out" / "package.json").read_text())["name"] == "tiny"
    assert main([*words[:3], "--target", "wasm", *words[5:], "--random-weights"]) == 1


@pytest.mark.skipif(not os.environ.get("MITHRIL_TEST_ALL"), reason="takes long: MITHRIL_TEST_ALL=1 runs it")
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_in_chromium(tmp_path):
    """A page runs the model, in a worker too, loads it from the cache; the example page shows outputs."""
    _, folder, _ = place("conv")
    site = shutil.copytree(folder, tmp_path / "site")
    (site / "test.html").write_text(PAGE)
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            super().do_GET()

    result = json.loads(posted(site, "test.html", Handler))
    assert result["ok"]
    assert result["workerOk"]
    assert result["same"]
    assert result["wrong"] == 'there is no input "x": available: image'
    # The weights were asked for once, though they were loaded twice.
    assert len([path for path in asked[: asked.index("/index.html")] if path.startswith("/weights.bin")]) == 1
    assert result["progress"][0] == 0
    assert result["progress"][-1] == 1
    assert "output: " in result["example"]
    assert " ms" in result["example"]


PAGE = """<!doctype html><body><script type="module">
import { load, loadInWorker } from "./model.mjs";
import { check, example } from "./check.mjs";
let report;
try {
  const progress = [];
  const model = await load(undefined, { onProgress: (p) => progress.push(p.fraction) });
  for (let i = 0; i < 100 && !(await (await caches.open("mithril")).keys()).length; i++)
    await new Promise((done) => setTimeout(done, 50));
  const worker = await loadInWorker();
  const { data } = await example();
  const [here, there] = [await model.run(data), await worker.run(data)];
  const wrong = await worker.run({ x: 1 }).catch((error) => error.message);
  report = { ok: (await check(model)).ok, workerOk: (await check(worker)).ok, wrong, progress,
             same: here.output.every((x, i) => x === there.output[i]) };
  const frame = document.body.appendChild(Object.assign(document.createElement("iframe"), { src: "index.html" }));
  const results = () => frame.contentDocument?.getElementById("results")?.textContent;
  for (let i = 0; i < 400 && !results(); i++) await new Promise((done) => setTimeout(done, 50));
  report.example = results();
} catch (error) {
  report = { error: String(error) };
}
await fetch("/report", { method: "POST", body: JSON.stringify(report) });
</script>
"""
