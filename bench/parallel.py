"""Training steps on two devices of a processor against the same written by hand: `make bench-parallel`.

PyTorch: two processes with one thread each (gloo); data parallelism against `DistributedDataParallel`, fully sharded
against `fully_shard`. JAX: one process with two devices; against `jax.jit` with `NamedSharding`. Ours and the other
take turns; the loss of both is compared first. Printed is the time of a step by hand, and ours in parts of it: the
median of the turns, and the quartiles.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import mithril as ml
import numpy as np

BATCH, CLASSES, TURNS = 64, 10, 15
#: Name -> width and depth of a chain of Linear and Gelu.
CHAINS = {"8 layers of 512": (512, 8), "4 layers of 2048": (2048, 4)}

Step = Callable[[], float]


def main() -> None:
    """Start the processes, or measure in one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("torch", "jax"))
    engine = parser.parse_args().engine
    if engine is not None:
        measure(engine)
        return
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    module = ["-m", "bench.parallel", "--engine"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*launch, *module, "torch"], env=environment, check=True)
    flags = "--xla_force_host_platform_device_count=2"
    subprocess.run([sys.executable, *module, "jax"], env={**environment, "XLA_FLAGS": flags}, check=True)


def measure(engine: str) -> None:
    """Print a line for each chain and layout."""
    layouts = {
        "data parallel": ml.Mesh(data=2),
        "fully sharded": ml.Layout(ml.Mesh(data=2), batch="data", parameters="data"),
    }
    for chain, (width, depth) in CHAINS.items():
        random = np.random.default_rng(0)
        x = random.standard_normal((BATCH, width)).astype(np.float32)
        target = random.integers(0, CLASSES, BATCH)
        for kind, layout in layouts.items():
            arguments = (kind, layout, width, depth, x, target)
            ours, other = _with_torch(*arguments) if engine == "torch" else _with_jax(*arguments)
            losses = [(ours(), other()) for _ in range(3)]
            if not np.allclose(*zip(*losses, strict=True), rtol=1e-3):
                raise AssertionError(f"the losses differ: {losses}")
            rows = [(_seconds(ours), _seconds(other)) for _ in range(TURNS)]
            if engine == "jax" or os.environ["RANK"] == "0":
                ratios = [a / b for a, b in rows]
                low, middle, high = np.percentile(ratios, (25, 50, 75))
                hand = 1000 * float(np.median([b for _, b in rows]))
                print(f"{engine}, {chain}, {kind}: by hand {hand:.1f} ms, ours {middle:.2f} ({low:.2f} to {high:.2f})")


def _seconds(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _model(depth: int, width: int) -> ml.Model:
    model = ml.Model()
    for i in range(depth):
        model += ml.Linear(width, name=f"layer{i}")(**({"input": "input"} if i == 0 else {}))
        model += ml.Gelu()
    model += ml.Linear(CLASSES, name="head")(output="output")
    return model


def _ours(backend: Any, layout: Any, width: int, depth: int, weights: dict[str, Any], x: Any, target: Any) -> Step:
    compiled = ml.compile(_model(depth, width), backend, shapes={"input": list(x.shape)}, layout=layout)
    compiled.load_params(weights)
    step = ml.train.TrainingStep(compiled, ml.optim.SGD(0.01), loss="cross_entropy")
    data = {"input": backend.array(x), "target": backend.array(target)}
    return lambda: float(backend.to_numpy(step(data)[step.loss]))


def _with_torch(kind: str, layout: Any, width: int, depth: int, x: Any, target: Any) -> tuple[Step, Step]:
    import torch
    from torch.distributed.fsdp import fully_shard
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for _ in range(depth):
        layers += [torch.nn.Linear(width, width), torch.nn.GELU()]
    module = torch.nn.Sequential(*layers, torch.nn.Linear(width, CLASSES))
    names = [f"layer{i}" for i in range(depth)] + ["head"]
    linear = [layer for layer in module if isinstance(layer, torch.nn.Linear)]
    weights = {f"{n}.weight": m.weight.detach().clone() for n, m in zip(names, linear, strict=True)}
    weights |= {f"{n}.bias": m.bias.detach().clone() for n, m in zip(names, linear, strict=True)}
    ours = _ours(ml.TorchBackend(), layout, width, depth, weights, x, target)

    wrapped: Any
    if kind == "data parallel":
        wrapped = DistributedDataParallel(module)
    else:
        for layer in linear:
            fully_shard(layer)
        wrapped = fully_shard(module)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.01)
    rank, half = torch.distributed.get_rank(), BATCH // 2
    part = slice(rank * half, (rank + 1) * half)
    own_x, own_target = torch.from_numpy(x[part]), torch.from_numpy(target[part])

    def by_hand() -> float:
        optimizer.zero_grad()
        loss = cross_entropy(wrapped(own_x), own_target)
        loss.backward()
        optimizer.step()
        total = loss.detach()
        torch.distributed.all_reduce(total)
        return float(total) / 2

    return ours, by_hand


def _with_jax(kind: str, layout: Any, width: int, depth: int, x: Any, target: Any) -> tuple[Step, Step]:
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    backend = ml.JaxBackend()
    start = ml.compile(_model(depth, width), ml.NumpyBackend(), shapes={"input": list(x.shape)})
    weights = {name: np.asarray(array) for name, array in start.randomize_params(seed=0).items()}
    ours = _ours(backend, layout, width, depth, weights, x, target)

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    batch = NamedSharding(mesh, PartitionSpec("data"))

    def placed(name: str, array: Any) -> Any:
        divides = kind == "fully sharded" and name.endswith("weight") and width % 2 == 0
        # As the layout does: the longest axis, of equal ones the first.
        axes = ("data",) if array.shape[0] >= array.shape[-1] else (None, "data")
        return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*(axes if divides else ()))))

    held = {"params": {name: placed(name, array) for name, array in weights.items()}}
    own_x, own_target = jax.device_put(x, batch), jax.device_put(target, batch)

    def loss_of(params: Any, x: Any, target: Any) -> Any:
        for i in range(depth):
            x = jax.nn.gelu(x @ params[f"layer{i}.weight"].T + params[f"layer{i}.bias"], approximate=False)
        logits = x @ params["head.weight"].T + params["head.bias"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), target[:, None], 1).mean()

    @jax.jit
    def step(params: Any, x: Any, target: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, x, target)
        return loss, jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients)

    def by_hand() -> float:
        loss, held["params"] = step(held["params"], own_x, own_target)
        return float(loss)

    return ours, by_hand


if __name__ == "__main__":
    main()
