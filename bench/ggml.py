"""Models on the GGML backend against the same written by hand with ggml, in turns: `make bench-ggml`.

The programs by hand are `bench/ggml/*.c`; they are linked with the ggml that the extension module is built of, and get
the same weights. Both sides keep their threads and run in turns in one process on so many processors; what comes out is
compared first. For each way of keeping the weights: the medians of the milliseconds of a call, the ratio, and the bytes
of the weights and of what is computed. ``--memory`` prints how much more memory a process has at most that loads the
model from a file and runs it, beside what was planned, and one that runs the program by hand, whose weights are there
already. Ours has run another model before: the code that any model needs is not counted.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mithril as ml
import numpy as np

from portability.ggml import ROOT, linked, sources

from .c import _compiled
from .memory import status
from .timing import turns
from .workloads import DIMS, LAYERS, LENGTH, WORKLOADS, Workload

#: Numbers that ggml gives its types.
TYPES = {"f32": 0, "q8_0": 8, "q4_0": 2, "q4_k": 12}
#: Workload -> the program by hand, and the types of weights that are measured.
HAND = {"GPT-2, one token": ("gpt2", tuple(TYPES)), "ResNet-18": ("resnet18", ("f32",))}


def compiled_by_hand(name: str, path: Path, *options: str) -> Path:
    """Compile `bench/ggml/NAME.c` against the ggml that cargo built last."""
    include = sources() / "ggml/include"
    command = ["cc", "-O2", *options, f"-I{include}", str(ROOT / f"bench/ggml/{name}.c"), "-o", str(path)]
    subprocess.run([*command, *linked()], check=True)
    # Both sides use the same instructions.
    os.environ["MITHRIL_GGML_CPU"] = ml.GGMLBackend().ggml_instructions
    return path


def library(name: str, folder: Path) -> ctypes.CDLL:
    """Compile a program by hand as a library."""
    loaded = ctypes.CDLL(str(compiled_by_hand(name, folder / f"{name}.so", "-shared", "-fPIC")))
    loaded.make.restype = ctypes.c_void_p
    loaded.weight_bytes.restype = loaded.work_bytes.restype = ctypes.c_size_t
    return loaded


def _pointers(arrays: list[np.ndarray[Any, Any]]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*[array.ctypes.data for array in arrays])


def values_of(workload: str, compiled: Any) -> list[np.ndarray[Any, Any]]:
    """Weights in the order in which the program by hand makes them."""
    arrays = list(compiled.get_parameters().values()) if HAND[workload][0] == "gpt2" else _folded(compiled)
    return [np.ascontiguousarray(value, np.float32) for value in arrays]


class ByHand:
    """A program by hand with its weights."""

    def __init__(
        self, workload: str, data: dict[str, Any], values: list[np.ndarray[Any, Any]], type: str, threads: int
    ) -> None:
        name, _ = HAND[workload]
        with tempfile.TemporaryDirectory() as folder:
            self.library = library(name, Path(folder))
        is_text = name == "gpt2"
        sizes = [len(values[0]), len(values[1]), LAYERS, LENGTH - 1] if is_text else [1, 224]
        make = self.library.make
        program = make(_pointers(values), (ctypes.c_int * len(sizes))(*sizes), TYPES[type], threads)
        self.program = ctypes.c_void_p(program)
        self.inputs = [data["input"]]
        if is_text:
            self.inputs = [data["input"].astype(np.int32), np.array([LENGTH - 1], np.int32)]
            self._fill_caches(data)
        self.output = np.empty(sizes[0] if is_text else 1000, np.float32)
        self.weights: int = self.library.weight_bytes(self.program)
        self.work: int = self.library.work_bytes(self.program)

    def _fill_caches(self, data: dict[str, Any]) -> None:
        for block in range(LAYERS):
            keys = np.ascontiguousarray(data[f"past_key_{block}"][0])
            values = np.ascontiguousarray(data[f"past_value_{block}"][0].transpose(0, 2, 1))
            assert keys.size == LENGTH * DIMS
            addresses = (ctypes.c_void_p(array.ctypes.data) for array in (keys, values))
            self.library.cache(self.program, block, *addresses)

    def run(self) -> np.ndarray[Any, Any]:
        """Run it; the outputs are overwritten by the next call."""
        self.library.run(self.program, _pointers(self.inputs), ctypes.c_void_p(self.output.ctypes.data))
        return self.output


def _folded(compiled: Any) -> list[np.ndarray[Any, Any]]:
    """Kernel and bias of each convolution of a ResNet with its norm in it, and the last layer."""
    params, state = compiled.get_parameters(), compiled.state
    arrays = []
    for name in params:
        if "conv" not in name and "downsample.0" not in name:
            continue
        norm = name.removesuffix(".weight").replace("conv", "bn").replace("downsample.0", "downsample.1")
        mean, variance = state[f"{norm}.running_mean"], state[f"{norm}.running_var"]
        scale = params[f"{norm}.weight"] / np.sqrt(variance + 1e-5)
        arrays += [params[name] * scale[:, None, None, None], params[f"{norm}.bias"] - mean * scale]
    return [*arrays, params["fc.weight"], params["fc.bias"]]


def ours(work: Workload, type: str, threads: int) -> tuple[Callable[[], Any], Any]:
    """Return our model on ggml as a call, and the model."""
    backend = ml.GGMLBackend(num_threads=threads, quantize=None if type == "f32" else type)
    compiled = _compiled(work, backend)
    return lambda: compiled.evaluate({}, work.data)["output"], compiled


def measure(workload: str, type: str, threads: int) -> None:
    """Measure one model with one type of weights in this process, and print a row of the table."""
    work = WORKLOADS[workload]()
    work.module.eval()
    call, compiled = ours(work, type, threads)
    hand = ByHand(workload, work.data, values_of(workload, compiled), type, threads)
    actual, expected = np.asarray(call()).reshape(-1), hand.run().copy()
    distance = float(np.abs(actual - expected).max() / np.abs(expected).max())
    # Both round activations in their own order before products of few bits.
    if not distance < (5e-3 if type == "f32" else 0.1):
        raise AssertionError(f"{workload}, {type}: ours and that by hand differ by {distance:.2g}")
    mine, theirs = turns(call, hand.run, pause=0.05, rounds=101)
    times = f"{mine * 1e3:.2f} | {theirs * 1e3:.2f} | {mine / theirs:.3f}"
    program = compiled._known().module.source
    sizes = " | ".join(f"{size / 1e6:.1f}" for size in (program.weight_bytes, program.work_bytes))
    print(f"| {workload} | {type} | {threads} | {times} | {sizes} | {hand.weights / 1e6:.1f} | {hand.work / 1e6:.1f} |")


def prepare(workload: str, type: str, folder: Path) -> None:
    """Write a model and its weights to files, for ours and for the program by hand."""
    work = WORKLOADS[workload]()
    work.module.eval()
    compiled = _compiled(work, ml.NumpyBackend())
    ml.save(work.model, folder / "model.json")
    ml.save_gguf(compiled, folder / "model.gguf", quantize=None if type == "f32" else type, layout=None)
    np.savez(folder / "data.npz", **work.data)
    for i, value in enumerate(values_of(workload, compiled)):
        np.save(folder / f"{i}.npy", value)


def _other(threads: int) -> None:
    """Run a small model, so that the code is there."""
    model = ml.Model()
    model |= ml.Conv2d(kernel_size=3, out_channels=4)(input="input")
    model += ml.BatchNorm2d()
    compiled = ml.compile(model, ml.GGMLBackend(num_threads=threads), shapes={"input": [1, 4, 8, 8]}, inference=True)
    compiled.evaluate(compiled.randomize_params(), {"input": np.ones((1, 4, 8, 8), np.float32)})


def peak(workload: str, type: str, side: str, folder: Path, threads: int) -> tuple[int, int]:
    """By how many bytes the peak of this process grows when it loads a model and runs it, and what was planned."""
    data = dict(np.load(folder / "data.npz"))
    if side == "ours":
        _other(threads)
    gc.collect()
    # The peak so far is forgotten.
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    if side == "ours":
        shapes = {name: list(array.shape) for name, array in data.items()}
        donate = [name for name in data if name.startswith("past_")]
        backend = ml.GGMLBackend(num_threads=threads)
        compiled = ml.compile(ml.load(folder / "model.json"), backend, shapes=shapes, inference=True, donate=donate)
        ml.load_weights(compiled, folder / "model.gguf")
        for _ in range(3):
            compiled.evaluate({}, data)
        return status("VmHWM") - before, compiled.memory.total
    count = len(list(folder.glob("*.npy")))
    values = [np.load(folder / f"{i}.npy", mmap_mode="r") for i in range(count)]
    hand = ByHand(workload, data, values, type, threads)
    del values
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(3):
        hand.run()
    return status("VmHWM") - before, hand.weights + hand.work


def memory(workload: str, type: str, threads: int) -> None:
    """Print a row of the table of peaks."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.ggml", "--peak", workload, type]
        subprocess.run([*command, "prepare", folder, str(threads)], check=True)
        figures = []
        for side in ("ours", "hand"):
            printed = subprocess.check_output([*command, side, folder, str(threads)], text=True)
            figures.append([int(word) for word in printed.splitlines()[-1].split()])
        size = (Path(folder) / "model.gguf").stat().st_size
    (ours, planned), (hand, _) = figures
    sizes = " | ".join(f"{size / 1e6:.1f}" for size in (size, planned, ours, hand))
    row = f"{sizes} | {ours / planned:.3f} | {ours / hand:.3f}"
    print(f"| {workload} | {type} | {row} |", flush=True)


