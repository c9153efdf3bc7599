"""Programs to compare, by name: ``zoo:bert``, ``layer:17``, ``network:3``, ``attention:3``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import mithril as ml
import numpy as np

from tools.random_networks import sequences
from tools.random_networks.common import attempt
from tools.random_networks.network import Network, RejectedError
from tools.random_networks.settings import generate

from . import layers, zoo

#: Kinds of programs.
KINDS = ("zoo", "layer", "network", "attention")
#: Backends that are compared with NumPy, with the module that each needs.
BACKENDS = {"interpreter": "numpy", "torch": "torch", "jax": "jax", "mlx": "mlx", "c": "numpy", "ggml": "numpy"}
ATTENTION = ("attention", "cross_attention", "latent_attention", "linear_attention")


@dataclass
class Program:
    """A model, and what it is given; floats among `params` are differentiated."""

    model: Any
    data: dict[str, Any]
    params: dict[str, Any] = field(default_factory=dict)
    #: What it is, in words.
    text: str = ""

    def compare(self, backend: Any) -> Any:
        """Compare NumPy and another backend."""
        arrays = {**self.data, **self.params}
        options: dict[str, Any] = {"trainable_keys": list(self.params)} if self.params else {}
        dtypes = {name: a.dtype.name for name, a in arrays.items() if a.dtype.kind != "f"}
        return ml.compare(
            self.model,
            ["numpy", backend],
            {name: list(a.shape) for name, a in arrays.items()},
            data=self.data,
            params=self.params,
            dtypes=dtypes,
            **options,
        )


def names(kinds: Iterable[str], seeds: Iterable[int]) -> list[str]:
    """Return the names of all programs of some kinds; `seeds` are those of the random ones."""
    seeds = list(seeds)
    among = {
        "zoo": [*zoo.MODELS, *zoo.VARIANTS],
        "layer": range(len(layers.CASES)),
        "network": seeds,
        "attention": seeds,
    }
    return [f"{kind}:{name}" for kind in kinds for name in among[kind]]


def program(name: str) -> Program:
    """Make the program of a name."""
    kind, _, which = name.partition(":")
    if kind == "zoo":
        build, data = {**zoo.MODELS, **zoo.VARIANTS}[which]
        return Program(build(), data, text=which)
    if kind == "layer":
        case = layers.CASES[int(which)]
        model, arrays = layers.build(*case)
        floats = {n: np.asarray(a, np.float32) for n, a in arrays.items() if a.dtype.kind == "f"}
        rest = {n: a for n, a in arrays.items() if n not in floats}
        return Program(model, rest, floats, "{}{} {}".format(*case))
    network = attending(int(which)) if kind == "attention" else generate(int(which), "numpy", "gradients")[0]
    network.dtype = "float32"
    arrays = {n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in network.inputs_now().items()}
    weights = {n: arrays.pop(n) for n, kind in network.inputs.items() if kind.is_weight}
    return Program(network.model(), arrays, weights, "\n".join(map(str, network.calls)))


def attending(seed: int) -> Network:
    """Make a network of one or two blocks of attention, in any of its spellings."""
    for again in range(100):
        n = Network(np.random.default_rng([seed, 11, again]), batch=1 + seed % 3, is_smooth=True, is_training=True)
        try:
            y = x = sequences.start(n, "sequence")
            for _ in range(n.choose(1, 1, 2)):
                attended, _ = attempt(n, y, "sequence", n.choose("attention", *ATTENTION))
                y = attended or y
        except RejectedError:
            continue
        n.outputs = [y.name]
        if y is not x and any(kind.is_weight for kind in n.pruned().inputs.values()):
            return n.pruned()
    raise RuntimeError(f"seed {seed} makes no attention")
