"""Models for the web on several threads: as on one, bit for bit; what fails is an error, and nothing is left behind."""

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import mithril as ml
import numpy as np
import pytest
from mithril.errors import CompilerError, InvalidValueError
from mithril.generation import compile_decoder, export_decoder
from mithril.models import create_gpt
from mithril.tools.web import __main__ as serving
from mithril.tools.web import compiler
from test_web import NODE, as_javascript, draw, lacking, node
from test_web_decoders import node as decoder_node

from tools.browser import CHROMIUM, posted

pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking() or "all is there")
#: In front of programs: how many threads this process has.
COUNT = """
import { readdirSync } from "node:fs";
const count = () => readdirSync("/proc/self/task").length;
const settled = async (n) => {
  for (let i = 0; i < 100 && count() !== n; i++) await new Promise((done) => setTimeout(done, 20));
  return count() === n;
};
"""


#: What threads.c reads of the header of a model.
HEADER = """#pragma once
typedef struct mithril_pool {
    int threads;
    void (*run)(struct mithril_pool *self, void (*work)(void *context, int thread), void *context);
} mithril_pool;
"""


@functools.cache
def place():
    """A network whose work is worth threads, and the folder it was exported into; made once."""
    model = ml.Model()
    model |= ml.Conv2d(24, 3, padding=1)(input="image", output="stem")
    model |= ml.Relu()(input="stem", output="active")
    model |= ml.Conv2d(24, 3, padding=1)(input="active", output="features")
    model |= ml.AvgPool2d(16)(input="features", output="pooled")
    model |= ml.Flatten()(input="pooled", output="flat")
    model |= ml.Linear(5)(input="flat", output="output")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"image": [1, 3, 32, 32]}, inference=True)
    folder = tempfile.mkdtemp(prefix="mithril-web-")
    params = compiled.get_parameters()
    return compiled, folder, compiled.export(folder, target="web", params=params)


def test_any_number_of_threads_computes_the_same():
    compiled, folder, exported = place()
    data = {"image": draw(1, 3, 32, 32)}
    code = f"""
    const data = {as_javascript(data)};
    result = [];
    for (const start of [load, loadInWorker])
      for (const threads of [1, 2, 3, "auto", undefined]) {{
        const model = await start(undefined, {{ threads }});
        const [first, second] = [await model.run(data), await model.run(data)];
        result.push([model.threads, first.output, second.output]);
        await model.close();
      }}
    """
    rows = node(folder, code)
    assert [row[0] for row in rows[:3]] == [row[0] for row in rows[5:8]] == [1, 2, 3]
    assert len({row[0] for row in (*rows[3:5], *rows[8:])}) == 1
    assert all(row[1] == rows[0][1] and row[2] == rows[0][1] for row in rows)
    expected = compiled.evaluate(compiled.get_parameters(), data)["output"].ravel()
    np.testing.assert_allclose(rows[0][1], expected, rtol=1e-4, atol=1e-5)
    assert [name for name in exported.check.splitlines() if "thread" in name] == ["one thread", "2 threads"]
    assert "model-threads.wasm" in {file.name for file in exported.files}
    assert f"model-threads.wasm {exported.threads_code_bytes}" in str(exported)
    assert "model-threads.wasm" in json.loads((Path(folder) / "package.json").read_text())["files"]


def test_where_memory_cannot_be_shared_it_runs_on_one_thread():
    _, folder, _ = place()
    code = """
    delete globalThis.SharedArrayBuffer;
    result = [];
    for (const threads of ["auto", 4]) {
      const model = await load(undefined, { threads });
      result.push(model.threads, (await model.run({ image: new Float32Array(3072) })).output.length);
    }
    for (const threads of [0, -1, 1.5, "many", null, true])
      result.push(await failure(() => load(undefined, { threads })));
    """
    *fallback, zero, negative, half, word, null, boolean = node(folder, code)
    assert fallback == [1, 5, 1, 5]
    for value, message in {
        "0": zero,
        "-1": negative,
        "1.5": half,
        '"many"': word,
        "null": null,
        "true": boolean,
    }.items():
        assert message == f'ModelError: threads is {value}; give "auto" or a positive integer'


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads of a process in /proc")
def test_closing_ends_the_threads():
    _, folder, _ = place()
    code = f"""{COUNT}
    const here = await load(undefined, {{ threads: 1 }});
    await here.run({{ image: new Float32Array(3072) }});
    const before = count();
    result = [];
    for (const start of [load, loadInWorker]) {{
      const model = await start(undefined, {{ threads: 4 }});
      const calls = start === load ? [] : [model.run({{ image: new Float32Array(3072) }})];
      result.push(count() - before >= 3);
      const failed = Promise.all(calls.map((call) => call.then(() => null, (e) => e.message)));
      await model.close();
      await failed;
      result.push(await settled(before), await failure(() => model.run({{ image: new Float32Array(3072) }})));
    }}
    """
    assert node(folder, code) == [True, True, "ModelError: the model was closed"] * 2