def main() -> None:
    """Print a table: ours, that by hand, the ratio, megabytes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=3, metavar=("WORKLOAD", "TYPE", "THREADS"), help=argparse.SUPPRESS)
    parser.add_argument("--peak", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--memory", action="store_true", help="peak memory instead of time")
    parser.add_argument("--calls", action="store_true", help="single functions of ggml beside what stands for them")
    parser.add_argument("--workload", action="append", choices=list(HAND))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if args.one:
        workload, type, threads = args.one
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(threads)])
        return measure(workload, type, int(threads))
    if args.peak:
        workload, type, side, folder, threads = args.peak
        if side == "prepare":
            return prepare(workload, type, Path(folder))
        return print(*peak(workload, type, side, Path(folder), int(threads)))
    if args.calls:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([str(compiled_by_hand("calls", Path(folder) / "calls"))], check=True)
        return None
    if args.memory:
        print(
            "| workload | weights | file, MB | planned, MB | ours, MB | by hand, MB | ours to plan | to by hand |\n"
            "|---|---|---|---|---|---|---|---|",
            flush=True,
        )
        for workload in args.workload or HAND:
            for type in HAND[workload][1]:
                memory(workload, type, args.threads)
        return None
    print("| workload | weights | threads | ours, ms | by hand, ms | ratio | weights, MB | work, MB | by hand | |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for workload in args.workload or HAND:
        for type in HAND[workload][1]:
            command = [sys.executable, "-m", "bench.ggml", "--one", workload, type, str(args.threads)]
            done = subprocess.run(command, capture_output=True, text=True)
            lines = (done.stdout if not done.returncode else done.stderr).strip().splitlines()
            print(lines[-1] if lines else "failed", flush=True)


if __name__ == "__main__":
    main()
