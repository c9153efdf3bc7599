"""Generated code against the same mathematics written by hand in each framework, in one run, as ratios."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import mithril as ml
import numpy as np
from mithril.models import create_gpt, resnet18

from . import by_hand
from .networks import classifier
from .timing import turns

#: A workload: name, ours as a call, by hand as a call.
Pair = tuple[str, Callable[[], Any], Callable[[], Any]]


def installed() -> list[str]:
    """Return the names of the frameworks that are here."""
    return [name for name in by_hand.FRAMEWORKS if importlib.util.find_spec(name) is not None]


def mlp(backend: Any, f: Any, jit: bool) -> Pair:
    """Three linear layers at batch 1: what a call costs."""
    compiled = ml.compile(classifier(), backend, shapes={"input": [1, 784]}, jit=jit)
    params, data = compiled.randomize_params(seed=0), {"input": backend.array(np.ones((1, 784)))}
    plain = dict(params)
    hand = f.jit(by_hand.mlp(f)) if jit else by_hand.mlp(f)
    return (
        "MLP 784-128-64-10, batch 1",
        lambda: f.wait(compiled.evaluate(params, data)["output"]),
        lambda: f.wait(hand(plain, data["input"])),
    )


def gpt(backend: Any, f: Any, jit: bool) -> Pair:
    """Forward pass of GPT-2 with one block and a small vocabulary."""
    model = create_gpt(num_layers=1, vocab_size=64)
    compiled = ml.compile(model, backend, shapes={"input": [1, 128]}, jit=jit)
    params, tokens = dict(compiled.randomize_params(seed=0)), backend.array(np.arange(128)[None] % 64)
    hand = f.jit(by_hand.gpt_of_one_block(f, 12)) if jit else by_hand.gpt_of_one_block(f, 12)
    return (
        "GPT-2 of one block, 128 tokens",
        lambda: f.wait(compiled.evaluate(params, {"input": tokens})["output"]),
        lambda: f.wait(hand(params, tokens)),
    )


def resnet(backend: Any, f: Any, jit: bool) -> Pair:
    """Forward pass of ResNet-18 for inference."""
    compiled = ml.compile(resnet18(), backend, shapes={"input": [1, 3, 224, 224]}, inference=True, jit=jit)
    params, state = dict(compiled.randomize_params(seed=0)), compiled.state
    x = backend.array(_normal((1, 3, 224, 224)))
    forward = by_hand.resnet18(f, training=False)
    hand = f.jit(forward) if jit else forward
    return (
        "ResNet-18 forward, batch 1",
        lambda: f.wait(compiled.evaluate(params, {"input": x})["output"]),
        lambda: f.wait(hand(params, state, x)[0]),
    )


def resnet_step(backend: Any, f: Any, jit: bool) -> Pair:
    """Loss and gradients of ResNet-18."""
    model = resnet18()
    model |= ml.CrossEntropy()(input="output", target="target", output="loss")
    shapes, types = {"input": [4, 3, 224, 224], "target": [4]}, {"target": "int64"}
    compiled = ml.compile(model, backend, shapes=shapes, dtypes=types, jit=jit)
    params, state = dict(compiled.randomize_params(seed=0)), dict(compiled.state)
    x, target = backend.array(_normal((4, 3, 224, 224))), backend.array(np.arange(4))
    data = {"input": x, "target": target}
    loss = by_hand.resnet18_loss(f)
    hand = f.jit_gradients(loss) if jit else f.value_and_grad(loss)
    return (
        "ResNet-18 training step, batch 4",
        lambda: f.wait(compiled.evaluate(params, data, {"loss": None})[1]),
        lambda: f.wait(hand(params, state, x, target)[1]),
    )


def _normal(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def main(names: list[str] | None = None) -> None:
    """Print the table."""
    print(f"{'against the same by hand':<50}{'by hand':>12}{'ours':>12}{'ratio':>8}{'more':>10}")
    for name in installed() if names is None else names:
        backend, f = ml.get_backend(name), by_hand.FRAMEWORKS[name]()
        for workload in (mlp, gpt, resnet, resnet_step):
            for jit in (False, True):
                label, ours, hand = workload(backend, f, jit)
                mine, theirs = turns(ours, hand)
                label = f"{name} {'jit' if jit else 'eager'}: {label}"
                more = f"{(mine - theirs) * 1e6:.1f} µs" if theirs < 1e-3 else ""
                print(
                    f"{label:<50}{theirs * 1e3:>9.3f} ms{mine * 1e3:>9.3f} ms{mine / theirs:>8.3f}{more:>10}",
                    flush=True,
                )


if __name__ == "__main__":
    main(sys.argv[1:] or None)
