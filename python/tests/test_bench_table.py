"""`mithril bench --table`: what is measured computes the same by hand, cells, files, limits, mistakes."""

import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET

import mithril as ml
import numpy as np
import pytest
from mithril.__main__ import main
from mithril.errors import MithrilError
from mithril.tools import BenchmarkTable
from mithril.tools.bench_table import Cell, schedule
from mithril.tools.bench_table.machine import Neighbors
from mithril.tools.bench_table.measure import prepare, prepare_by_hand
from mithril.tools.bench_table.workloads import WORKLOADS

QUICK = {"batch": 2, "quick": True, "jit": False}


def outputs(make, model, backend, table, calls):
    spec = {"model": model, "backend": backend, "table": table, **QUICK}
    _, run, _ = make(WORKLOADS[model], spec, lambda **_entries: None)
    return np.concatenate([np.ravel(np.asarray(run()[0], np.float64)) for _ in range(calls)])


EVERYTHING = bool(os.environ.get("MITHRIL_TEST_ALL"))


@pytest.mark.parametrize("model", WORKLOADS)
def test_a_network_by_hand_computes_what_ours_does(model):
    expected = outputs(prepare, model, "numpy", "inference", 1)
    assert np.ptp(expected) > 0.01
    for backend in ("torch", "jax", "mlx") if EVERYTHING else ("torch",):
        np.testing.assert_allclose(outputs(prepare_by_hand, model, backend, "inference", 1), expected, atol=2e-5)
    if WORKLOADS[model].loss and (EVERYTHING or model in ("resnet18", "bert", "clip")):
        # Three losses: gradients, momentum and running statistics show in the later ones.
        expected = outputs(prepare, model, "numpy", "training", 3)
        assert expected[2] < expected[0]
        for backend in ("torch", "jax", "mlx") if EVERYTHING else ("torch",):
            np.testing.assert_allclose(outputs(prepare_by_hand, model, backend, "training", 3), expected, rtol=1e-4)


@pytest.fixture(scope="module")
def table():
    tables, models = ["inference", "training", "memory"], ["bert", "gpt2_decode"]
    return ml.benchmark_table(tables, models=models, backends=["numpy"], quick=True, minutes=3, notes=["by a test"])


def test_cells(table):
    for name in ("inference", "memory"):
        for model in ("bert", "gpt2_decode"):
            cell = table.cell(name, model, "numpy")
            assert not cell.reason
            assert cell.value > 0
            # A process of its own: this one holds frameworks, and more.
            assert 0 <= cell.peak_bytes < 100e6
    cell = table.cell("inference", "bert", "numpy")
    # Eight tokens of one text in a call.
    assert (cell.units, cell.batch) == (8, 1)
    assert cell.value == pytest.approx(8 / np.median(cell.times))
    low, high = cell.quartiles
    assert low <= cell.value <= high
    step = table.cell("training", "bert", "numpy")
    assert step.batch == 4
    assert step.value == pytest.approx(1 / np.median(step.times))
    assert "not trained" in table.cell("training", "gpt2_decode", "numpy").reason
    with pytest.raises(KeyError):
        table.cell("inference", "bert", "jax")


def test_the_same_by_hand_stands_beside_it():
    table = ml.benchmark_table(models=["gpt2_decode"], backends=["torch"], against="native", quick=True)
    ours, theirs = (table.cell("inference", "gpt2_decode", "torch", by_hand=by_hand) for by_hand in (False, True))
    assert min(ours.value, theirs.value) > 0
    assert "| torch | torch by hand |" in table.to_markdown()


def test_forms(table, tmp_path):
    text, page = str(table), table.to_markdown("Benchmarks")
    for form in (text, page, table._repr_html_()):
        for part in ("BERT-base", "tokens/s", "steps/s", "cores", "by a test", "numpy 2."):
            assert part in form
    assert page.startswith("# Benchmarks\n\n")
    assert "## Inference\n\nExamples or tokens" in page
    assert page.count("| Model | unit | batch | numpy |") == 3
    report = json.loads(table.to_json())
    assert report["schema"] == "mithril.bench-table/1"
    assert {"processor", "cores", "memory_gb", "system", "used_by_others"} == set(report["machine"])
    assert {"mithril", "Python", "numpy"} == set(report["versions"])
    assert len(report["cells"]) == 3 * 2
    assert report["cells"][0]["value"] == table.cells[0].value
    for name in ("page.md", "page.json", "page.svg"):
        table.save(tmp_path / name)
    picture = ET.parse(tmp_path / "page.svg").getroot()
    assert "BERT-base, tokens/s" in "".join(picture.itertext())
    assert "not measured" in "".join(picture.itertext())
    with pytest.raises(MithrilError, match=r"\.md, \.json, \.svg"):
        table.save(tmp_path / "page.pdf")


def test_names_of_the_machine_and_its_user_are_not_told(table):
    import getpass
    import platform

    text = table.to_json() + str(table)
    for name in (platform.node(), getpass.getuser(), sys.executable):
        assert len(name) < 4 or name not in text