def test_a_program_ends_though_its_model_was_not_closed():
    _, folder, _ = place()
    code = 'import { load } from "./model.mjs";\nconsole.log((await load(undefined, { threads: 3 })).threads);'
    (Path(folder) / "test.mjs").write_text(code)
    completed = subprocess.run([NODE, "test.mjs"], cwd=folder, capture_output=True, text=True, timeout=30)
    assert (completed.returncode, completed.stdout) == (0, "3\n")


def test_a_thread_that_fails_is_an_error(tmp_path):
    """It does not load; it fails in front of the work of a call; its code traps, as others wait for it."""
    _, folder, _ = place()
    patches = {
        "load": ("async function run", 'throw new Error("no luck");\nasync function run'),
        "start": ("{ env: { memory } }", "{ env: {} }"),
        "throw": ("code.mithril_thread(thread)", 'throw new Error("no luck")'),
        # Far behind the last part of the work.
        "trap": ("code.mithril_thread(thread)", "code.mithril_thread(1000000)"),
    }
    messages = {}
    for name, (old, new) in patches.items():
        broken = shutil.copytree(folder, tmp_path / name)
        text = (broken / "thread.mjs").read_text()
        assert text.count(old) == 1
        (broken / "thread.mjs").write_text(text.replace(old, new))
        code = """
        const image = new Float32Array(3072);
        result = [];
        for (const start of [load, loadInWorker]) {
          const failed = await failure(async () => {
            const model = await start(undefined, { threads: 3 });
            result.push(await failure(() => model.run({ image })), await failure(() => model.run({ image })));
          });
          if (failed) result.push(failed);
        }
        """
        messages[name] = node(broken, code)
    for message in messages["load"]:
        assert re.fullmatch(r"ModelError: thread [12] of 3 does not start: .*no luck", message)
    for message in messages["start"]:
        assert re.match(r"ModelError: thread [12] of 3 does not start: ", message)
    assert len(messages["load"]) == len(messages["start"]) == 2
    # Each call after the failure says so too.
    for name, reason in {"throw": "no luck", "trap": "memory access out of bounds"}.items():
        assert len(messages[name]) == 4
        for message in messages[name]:
            pattern = rf"ModelError: the code of the model failed \(thread [12]: {reason}\): load the model again"
            assert re.fullmatch(pattern, message), message


def test_training_steps_on_threads(tmp_path):
    model = ml.Model()
    model |= ml.Linear(160)(input="input", output="hidden")
    model += ml.Tanh()
    model += ml.Linear(160)()
    model += ml.Tanh()
    model += ml.Linear(3)(output="logits")
    model |= ml.CrossEntropy()(input="logits", target="target", output="loss")
    shapes, dtypes = {"input": [64, 160], "target": [64]}, {"target": "int64"}
    compiled = ml.compile(model, ml.NumpyBackend(), shapes=shapes, dtypes=dtypes)
    data = {"input": draw(64, 160), "target": np.arange(64) % 3}
    exported = compiled.export(tmp_path, target="web", optimizer=ml.optim.Adam(0.01), loss="loss", data=data, threads=3)
    assert "3 threads" in exported.check
    code = f"""
    const data = {as_javascript(data)};
    result = [];
    for (const threads of [1, 2, 3]) {{
      const model = await load(undefined, {{ threads }});
      const losses = [];
      for (let i = 0; i < 4; i++) losses.push((await model.step(data)).loss[0]);
      result.push([losses, await model.parameters(), await model.states()]);
      await model.reset();
      result.at(-1).push((await model.step(data)).loss[0]);
      await model.close();
    }}
    """
    one, *others = node(tmp_path, code)
    assert one[0][3] < one[0][0]
    assert others == [one, one]


def test_a_decoder_on_threads(tmp_path):
    sizes = {"block_size": 24, "dims": 160, "num_heads": 2, "num_layers": 1, "vocab_size": 300}
    decoder = compile_decoder(create_gpt(**sizes, cache=True, last_only=True), ml.NumpyBackend())
    exported = export_decoder(decoder, tmp_path, context=24)
    assert exported.threads_code_bytes is not None
    code = """
    const prompt = Array.from({ length: 19 }, (_, i) => 7 * i + 3);
    result = [];
    for (const threads of [1, 2, 3]) {
      const model = await load(undefined, { threads });
      result.push([Array.from(await model.logits(prompt)), (await model.generate(prompt, { maxTokens: 5 })).tokens]);
      if (model.threads !== threads) throw new Error(`${model.threads} threads`);
      await model.close();
    }
    """
    one, *others = decoder_node(tmp_path, code)
    assert others == [one, one]


