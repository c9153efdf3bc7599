"""What is seen of a training: plots with the best epoch marked, files of TensorBoard, runs of MLflow, callbacks."""

import builtins
import importlib.util
import json
import os
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import mithril as ml
import numpy as np
import pytest
from mithril.errors import BackendUnavailableError, MithrilError
from mithril.train import plot as plots

HOSTILE = '<script>alert("1")</script>$x$'


def train(**options):
    model = ml.Model()
    model |= ml.Linear(1)(input="input", output="output")
    compiled = ml.compile(model, ml.NumpyBackend())
    x = np.linspace(-1, 1, 32)[:, None]
    settings = {"loss": "mse", "epochs": 3, "batch_size": 8, "metrics": ["mae"], "progress": False, **options}
    return ml.train.fit(compiled, (x, 2 * x + 1), validation=(x, 2 * x + 1), **settings)


@pytest.fixture(scope="module")
def history():
    return train(optimizer=ml.optim.SGD(ml.optim.schedules.Cosine(0.2, 12)), epochs=4)


def test_the_best_epoch():
    rows = [{"epoch": e, "loss": 1.0, "val_accuracy": v} for e, v in ((1, 0.5), (2, 0.9), (3, float("nan")), (4, 0.9))]
    history = ml.train.History(rows, monitor="val_accuracy", higher_is_better=True)
    assert history.best["epoch"] == 2
    assert ml.train.History(rows, monitor="val_accuracy").best["epoch"] == 1
    assert ml.train.History(rows).best is None
    assert ml.train.History([], monitor="loss").best is None


def test_fit_says_what_it_watched(history, tmp_path):
    assert (history.monitor, history.higher_is_better) == ("val_loss", False)
    assert history.best["val_loss"] == min(history["val_loss"])
    assert train(monitor="val_mae", patience=1).monitor == "val_mae"
    history.save(tmp_path / "history.json")
    again = ml.train.History.load(tmp_path / "history.json")
    assert (again, again.best, again.monitor) == (history, history.best, "val_loss")
    # A file of before says nothing about it.
    old = {name: v for name, v in json.loads((tmp_path / "history.json").read_text()).items() if name[0] in "eb"}
    (tmp_path / "history.json").write_text(json.dumps(old))
    assert ml.train.History.load(tmp_path / "history.json").best is None


def test_panels(history):
    by_title = {panel.title: panel for panel in plots.panels(history)}
    assert list(by_title) == ["loss", "mae", "learning rate"]
    assert [curve.name for curve in by_title["loss"].curves] == ["loss of batches", "loss", "val_loss"]
    batches, epochs, _ = by_title["loss"].curves
    assert [x for x, _ in batches.points][:4] == [0.25, 0.5, 0.75, 1.0]
    assert [y for _, y in epochs.points] == history["loss"]
    assert by_title["loss"].marked == (history.best["epoch"], history.best["val_loss"])
    assert by_title["mae"].marked is None
    assert len(by_title["learning rate"].curves[0].points) == 16
    assert [panel.title for panel in plots.panels(history, ["val_mae"])] == ["mae"]
    with pytest.raises(MithrilError, match="did you mean 'val_mae'"):
        history.plot(names=["val_mea"])


