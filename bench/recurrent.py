"""Recurrent layers of many steps, from the model to its first results: `python -m bench.recurrent [--steps 200]`.

Each row is a process of its own: seconds until the first outputs and the first gradients are there, after all imports,
and then milliseconds of a call and of gradients. Beside ours stands what one would write by hand: PyTorch's own layer,
and in JAX a scan over the same formulas, with its gradients by `jax.grad`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Call = Callable[[], Any]

#: Who runs a layer.
SIDES = ("numpy", "torch", "jax", "c", "by hand: PyTorch", "by hand: JAX")

#: Calls that the medians are of.
CALLS = 11


def _ours(layer: str, side: str, steps: int, batch: int, size: int) -> tuple[Call, Call]:
    """Return outputs and gradients by Mithril."""
    import mithril as ml

    kinds = {"numpy": ml.NumpyBackend, "torch": ml.TorchBackend, "jax": ml.JaxBackend, "c": ml.CBackend}
    backend = kinds[side]()
    model = getattr(ml, layer)(size, length=steps)
    options = {"jit": True} if side == "jax" else {}
    compiled = ml.compile(model, backend, shapes={"input": (steps, batch, size)}, **options)
    params = compiled.randomize_params(seed=0)
    data = {"input": backend.array(_input(steps, batch, size))}
    seed = {"output": backend.array(np.ones((steps, batch, size), np.float32))}
    return (
        lambda: compiled.evaluate(params, data),
        lambda: compiled.evaluate_gradients(params, data, output_gradients=seed),
    )


def _input(steps: int, batch: int, size: int) -> Any:
    return np.random.default_rng(0).standard_normal((steps, batch, size)).astype(np.float32)


def _torch(layer: str, steps: int, batch: int, size: int) -> tuple[Call, Call]:
    """Return outputs and gradients by PyTorch's layer."""
    import torch

    module = getattr(torch.nn, layer)(size, size)
    x = torch.from_numpy(_input(steps, batch, size))

    def forward() -> Any:
        with torch.no_grad():
            return module(x)[0]

    def gradients() -> Any:
        module.zero_grad()
        module(x)[0].sum().backward()

    return forward, gradients


def _jax(layer: str, steps: int, batch: int, size: int) -> tuple[Call, Call]:
    """Return outputs and gradients by a scan."""
    import jax
    import jax.numpy as jnp

    gates = {"GRU": 3, "LSTM": 4}[layer]
    rng = np.random.default_rng(0)
    shapes = [(size, gates * size), (gates * size,)] * 2
    params = [rng.uniform(-0.1, 0.1, shape).astype(np.float32) for shape in shapes]
    x = _input(steps, batch, size)

    def gru(h: Any, item: Any, z: Any) -> tuple[Any, Any]:
        (r, u, n), (hr, hu, hn) = jnp.split(item, 3, 1), jnp.split(z, 3, 1)
        new = jnp.tanh(n + jax.nn.sigmoid(r + hr) * hn)
        h = new + jax.nn.sigmoid(u + hu) * (h[0] - new)
        return (h,), h

    def lstm(h: Any, item: Any, z: Any) -> tuple[Any, Any]:
        i, f, g, o = jnp.split(item + z, 4, 1)
        c = jax.nn.sigmoid(f) * h[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
        out = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (out, c), out

    def run(params: Any, x: Any) -> Any:
        w, b, u, c = params
        cell = gru if layer == "GRU" else lstm
        start = tuple(jnp.zeros((batch, size)) for _ in range(1 if layer == "GRU" else 2))
        return jax.lax.scan(lambda h, item: cell(h, item, h[0] @ u + c), start, x @ w + b)[1]

    forward = jax.jit(run)
    gradient = jax.jit(jax.grad(lambda params, x: run(params, x).sum()))
    return lambda: forward(params, x), lambda: gradient(params, x)


def measure(layer: str, side: str, steps: int, batch: int, size: int) -> list[float]:
    """Return seconds to the first outputs and gradients, and milliseconds of a call and of gradients."""
    if "jax" in side.lower():
        import jax

        wait = jax.block_until_ready
        wait(jax.numpy.zeros(1) + 1)
    else:
        wait = lambda value: value  # noqa: E731
    if "torch" in side.lower():
        import torch

        torch.zeros(1).requires_grad_().sum().backward()
    import mithril as ml

    ml.compile(ml.Linear(1), ml.NumpyBackend(), shapes={"input": (1, 1)})
    start = time.perf_counter()
    if side.startswith("by hand"):
        make = _torch if side.endswith("PyTorch") else _jax
        forward, gradients = make(layer, steps, batch, size)
    else:
        forward, gradients = _ours(layer, side, steps, batch, size)
    firsts = []
    for call in (forward, gradients):
        wait(call())
        firsts.append(time.perf_counter() - start)
        start = time.perf_counter()
    return [*firsts, *(_median(call, wait) for call in (forward, gradients))]


def _median(call: Call, wait: Callable[[Any], Any]) -> float:
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        wait(call())
        times.append(1e3 * (time.perf_counter() - start))
    return float(np.median(times))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--layers", nargs="+", choices=("GRU", "LSTM"), default=["GRU", "LSTM"])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes = (args.steps, args.batch, args.size)
    if args.one:
        print(json.dumps(measure(args.layers[0], args.one, *sizes)))
        return
    print(f"{args.steps} steps, batch {args.batch}, {args.size} → {args.size}\n")
    print("| layer | by | first outputs | first gradients | outputs | gradients |")
    print("|---|---|---:|---:|---:|---:|")
    for layer in args.layers:
        for side in args.sides:
            words = ["--layers", layer, "--one", side]
            words += [text for name in ("steps", "batch", "size") for text in (f"--{name}", str(getattr(args, name)))]
            run = subprocess.run(
                [sys.executable, "-m", "bench.recurrent", *words], capture_output=True, text=True, check=True
            )
            first, second, call, gradients = json.loads(run.stdout.splitlines()[-1])
            print(
                f"| {layer} | {side} | {first:.2f} s | {second:.2f} s | {call:.1f} ms | {gradients:.1f} ms |",
                flush=True,
            )


if __name__ == "__main__":
    main()
