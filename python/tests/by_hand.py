"""Run by `test_by_hand.py`: training on two devices by layouts against the same written by hand in the framework.

``python by_hand.py torch``, in each of two processes of `torch.distributed`, compares with `DistributedDataParallel`,
with `fully_shard` and with `parallelize_module`; ``python by_hand.py jax``, in one process with two devices, with
`jax.jit` of arrays that lie as a `NamedSharding` says. Both print ``agrees`` for each.
"""

import os
import sys

import mithril as ml
import numpy as np

HEADS, WIDTH, LENGTH, BATCH, CLASSES = 4, 16, 6, 8, 5
RATE, STEPS = 0.01, 3
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((BATCH, LENGTH, WIDTH))
TARGET = RANDOM.integers(0, CLASSES, BATCH)
#: How weights are divided in the manner of Megatron: the first of two products by columns, the second by rows.
COLUMNS, ROWS = ("q", "k", "v", "up"), ("o", "down")
LAYOUTS = {
    "data parallel": {"layout": ml.Mesh(data=2)},
    "fully sharded": {"layout": ml.Mesh(data=2), "strategy": "fully_sharded"},
    "tensor parallel": {"layout": ml.Mesh(model=2), "strategy": "tensor_parallel"},
}


def train(model, params, backend, **layout):
    """Return the losses of some steps, and the parameters behind them."""
    compiled = ml.compile(model, backend, shapes={model.input_keys[0]: [BATCH, LENGTH, WIDTH]}, **layout)
    compiled.load_params(params)
    step = ml.train.TrainingStep(compiled, ml.optim.AdamW(RATE, eps=1e-4), loss="cross_entropy")
    data = {model.input_keys[0]: backend.array(X), "target": backend.array(TARGET)}
    losses = [float(backend.to_numpy(step(data)[step.loss])) for _ in range(STEPS)]
    return losses, {name: np.asarray(backend.to_numpy(value)) for name, value in step.params.items()}


def compare(kind, ours, losses, params):
    """Hold ours against what was computed by hand."""
    np.testing.assert_allclose(ours[0], losses, rtol=1e-10, err_msg=kind)
    assert ours[0][0] > ours[0][-1]
    assert ours[1].keys() == params.keys()
    for name, value in params.items():
        np.testing.assert_allclose(ours[1][name], value, rtol=1e-9, atol=1e-12, err_msg=f"{kind}: {name}")
    print(f"{kind} agrees", flush=True)


