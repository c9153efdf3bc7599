"""Peak memory of models in C and of other libraries, each in a process of its own: `python -m bench.c --memory`.

Ours is the program that `export` writes: everything that its process holds. Of what comes with Python, ours too, it is
what the process holds more than before the model is read from its file. Of training steps it is what a process holds at
most during steps, after some were taken, more than before it had the model, on one thread.
"""

from __future__ import annotations

import gc
import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from . import training
from .c import _compiled, _onnx
from .memory import status
from .workloads import WORKLOADS

#: Who reads a model from a file, in Python.
PEERS = ("ours, Python", "PyTorch", "torch.compile", "ONNX Runtime", "OpenVINO", "JAX")
#: Who takes training steps.
TRAINING = ("ours", *training.PEERS)
#: Runs a program and prints its peak in kilobytes. Linux counts what a process held before it became another program:
#: this one holds little, Python more than a small model.
LAUNCH = """
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **arguments) {
    struct rusage usage;
    int status;
    pid_t child = fork();
    if (child == 0) {
        if (count > 1 && freopen("/dev/null", "w", stdout)) execv(arguments[1], arguments + 1);
        _exit(127);
    }
    if (child < 0 || wait4(child, &status, 0, &usage) < 0 || status) return 1;
    printf("%ld\\n", usage.ru_maxrss);
}
"""


def prepare(name: str, folder: Path) -> dict[str, int]:
    """Write the files of a model, with our program built; bytes of the weights, and of ours and its scratch memory."""
    import mithril as ml
    import torch

    if name in training.WORKLOADS:
        params, state = training.start(training.WORKLOADS[name])
        np.savez(folder / "params.npz", **params)
        np.savez(folder / "state.npz", **state)
        return {"weights": sum(v.nbytes for v in params.values())}
    work = WORKLOADS[name]()
    work.module.eval()
    compiled = _compiled(work, ml.CBackend(num_threads=1))
    ml.save({**compiled.parameters, **compiled.state}, folder / "model.safetensors")
    np.savez(folder / "data.npz", **work.data)
    ml.save(work.model, folder / "model.json")
    (folder / "donate.json").write_text(json.dumps(work.donate))
    exported = compiled.export(folder, prefix="model", data=work.data)
    subprocess.run(["make", "-s", "-C", str(folder), "check"], check=True)
    (folder / "model.onnx").write_bytes(_onnx(work))
    torch.save(work.module, folder / "model.pt")
    np.savez(folder / "given.npz", **work.inputs)
    weights = sum(v.numel() * v.element_size() for v in work.module.state_dict().values())
    return {"weights": weights, "packed": exported.packed_bytes, "arena": exported.arena_bytes}


def ours(folder: Path) -> int:
    """Run the exported program; the most memory it had, in bytes."""
    (folder / "launch.c").write_text(LAUNCH)
    subprocess.run(["cc", "-o", "launch", "launch.c"], cwd=folder, check=True)
    command = ["./launch", "./check", "1", "model.weights", "model.check"]
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"the exported program fails: {done.stderr.strip()}")
    return int(done.stdout) * 1024


def steps(name: str, workload: str, folder: Path) -> None:
    """Print by how many bytes the peak of this process has grown when a library takes training steps."""
    setup = training.WORKLOADS[workload]
    params, state = (dict(np.load(folder / f"{file}.npz")) for file in ("params", "state"))
    # What is imported counts as it does for the models.
    importlib.import_module({"ours": "mithril", "JAX": "jax"}.get(name, "torch"))
    before = status("VmRSS")
    step = training.mine(setup, params, state, 1) if name == "ours" else training.peer(setup, params, state, name, 1)
    for _ in range(3):
        step()
    gc.collect()
    # Linux forgets the peak so far: that of compiling.
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(3):
        step()
    print(json.dumps(status("VmHWM") - before))


