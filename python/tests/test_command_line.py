"""The command line as one table: JSON of every verb, completions, spellings, colors, progress, options of export."""

import io
import json
import os
import pty
import shlex
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

import mithril as ml
import numpy as np
import pytest
from mithril.__main__ import main
from mithril.command import terminal
from mithril.command.parser import table
from networks import classifier

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def model(tmp_path):
    ml.save(classifier(), tmp_path / "model.json")
    return str(tmp_path / "model.json")


def test_json_of_every_verb_that_prints_a_table(model, tmp_path, capsys):
    weights = tmp_path / "weights.safetensors"
    compiled = ml.compile(classifier(), ml.NumpyBackend(), shapes={"input": [2, 5]}, inference=True)
    ml.save(compiled.get_parameters(), weights)
    shape, random = ["--shape", "input=2,5"], "--random-weights"
    cases = {
        "doctor": ([], "facts"),
        "backends": ([], "backends"),
        "summary": ([model, *shape], "rows"),
        "view": ([model, *shape, "--format", "mermaid"], "text"),
        "plan": ([model, *shape, "--mesh", "data=2", "--batch", "data"], "communications"),
        "check": ([model, *shape, "--backends", "numpy,c"], "results"),
        "compare": ([model, *shape, random, "--backends", "numpy,interpreter"], "reports"),
        "bench": ([model, *shape, random, "--backend", "numpy", "--num-runs", "3"], "timings"),
        "profile": ([model, *shape, random, "--num-runs", "1"], "rows"),
        "export": ([model, str(tmp_path / "out"), *shape, random], "files"),
        "quantize": ([str(weights), str(tmp_path / "w.gguf"), "--type", "q8_0"], "before"),
        "ops": ([], "families"),
        "version": ([], "version"),
        "new-backend": (["my_json_backend", "--folder", str(tmp_path)], "files"),
    }
    takes_json = {row["name"] for row in table() if any("--json" in o["flags"] for o in row["options"])}
    assert set(cases) == takes_json
    by_verb = {}
    for verb, (words, key) in cases.items():
        assert main([verb, *words, "--json"]) == 0, verb
        by_verb[verb] = json.loads(capsys.readouterr().out)
        assert by_verb[verb]["schema"].startswith("mithril."), verb
        assert by_verb[verb]["schema"].endswith("/1"), verb
        assert by_verb[verb][key] or (verb == "plan"), verb
    # Numbers are numbers.
    assert by_verb["summary"]["parameters"] == sum(v.size for v in compiled.get_parameters().values())
    assert [r["depth"] for r in by_verb["summary"]["rows"]] == [1] * len(by_verb["summary"]["rows"])
    assert [result["backend"] for result in by_verb["check"]["results"]] == ["numpy", "c"]
    assert all(result["ok"] is True for result in by_verb["check"]["results"])
    assert by_verb["compare"]["agree"] is True
    assert 0 < by_verb["bench"]["timings"][0]["median"] < 10
    assert len(by_verb["bench"]["timings"][0]["times"]) == 3
    assert "random numbers" in by_verb["bench"]["note"]
    assert by_verb["profile"]["rows"][0]["operations"] > 0
    assert by_verb["export"]["is_random"] is True
    assert by_verb["quantize"]["before"] > 0
    assert "exp" in by_verb["ops"]["families"]["elementwise"] or any(
        "exp" in f for f in by_verb["ops"]["families"].values()
    )
    # What is documented is what there is.
    page = (ROOT / "docs" / "command-line.md").read_text()
    for verb, answer in by_verb.items():
        assert f"`{answer['schema']}`" in page, verb