def with_torch():
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
    from torch.nn.parallel import DistributedDataParallel

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name in ("q", "k", "v"):
                self.add_module(name, torch.nn.Linear(WIDTH, WIDTH, bias=False))
            self.o = torch.nn.Linear(WIDTH, WIDTH)
            self.norm = torch.nn.LayerNorm(WIDTH)
            self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
            self.head = torch.nn.Linear(WIDTH, CLASSES)

        def forward(self, x):
            # As many heads as this process has columns of.
            heads = [f(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.q, self.k, self.v)]
            x = x + self.o(scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
            x = x + self.down(gelu(self.up(self.norm(x))))
            return self.head(x.mean(1))

    torch.manual_seed(0)
    source = Block().double()
    start = {name: value.clone() for name, value in source.state_dict().items()}
    model, params = ml.from_torch(source, (torch.from_numpy(X),))
    backend = ml.TorchBackend(dtype="float64")

    def by_hand(kind):
        module = Block().double()
        module.load_state_dict(start)
        rank, half = torch.distributed.get_rank(), BATCH // 2
        part = slice(rank * half, (rank + 1) * half)
        if kind == "data parallel":
            wrapped = DistributedDataParallel(module)
        elif kind == "fully sharded":
            for layer in module.children():
                fully_shard(layer)
            wrapped = fully_shard(module)
        else:
            plan = dict.fromkeys(COLUMNS, ColwiseParallel()) | dict.fromkeys(ROWS, RowwiseParallel())
            wrapped, part = parallelize_module(module, init_device_mesh("cpu", (2,)), plan), slice(None)
        optimizer = torch.optim.AdamW(wrapped.parameters(), RATE, eps=1e-4)
        x, target = torch.from_numpy(X[part]), torch.from_numpy(TARGET[part])
        losses = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = cross_entropy(wrapped(x), target)
            loss.backward()
            optimizer.step()
            total = loss.detach() / 2
            torch.distributed.all_reduce(total)
            losses.append(float(total))
        whole = {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in module.named_parameters()}
        return losses, {name: value.detach().numpy() for name, value in whole.items()}

    for kind, layout in LAYOUTS.items():
        # The first compilation joins the processes.
        ours = train(model, params, backend, **layout)
        compare(kind, ours, *by_hand(kind))


def with_jax():
    import jax
    import jax.numpy as jnp
    import optax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    jax.config.update("jax_enable_x64", True)

    def block(params, x):
        split = lambda a: a.reshape(BATCH, LENGTH, HEADS, WIDTH // HEADS)  # noqa: E731
        q, k, v = (split(x @ params[name]["weight"]) for name in ("q", "k", "v"))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(WIDTH / HEADS)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(BATCH, LENGTH, WIDTH)
        x = x + mixed @ params["o"]["weight"] + params["o"]["bias"]
        hidden = jax.nn.gelu(x @ params["up"]["weight"] + params["up"]["bias"])
        x = x + hidden @ params["down"]["weight"] + params["down"]["bias"]
        return x.mean(1) @ params["head"]["weight"] + params["head"]["bias"]

    sizes = dict.fromkeys(("q", "k", "v", "o"), (WIDTH, WIDTH))
    sizes |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH), "head": (WIDTH, CLASSES)}
    start = {name: {"weight": RANDOM.standard_normal(size) / 4} for name, size in sizes.items()}
    for name in ("o", "up", "down", "head"):
        start[name]["bias"] = RANDOM.standard_normal(sizes[name][1]) / 4
    model, params = ml.from_jax(block, (start, X))

    def by_hand(kind):
        mesh = jax.make_mesh((2,), ("device",), axis_types=(jax.sharding.AxisType.Auto,))
        is_whole = kind == "tensor parallel"

        def place(path, value):
            layer = path[0].key
            spec = P()
            if kind == "fully sharded" and value.shape[0] % 2 == 0:
                spec = P("device")
            elif is_whole and layer in COLUMNS:
                spec = P(*[None] * (value.ndim - 1), "device")
            elif is_whole and layer in ROWS and value.ndim == 2:
                spec = P("device")
            return jax.device_put(value, NamedSharding(mesh, spec))

        arrays = jax.tree_util.tree_map_with_path(place, start)
        x, target = (jax.device_put(a, NamedSharding(mesh, P() if is_whole else P("device"))) for a in (X, TARGET))
        optimizer = optax.adamw(RATE, eps=1e-4, weight_decay=0.01)
        state = optimizer.init(arrays)

        @jax.jit
        def step(arrays, state):
            def loss(arrays):
                return optax.softmax_cross_entropy_with_integer_labels(block(arrays, x), target).mean()

            value, gradients = jax.value_and_grad(loss)(arrays)
            updates, state = optimizer.update(gradients, state, arrays)
            return value, optax.apply_updates(arrays, updates), state

        losses = []
        for _ in range(STEPS):
            value, arrays, state = step(arrays, state)
            losses.append(float(value))
        return losses, {f"{n}.{kind}": np.asarray(a) for n, layer in arrays.items() for kind, a in layer.items()}

    for kind, layout in LAYOUTS.items():
        ours = train(model, params, ml.JaxBackend(dtype="float64"), **layout)
        compare(kind, ours, *by_hand(kind))


if __name__ == "__main__":
    {"torch": with_torch, "jax": with_jax}[sys.argv[1]]()
    # Threads of a framework may outlive the interpreter.
    sys.stdout.flush()
    os._exit(0)
