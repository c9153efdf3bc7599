"""Networks that the C target was not shaped on, imported from PyTorch, against other runtimes: `make bench-broad`.

Each network runs in a process of its own that is bound to so many processors: ours, ONNX Runtime and OpenVINO in turns
with the same weights, in float32. What comes out is compared with PyTorch first. Beside it stand the time from the
imported model to the result of the first call with an empty cache, and the memory that this takes at most.

``--explain NETWORK`` prints where the time goes: our steps and the peer's nodes, the slowest first.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from .broad_networks import NETWORKS, Built, network
from .timing import turns

#: Ours must be this close to PyTorch, in parts of the largest output.
CLOSE = 2e-4

PEERS = ("ONNX Runtime", "OpenVINO")

#: Seconds that one network may take.
LIMIT = 600


def build(name: str, batch: int) -> Built:
    """Return a network with random weights, the same each time."""
    import torch

    torch.manual_seed(0)
    module, inputs = network(name).build(batch)
    for layer in module.modules():
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and layer.running_var is not None:
            torch.nn.init.uniform_(layer.running_var, 0.5, 1.5)
    return module.eval(), inputs


def write_onnx(module: Any, inputs: tuple[Any, ...], path: Path) -> None:
    """Write a module as ONNX: by tracing, or where that fails by way of `torch.export`."""
    import torch

    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(module, inputs, str(path), dynamo=False, opset_version=17)
        except Exception:
            torch.onnx.export(module, inputs, str(path), dynamo=True, verbose=False, external_data=False)


def peer(name: str, path: Path, arrays: list[Any], threads: int) -> Callable[[], Any]:
    """Return an ONNX file as a call of another runtime."""
    if name == "ONNX Runtime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        data = {i.name: array for i, array in zip(session.get_inputs(), arrays, strict=True)}
        return lambda: session.run(None, data)[0]
    import openvino

    config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    core = openvino.Core()
    request = core.compile_model(core.read_model(str(path)), "CPU", config).create_infer_request()
    for position, array in enumerate(arrays):
        request.set_input_tensor(position, openvino.Tensor(array, shared_memory=True))

    def infer() -> Any:
        request.infer()
        return request.get_output_tensor(0).data

    return infer


def measure(name: str, batch: int, threads: int, peers: Iterable[str]) -> dict[str, Any]:
    """Measure one network in this process."""
    import mithril as ml
    import torch

    torch.set_num_threads(threads)
    module, inputs = build(name, batch)
    arrays = [tensor.numpy() for tensor in inputs]
    with torch.inference_mode():
        expected = module(*inputs)
    if isinstance(expected, dict):
        expected = next(iter(expected.values()))
    expected = (expected[0] if isinstance(expected, tuple | list) else expected).numpy()
    model, params = ml.from_torch(module, inputs)
    keys = list(model.input_keys)
    weights = sum(value.nbytes for value in map(np.asarray, params.values()))
    before = _children_and_self()
    start = time.perf_counter()
    compiled = ml.compile(model, ml.CBackend(num_threads=threads), inference=True)
    compiled.load_params(params)
    data = dict(zip([key for key in keys if key not in params], arrays, strict=True))

    def ours() -> Any:
        return next(iter(compiled.evaluate({}, data).values()))

    first = ours()
    result: dict[str, Any] = {
        "first": time.perf_counter() - start,
        "memory": max(0, _children_and_self() - before) / 1e6,
        "weights": weights / 1e6,
        "distance": float(np.abs(first - expected).max() / max(np.abs(expected).max(), 1e-9)),
    }
    if not result["distance"] < CLOSE:
        raise AssertionError(f"differs from PyTorch by {result['distance']:.2g} of the largest output")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        write_onnx(module, inputs, path)
        sides, names = [ours], ["ours"]
        for other in peers:
            try:
                call = peer(other, path, arrays, threads)
                call()
            except Exception as reason:
                result[f"{other} failed"] = str(reason).splitlines()[0][:200]
                continue
            sides.append(call)
            names.append(other)
        if len(sides) == 1:
            sides.append(ours)
        result.update(zip(names, turns(*sides, pause=0.02 if threads > 1 else 0.0), strict=False))
    return result


def _children_and_self() -> int:
    """Peak bytes of this process, or of the largest that it started."""
    return 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def measured(name: str, batch: int, threads: int, peers: list[str]) -> dict[str, Any]:
    """Measure one network in a process that has so many processors and an empty cache."""
    return alone(
        "bench.broad", "--measure", name, str(batch), str(threads), "--peers", ",".join(peers), threads=threads
    )


def alone(module: str, *arguments: str, threads: int) -> dict[str, Any]:
    """Run a module in a process that has so many processors and an empty cache; its last line, or an error."""
    processors = sorted(os.sched_getaffinity(0))[:threads]
    command = [sys.executable, "-m", module, *arguments]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MITHRIL_CACHE_DIR": cache}
        try:
            done = subprocess.run(
                ["taskset", "-c", ",".join(map(str, processors)), *command],
                env=environment,
                capture_output=True,
                text=True,
                timeout=LIMIT,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"more than {LIMIT} seconds"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:300]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def ratio(result: dict[str, Any], peers: Iterable[str] = PEERS) -> float | None:
    """How many times faster ours is than the best peer."""
    times = [result[name] for name in peers if name in result]
    return min(times) / result["ours"] if times else None


def row(name: str, batch: int, threads: int, result: dict[str, Any]) -> str:
    """One line of the table."""
    start = f"| {name} | {network(name).family} | {batch} | {threads} |"
    if "error" in result:
        return f"{start} {result['error']} | | | | | |"
    others = " | ".join(f"{result[p] * 1e3:.2f}" if p in result else "fails" for p in PEERS)
    faster = ratio(result)
    text = "" if faster is None else f"{faster:.2f}"
    return f"{start} {result['ours'] * 1e3:.2f} | {others} | {text} | {result['first']:.1f} | {result['memory']:.0f} |"


def summary(results: list[tuple[str, int, int, dict[str, Any]]]) -> str:
    """Geometric means by batch and threads, and what is slower than the best peer."""
    lines = []
    for batch, threads in sorted({(b, t) for _, b, t, _ in results}):
        some = [(n, r) for n, b, t, r in results if (b, t) == (batch, threads)]
        faster = {n: value for n, r in some if "error" not in r and (value := ratio(r))}
        if not faster:
            continue
        mean = math.exp(statistics.fmean(map(math.log, faster.values())))
        slow = ", ".join(f"{n} {v:.2f}" for n, v in sorted(faster.items(), key=lambda item: item[1]) if v < 1)
        first = statistics.median(r["first"] for _, r in some if "error" not in r)
        lines.append(
            f"batch {batch}, {threads} thread{'s' * (threads > 1)}: {mean:.2f} in geometric mean over {len(faster)}, "
            f"first call after {first:.1f} s (median); slower than the best peer: {slow or 'none'}"
        )
    return "\n".join(lines)


def picture(results: list[tuple[str, int, int, dict[str, Any]]], path: Path) -> None:
    """Draw how many times faster ours is than the best peer, a bar for each network, as SVG or PNG."""
    import matplotlib

    matplotlib.use("Agg")
    # Text stays text: the file is small, and can be searched.
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    groups = sorted({(b, t) for _, b, t, _ in results})
    figure, axes = pyplot.subplots(1, len(groups), figsize=(4.5 * len(groups), 0.16 * len(NETWORKS) + 1), squeeze=False)
    for axis, (batch, threads) in zip(axes[0], groups, strict=True):
        bars = [(n, v) for n, b, t, r in results if (b, t) == (batch, threads) and "error" not in r and (v := ratio(r))]
        bars.sort(key=lambda item: item[1])
        axis.barh([n for n, _ in bars], [v for _, v in bars], color=["#c44" if v < 1 else "#48a" for _, v in bars])
        axis.axvline(1, color="black", linewidth=0.8)
        axis.tick_params(axis="y", labelsize=6)
        axis.set_title(f"batch {batch}, {threads} thread{'s' * (threads > 1)}", fontsize=9)
        axis.set_xlabel("time of the best peer / ours", fontsize=8)
    figure.tight_layout()
    # The same table gives the same file.
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def explain(name: str, batch: int, threads: int) -> None:
    """Print our steps and the nodes of ONNX Runtime, the slowest first."""
    import mithril as ml
    import onnxruntime
    import torch

    torch.set_num_threads(threads)
    module, inputs = build(name, batch)
    arrays = [tensor.numpy() for tensor in inputs]
    model, params = ml.from_torch(module, inputs)
    compiled = ml.compile(model, ml.CBackend(num_threads=threads), inference=True)
    compiled.load_params(params)
    data = dict(zip([key for key in model.input_keys if key not in params], arrays, strict=True))
    print(compiled.profile({}, data))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        write_onnx(module, inputs, path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        feed = {i.name: array for i, array in zip(session.get_inputs(), arrays, strict=True)}
        for _ in range(20):
            session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text())
    times: dict[tuple[str, str, str], list[float]] = collections.defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            shapes = [next(iter(s.values())) for s in event["args"].get("input_type_shape", [])]
            key = (event["args"]["op_name"], event["name"].removesuffix("_kernel_time"), str(shapes)[:90])
            times[key].append(event["dur"])
    middle = {key: statistics.median(values) for key, values in times.items()}
    print(f"\nONNX Runtime: {sum(middle.values()) / 1e3:.2f} ms")
    for (op, node, shapes), value in sorted(middle.items(), key=lambda item: -item[1])[:40]:
        print(f"{value:9.0f} µs  {op:<24} {node[-40:]:<40} {shapes}")


def existing(name: str) -> str:
    """Return the name of a network."""
    try:
        network(name)
    except ValueError as reason:
        raise argparse.ArgumentTypeError(str(reason)) from None
    return name


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs=3, metavar=("NETWORK", "BATCH", "THREADS"), help=argparse.SUPPRESS)
    parser.add_argument("--explain", metavar="NETWORK", type=existing, help="where the time of a network goes")
    parser.add_argument(
        "--network",
        action="append",
        type=existing,
        help="one of the list, or timm/NAME@SIZE (default: all of the list)",
    )
    parser.add_argument("--family", action="append", help="networks of a family")
    parser.add_argument("--batch", action="append", type=int, help="default: 1 and 8")
    parser.add_argument("--threads", action="append", type=int, help="default: 1 and 2")
    parser.add_argument("--peers", default=",".join(PEERS), help="default: %(default)s")
    parser.add_argument(
        "--output", type=Path, help="a JSON file for the results; those that it has are not measured again"
    )
    parser.add_argument("--picture", type=Path, help="an SVG or PNG file for a bar chart")
    options = parser.parse_args()
    peers = [name for name in options.peers.split(",") if name]
    if options.measure:
        name, batch, threads = options.measure
        return print(json.dumps(measure(name, int(batch), int(threads), peers)))
    if options.explain:
        return explain(options.explain, (options.batch or [1])[0], (options.threads or [1])[0])
    names = options.network or [n for n, each in NETWORKS.items() if each.family in (options.family or [each.family])]
    known: dict[str, Any] = {}
    if options.output and options.output.exists():
        known = json.loads(options.output.read_text())
    print(
        "| network | family | batch | threads | ours, ms | "
        + ", ms | ".join(PEERS)
        + ", ms | ours is faster by | first call, s | memory, MB |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    results = []
    for batch in options.batch or (1, 8):
        for threads in options.threads or (1, 2):
            for name in names:
                key = f"{name}, {batch}, {threads}"
                if key not in known:
                    known[key] = measured(name, batch, threads, peers)
                    if options.output:
                        options.output.write_text(json.dumps(known, indent=1))
                results.append((name, batch, threads, known[key]))
                print(row(*results[-1]), flush=True)
    print(f"\n{summary(results)}")
    if options.picture:
        picture(results, options.picture)


if __name__ == "__main__":
    main()
