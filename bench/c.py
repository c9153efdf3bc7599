"""Models in C against the other ways of running them on a CPU, in pairs: `make bench-c`.

Each pair runs in a process of its own that is bound to so many processors, ours and the other in turns, with the same
weights; what comes out is compared first. Where the time goes into reading weights and caches, the share of what memory
gives is measured too: as many bytes are read, in turns with both. Peers are what is installed of PyTorch (eager, and
compiled), ONNX Runtime, OpenVINO and JAX. Training steps are those of `bench.training`.
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

from . import training
from .bandwidth import reading
from .workloads import WORKLOADS, Workload

#: Peer -> the module that it needs.
PEERS = {
    "PyTorch": "torch",
    "torch.compile": "torch",
    "ONNX Runtime": "onnxruntime",
    "OpenVINO": "openvino",
    "JAX": "jax",
}

#: Ours again, which does every step for all rows: what it gains to compute some at a time.
WHOLE = "whole batch"

#: Ours must be this close, in parts of the largest output.
CLOSE = 1e-4


def ours(workload: Workload, threads: int, block: int | None = None) -> Callable[[], Any]:
    """Return our model in C as a call, with the weights of the module; ``block`` as in `CBackend`."""
    import mithril as ml

    compiled = _compiled(workload, ml.CBackend(num_threads=threads, block=block))
    return lambda: compiled.evaluate({}, workload.data)["output"]


def _compiled(workload: Workload, backend: Any, **options: Any) -> Any:
    """Our model with the weights of the module: by our names, by those of a layout, or by order."""
    import mithril as ml

    shapes: dict[str, list[Any]] = {name: list(array.shape) for name, array in workload.data.items()}
    compiled = ml.compile(workload.model, backend, shapes=shapes, inference=True, donate=workload.donate, **options)
    weights = {n: v for n, v in workload.module.state_dict().items() if not n.endswith("num_batches_tracked")}
    if workload.layout:
        ml.load_weights(compiled, weights, layout=workload.layout)
        return compiled
    if not set(compiled.parameter_keys) <= set(weights):
        weights = dict(zip(compiled.parameter_keys, weights.values(), strict=True))
    compiled.load_params({name: value.numpy() for name, value in weights.items()})
    return compiled


def peer(name: str, workload: Workload, threads: int) -> Callable[[], Any]:
    """Return the model as a call of another library; NumPy arrays go in, and the first output comes out."""
    import torch

    if name == WHOLE:
        return ours(workload, threads, len(next(iter(workload.data.values()))))
    inputs = workload.inputs
    if name in ("PyTorch", "torch.compile"):
        torch.set_num_threads(threads)
        function = torch.compile(workload.module) if name == "torch.compile" else workload.module
        tensors = [torch.from_numpy(array) for array in inputs.values()]

        def run() -> Any:
            with torch.inference_mode():
                outputs = function(*tensors)
                return (outputs[0] if isinstance(outputs, tuple) else outputs).numpy()

        return run
    if name == "ONNX Runtime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(_onnx(workload), options, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, inputs)[0]
    if name == "OpenVINO":
        import openvino

        core = openvino.Core()
        # By way of ONNX: it cannot trace the attention of PyTorch itself.
        converted = core.read_model(io.BytesIO(_onnx(workload)))
        config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        request = core.compile_model(converted, "CPU", config).create_infer_request()
        for key, array in inputs.items():
            request.set_tensor(key, openvino.Tensor(array, shared_memory=True))

        def infer() -> Any:
            request.infer()
            return request.get_output_tensor(0).data

        return infer
    import mithril as ml

    compiled = _compiled(workload, ml.JaxBackend(jit=True, device="cpu"))
    data = {key: compiled.backend.array(array) for key, array in workload.data.items()}
    return lambda: np.asarray(compiled.evaluate({}, data)["output"])


def _onnx(workload: Workload) -> bytes:
    import torch

    file = io.BytesIO()
    tensors = tuple(torch.from_numpy(array) for array in workload.inputs.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(workload.module, tensors, file, input_names=list(workload.inputs), dynamo=False)
    return file.getvalue()


def pair(workload: str, name: str, threads: int) -> None:
    """Measure one pair in this process and print it as JSON."""
    from .timing import turns

    if workload in training.WORKLOADS:
        mine, theirs = turns(*training.pair(workload, name, threads), pause=0.05)
        return print(json.dumps({"ours": mine, "peer": theirs}))
    work = WORKLOADS[workload]()
    work.module.eval()
    first, second = ours(work, threads), peer(name, work, threads)
    expected = second()
    distance = float(np.abs(first() - expected).max() / np.abs(expected).max())
    if not distance < CLOSE:
        raise AssertionError(f"{workload}: ours and {name} differ by {distance:.2g}")
    third = [reading(work.reads, threads)] if work.reads else []
    mine, theirs, *read = turns(first, second, *third, pause=0.05)
    row = {"ours": mine, "peer": theirs}
    if read:
        row["share"] = read[0] / mine
    print(json.dumps(row))


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
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def main() -> None:
    """Print a table of all pairs: ours, the peer, and how many times faster ours is."""
    everything = [*WORKLOADS, *training.WORKLOADS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", nargs=3, metavar=("WORKLOAD", "PEER", "THREADS"), help=argparse.SUPPRESS)
    parser.add_argument("--workload", action="append", choices=everything, help="default: three that are quick")
    parser.add_argument("--training", action="store_true", help="the training steps, all of them")
    parser.add_argument("--all", action="store_true", help="all workloads with all peers: some two hours")
    parser.add_argument("--peer", action="append", choices=[*PEERS, WHOLE], help="default: all that are installed")
    parser.add_argument("--threads", action="append", type=int, help="default: 1 and 2")
    parser.add_argument("--memory", action="store_true", help="peak memory instead of time: see bench.peak")
    args = parser.parse_args()
    if args.memory:
        from .peak import table

        return table(args.workload or list(WORKLOADS)[:2])
    if args.pair:
        workload, name, threads = args.pair
        return pair(workload, name, int(threads))
    known = args.peer or [name for name, module in PEERS.items() if importlib.util.find_spec(module)]
    print("| workload | threads | peer | ours | peer's | ours is faster by |\n|---|---|---|---|---|---|")
    chosen = [*list(WORKLOADS)[:2], next(iter(training.WORKLOADS))]
    if args.all or args.training:
        chosen = [*(WORKLOADS if args.all else ()), *training.WORKLOADS]
    for workload in args.workload or chosen:
        peers = [name for name in known if workload not in training.WORKLOADS or name in training.PEERS]
        for threads in args.threads or (1, 2):
            if threads > len(os.sched_getaffinity(0)):
                continue
            for name in peers:
                result = _measured(workload, name, threads)
                row = f"| {workload} | {threads} | {name} | "
                if isinstance(result, str):
                    print(f"{row}{result} | | |", flush=True)
                    continue
                times = f"{_time(result['ours'])} | {_time(result['peer'])}"
                share = f", {result['share']:.0%} of what memory gives" if "share" in result else ""
                print(f"{row}{times} | {result['peer'] / result['ours']:.2f} times{share} |", flush=True)


if __name__ == "__main__":
    main()