def test_what_does_not_fit_or_ends_says_why(monkeypatch):
    start = time.monotonic()
    table = ml.benchmark_table(models=["vit_b_16", "clip"], backends=["numpy"], minutes=0.02)
    assert time.monotonic() - start < 8
    for model in ("vit_b_16", "clip"):
        assert "--minutes" in table.cell("inference", model, "numpy").reason
    assert "(1)" in str(table)
    real = schedule._run

    def killed(command, limit, folder):
        spec = json.loads(command[3])
        if spec["model"] == "bert":
            code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
            return real([sys.executable, "-c", code], limit, folder)
        return real(command, limit, folder)

    monkeypatch.setattr(schedule, "_run", killed)
    table = ml.benchmark_table(models=["bert", "gpt2"], backends=["numpy"], quick=True)
    assert "SIGKILL" in table.cell("inference", "bert", "numpy").reason
    assert table.cell("inference", "gpt2", "numpy").value > 0


def test_an_interrupt_ends_the_process_of_a_cell(tmp_path):
    code = (
        "import subprocess, sys, mithril.tools.bench_table.schedule as s\n"
        "def stop(self, timeout=None):\n    subprocess.Popen.wait = wait\n    print(self.pid, flush=True)\n"
        "    raise KeyboardInterrupt\n"
        "wait, subprocess.Popen.wait = subprocess.Popen.wait, stop\n"
        "s._run([sys.executable, '-c', 'import time; time.sleep(60)'], 60, sys.argv[1])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert "KeyboardInterrupt" in done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_a_table_of_cells():
    cell = Cell("inference", "resnet50", "torch", False, 2, 2, times=(0.1, 0.2, 0.4))
    assert cell.value == pytest.approx(10)
    assert cell.quartiles == pytest.approx((2 / 0.3, 2 / 0.15))
    once = Cell("training", "resnet50", "torch", False, 2, 2, times=(0.5,))
    assert (once.value, once.quartiles) == (2.0, None)
    assert Cell("memory", "resnet50", "torch", False, 1, 1, times=(1.0,), peak_bytes=3 * 10**9).value == 3.0
    machine = {"processor": "A <b>", "cores": 1, "memory_gb": 1.0, "system": "x"}
    table = BenchmarkTable(["inference"], [cell], {("torch", False): "torch <i>"}, machine, {}, 1.0, False)
    for form in (table.to_svg(), table._repr_html_()):
        assert "<i>" not in form
        assert "<b>" not in form


def test_a_busy_machine_is_told():
    about = {"processor": "x", "cores": 1, "memory_gb": 1.0, "system": "x", "used_by_others": 0.37}
    table = BenchmarkTable(["inference"], [], {}, about, {}, 1.0, False)
    for form in (str(table), table.to_markdown("Page"), table._repr_html_()):
        assert "Other programs used 37% of the processors" in form[:200]
    assert "Other programs" not in str(
        BenchmarkTable(["inference"], [], {}, {**about, "used_by_others": 0.01}, {}, 1, False)
    )
    neighbors = Neighbors()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        # What has not ended yet counts as another program.
        time.sleep(0.6)
        if (share := neighbors.share()) is not None:
            assert share > 0.2 / os.cpu_count()
    finally:
        busy.kill()
        busy.wait()


def test_the_command(tmp_path, capsys):
    words = ["bench", "--table", "inference", "--models", "resnet18", "--backends", "numpy", "--quick"]
    assert main([*words, "--output", str(tmp_path / "page.md"), "--note", "on a shared machine"]) == 0
    assert "page.md" in capsys.readouterr().out
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("# Benchmarks")
    assert "| ResNet-18 | images/s | 1 |" in page
    assert "on a shared machine" in page
    assert main([*words, "--json", "--batch", "3"]) == 0
    cell = json.loads(capsys.readouterr().out)["cells"][0]
    assert (cell["model"], cell["batch"], cell["units"]) == ("resnet18", 3, 3)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["resnet18"], "MODEL and --table contradict"),
        (["--shape", "input=1"], "--shape and --table contradict"),
        (["--minutes", "0"], "minutes is 0"),
        (["--batch", "0"], "batch is 0"),
        (["--output", "page.pdf"], ".md, .json, .svg"),
        (["--output", "nowhere/at/all.md"], "does not exist"),
        (["--backends", "numpy,tourch"], "did you mean 'torch'"),
        (["--backends", "c", "--against", "native"], "nothing is written by hand for c"),
    ],
)
def test_mistakes(words, text, capsys):
    assert main(["bench", "--table", "inference", *words]) == 1
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--table", "speed"], "--table is 'speed'; available: inference, training, memory"),
        (["--table", "inference", "--models", "resnet5"], "did you mean resnet50? Available: resnet18"),
        (["--table", "inference", "--against", "torch"], "available: native"),
    ],
)
def test_names_that_are_not_there(words, text, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", *words])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_a_model_or_a_table_is_needed(capsys):
    for words, text in (
        ([], "no MODEL"),
        (["resnet18"], "no backend"),
        (["resnet18", "--backend", "numpy", "--quick"], "--quick is for tables"),
    ):
        assert main(["bench", *words]) == 1
        assert text in capsys.readouterr().err