def test_plots(history, tmp_path):
    figure = history.plot()
    axes = figure.get_axes()
    assert [a.get_title() for a in axes] == ["loss", "mae", "learning rate"]
    labels = [text.get_text() for text in axes[0].get_legend().get_texts()]
    assert f"best: epoch {history.best['epoch']}, val_loss {history.best['val_loss']:.4g}" in labels
    for name in ("p.png", "p.svg", "p.pdf"):
        history.plot(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    # No figure of the user's is touched.
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    with pytest.raises(MithrilError, match=r"\*\.svg"):
        history.plot(tmp_path / "p.doc")
    with pytest.raises(MithrilError, match="no epochs"):
        ml.train.History().plot()


def test_plots_without_matplotlib(history, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    picture = history.plot(tmp_path / "p.svg")
    assert (tmp_path / "p.svg").read_text() == picture.text + "\n"
    root = ET.fromstring(picture._repr_svg_())
    texts = "|".join(root.itertext())
    for part in ("loss of batches", "val_mae", "learning rate", f"best: epoch {history.best['epoch']}"):
        assert part in texts
    lines = [line for line in root.iter() if line.tag.endswith("polyline")]
    assert [len(line.get("points").split()) for line in lines] == [16, 4, 4, 4, 4, 16]
    real = builtins.__import__

    def without(name, *rest, **further):
        if name.startswith("matplotlib"):
            raise ImportError("No module named 'matplotlib'")
        return real(name, *rest, **further)

    monkeypatch.setattr("mithril.optional_packages.import_module", lambda name: without(name))
    with pytest.raises(BackendUnavailableError, match="pip install matplotlib"):
        history.plot(tmp_path / "p.png")


def test_curves_that_hold_no_numbers_or_one(monkeypatch):
    rows = [{"epoch": 1, "loss": 2.0, HOSTILE: float("inf")}]
    history = ml.train.History(rows, monitor=HOSTILE)
    text = plots.svg(plots.panels(history))
    assert "no finite numbers" in text
    assert "<script>" not in text
    assert "<script>" not in history._repr_html_()
    ET.fromstring(text)
    rows = [{"epoch": 1, "loss": 0.0}, {"epoch": 2, "loss": 0.0}]
    ET.fromstring(plots.svg(plots.panels(ml.train.History(rows))))
    # A name that would be mathematics is text.
    ml.train.History([{"epoch": 1, HOSTILE: 1.0, "$\\frac": 2.0}]).plot().canvas.draw()


def test_a_history_shows_itself(history):
    page = history._repr_html_()
    assert page.count("<tr>") == 5
    assert "best by val_loss" in page
    assert "<svg" in page
    assert ml.train.History()._repr_html_() == "<p>no epoch is complete</p>"


class Told(ml.train.Callback):
    def __init__(self):
        self.calls = []

    def on_start(self, settings, history):
        self.calls.append(("start", settings["monitor"], settings["optimizer"], len(history)))

    def on_batch(self, row):
        self.calls.append(("batch", row["epoch"], row["batch"]))

    def on_epoch(self, row):
        self.calls.append(("epoch", row["epoch"]))

    def on_end(self, history, error):
        self.calls.append(("end", len(history), type(error).__name__))


def test_callbacks():
    told = Told()
    train(callbacks=told, epochs=1)
    expected = [("start", "val_loss", "SGD", 0), *(("batch", 1, b) for b in (1, 2, 3, 4)), ("epoch", 1)]
    assert told.calls == [*expected, ("end", 1, "NoneType")]

    def stop(row):
        raise KeyboardInterrupt

    train(callbacks=None, epochs=1)
    told = Told()
    with pytest.raises(KeyboardInterrupt):
        train(callbacks=[told, ml.train.Callback()], on_epoch=stop)
    assert told.calls[-1] == ("end", 1, "KeyboardInterrupt")
    told = Told()
    with pytest.raises(ml.errors.NumericsError):
        train(callbacks=[told], optimizer=ml.optim.SGD(1e30), epochs=9)
    assert told.calls[-1][2] == "NumericsError"
    for wrong in (Told, [print], 3):
        with pytest.raises(MithrilError, match=r"ml\.train\.Callback"):
            train(callbacks=wrong)


def crc(data):
    """The checksum of the file format, CRC-32C, masked."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def events(folder):
    """Scalars of all files of a folder as TensorBoard reads them: later files purge what they say."""
    from tensorboardX.proto.event_pb2 import Event

    by_tag = {}
    for path in sorted(Path(folder).glob("events*"), key=lambda p: p.stat().st_mtime_ns):
        data = path.read_bytes()
        while data:
            [size] = struct.unpack("<Q", data[:8])
            assert struct.unpack("<I", data[8:12])[0] == crc(data[:8])
            event = Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    by_tag.setdefault(value.tag, {})[event.step] = value.simple_value
    return by_tag


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboardX")
    history = train(callbacks=[ml.train.TensorBoard(tmp_path / "run")])
    logged = events(tmp_path / "run")
    assert set(logged) == {
        "batch/loss", "batch/learning_rate", "epoch/loss", "epoch/mae", "epoch/loss/validation",
        "epoch/mae/validation", "epoch/learning_rate", "epoch/seconds",
    }  # fmt: skip
    np.testing.assert_allclose([logged["epoch/loss/validation"][e] for e in (1, 2, 3)], history["val_loss"], rtol=1e-6)
    np.testing.assert_allclose([logged["batch/loss"][i + 1] for i in range(12)], history.batches["loss"], rtol=1e-6)
    train(callbacks=[ml.train.TensorBoard(tmp_path / "few", batches=False)], epochs=1)
    assert "batch/loss" not in events(tmp_path / "few")
    with pytest.raises(MithrilError, match="folder is ''"):
        ml.train.TensorBoard("")


def test_tensorboard_of_a_training_that_resumes(tmp_path):
    pytest.importorskip("tensorboardX")
    options = {"checkpoint": tmp_path / "checkpoints", "callbacks": ml.train.TensorBoard(tmp_path / "run")}
    train(epochs=2, **options)
    history = train(epochs=4, **options)
    logged = events(tmp_path / "run")
    assert sorted(logged["batch/loss"]) == list(range(1, 17))
    np.testing.assert_allclose([logged["epoch/loss"][e] for e in (1, 2, 3, 4)], history["loss"], rtol=1e-6)


def test_a_package_that_is_not_there(monkeypatch):
    def absent(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("mithril.optional_packages.import_module", absent)
    with pytest.raises(BackendUnavailableError, match="pip install tensorboardX"):
        ml.train.TensorBoard("folder")
    with pytest.raises(BackendUnavailableError, match="pip install mlflow"):
        ml.train.MLflow()


class Mlflow:
    """Stands in for the package: what is called, in order."""

    def __init__(self, active=None):
        self.active, self.calls = active, []

    def active_run(self):
        return self.active and SimpleNamespace(info=SimpleNamespace(run_id=self.active))

    def get_run(self, run_id):
        assert run_id == self.active
        return SimpleNamespace(data=SimpleNamespace(params={"optimizer": "Adam"}))

    def __getattr__(self, name):
        return lambda *args, **named: self.calls.append((name, *args, *named.items()))


def logged(monkeypatch, active=None, **options):
    package = Mlflow(active)
    monkeypatch.setattr("mithril.train.callbacks.require", lambda module, task: package)
    callback = ml.train.MLflow("experiment", run_name="first", params={"data": "line"})
    error = None
    try:
        history = train(callbacks=callback, **options)
    except BaseException as raised:
        history, error = None, raised
    return package.calls, history, error


def test_mlflow_calls(monkeypatch):
    calls, history, _ = logged(monkeypatch)
    assert calls[:2] == [("set_experiment", "experiment"), ("start_run", ("run_name", "first"))]
    assert {"optimizer": "SGD", "data": "line", "backend": "numpy", "batch_size": 8}.items() <= calls[2][1].items()
    metrics = [call for call in calls if call[0] == "log_metrics"]
    assert [call[2] for call in metrics] == [("step", 1), ("step", 2), ("step", 3)]
    assert [call[1]["val_loss"] for call in metrics] == history["val_loss"]
    assert calls[-1] == ("end_run", "FINISHED")
    # A run that is active is the user's.
    calls, _, _ = logged(monkeypatch, active="theirs")
    assert not {"start_run", "end_run"} & {call[0] for call in calls}
    # What it says already cannot change.
    assert "optimizer" not in calls[1][1]
    assert calls[1][1]["backend"] == "numpy"
    calls, _, error = logged(monkeypatch, optimizer=ml.optim.SGD(1e30), epochs=9)
    assert (calls[-1], type(error)) == (("end_run", "FAILED"), ml.errors.NumericsError)
    calls, _, _ = logged(monkeypatch, on_epoch=lambda row: (_ for _ in ()).throw(KeyboardInterrupt))
    assert calls[-1] == ("end_run", "KILLED")


def test_mlflow(tmp_path):
    """The package itself, in a process of its own: it sets up much that stays."""
    if importlib.util.find_spec("mlflow") is None:
        pytest.skip("mlflow-skinny is not installed")
    if not os.environ.get("MITHRIL_TEST_ALL"):
        pytest.skip("importing it takes seconds: MITHRIL_TEST_ALL=1")
    code = f"""
import mithril as ml, numpy as np
model = ml.Model()
model |= ml.Linear(1)(input="input", output="output")
x = np.linspace(-1, 1, 32)[:, None]
callback = ml.train.MLflow("lines", run_name="first", tracking_uri={(tmp_path / "runs").as_uri()!r})
compiled = ml.compile(model, ml.NumpyBackend())
history = ml.train.fit(compiled, (x, x), loss="mse", epochs=2, progress=False, callbacks=[callback])
import mlflow
[run] = mlflow.search_runs(experiment_names=["lines"], output_format="list")
print(run.info.status, run.info.run_name, run.data.params["optimizer"], run.data.metrics["loss"] == history["loss"][-1])
"""
    environment = {**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == "FINISHED first SGD True\n", done.stderr
