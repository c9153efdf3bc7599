"""Peak memory of models in C and of other libraries, each in a process of its own: `python -m bench.c --memory`.

Ours is the program that `export` writes: everything that its process holds. Of the others, which come with Python, it
is what the process holds more than before the model is read from its file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from .c import _compiled, _onnx
from .memory import status
from .workloads import WORKLOADS

#: Peers that read a model from a file.
PEERS = ("PyTorch", "ONNX Runtime", "OpenVINO")


def prepare(name: str, folder: Path) -> dict[str, int]:
    """Write the files of a model, with our program built; bytes of the weights, and of ours and its scratch memory."""
    import mithril as ml
    import torch

    work = WORKLOADS[name]()
    work.module.eval()
    exported = _compiled(work, ml.CBackend(num_threads=1)).export(folder, prefix="model", data=work.data)
    subprocess.run(["make", "-s", "-C", str(folder), "check"], check=True)
    (folder / "model.onnx").write_bytes(_onnx(work))
    torch.save(work.module, folder / "model.pt")
    np.savez(folder / "given.npz", **work.given)
    weights = sum(v.numel() * v.element_size() for v in work.module.state_dict().values())
    return {"weights": weights, "packed": exported.packed_bytes, "arena": exported.arena_bytes}


def ours(folder: Path) -> int:
    """Run the exported program; the most memory it had, in bytes."""
    pid = os.posix_spawn(
        str(folder / "check"),
        ["check", "1", str(folder / "model.weights"), str(folder / "model.check")],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, code, usage = os.wait4(pid, 0)
    if code:
        raise RuntimeError(f"the exported program ends with {code}")
    return usage.ru_maxrss * 1024


def peer(name: str, folder: Path) -> None:
    """Print by how many bytes the peak of this process grows when a library reads a model and runs it."""
    given = dict(np.load(folder / "given.npz"))
    if name == "PyTorch":
        import torch

        torch.set_num_threads(1)
        before = status("VmRSS")
        module = torch.load(folder / "model.pt", weights_only=False, mmap=True)
        with torch.inference_mode():
            for _ in range(3):
                module(*map(torch.from_numpy, given.values()))
    elif name == "ONNX Runtime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        before = status("VmRSS")
        session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
        for _ in range(3):
            session.run(None, given)
    else:
        import openvino

        core = openvino.Core()
        before = status("VmRSS")
        model = core.compile_model(folder / "model.onnx", "CPU", {"INFERENCE_NUM_THREADS": 1})
        for _ in range(3):
            model(given)
    print(json.dumps(status("VmHWM") - before))


def table(names: list[str]) -> None:
    """Print the peak memory of these models."""
    mb = 1e6
    print("| workload | weights | packed | arena | ours | " + " | ".join(PEERS) + " |")
    print("|---|---|---|---|---|" + "---|" * len(PEERS))
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            # What is made for the measurement is made by another process, too.
            command = [sys.executable, "-m", "bench.peak"]
            sizes = json.loads(subprocess.check_output([*command, "prepare", name, place], text=True).splitlines()[-1])
            found = [ours(folder)]
            for other in PEERS:
                printed = subprocess.check_output(
                    [*command, "peer", other, place], text=True, stderr=subprocess.DEVNULL
                )
                found.append(json.loads(printed.splitlines()[-1]))
            row = " | ".join(f"{size / mb:.0f} MB" for size in [*sizes.values(), *found])
            print(f"| {name} | {row} |", flush=True)


if __name__ == "__main__":
    what, which, where = sys.argv[1:]
    if what == "prepare":
        print(json.dumps(prepare(which, Path(where))))
    else:
        peer(which, Path(where))
