"""Training steps of networks that the C target was not shaped on, against PyTorch: `python -m bench.broad_training`.

Each network of `bench.broad_networks` runs in a process of its own that is bound to so many processors: ours in C, and
PyTorch as it is and with `torch.compile`, in turns. A step is the loss, its gradients and an update by SGD with
momentum. All start with the same weights; the losses of the first steps are compared before anything is measured.
Beside the times stands the peak memory of a process that only takes steps, without what it needed before it had the
network. ``--precision bfloat16`` computes products and convolutions in bfloat16, with weights and gradients in
float32: ours by the option of the backend, PyTorch's by autocast.

``--explain NETWORK`` prints our steps, the slowest first.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .broad import alone, existing, ratio
from .broad_networks import network
from .memory import status
from .timing import turns

#: Losses must be this close, as ratios: the first, and those behind it. Deep networks with random weights multiply
#: what is rounded: a gradient of ResNet-50 by PyTorch is 2 % off that in float64.
CLOSE, LATER, STEPS = 1e-4, 2e-2, 3

#: The same where products are rounded to bfloat16.
CLOSE_BFLOAT16, LATER_BFLOAT16 = 2e-2, 1e-1

#: The step of SGD, and its momentum.
RATE, MOMENTUM = 1e-3, 0.9

PEERS = ("PyTorch", "torch.compile")

#: Two of most families.
CHOICE = (
    "resnet18",
    "resnet50",
    "densenet121",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "efficientnet_b0",
    "shufflenet_v2_x1_0",
    "regnet_y_400mf",
    "convnext_tiny",
    "swin_t",
    "vit_tiny_patch16_224",
    "mixer_s16_224",
    "unet",
    "bert",
    "gpt2",
    "llama",
    "lstm",
    "gru",
    "tcn",
)

Step = Callable[[], float]


def build(name: str, batch: int) -> tuple[Any, tuple[Any, ...]]:
    """Return a network with its loss as a module in training mode, without dropout, and a batch with its target."""
    import torch

    torch.manual_seed(0)
    module, inputs = network(name).build(batch)
    module.train()
    for layer in module.modules():
        # Dropout, stochastic depth and paths that are dropped: two sides draw different numbers.
        for option in ("p", "drop_prob"):
            if isinstance(getattr(layer, option, None), float):
                setattr(layer, option, 0.0)
    with torch.no_grad():
        output = _first(module.eval()(*inputs))
    module.train()
    generator = torch.Generator().manual_seed(1)
    classes = output.ndim == 2
    if classes:
        target = torch.randint(0, output.shape[1], (output.shape[0],), generator=generator)
    else:
        target = torch.randn(output.shape, generator=generator)

    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = module

        def forward(self, target: Any, *inputs: Any) -> Any:
            output = _first(self.network(*inputs))
            loss = torch.nn.functional.cross_entropy if classes else torch.nn.functional.mse_loss
            return loss(output, target)

    return WithLoss().train(), (target, *inputs)


def _first(output: Any) -> Any:
    """Return the tensor that a network computes, or the first of several."""
    if isinstance(output, dict):
        output = next(iter(output.values()))
    return output[0] if isinstance(output, tuple | list) else output


def mine(module: Any, inputs: tuple[Any, ...], threads: int, precision: str) -> tuple[Step, Any, dict[str, Any]]:
    """Return a training step of ours; the compiled model, and the batch."""
    import mithril as ml

    model, params = ml.from_torch(module, inputs)
    data = dict(
        zip([key for key in model.input_keys if key not in params], [each.numpy() for each in inputs], strict=True)
    )
    compiled = ml.compile(model, ml.CBackend(num_threads=threads, precision=precision))
    compiled.load_params(params)
    (loss,) = compiled.output_keys
    step = ml.train.TrainingStep(compiled, ml.optim.SGD(RATE, momentum=MOMENTUM), loss=loss)
    return lambda: float(step(data)[loss]), compiled, data


def theirs(module: Any, inputs: tuple[Any, ...], name: str, precision: str) -> Step:
    """Return a training step of PyTorch."""
    import torch

    weights = [each for each in module.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(weights, RATE, momentum=MOMENTUM, fused=True)
    forward = torch.compile(module) if name == "torch.compile" else module

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            loss = forward(*inputs)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def measure(name: str, batch: int, threads: int, peers: list[str], precision: str) -> dict[str, Any]:
    """Measure one network in this process."""
    import torch

    torch.set_num_threads(threads)
    module, inputs = build(name, batch)
    start = time.perf_counter()
    ours, _, _ = mine(module, inputs, threads, precision)
    losses = [ours() for _ in range(STEPS)]
    result: dict[str, Any] = {"first": time.perf_counter() - start}
    sides, names = [ours], ["ours"]
    first, later = (CLOSE, LATER) if precision == "float32" else (CLOSE_BFLOAT16, LATER_BFLOAT16)
    for other in peers:
        module, inputs = build(name, batch)
        step = theirs(module, inputs, other, precision)
        try:
            others = [step() for _ in range(STEPS)]
        except Exception as reason:
            result[f"{other} failed"] = str(reason).splitlines()[0][:200]
            continue
        if not (np.allclose(losses[:1], others[:1], rtol=first) and np.allclose(losses, others, rtol=later)):
            raise AssertionError(f"losses {losses}, of {other} {others}")
        sides.append(step)
        names.append(other)
    if len(sides) == 1:
        sides.append(ours)
    result.update(zip(names, turns(*sides, pause=0.02 if threads > 1 else 0.0, rounds=9), strict=False))
    return result


def memory(name: str, batch: int, threads: int, side: str, precision: str) -> dict[str, Any]:
    """Return how many bytes this process holds at most while a side takes steps, beyond what it began with."""
    import mithril  # noqa: F401 - what is imported is not counted
    import torch

    torch.set_num_threads(threads)
    before = status("VmRSS")
    module, inputs = build(name, batch)
    if side == "ours":
        step = mine(module, inputs, threads, precision)[0]
        del module
    else:
        step = theirs(module, inputs, side, precision)
    for _ in range(STEPS):
        step()
    gc.collect()
    # Linux forgets the peak so far: that of compiling.
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(STEPS):
        step()
    return {side: status("VmHWM") - before}


def explain(name: str, batch: int, threads: int, precision: str) -> None:
    """Print our steps, the slowest first, without the update of the parameters."""
    module, inputs = build(name, batch)
    _, compiled, data = mine(module, inputs, threads, precision)
    (loss,) = compiled.output_keys
    print(compiled.profile(compiled.parameters, data, {loss: 1.0}))


def row(name: str, batch: int, threads: int, result: dict[str, Any], held: dict[str, Any]) -> str:
    """One line of the table."""
    start = f"| {name} | {batch} | {threads} |"
    if "error" in result:
        return f"{start} {result['error']} | | | | | |"
    absent = {peer: "fails" if f"{peer} failed" in result else "-" for peer in PEERS}
    others = " | ".join(f"{result[peer] * 1e3:.0f}" if peer in result else absent[peer] for peer in PEERS)
    faster = ratio(result, PEERS)
    text = "" if faster is None else f"{faster:.2f}"
    megabytes = ", ".join(f"{held[side] / 1e6:.0f}" if side in held else "-" for side in ("ours", *PEERS))
    return f"{start} {result['ours'] * 1e3:.0f} | {others} | {text} | {result['first']:.1f} | {megabytes} |"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--explain", metavar="NETWORK", type=existing, help="where the time of a step goes")
    parser.add_argument("--network", action="append", type=existing, help=f"default: {', '.join(CHOICE)}")
    parser.add_argument("--batch", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--peers", default=",".join(PEERS), help="default: %(default)s")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="default: %(default)s")
    parser.add_argument("--memory", action="store_true", help="measure the memory of steps, too")
    options = parser.parse_args()
    peers = [name for name in options.peers.split(",") if name]
    if options.explain:
        return explain(options.explain, options.batch, options.threads, options.precision)
    if options.measure:
        name, batch, threads, precision = options.network[0], options.batch, options.threads, options.precision
        if options.side:
            return print(json.dumps(memory(name, batch, threads, options.side, precision)))
        return print(json.dumps(measure(name, batch, threads, peers, precision)))
    print("| network | batch | threads | ours, ms | " + ", ms | ".join(PEERS), end="")
    print(", ms | ours is faster by | first step, s | MB (ours, " + ", ".join(PEERS) + ") |")
    print("|---|---|---|---|---|---|---|---|---|")
    ratios = []
    for name in options.network or CHOICE:
        sizes = ("--batch", str(options.batch), "--threads", str(options.threads))
        common = ("--measure", "--network", name, *sizes, "--precision", options.precision)
        result = alone("bench.broad_training", *common, "--peers", ",".join(peers), threads=options.threads)
        held: dict[str, Any] = {}
        for side in ("ours", *peers) if options.memory else ():
            held.update(alone("bench.broad_training", *common, "--side", side, threads=options.threads))
        print(row(name, options.batch, options.threads, result, held), flush=True)
        if "error" not in result and (faster := ratio(result, PEERS)):
            ratios.append(faster)
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"\n{mean:.2f} in geometric mean over {len(ratios)}")


if __name__ == "__main__":
    main()