def test_the_table_of_commands_is_that_of_the_other_program():
    rows = json.loads((ROOT / "crates" / "mithril-cli" / "src" / "commands.json").read_text())
    assert rows == table()
    export = next(row for row in rows if row["name"] == "export")
    flags = {flag for option in export["options"] for flag in option["flags"]}
    # Every option of the API, but for parameters, which --weights names, and layouts, which --mesh and --strategy do.
    import inspect

    from mithril.tools.export import export as function

    names = {f"--{name.replace('_', '-')}" for name in inspect.signature(function).parameters}
    assert names - flags == {"--model", "--folder", "--params", "--layout"}
    for further in ("--dtype", "--quantize", "--opset", "--external-data", "--no-weights-inside"):
        assert further in flags


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions(shell, capsys, tmp_path):
    assert main(["completions", shell]) == 0
    script = capsys.readouterr().out
    for row in table():
        assert row["name"] in script
    for flag in ("minutes", "no-weights-inside", "memory-limit"):
        assert flag in script
    (tmp_path / "script").write_text(script)
    if shutil.which(shell) is not None:
        done = subprocess.run([shell, "-n", tmp_path / "script"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    else:
        # No parser of the shell: at least its quotes are closed.
        assert all(len(shlex.split(line)) for line in script.splitlines() if shell == "fish")
    if shell == "bash":

        def complete(*words):
            text = " ".join(f"'{word}'" for word in words)
            code = f"source {tmp_path / 'script'}; COMP_WORDS=({text}); COMP_CWORD={len(words) - 1}; _mithril; "
            command = ["bash", "-c", code + 'printf "%s\\n" "${COMPREPLY[@]}"']
            return subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.split()

        assert complete("mithril", "ex") == ["export"]
        assert complete("mithril", "export", "--thr") == ["--threads"]
        assert complete("mithril", "export", "--target", "") == ["c", "web", "rust", "onnx"]
        assert complete("mithril", "bench", "--table", "in") == ["inference"]
        assert complete("mithril", "completions", "z") == ["zsh"]
        assert complete("mithril", "summary", "scr") == ["script"]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("input=1;4", "--shape input=1,4"),
        ("input=1x3x224x224", "--shape input=1,3,224,224"),
        ("input=[1, 3]", "--shape input=1,3"),
        ("input=batch 4", "--shape input=batch,4"),
        ("input=-1,4", "a size that is not known is a name"),
        ("input=1.5", "separated by commas"),
        ("input:1,4", "--shape input=1,4"),
        ("1,4", "--shape input=1,4"),
        ("=1,4", "write it as NAME=SIZES"),
        ("input=²", "neither a number nor a name"),
    ],
)
def test_shapes_that_are_written_in_another_way(text, hint, model, capsys):
    assert main(["summary", model, "--shape", text]) == 1
    printed = capsys.readouterr().err
    assert f"--shape is {text!r}" in printed
    assert hint in printed


def test_a_shape_given_twice(model, capsys):
    assert main(["summary", model, "--shape", "input=1,5", "--shape", "input=2,5"]) == 1
    assert "twice" in capsys.readouterr().err


