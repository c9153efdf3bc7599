"""Models as WebAssembly in Node.js against ONNX Runtime Web: ``python -m bench.web [--models resnet18 …]``.

Both have the same weights, drawn once, and run in float32; their outputs are compared first, except for GPT-2, whose
random cache ours cannot be inputs. Calls take turns in one process, of which the fastest counts. The first result, from
the start of the runtime on, is measured in processes of its own. ``onnxruntime-web`` is installed by npm, unless
``--modules`` names a folder that has it. ``--threads`` are those of both.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mithril as ml
import numpy as np

from .broad import write_onnx
from .broad_networks import Built

#: Version of the package of npm that is compared.
PEER = "onnxruntime-web@1.30.0"
#: Processes that measure a first result.
STARTS = 3
#: Tokens in front of the one that GPT-2 writes.
LENGTH = 128
_HEADS = (
    "model",
    "threads",
    "ours, ms",
    "ONNX Runtime Web, ms",
    "times as fast",
    "first result, ours, ms",
    "theirs, ms",
    "share",
    "code, KB",
)


def _vit() -> Built:
    import torch
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    sizes = {"image_size": 224, "patch_size": 16, "num_layers": 12, "num_heads": 3, "hidden_dim": 192, "mlp_dim": 768}
    module = VisionTransformer(**sizes)
    torch.nn.init.normal_(module.heads.head.weight, std=0.02)
    return module.eval(), (torch.randn(1, 3, 224, 224),)


def _network(name: str) -> Callable[[], Built]:
    def build() -> Built:
        from .broad import build

        return build(name, 1)

    return build


MODELS: dict[str, Callable[[], Built]] = {
    "resnet18": _network("resnet18"),
    "mobilenet_v2": _network("mobilenet_v2"),
    "vit_tiny": _vit,
    "minilm": _network("bert"),
}


def _write(name: str, folder: Path) -> int:
    """Write a model for both; return the bytes of our code."""
    module, inputs = MODELS[name]()
    write_onnx(module, inputs, folder / "model.onnx")
    model, params = ml.from_torch(module, inputs)
    compiled = ml.compile(model, ml.NumpyBackend(), inference=True)
    compiled.load_params(params)
    arrays = [tensor.numpy() for tensor in inputs]
    data = dict(zip([key for key in model.input_keys if key not in params], arrays, strict=True))
    exported = compiled.export(folder / "ours", target="web", data=data)
    _describe(folder, arrays, {"decodes": False, "tokens": []})
    return _code(exported.folder)


def _write_decoder(folder: Path) -> int:
    """Write GPT-2 with a cache for both."""
    import torch
    from mithril.generation import compile_decoder, export_decoder
    from mithril.models import create_gpt

    from .workloads import decode

    work = decode(1)
    arrays = list(work.inputs.values())
    write_onnx(work.module, tuple(torch.from_numpy(array) for array in arrays), folder / "model.onnx")
    gpt = create_gpt(
        block_size=1024, dims=768, num_heads=12, num_layers=12, vocab_size=50257, cache=True, last_only=True
    )
    decoder = compile_decoder(gpt, ml.NumpyBackend())
    exported = export_decoder(decoder, folder / "ours", context=LENGTH)
    tokens = np.random.default_rng(0).integers(0, 50257, LENGTH - 1).tolist()
    _describe(folder, arrays, {"decodes": True, "tokens": tokens})
    return _code(exported.folder)


def _describe(folder: Path, arrays: list[Any], further: dict[str, Any]) -> None:
    entries = []
    for number, array in enumerate(arrays):
        array.tofile(folder / f"{number}.bin")
        entries.append({"file": f"{number}.bin", "dtype": array.dtype.name, "shape": list(array.shape)})
    (folder / "bench.json").write_text(json.dumps({"data": entries, **further}))


def _code(folder: Path) -> int:
    names = ("model-threads.wasm", "model.mjs", "program.mjs", "runtime.mjs", "thread.mjs", "generation.mjs")
    return sum((folder / name).stat().st_size for name in names if (folder / name).is_file())


def _their_code(modules: Path) -> int:
    place = modules / "node_modules" / "onnxruntime-web" / "dist"
    names = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
    return sum((place / name).stat().st_size for name in names)


def _run(folder: Path, what: str, threads: int, modules: Path) -> dict[str, Any]:
    program = Path(__file__).with_name("web.mjs")
    words = ["node", str(program), str(folder), what, str(threads), str(modules)]
    completed = subprocess.run(words, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise SystemExit(f"{' '.join(words)}\n{completed.stdout}{completed.stderr}")
    result: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.web", description=__doc__)
    names = [*MODELS, "gpt2"]
    parser.add_argument("--models", nargs="+", choices=names, default=names, help="default: all")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads (default 1 2)")
    parser.add_argument("--modules", type=Path, help="a folder whose node_modules has onnxruntime-web")
    args = parser.parse_args()
    if shutil.which("node") is None or shutil.which("npm") is None:
        sys.exit("Node.js and npm are needed: apt-get install nodejs npm")
    with tempfile.TemporaryDirectory() as work:
        modules = args.modules or Path(work)
        if args.modules is None:
            subprocess.run(
                ["npm", "install", "--no-fund", "--no-audit", PEER], cwd=work, check=True, capture_output=True
            )
        print(f"{PEER}: {_their_code(modules) / 1000:.0f} KB of code")
        print(f"| {' | '.join(_HEADS)} |")
        print(f"|{'---|' * len(_HEADS)}")
        ratios: dict[int, list[float]] = {count: [] for count in args.threads}
        shares: dict[int, list[float]] = {count: [] for count in args.threads}
        for name in args.models:
            folder = Path(work) / name
            folder.mkdir()
            code = _write_decoder(folder) if name == "gpt2" else _write(name, folder)
            for threads in args.threads:
                row = _run(folder, "turns", threads, modules)
                if not row["distance"] < 1e-3:
                    sys.exit(f"{name}: outputs differ by {row['distance']:.1e} of the largest")
                ours, theirs = row["times"]
                starts = [
                    [_run(folder, side, threads, modules)["first"] for side in ("ours", "theirs")]
                    for _ in range(STARTS)
                ]
                first, their_first = (statistics.median(column) for column in zip(*starts, strict=True))
                ratios[threads].append(theirs / ours)
                shares[threads].append(first / their_first)
                times = (f"{ours:.1f}", f"{theirs:.1f}", f"{theirs / ours:.2f}")
                cells = (name, str(threads), *times, f"{first:.0f}", f"{their_first:.0f}", f"{first / their_first:.2f}")
                print(f"| {' | '.join(cells)} | {code / 1000:.0f} |", flush=True)
            shutil.rmtree(folder)
        for threads in args.threads:
            means = [math.exp(statistics.fmean(map(math.log, column[threads]))) for column in (ratios, shares)]
            text = f"{means[0]:.2f} times as fast, first result in {means[1]:.2f} of the time"
            print(f"geometric means, {'one thread' if threads == 1 else f'{threads} threads'}: {text}")


if __name__ == "__main__":
    main()