def test_what_is_not_worth_threads_has_none(tmp_path):
    """The form with threads is left out of small models, and on request; a former one is removed."""
    compiled, folder, _ = place()
    again = shutil.copytree(folder, tmp_path / "again")
    exported = compiled.export(again, target="web", threads=1)
    assert exported.threads_code_bytes is None
    assert not (again / "model-threads.wasm").exists()
    assert "model-threads.wasm" not in (again / "package.json").read_text()
    assert node(again, "result = (await load(undefined, { threads: 4 })).threads;") == 1
    model = ml.Model()
    model |= ml.Linear(2)(input="input", output="output")
    small = ml.compile(model, ml.NumpyBackend(), shapes={"input": [1, 3]}, inference=True)
    assert small.export(tmp_path / "small", target="web", threads=2).threads_code_bytes is None
    with pytest.raises(InvalidValueError, match="threads is 0"):
        small.export(tmp_path / "none", target="web", threads=0)


def test_a_compiler_that_makes_no_threads_is_an_error_only_if_they_are_asked_for(tmp_path):
    """Its flags forbid what the form with threads needs."""
    source = tmp_path / "tiny.c"
    source.write_text("void call(mithril_pool *pool) { if (pool) pool->run(pool, 0, 0); }\n")
    source.with_suffix(".h").write_text(HEADER)
    arguments = ([source], tmp_path, ["call"])
    header = ["-include", str(source.with_suffix(".h"))]
    assert compiler.build(*arguments, header, None, None).names == ("model.wasm", "model-threads.wasm")
    broken = [*header, "-mno-atomics"]
    code = compiler.build(*arguments, broken, None, None)
    assert code.names == ("model.wasm",)
    assert "error" in code.problem
    with pytest.raises(CompilerError, match="the compiler for WebAssembly stopped"):
        compiler.build(*arguments, broken, None, 2)


def test_the_server_sends_what_threads_need(tmp_path, capsys):
    """Its port is free; a folder that is not there, or a port that is taken, is an error."""
    (tmp_path / "model.mjs").write_text("")
    command = [sys.executable, "-m", "mithril.tools.web", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            address = server.stdout.readline().split()[0]
            with urllib.request.urlopen(f"{address}/model.mjs", timeout=20) as answer:
                headers = answer.headers
            port = address.rpartition(":")[2]
            assert serving.main([str(tmp_path), "--port", port]) == 1
        finally:
            server.terminate()
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert headers["Content-Type"] == "text/javascript"
    assert serving.main([str(tmp_path / "nowhere")]) == 1
    error = capsys.readouterr().err
    assert f"port {port} cannot be used" in error
    assert "is not a directory" in error


@pytest.mark.skipif(not os.environ.get("MITHRIL_TEST_ALL"), reason="takes long: MITHRIL_TEST_ALL=1 runs it")
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("is_isolated", [True, False])
def test_in_chromium(is_isolated, tmp_path):
    """A page that is cross-origin isolated has threads, in a worker; another one runs the model on one, and says so."""
    _, folder, _ = place()
    site = shutil.copytree(folder, tmp_path / "site")
    (site / "test.html").write_text(PAGE)
    broken = shutil.copytree(folder, site / "broken")
    text = (broken / "thread.mjs").read_text()
    (broken / "thread.mjs").write_text(text.replace("code.mithril_thread(thread)", "code.mithril_thread(1000000)"))
    handler = serving.Handler if is_isolated else http.server.SimpleHTTPRequestHandler
    result = json.loads(posted(site, "test.html", handler))
    assert result["error"] is None
    assert result["isolated"] is is_isolated
    assert result["threads"] == ([1, 3, 3] if is_isolated else [1, 1, 1])
    assert result["ok"] == [True] * 3
    assert result["same"]
    assert "the model was closed" in result["closed"]
    assert "failed (thread" in result["failed"] if is_isolated else result["failed"] is None


PAGE = """<!doctype html><body><script type="module">
import { load, loadInWorker } from "./model.mjs";
import { check, example } from "./check.mjs";
const report = { isolated: crossOriginIsolated, threads: [], ok: [], error: null };
try {
  const { data } = await example();
  const outputs = [];
  for (const [start, threads] of [[load, 1], [load, 3], [loadInWorker, 3]]) {
    const model = await start(undefined, { threads });
    report.threads.push(model.threads);
    report.ok.push((await check(model)).ok);
    outputs.push(String((await model.run(data)).output));
    await model.close();
    report.closed = await model.run(data).catch((error) => error.message);
  }
  report.same = outputs.every((text) => text === outputs[0]);
  const broken = await (await import("./broken/model.mjs")).load(undefined, { threads: 3 });
  report.failed = await broken.run(data).then(() => null, (error) => error.message);
} catch (error) {
  report.error = String(error);
}
await fetch("/report", { method: "POST", body: JSON.stringify(report) });
</script>
"""