def test_unknown_names_are_guessed_and_all_are_listed(model, tmp_path, capsys):
    for words, parts in (
        (["check", model, "--backend", "tourch"], ("did you mean 'torch'? Available: c, ggml", "numpy, torch")),
        (["view", model, "--backend", "nmpy", "--format", "svg"], ("did you mean 'numpy'? Available: c,",)),
        (
            ["export", model, str(tmp_path / "o"), "--target", "wep"],
            ("did you mean 'web'? Available: c, web, rust, onnx",),
        ),
        (["export", model, str(tmp_path / "o"), "--optimizer", "adm"], ("did you mean 'adam'? Available: ", "sgd")),
        (["export", model, str(tmp_path / "o"), "--optimizer", "sgd:momntum=1"], ("did you mean 'momentum'?",)),
        (["export", model, str(tmp_path / "o"), "--optimizer", "sgd:momentum=x"], ("'x' is not a number",)),
        (["ops", "matmull"], ("did you mean 'matmul'?",)),
    ):
        assert main(words) == 1
        printed = capsys.readouterr().err
        for part in parts:
            assert part in printed, printed
    for words, parts in (
        (["view", model, "--format", "svgg"], ("--format is 'svgg'; did you mean svg? Available: html, svg, mermaid",)),
        (["export", model, "x", "--thread", "2", "--optimiser", "adam"], ("did you mean --optimizer? Available: ",)),
        (["check", model, "--backend", ","], ("--backend is ',', which holds no name",)),
        (["completions", "bsh"], ("did you mean bash? Available: bash, zsh, fish",)),
        (["help", "exprt"], ("did you mean export? Available: generate",)),
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        printed = capsys.readouterr().err
        for part in parts:
            assert part in printed, printed


def test_help_of_a_command(capsys):
    assert main(["help", "bench"]) == 0
    assert "--minutes" in capsys.readouterr().out
    assert main(["help"]) == 0
    assert "completions" in capsys.readouterr().out


def test_export_takes_what_the_api_takes(model, tmp_path, capsys):
    out = tmp_path / "out"

    def export(*words):
        code = main(["export", model, str(out), "--shape", "input=2,5", "--random-weights", *words])
        return code, capsys.readouterr()

    words = ["--optimizer", "sgd:learning_rate=0.5", "--loss", "cross_entropy", "--shape", "target=2"]
    code, printed = export(*words, "--flags=-O1 -DTHIS=1", "--threads", "2")
    assert code == 0, printed.err
    header = (out / "model.h").read_text()
    assert "learning_rate" in header
    assert "target" in (out / "README.md").read_text()
    code, printed = export("--flags=-DTHIS=1 --no-such-flag")
    assert (code, "--no-such-flag" in printed.err) == (1, True)
    code, printed = export("--optimizer", "adam", "--loss", "cross_entropy")
    assert (code, "--shape target=SIZES" in printed.err) == (1, True)
    np.savez(tmp_path / "data.npz", input=np.full((2, 5), 0.25, np.float32))
    assert export("--data", str(tmp_path / "data.npz"), "--no-weights-inside", "--prefix", "net")[0] == 0
    recorded = (out / "net.check").read_bytes()
    assert np.full(10, 0.25, np.float32).tobytes() in recorded
    assert (out / "net.weights").exists()
    assert export("--weights-inside", "--prefix", "inner")[0] == 0
    assert not (out / "inner.weights").exists()
    assert export("--batch", "n", "--shape", "input=n,5")[0] == 1
    for words, text in (
        (["--loss", "mse"], "--loss is minimized by an optimizer"),
        (["--data", "data.csv"], "*.npz or *.safetensors"),
        (["--opset", "20"], "--opset is for files of ONNX"),
        (["--target", "onnx", "--autotune"], "--autotune is for C, and the target is onnx"),
        (["--target", "web", "--autotune"], "leave autotune out"),
    ):
        code, printed = export(*words)
        assert (code, text in printed.err) == (1, True), printed.err


def on_a_terminal(code, **environment):
    """Return what a program writes to a terminal on its standard error."""
    ours, theirs = pty.openpty()
    known = {**os.environ, "TERM": "xterm", **environment}
    known.pop("NO_COLOR", None) if "NO_COLOR" not in environment else None
    process = subprocess.Popen([sys.executable, "-c", code], stderr=theirs, stdout=subprocess.PIPE, env=known)
    os.close(theirs)
    written = b""
    try:
        while chunk := os.read(ours, 4096):
            written += chunk
    except OSError:
        pass
    out, _ = process.communicate(timeout=30)
    os.close(ours)
    return written.decode(), out.decode()


ERROR = "import sys, mithril.__main__ as m; sys.exit(m.main(['ops', 'nothing_like_it_at_all']))"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_colors_on_a_terminal_alone():
    written, _ = on_a_terminal(ERROR)
    assert "\x1b[1;31merror[" in written
    assert "\x1b[1;36mhelp:" in written
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        written, _ = on_a_terminal(ERROR, **environment)
        assert "error[" in written
        assert "\x1b" not in written
    done = subprocess.run([sys.executable, "-c", ERROR], capture_output=True, text=True, check=False)
    assert "\x1b" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_progress_is_shown_on_a_terminal_after_a_while():
    code = (
        "import sys, time, mithril.__main__ as m, mithril.command.terminal as t\n"
        "t._PATIENCE, wait = 0.2, float(sys.argv[1] if len(sys.argv) > 1 else 0.8)\n"
        "m._RUN['doctor'] = lambda given: (time.sleep(0.8), 'the answer')[1]\n"
        "m._RUN['backends'] = lambda given: 'at once'\n"
        "m.main(['doctor']); m.main(['backends'])\n"
    )
    written, out = on_a_terminal(code)
    assert "doctor … " in written
    assert "backends … " not in written
    # It is wiped away, and no part of the answer.
    assert written.endswith("\r")
    assert out == "the answer\nat once\n"


def test_progress_says_nothing_elsewhere(monkeypatch):
    monkeypatch.setattr(terminal, "_PATIENCE", 0.0)
    stream = io.StringIO()
    with terminal.waiting("it", stream) as shown:
        shown.say("more")
        time.sleep(0.05)
    assert stream.getvalue() == ""


def test_warnings_are_a_line(capsys, monkeypatch):
    def warns(options):
        warnings.warn("it is late", UserWarning, stacklevel=1)
        return "done"

    monkeypatch.setitem(sys.modules["mithril.__main__"]._RUN, "doctor", warns)
    done = subprocess.run(
        [sys.executable, "-c",
         "import warnings, mithril.__main__ as m\n"
         "m._RUN['doctor'] = lambda given: warnings.warn('it is late') or 'done'\n"
         "m.main(['doctor'])"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("done\n", "warning: it is late\n")
