"""Workers that a plain script starts: values, training and checkpoints as on one device, faults, and what is left."""

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import mithril as ml
import numpy as np
import pytest
from mesh_program import check, check_local_statistics, resume
from mithril import errors
from mithril.examples import several_devices
from mithril.parallel import workers
from mithril.parallel.remote import RemoteArray

IDS = np.array([1, 2, 3, 4])


@pytest.fixture(scope="module", autouse=True)
def no_workers_are_left():
    yield
    for pool in list(workers._all.values()):
        pool.close()


def lookup():
    model = ml.Model()
    model |= ml.Embedding(10, 8, name="table")(input="input", output="hidden")
    model += ml.Linear(4, name="head")(output="output")
    return model


def test_numpy_workers_agree_with_one_device():
    check("numpy workers", 4, every="MITHRIL_TEST_ALL" in os.environ)
    check_local_statistics("numpy workers", 4)


@pytest.mark.skipif("MITHRIL_TEST_ALL" not in os.environ, reason="takes 20 s: MITHRIL_TEST_ALL=1")
def test_torch_workers_agree_with_one_device():
    pytest.importorskip("torch")
    check("torch workers", 4)
    check_local_statistics("torch workers", 4)


@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_a_training_goes_on_from_its_checkpoint(name, tmp_path):
    pytest.importorskip(name)
    resume(f"{name} workers", 2, tmp_path)


def test_a_script_of_pytorch_trains_as_on_one_device():
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    data = {"input": torch.tensor(random.standard_normal((8, 6), np.float32)), "target": torch.arange(8) % 3}
    model = ml.Model()
    model |= ml.Linear(5, name="first")(input="input")
    model += ml.Tanh()
    model += ml.Linear(3, name="last")(output="output")
    backend = ml.TorchBackend(parallel_strategy="data_parallel", devices=["cpu"] * 2)
    compiled = ml.compile(model, backend, shapes={"input": [8, 6]})
    params = compiled.randomize_params(seed=0)

    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    ours = {"0.weight": "first.weight", "0.bias": "first.bias", "2.weight": "last.weight", "2.bias": "last.bias"}
    module.load_state_dict({key: params[name] for key, name in ours.items()})
    outputs, gradients = compiled.evaluate(params, {"input": data["input"]}, {"output": torch.ones(8, 3)})
    expected = module(data["input"])
    expected.backward(torch.ones(8, 3))
    torch.testing.assert_close(outputs["output"], expected.detach())
    for key, name in ours.items():
        torch.testing.assert_close(gradients[name], module.get_parameter(key).grad)

    optimizer = torch.optim.AdamW(module.parameters(), 0.01)
    step = ml.train.TrainingStep(compiled, ml.optim.AdamW(0.01), loss="cross_entropy")
    for _ in range(3):
        # As DistributedDataParallel does it: the mean of the gradients of the parts.
        optimizer.zero_grad()
        losses = []
        for part in (slice(0, 4), slice(4, 8)):
            losses.append(torch.nn.functional.cross_entropy(module(data["input"][part]), data["target"][part]))
            (losses[-1] / 2).backward()
        optimizer.step()
        torch.testing.assert_close(step(data)[step.loss], sum(losses).detach() / 2)
    for key, name in ours.items():
        actual = step.params[name]
        assert isinstance(actual, RemoteArray)
        torch.testing.assert_close(actual.full_tensor(), module.get_parameter(key).detach())

    # Arrays on workers can be looked at and computed with as others, and are not changed in place.
    actual, whole = step.params["first.weight"], step.params["first.weight"].full_tensor()
    assert (actual.shape, actual.dtype, len(actual), actual.ndim) == (whole.shape, whole.dtype, 5, 2)
    torch.testing.assert_close(torch.add(2.0 * actual - 1.0, actual), 2.0 * whole - 1.0 + whole)
    np.testing.assert_array_equal(np.asarray(actual), whole.numpy())
    assert float(actual.sum()) == float(whole.sum())
    torch.testing.assert_close(pickle.loads(pickle.dumps(actual)), whole)
    torch.testing.assert_close(copy.deepcopy(actual), whole)
    with pytest.raises(AttributeError, match="full_tensor"):
        actual.add_(1.0)


