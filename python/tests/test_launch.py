"""``mithril launch``: environments of the engines, output, exit codes, signals, and that nothing is left behind."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from mithril.__main__ import main
from mithril.command.launch import engine_of

SETTINGS = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES")
variables = {name: os.environ[name] for name in names if name in os.environ}
print("settings", json.dumps([variables, sys.argv[1:]]))
"""
#: The second process does what its argument says while the others sleep, with a process of their own.
FAULT = """
import os, subprocess, sys, time
rank, what = int(os.environ["RANK"]), sys.argv[1]
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("pid", os.getpid(), child.pid, flush=True)
if rank == 1 and what == "raise":
    sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(7))
    raise RuntimeError("a mistake of the user")
if rank == 1 and what == "kill":
    os.kill(os.getpid(), 9)
if what == "deaf":
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""


def command(*arguments):
    return [sys.executable, "-m", "mithril", "launch", *map(str, arguments)]


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def run(*arguments):
    return subprocess.run(command(*arguments), env=environment(), capture_output=True, text=True, timeout=100)


# The others are started by `test_parallel.py`.
@pytest.mark.parametrize(("engine", "module"), [("torch", "torch"), ("jax", "jax")])
def test_each_process_is_told_what_its_engine_needs(engine, module, tmp_path):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    script = tmp_path / "script.py"
    script.write_text(SETTINGS)
    done = run("-n", 3, "--engine", engine, script, "--steps", "4", "-v")
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if "settings" in line)
    assert [line[:4] for line in lines] == ["[0] ", "[1] ", "[2] "]
    for rank, line in enumerate(lines):
        actual, arguments = json.loads(line.partition("settings ")[2])
        assert arguments == ["--steps", "4", "-v"]
        if engine == "torch":
            expected = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}
            assert actual == expected
        else:
            assert actual == {"JAX_PROCESS_ID": str(rank), "JAX_NUM_PROCESSES": "3"}


def test_the_engine_is_that_of_the_one_backend_that_a_script_names():
    assert engine_of("import mithril as ml\nml.compile(m, ml.MlxBackend())") == "mlx"
    assert engine_of("from mithril import TorchBackend\nTorchBackend()") == "torch"
    assert engine_of("ml.get_backend('jax')") == "jax"
    assert engine_of("ml.get_backend(name)") is None
    assert engine_of("ml.NumpyBackend(), ml.TorchBackend()") is None
    assert engine_of("# ml.JaxBackend()") is None
    assert engine_of("not Python") is None


def is_there(pid):
    """Whether a process runs; one that has ended may wait for whoever asks how."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def pids(text):
    return [int(word) for line in text.splitlines() if "pid" in line for word in line.partition("pid")[2].split()]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("fault", "code", "text"),
    [("raise", 7, "rank 1 failed with exit code 7"), ("kill", 137, "rank 1 was ended by SIGKILL")],
)
def test_one_that_fails_ends_all(fault, code, text, tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(FAULT)
    done = run("-n", 3, script, fault)
    assert done.returncode == code
    assert text in done.stderr
    if fault == "raise":
        assert done.stderr.rstrip().endswith("RuntimeError: a mistake of the user")
    # Whoever failed at once may not have let the others start.
    assert not any(map(is_there, pids(done.stdout)))


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")
@pytest.mark.parametrize(("number", "what"), [(signal.SIGINT, "wait"), (signal.SIGTERM, "deaf")])
def test_signals_end_all(number, what, tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(FAULT)
    process = subprocess.Popen(
        command("-n", 2, script, what), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    started = [process.stdout.readline() for _ in range(2)]
    time.sleep(0.3)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    processes = pids("\n".join(started))
    assert len(processes) == 4
    assert not any(map(is_there, processes))


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")
@pytest.mark.parametrize("what", ["wait", "deaf"])
def test_processes_end_with_a_launcher_that_is_killed(what, tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(FAULT)
    process = subprocess.Popen(
        command("-n", 2, script, what), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    started = [process.stdout.readline() for _ in range(2)]
    processes = pids("\n".join(started))
    assert len(processes) == 4
    watching = [pid for pid in children(process.pid) if pid not in processes]
    assert len(watching) == 1
    process.kill()
    process.wait()
    until = time.monotonic() + 20
    while any(map(is_there, [*processes, *watching])) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(is_there, [*processes, *watching]))
    process.communicate(timeout=10)


def test_mistakes(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text("")
    assert main(["launch", "-n", "0", str(script)]) == 1
    assert "-n is 0" in capsys.readouterr().err
    assert main(["launch", "-n", "2", str(tmp_path / "other.py")]) == 1
    assert "there is no script" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["launch", "-n", "2", "--engine", "horovod", str(script)])
    with pytest.raises(SystemExit):
        main(["launch", str(script)])
