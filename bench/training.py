"""Training steps: loss, gradients and optimizer of ours in C, and of PyTorch and JAX by hand.

Every framework starts with the same parameters and takes its steps on the same batch; what the losses of the first
steps are is compared before anything is measured. PyTorch updates by its fused optimizers, in place; JAX by optax
in one compiled function, which is given its arguments away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mithril as ml
import numpy as np
from mithril.models import create_gpt, resnet18

from . import by_hand

#: Losses must be this close, as ratios, in the first `STEPS` steps.
CLOSE, STEPS = 1e-3, 3

Step = Callable[[], float]


class Workload(NamedTuple):
    """A network with its loss, by us and by hand; a batch; and what takes the steps."""

    model: Callable[[], ml.Model]
    loss: Callable[[Any], Callable[..., Any]]
    data: Callable[[], dict[str, Any]]
    optimizer: str
    rate: float


def _normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _classes(count: int, *shape: int) -> Any:
    return np.random.default_rng(1).integers(0, count, shape)


def _with_loss(model: ml.Model) -> ml.Model:
    model |= ml.CrossEntropy()(input="output", target="target", output="loss")
    model.set_outputs("loss")
    return model


def _mlp() -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(512)(input="input")
    model += ml.Relu()()
    model += ml.Linear(512)()
    model += ml.Relu()()
    model += ml.Linear(10)(output="output")
    return _with_loss(model)


def _mlp_loss(f: Any) -> Callable[..., Any]:
    forward = by_hand.mlp(f)
    return lambda params, state, x, target: (f.cross_entropy(forward(params, x), target), {})


def _gpt() -> ml.Model:
    model = create_gpt(num_layers=1, vocab_size=64)
    logits, target = ml.IOKey("output"), ml.IOKey("target")
    model |= ml.CrossEntropy()(input=logits.reshape((-1, 64)), target=target.reshape((-1,)), output="loss")
    model.set_outputs("loss")
    return model


def _gpt_loss(f: Any) -> Callable[..., Any]:
    forward = by_hand.gpt_of_one_block(f, 12)

    def loss(params: Any, state: Any, tokens: Any, target: Any) -> Any:
        return f.cross_entropy(forward(params, tokens).reshape(-1, 64), target.reshape(-1)), {}

    return loss


WORKLOADS = {
    "MLP 784-512-512-10, batch 128, Adam step": Workload(
        _mlp, _mlp_loss, lambda: {"input": _normal(128, 784), "target": _classes(10, 128)}, "adam", 1e-3
    ),
    "ResNet-18, batch 8, SGD step": Workload(
        lambda: _with_loss(resnet18()),
        by_hand.resnet18_loss,
        lambda: {"input": _normal(8, 3, 224, 224), "target": _classes(1000, 8)},
        "sgd",
        1e-3,
    ),
    "GPT-2 block, batch 8 of 128, Adam step": Workload(
        _gpt,
        _gpt_loss,
        lambda: {"input": _classes(64, 8, 128), "target": _classes(64, 8, 128)[:, ::-1].copy()},
        "adam",
        1e-4,
    ),
}

#: Who is compared with ours.
PEERS = ("PyTorch", "torch.compile", "JAX")


def pair(workload: str, name: str, threads: int) -> tuple[Step, Step]:
    """Return a training step of ours and one of a peer; both have taken some, whose losses agreed."""
    case = WORKLOADS[workload]
    params, state = start(case)
    theirs = peer(case, params, state, name, threads)
    ours = mine(case, params, state, threads)
    for number in range(STEPS):
        actual, expected = ours(), theirs()
        if not abs(actual - expected) <= CLOSE * abs(expected):
            raise AssertionError(f"{workload}: the loss of step {number + 1} is {actual}, with {name} {expected}")
    return ours, theirs


def start(case: Workload) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw the parameters and the statistics that all frameworks start with."""
    compiled = _compiled(case, 1)
    return ({k: v.copy() for k, v in compiled.parameters.items()}, {k: v.copy() for k, v in compiled.state.items()})


def _compiled(case: Workload, threads: int) -> Any:
    data = case.data()
    shapes = {key: array.shape for key, array in data.items()}
    dtypes = {key: str(array.dtype) for key, array in data.items()}
    return ml.compile(case.model(), ml.CBackend(num_threads=threads), shapes=shapes, dtypes=dtypes)


def mine(case: Workload, params: Any, state: Any, threads: int) -> Step:
    """Return a training step of ours."""
    compiled, data = _compiled(case, threads), case.data()
    compiled.load_params({**params, **state})
    rules = {"adam": ml.optim.Adam(case.rate), "sgd": ml.optim.SGD(case.rate, momentum=0.9)}
    step = ml.train.TrainingStep(compiled, rules[case.optimizer], loss="loss")
    return lambda: float(step(data)["loss"])


def peer(case: Workload, params: Any, state: Any, name: str, threads: int) -> Step:
    """Return a training step of another framework."""
    return (_jax if name == "JAX" else _torch)(case, params, state, case.data(), name, threads)


def _torch(case: Workload, params: Any, state: Any, data: Any, name: str, threads: int) -> Step:
    import torch

    torch.set_num_threads(threads)
    leaves = {key: torch.nn.Parameter(torch.tensor(value)) for key, value in params.items()}
    buffers = {key: torch.tensor(value) for key, value in state.items()}
    batch = [torch.from_numpy(value) for value in data.values()]
    loss = case.loss(by_hand.Torch())
    if name == "torch.compile":
        loss = torch.compile(loss)
    rules: dict[str, Callable[..., Any]] = {
        "adam": lambda leaves: torch.optim.Adam(leaves, case.rate, fused=True),
        "sgd": lambda leaves: torch.optim.SGD(leaves, case.rate, momentum=0.9, fused=True),
    }
    optimizer = rules[case.optimizer](leaves.values())

    def step() -> float:
        optimizer.zero_grad()
        value = loss(leaves, buffers, *batch)[0]
        value.backward()
        optimizer.step()
        return float(value)

    return step


def _jax(case: Workload, params: Any, state: Any, data: Any, name: str, threads: int) -> Step:
    import jax
    import optax

    loss = case.loss(by_hand.Jax())
    rule = {"adam": optax.adam(case.rate), "sgd": optax.sgd(case.rate, momentum=0.9)}[case.optimizer]

    def update(params: Any, slots: Any, state: Any, *batch: Any) -> Any:
        (value, updates), gradients = jax.value_and_grad(loss, has_aux=True)(params, state, *batch)
        changes, slots = rule.update(gradients, slots, params)
        return value, optax.apply_updates(params, changes), slots, {**state, **updates}

    compiled = jax.jit(update, donate_argnums=(0, 1, 2))
    kept = jax.device_put(({**params}, rule.init(params), {**state}))
    batch = [jax.device_put(value) for value in data.values()]

    def step() -> float:
        nonlocal kept
        value, *kept = compiled(*kept, *batch)
        jax.block_until_ready(kept)
        return float(value)

    return step
