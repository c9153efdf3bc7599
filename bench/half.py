"""What `precision="bfloat16"` gains in C, as a table of Markdown: `python -m bench.half`.

Each network is computed in float32 and in bfloat16 in one process, in turns, on one thread. Beside the speed stands how
close the outputs are. `--workload` chooses networks by parts of their names, `--peers` adds OpenVINO in bfloat16, if it
is installed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .c import _compiled, _onnx
from .timing import turns
from .workloads import WORKLOADS, Workload

#: Networks of the table.
NAMES = ("BERT-base", "ViT-B/16", "GPT-2", "GPT-2, one token", "ResNet-18", "ResNet-50", "MobileNetV2")


def openvino(workload: Workload) -> Callable[[], Any]:
    """Return the network as a call of OpenVINO, told to compute in bfloat16."""
    import openvino as ov

    core = ov.Core()
    settings = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY"}
    network = core.compile_model(core.read_model(_onnx(workload), b""), "CPU", settings)
    request, arrays = network.create_infer_request(), list(workload.inputs.values())
    return lambda: request.infer(arrays)[0]


def measure(name: str, peers: bool) -> None:
    """Measure a network and print what was found as JSON."""
    import mithril as ml

    work = WORKLOADS[name]()
    work.module.eval()
    calls: list[Callable[[], Any]] = []
    for precision in (None, "bfloat16"):
        compiled = _compiled(work, ml.CBackend(num_threads=1), precision=precision)
        calls.append(lambda compiled=compiled: compiled.evaluate({}, work.data)["output"])
    whole, half = (np.asarray(call(), np.float64).ravel() for call in calls)
    cosine = float(whole @ half / np.linalg.norm(whole) / np.linalg.norm(half))
    if peers:
        calls.append(openvino(work))
    times = turns(*calls, rounds=15)
    print(json.dumps({"times": times, "cosine": cosine, "error": float(abs(whole - half).max() / abs(whole).max())}))


def main() -> None:
    """Print the table, each network from a process of its own."""
    parser = argparse.ArgumentParser(description="What bfloat16 gains in C.")
    parser.add_argument("--workload", action="append", help="a part of the name of networks to measure")
    parser.add_argument("--peers", action="store_true", help="OpenVINO in bfloat16 too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return measure(args.one, args.peers)
    names = [name for name in WORKLOADS if any(part in name for part in args.workload)] if args.workload else NAMES
    peer = (" OpenVINO bfloat16, ms |", "---|") if args.peers else ("", "")
    print(f"| network | float32, ms | bfloat16, ms | gain |{peer[0]} cosine | largest error |")
    print(f"|---|---|---|---|{peer[1]}---|---|")
    for name in names:
        command = [sys.executable, "-m", "bench.half", "--one", name, *(["--peers"] if args.peers else [])]
        times = json.loads(
            subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
        )
        whole, half, *other = (1e3 * time for time in times["times"])
        theirs = "".join(f" {time:.1f} |" for time in other)
        closeness = f"{times['cosine']:.6f} | {times['error']:.4f}"
        print(f"| {name} | {whole:.1f} | {half:.1f} | {whole / half:.2f} |{theirs} {closeness} |", flush=True)


if __name__ == "__main__":
    main()