def _read(folder: Path, backend: Any) -> tuple[Any, dict[str, Any]]:
    """Compile our model from its file, as somebody who ships it does; and its data."""
    import mithril as ml

    model, donate = ml.load(folder / "model.json"), json.loads((folder / "donate.json").read_text())
    data = dict(np.load(folder / "data.npz"))
    shapes = {name: list(array.shape) for name, array in data.items()}
    return ml.compile(model, backend, shapes=shapes, inference=True, donate=donate), data


def _packed(folder: Path) -> Callable[[], Any]:
    """Return our model in C as a call, with weights from their file."""
    import mithril as ml

    compiled, data = _read(folder, ml.CBackend(num_threads=1))
    packed = compiled.pack(folder / "model.safetensors")
    return lambda: compiled.evaluate(packed, data)


def _jax(folder: Path) -> Callable[[], Any]:
    """Return our model for JAX as a call: one compiled function, with weights from their file."""
    import mithril as ml

    compiled, data = _read(folder, ml.JaxBackend(jit=True, device="cpu"))
    ml.load_weights(compiled, folder / "model.safetensors")
    arrays = {key: compiled.backend.array(array) for key, array in data.items()}
    return lambda: np.asarray(compiled.evaluate({}, arrays)["output"])


def peer(name: str, folder: Path) -> None:
    """Print by how many bytes the peak of this process grows when a library reads a model and runs it."""
    inputs = dict(np.load(folder / "given.npz"))
    if name in ("ours, Python", "JAX"):
        # What is imported does not count.
        importlib.import_module("mithril")
        if name == "JAX":
            importlib.import_module("jax")
        before = status("VmRSS")
        function = (_jax if name == "JAX" else _packed)(folder)
        for _ in range(3):
            function()
    elif name in ("PyTorch", "torch.compile"):
        import torch

        torch.set_num_threads(1)
        before = status("VmRSS")
        module = torch.load(folder / "model.pt", weights_only=False, mmap=True)
        if name == "torch.compile":
            module.compile()
        with torch.inference_mode():
            for _ in range(3):
                module(*map(torch.from_numpy, inputs.values()))
    elif name == "ONNX Runtime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        before = status("VmRSS")
        session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
        for _ in range(3):
            session.run(None, inputs)
    else:
        import openvino

        core = openvino.Core()
        before = status("VmRSS")
        model = core.compile_model(folder / "model.onnx", "CPU", {"INFERENCE_NUM_THREADS": 1})
        for _ in range(3):
            model(inputs)
    print(json.dumps(status("VmHWM") - before))


def table(names: list[str]) -> None:
    """Print the peak memory of these models, and of these training steps."""
    models = [name for name in names if name not in training.WORKLOADS]
    if models:
        _head("workload", "weights", "packed", "arena", "ours", *PEERS)
    for name in models:
        _row(name, PEERS)
    if len(models) < len(names):
        _head("training step", "weights", *TRAINING)
    for name in names:
        if name in training.WORKLOADS:
            _row(name, TRAINING)


def _head(*columns: str) -> None:
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|", flush=True)


def _row(name: str, others: tuple[str, ...]) -> None:
    """Measure one workload; what is made for the measurement is made by another process, too."""
    command = [sys.executable, "-m", "bench.peak"]

    def printed(*arguments: str) -> Any:
        done = subprocess.run([*command, *arguments], text=True, capture_output=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments[:2])}: {done.stderr.strip()[-500:]}")
        return json.loads(done.stdout.splitlines()[-1])

    with tempfile.TemporaryDirectory() as place:
        row = list(printed("prepare", name, place).values())
        if name in training.WORKLOADS:
            row += [printed("steps", other, name, place) for other in others]
        else:
            row += [ours(Path(place)), *(printed("peer", other, place) for other in others)]
    print(f"| {name} | " + " | ".join(f"{size / 1e6:.0f} MB" for size in row) + " |", flush=True)


if __name__ == "__main__":
    what, which, *more, where = sys.argv[1:]
    if what == "prepare":
        print(json.dumps(prepare(which, Path(where))))
    elif what == "steps":
        steps(which, *more, Path(where))
    else:
        peer(which, Path(where))
