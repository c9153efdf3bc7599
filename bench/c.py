"""Models in C against the other ways of running them on a CPU, in pairs: `make bench-c`.

Each pair runs in a process of its own that is bound to so many processors, ours and the other in turns, with the same
weights; what comes out is compared first. Peers are what is installed of PyTorch (eager, and compiled), ONNX Runtime,
OpenVINO and JAX.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

#: Peer -> the module that it needs.
PEERS = {
    "PyTorch": "torch",
    "torch.compile": "torch",
    "ONNX Runtime": "onnxruntime",
    "OpenVINO": "openvino",
    "JAX": "jax",
}

#: Ours has to be this close, in parts of the largest output.
CLOSE = 1e-4


def mlp() -> tuple[Any, Any, tuple[int, ...]]:
    """Return the classifier of the other benchmarks: our model, that of PyTorch, the shape of the data."""
    import torch
    from torch import nn

    from .networks import classifier

    torch.manual_seed(0)
    layers = (nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    return classifier(), nn.Sequential(*layers), (1, 784)


def torchvision(name: str, batch: int) -> tuple[Any, Any, tuple[int, ...]]:
    """Return a model for images: ours, that of torchvision, the shape of the data."""
    import torch
    import torchvision
    from mithril import models

    torch.manual_seed(0)
    module = torchvision.models.get_model(name)
    for weight in module.parameters():
        # The last layer of ViT starts at 0, and so would all outputs.
        if weight.ndim > 1 and not weight.any():
            torch.nn.init.normal_(weight, std=0.02)
    return getattr(models, name)(), module, (batch, 3, 224, 224)


WORKLOADS: dict[str, Callable[[], tuple[Any, Any, tuple[int, ...]]]] = {
    "MLP 784-128-64-10": mlp,
    "ResNet-18": lambda: torchvision("resnet18", 1),
    "ResNet-50": lambda: torchvision("resnet50", 1),
    "ViT-B/16": lambda: torchvision("vit_b_16", 1),
    "ResNet-18, batch 8": lambda: torchvision("resnet18", 8),
}


def ours(model: Any, module: Any, x: np.ndarray[Any, Any], threads: int) -> Callable[[], Any]:
    """Return our model in C as a call, with the weights of the module."""
    import mithril as ml

    compiled = ml.compile(model, ml.CBackend(num_threads=threads), shapes={"input": x.shape}, inference=True)
    params, data = _weights(compiled, module), {"input": x}
    return lambda: compiled.evaluate(params, data)["output"]


def _weights(compiled: Any, module: Any) -> Any:
    """Parameters of the module under our names; where they have others, by order."""
    found = {n: v.numpy() for n, v in module.state_dict().items() if not n.endswith("num_batches_tracked")}
    if not set(compiled.parameter_keys) <= set(found):
        found = dict(zip(compiled.parameter_keys, found.values(), strict=True))
    return compiled.load_params(found)


def peer(name: str, model: Any, module: Any, x: np.ndarray[Any, Any], threads: int) -> Callable[[], Any]:
    """Return the model as a call of another library; NumPy arrays go in and come out."""
    import torch

    if name in ("PyTorch", "torch.compile"):
        torch.set_num_threads(threads)
        function = torch.compile(module) if name == "torch.compile" else module
        given = torch.from_numpy(x)

        def run() -> Any:
            with torch.inference_mode():
                return function(given).numpy()

        return run
    if name == "ONNX Runtime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(_onnx(module, x), options, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, {"input": x})[0]
    if name == "OpenVINO":
        import openvino

        core = openvino.Core()
        # By way of ONNX: it cannot trace the attention of PyTorch itself.
        converted = core.read_model(io.BytesIO(_onnx(module, x)))
        config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        request = core.compile_model(converted, "CPU", config).create_infer_request()
        tensor = openvino.Tensor(x, shared_memory=True)
        request.set_input_tensor(tensor)

        def infer() -> Any:
            request.infer()
            return request.get_output_tensor().data

        return infer
    import mithril as ml

    compiled = ml.compile(model, ml.JaxBackend(jit=True, device="cpu"), shapes={"input": x.shape}, inference=True)
    params, data = _weights(compiled, module), {"input": compiled.backend.array(x)}
    return lambda: np.asarray(compiled.evaluate(params, data)["output"])


def _onnx(module: Any, x: np.ndarray[Any, Any]) -> bytes:
    import torch

    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (torch.from_numpy(x),), file, input_names=["input"], dynamo=False)
    return file.getvalue()


def pair(workload: str, name: str, threads: int) -> None:
    """Measure one pair in this process and print it as JSON."""
    from .timing import turns

    model, module, shape = WORKLOADS[workload]()
    module.eval()
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    first, second = ours(model, module, x, threads), peer(name, model, module, x, threads)
    wanted = second()
    distance = float(np.abs(first() - wanted).max() / np.abs(wanted).max())
    if not distance < CLOSE:
        raise AssertionError(f"{workload}: ours and {name} differ by {distance:.2g}")
    mine, theirs = turns(first, second, pause=0.05)
    print(json.dumps({"ours": mine, "peer": theirs}))


def _measured(workload: str, name: str, threads: int) -> dict[str, float] | str:
    """Measure a pair in a process that has so many processors; the reason if that fails."""
    command = [sys.executable, "-m", "bench.c", "--pair", workload, name, str(threads)]
    processors = sorted(os.sched_getaffinity(0))[:threads]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, processors),
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["failed"])[-1]
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def main() -> None:
    """Print a table of all pairs: ours, the peer, and how many times faster ours is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", nargs=3, metavar=("WORKLOAD", "PEER", "THREADS"), help=argparse.SUPPRESS)
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="default: the first two")
    parser.add_argument("--peer", action="append", choices=list(PEERS), help="default: all that are installed")
    parser.add_argument("--threads", action="append", type=int, help="default: 1 and 2")
    given = parser.parse_args()
    if given.pair:
        workload, name, threads = given.pair
        return pair(workload, name, int(threads))
    peers = given.peer or [name for name, module in PEERS.items() if importlib.util.find_spec(module)]
    print("| workload | threads | peer | ours | peer's | ours is faster by |\n|---|---|---|---|---|---|")
    for workload in given.workload or list(WORKLOADS)[:2]:
        for threads in given.threads or (1, 2):
            if threads > len(os.sched_getaffinity(0)):
                continue
            for name in peers:
                found = _measured(workload, name, threads)
                row = f"| {workload} | {threads} | {name} | "
                if isinstance(found, str):
                    print(f"{row}{found} | | |", flush=True)
                    continue
                times = f"{_time(found['ours'])} | {_time(found['peer'])}"
                print(f"{row}{times} | {found['peer'] / found['ours']:.2f} times |", flush=True)


if __name__ == "__main__":
    main()
