"""Models in C in low precision against float32 and ONNX Runtime in int8: `python -m bench.quantized --onnx`.

Networks of images are calibrated with the data that is measured, on both sides; others are quantized by
`quantize_dynamic`, after `quant_pre_process`. With `--file` one QDQ file, as `quantize_static` writes it, is read by us
and by ONNX Runtime.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .c import _compiled
from .timing import turns
from .workloads import WORKLOADS, Workload

SCHEMES = ("int8", "int8 calibrated", "int8_weights", "int4_weights")


def ours(workload: Workload, threads: int, quantize: str | None) -> Callable[[], Any]:
    """Return our model as a call that gives all outputs, with the weights of the module."""
    import mithril as ml

    name = quantize and quantize.removesuffix(" calibrated")
    compiled = _compiled(workload, ml.CBackend(num_threads=threads, quantize=name))
    if name != quantize:
        compiled = ml.calibrate(compiled, samples=workload.data)
    return lambda: compiled.evaluate(compiled.parameters, workload.data)


def quantized_file(workload: Workload, is_static: bool) -> bytes:
    """Return the network as ONNX Runtime quantizes it, with filters scaled one by one; in QDQ form if it is static."""
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    data = workload.inputs
    names, values = list(data), [torch.from_numpy(value) for value in data.values()]
    file = io.BytesIO()
    torch.onnx.export(workload.module, tuple(values), file, input_names=names, dynamo=False)
    with tempfile.TemporaryDirectory() as folder:
        float_file, int8_file = Path(folder, "float.onnx"), Path(folder, "int8.onnx")
        float_file.write_bytes(file.getvalue())
        quant_pre_process(float_file, float_file, skip_symbolic_shape=True)
        if is_static:
            types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
            quantize_static(float_file, int8_file, _Samples([dict(data)]), per_channel=True, **types)
        else:
            quantize_dynamic(float_file, int8_file, per_channel=True)
        return int8_file.read_bytes()


def onnx(workload: Workload, threads: int, file: bytes | None = None) -> Callable[[], Any]:
    """Return the network in ONNX Runtime in int8."""
    import onnxruntime

    file = quantized_file(workload, _is_image(workload)) if file is None else file
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, dict(workload.inputs))


def imported(workload: Workload, threads: int, file: bytes) -> Callable[[], Any]:
    """Return a quantized file in our C."""
    import mithril as ml

    model, params = ml.from_onnx(file)
    data = dict(workload.inputs)
    shapes = {name: list(array.shape) for name, array in data.items()}
    backend = ml.CBackend(num_threads=threads)
    compiled = ml.compile(model, backend, shapes=shapes, inference=True)
    return lambda: list(compiled.evaluate(params, data).values())


def compare_files(names: list[str], threads: int) -> None:
    """Print a table: one quantized file (QDQ) in our C and in ONNX Runtime, in turns."""
    print("| workload | threads | QDQ in C, ms | in ONNX Runtime, ms | ratio | cosine | top-1 |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        workload = WORKLOADS[name]()
        file = quantized_file(workload, is_static=True)
        mine, peer = imported(workload, threads, file), onnx(workload, threads, file)
        outputs = np.asarray(mine()[0], np.float64), np.asarray(peer()[0], np.float64)
        a, b = (output.reshape(-1) for output in outputs)
        cosine = float(a @ b / np.sqrt(float(a @ a) * float(b @ b)))
        agreement = float((outputs[0].argmax(-1) == outputs[1].argmax(-1)).mean())
        first, second = turns(mine, peer, pause=0.05)
        times = f"{first * 1e3:.3g} | {second * 1e3:.3g} | {second / first:.2f}"
        print(f"| {name} | {threads} | {times} | {cosine:.5f} | {agreement:.0%} |", flush=True)


class _Samples:
    """Data for calibration as ONNX Runtime asks for it."""

    def __init__(self, samples: list[dict[str, Any]]) -> None:
        self.rest = samples

    def get_next(self) -> dict[str, Any] | None:
        """Return the next sample."""
        return self.rest.pop() if self.rest else None


def _is_image(workload: Workload) -> bool:
    return any(array.ndim == 4 and array.shape[1] == 3 for array in workload.data.values())


def main() -> None:
    """Print a table: milliseconds of float32 and of each scheme, in turns, and the cosine of the outputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scheme", action="append", choices=SCHEMES)
    parser.add_argument("--onnx", action="store_true", help="also measure ONNX Runtime in int8")
    parser.add_argument("--file", action="store_true", help="compare one QDQ file in C and in ONNX Runtime instead")
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    if args.file:
        return compare_files(args.workload or ["ResNet-18", "ResNet-50"], args.threads)
    print("| workload | threads | scheme | float32, ms | in low precision, ms | faster by | cosine |")
    print("|---|---|---|---|---|---|---|")
    for name in args.workload or ["MLP 784-128-64-10", "ResNet-18", "GPT-2, one token", "BERT-base"]:
        workload = WORKLOADS[name]()
        schemes = [s for s in args.scheme or SCHEMES if _is_image(workload) or "calibrated" not in s]
        exact = ours(workload, args.threads, None)
        peers = {scheme: ours(workload, args.threads, scheme) for scheme in schemes}
        if args.onnx:
            peers["ONNX Runtime int8"] = onnx(workload, args.threads)
        for scheme, quick in peers.items():
            first, second = turns(exact, quick, pause=0.05)
            cosine = "" if scheme not in SCHEMES else f"{_cosine(exact(), quick()):.5f}"
            times = f"{first * 1e3:.3g} | {second * 1e3:.3g} | {first / second:.2f} times"
            print(f"| {name} | {args.threads} | {scheme} | {times} | {cosine} |", flush=True)


def _cosine(first: dict[str, Any], second: dict[str, Any]) -> float:
    largest = max(first, key=lambda name: first[name].size)
    name = "output" if "output" in first else largest
    a, b = (np.asarray(outputs[name], np.float64).reshape(-1) for outputs in (first, second))
    return float(a @ b / np.sqrt(float(a @ a) * float(b @ b)))


if __name__ == "__main__":
    main()
