"""Trains models on 1, 2 and 4 devices of this machine, and prints that the losses are equal.

``python -m mithril.examples.several_devices`` trains the dense network of the digits demo by data parallelism, and a
small GPT fully sharded, on PyTorch; ``--backend numpy`` or ``jax`` elsewhere. A device is a process or a thread on the
processor here: what is shown is that results do not depend on their number. The script is started as any other.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

import mithril as ml

from .digits import dense, load_digits

__all__ = ["losses", "main"]

#: A batch, which 4 devices divide among them.
BATCH = 32
#: How far losses in float32 may be apart, in parts: sums are taken in another order.
ROUNDING = 1e-3
TEXT = (
    "A model that is divided over several devices stays the model that it is: its losses and its gradients are those "
    "of one device, up to the order of sums. "
)


def digits() -> tuple[ml.Model, dict[str, Any]]:
    """Return the dense network of the digits demo, and its images."""
    images, labels, *_ = load_digits()
    return dense(), {"input": images, "target": labels}


def gpt() -> tuple[ml.Model, dict[str, Any]]:
    """Return a small GPT, and pieces of a text whose next characters it learns."""
    codes = np.frombuffer((TEXT * 8).encode(), np.uint8).astype(np.int64)
    pieces = np.lib.stride_tricks.sliding_window_view(codes, 33)[::2]
    model = ml.Model()
    model |= ml.models.create_gpt(vocab_size=128, num_layers=2, num_heads=4, dims=64, block_size=32)(input="input")
    # The loss takes the classes behind the batch.
    model += ml.Transpose((0, 2, 1))(output="logits")
    return model, {"input": pieces[:, :-1], "target": pieces[:, 1:]}


def losses(model: ml.Model, data: dict[str, Any], backend: ml.Backend, layout: ml.Layout | None, steps: int) -> Any:
    """Return the loss of each training step."""
    shapes = {"input": [BATCH, *data["input"].shape[1:]]}
    compiled = ml.compile(model, backend, shapes=shapes, layout=layout)
    step = ml.train.TrainingStep(compiled, ml.optim.AdamW(0.003, clip_norm=1.0), loss="cross_entropy")
    results = []
    for number in range(steps):
        rows = np.arange(BATCH * number, BATCH * (number + 1)) % len(data["target"])
        outputs = step({name: array[rows] for name, array in data.items()})
        results.append(float(backend.to_numpy(outputs[step.loss])))
    return np.array(results)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, print the losses side by side, and return 0 if they are equal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="torch", choices=("torch", "numpy", "jax"))
    parser.add_argument("--steps", type=int, default=20, help="training steps (default 20)")
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4], help="numbers of devices (default 1 2 4)")
    args = parser.parse_args(arguments)
    if args.backend == "jax":
        # JAX reads it when it starts.
        flag = f"--xla_force_host_platform_device_count={max(args.devices)}"
        os.environ["XLA_FLAGS"] = f"{flag} {os.environ.get('XLA_FLAGS', '')}"
    is_equal = True
    for build, parameters in ((digits, None), (gpt, "data")):
        model, data = build()
        rows = {}
        for count in args.devices:
            options = {} if args.backend == "jax" else {"devices": ["cpu"] * count}
            backend = ml.get_backend(args.backend, device="cpu" if count == 1 else None, **options, seed=0)
            layout = ml.Layout(ml.Mesh(data=count), batch="data", parameters=parameters) if count > 1 else None
            rows[count] = losses(model, data, backend, layout, args.steps)
        first = rows[args.devices[0]]
        distance = max(float(np.abs(row / first - 1.0).max()) for row in rows.values())
        is_equal &= distance < ROUNDING
        print(f"{build.__name__}: losses of steps 1, {args.steps // 2} and {args.steps}")
        for count, row in rows.items():
            shown = "  ".join(f"{row[i]:.6f}" for i in (0, max(args.steps // 2 - 1, 0), -1))
            print(f"  {count} device{'s' if count > 1 else ' '}  {shown}")
        print(f"  {'equal' if distance < ROUNDING else 'NOT EQUAL'}: largest relative difference {distance:.1e}")
    return 0 if is_equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