def test_the_example_finds_equal_losses(capsys):
    pytest.importorskip("sklearn")
    assert several_devices.main(["--backend", "numpy", "--steps", "2", "--devices", "1", "2"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("  equal:") == 2
    assert "2 devices" in printed


def processes(backend, count=2):
    return [process.pid for process in workers.workers_on(backend.name, ["cpu"] * count)._processes]


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def compiled(monkeypatch):
    monkeypatch.setenv("MITHRIL_MESH_TIMEOUT", "3")
    return ml.compile(lookup(), ml.NumpyBackend(devices=["cpu"] * 2, seed=0))


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        ("index", errors.InvalidValueError, "index 44, but the axis has size 10"),
        (signal.SIGKILL, errors.BackendUnavailableError, "the worker of device 1 (cpu) was ended by SIGKILL"),
        (signal.SIGSTOP, errors.BackendUnavailableError, "the worker of device 1 (cpu) does not answer within 3 s"),
    ],
)
def test_a_fault_ends_the_call_and_the_workers(compiled, fault, kind, text):
    params = compiled.get_parameters()
    expected = compiled.evaluate(params, {"input": IDS})["output"]
    before = processes(compiled.backend)
    start = time.monotonic()
    if fault != "index":
        os.kill(before[1], fault)
    with pytest.raises(kind) as caught:
        compiled.evaluate(params, {"input": np.array([1, 2, 3, 44]) if fault == "index" else IDS}, True)
    assert text in str(caught.value)
    assert time.monotonic() - start < 20
    assert not any(map(is_there, before))
    # The parameters are those of this process: new workers start.
    np.testing.assert_array_equal(compiled.evaluate(params, {"input": IDS})["output"], expected)


def test_what_lay_on_workers_that_ended_is_an_error_and_no_other_number(compiled):
    target = np.zeros((4, 4), np.float32)
    step = ml.train.TrainingStep(compiled, ml.optim.SGD(0.1), loss="mse")
    step({"input": IDS, "target": target})
    os.kill(processes(compiled.backend)[0], signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(errors.BackendUnavailableError, match="ended"):
            step({"input": IDS, "target": target})


def forever(call):
    while True:
        call()


def test_an_interrupt_waits_until_workers_are_in_step(compiled):
    params = compiled.get_parameters()
    expected = compiled.evaluate(params, {"input": IDS})["output"]
    before = processes(compiled.backend)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        forever(lambda: compiled.evaluate(params, {"input": IDS}))
    np.testing.assert_array_equal(compiled.evaluate(params, {"input": IDS})["output"], expected)
    assert processes(compiled.backend) == before


SCRIPT = """
import os, sys
import mithril as ml
from mithril.parallel.workers import workers_on
model = ml.Model()
model |= ml.Linear(4)(input="input", output="output")
compiled = ml.compile(model, ml.NumpyBackend(device_mesh=(3,)))
compiled.evaluate(compiled.get_parameters(), {"input": [[1.0, 2.0]] * 6})
pool = workers_on("numpy", ["cpu"] * 3)
print(pool._folder, *(process.pid for process in pool._processes), flush=True)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), 9)
if sys.argv[1] == "raise":
    raise RuntimeError("a mistake of the user")
"""


@pytest.mark.parametrize("end", ["raise", "kill"])
def test_nothing_is_left_of_a_script(end, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(script), end], env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == {"raise": 1, "kill": -9}[end], done.stderr
    folder, *pids = done.stdout.split()
    assert len(pids) == 3
    until = time.monotonic() + 30
    while (any(is_there(int(pid)) for pid in pids) or os.path.exists(folder)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(is_there(int(pid)) for pid in pids)
    assert not os.path.exists(folder)


def test_workers_that_lose_their_channel_remove_their_folder():
    pool = workers.Workers("numpy", ("cpu",) * 2, "mesh")
    pool.call([({"do": "keep", "numbers": []}, [])] * 2)
    for channel in pool._control:
        channel.close()
    for process in pool._processes:
        assert process.wait(30) == 0
    assert not os.path.exists(pool._folder)
    pool.close()


def opaque():
    model = ml.Model()
    model |= ml.Linear(4)(input="input", output="hidden")
    model |= ml.Lambda(np.sinc, opaque=True)(input="hidden", output="output")
    return model


class Own(ml.NumpyBackend):
    """A backend with an op of its own, which workers would not know."""

    def relu(self, x):
        return np.maximum(x, 0)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (
            lambda: ml.compile(lookup(), ml.NumpyBackend(devices=["cpu"] * 2), layout=ml.Mesh(data=4)),
            errors.BackendUnavailableError,
            "has 4 devices, and numpy was given 2",
        ),
        (lambda: ml.NumpyBackend(device_mesh=(4096,)), errors.BackendUnavailableError, "at most 64 workers"),
        (
            lambda: ml.compile(opaque(), ml.NumpyBackend(device_mesh=(2,)), shapes={"input": [2, 4]}),
            errors.UnsupportedOpError,
            "calls Python functions",
        ),
        (lambda: Own(device_mesh=(2,)), errors.UnsupportedOpError, "Own defines ops"),
        (
            lambda: ml.compile(lookup(), ml.NumpyBackend(), layout=ml.Mesh(data=2)),
            errors.BackendUnavailableError,
            "NumpyBackend(devices=['cpu'] * 2)",
        ),
    ],
)
def test_mistakes(call, kind, text):
    with pytest.raises(kind) as caught:
        call()
    assert text in str(caught.value)
    assert caught.value.hint
