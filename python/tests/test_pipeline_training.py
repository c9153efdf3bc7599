"""Trainings in pipelines: the numbers of one device, what stages keep, the bytes that are sent, and what fails."""

import os
import signal
import subprocess
import sys

import mithril as ml
import numpy as np
import pytest
from mithril import errors
from mithril.parallel import workers
from mithril.parallel.remote import RemoteArray
from pipeline_training import BATCH, check, gpt

ALL = "MITHRIL_TEST_ALL" in os.environ
SCRIPT = os.path.join(os.path.dirname(__file__), "pipeline_training.py")


@pytest.fixture(scope="module", autouse=True)
def no_workers_are_left():
    yield
    for pool in list(workers._all.values()):
        pool.close()


def numpy_backend(devices=2):
    return ml.NumpyBackend(devices=["cpu"] * devices, dtype="float64")


def test_stages_keep_what_is_theirs(monkeypatch):
    """In a step, data and outputs are handed over, and numbers; neither parameters nor gradients."""
    counted = []
    call = workers.Workers.call

    def counting(self, messages):
        replies = call(self, messages)
        sizes = [len(memoryview(a.content).cast("B")) for _, arrays in (*messages, *replies) for a in arrays]
        counted.append(sum(sizes))
        return replies

    rows = []

    def watch():
        rows.append(sum(counted))
        counted.clear()

    monkeypatch.setattr(workers.Workers, "call", counting)
    for optimizer in ("clipped", "accumulated"):
        counted.clear()
        rows.clear()
        step = check(numpy_backend(), ml.Pipeline(2, micro_batches=3), optimizer, watch)
        size = sum(array.nbytes for array in map(np.asarray, step.params.values()))
        handed = sum(array.nbytes for array in BATCH.values()) + 6 * 8 * 64 * 8
        # The first step brings what the stages keep from then on; later ones learning rates, counters and the norm.
        assert rows[0] > size + handed, optimizer
        assert handed < min(rows[1:]) <= max(rows[1:]) <= handed + 256 < handed + size / 4, (optimizer, rows, size)
        assert all(isinstance(array, RemoteArray) for array in step.params.values())
    # Each lies where its layer is, and the tied embedding where its gradient is added up.
    homes = {name: array.home[1] for name, array in step.params.items()}
    assert homes["create_gpt.transformer.wte.weight"] == homes["create_gpt.transformer.wpe.weight"] == 0
    assert homes["create_gpt.transformer.ln_f.weight"] == homes["create_gpt.transformer.ln_f.bias"] == 1


@pytest.mark.parametrize(
    ("layout", "optimizer"),
    [
        (ml.Pipeline(2, micro_batches=2, schedule="interleaved"), "clipped"),
        (
            ml.Pipeline(2, micro_batches=3, layout=ml.Layout(ml.Mesh(data=2), batch="data", parameters="data")),
            "accumulated",
        ),
        # Fused weights are divided section by section, and sums over their rows and columns are remembered.
        (ml.Pipeline(2, schedule="gpipe", layout=ml.Layout(ml.Mesh(model=2), parameters="model")), "factored"),
    ],
)
def test_a_training_is_that_of_one_device(layout, optimizer):
    check(numpy_backend(layout.devices), layout, optimizer)


def test_what_lies_on_workers_that_have_ended_is_lost(tmp_path):
    backend = numpy_backend()
    compiled = ml.compile(gpt(), backend, shapes={"input": [6, 8]}, layout=ml.Pipeline(2))
    step = ml.train.TrainingStep(compiled, ml.optim.AdamW(0.01), loss="cross_entropy")
    step(BATCH)
    path = step.save(tmp_path)
    expected = float(step(BATCH)[step.loss])
    [pool] = {array.workers for array in step.params.values()}
    os.kill(pool._processes[1].pid, signal.SIGKILL)
    with pytest.raises(errors.BackendUnavailableError, match="the worker of device 1"):
        step(BATCH)
    with pytest.raises(errors.BackendUnavailableError, match="have ended"):
        np.asarray(next(iter(step.params.values())))
    step.load(path)
    assert float(step(BATCH)[step.loss]) == expected


@pytest.mark.parametrize(
    ("processes", "fault"),
    [(4, "kill"), pytest.param(2, "raise", marks=pytest.mark.skipif(not ALL, reason="only with MITHRIL_TEST_ALL"))],
)
def test_processes_of_torch_train_as_one_device_does_and_end_together(processes, fault, tmp_path):
    pytest.importorskip("torch")
    arguments = ["launch", "-n", str(processes), "--engine", "torch", SCRIPT, str(tmp_path), fault]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MITHRIL_MESH_TIMEOUT": "20"}
    done = subprocess.run(
        [sys.executable, "-m", "mithril", *arguments], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.stdout.count("agrees") == processes, done.stderr
    text = "rank 1 was ended by SIGKILL" if fault == "kill" else "RuntimeError: a mistake of the user"
    assert text in done.stderr
    assert done.returncode == (137 if fault == "kill" else 1)
