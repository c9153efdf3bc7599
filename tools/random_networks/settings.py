"""How a network is compiled and run: the dtype, the mode, and the options of the backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mithril as ml
import numpy as np
from mithril.backends.with_manualgrad.c_backend.engine import CEngine

from . import attention, images, sequences
from .common import step
from .network import Network, RejectedError

__all__ = ["MODES", "Setting", "attention", "generate", "images"]

#: How a network is run: parameters packed for inference, everything data, compiled for training, differentiated, or
#: trained by steps of an optimizer.
MODES = ("packed", "data", "outputs", "gradients", "steps")

#: Kinds of values that networks start from, with how often.
STARTS = {"image": 0.45, "sequence": 0.33, "signal": 0.08, "volume": 0.05, "vector": 0.09}


@dataclass(frozen=True)
class Setting:
    """What a network is compiled for."""

    backend: str = "c"
    mode: str = "packed"
    dtype: str = "float32"
    #: Options of the backend.
    options: dict[str, Any] = field(default_factory=dict)
    #: Floats of a vector in C; None: those of the machine.
    lanes: int | None = None
    precision: str | None = None
    optimizer: str = "sgd"

    def __str__(self) -> str:
        more = {"lanes": self.lanes, "precision": self.precision}
        more = {name: value for name, value in more.items() if value is not None}
        return f"{self.backend} {self.mode} {self.dtype} {self.options | more}"


class LanesEngine(CEngine):
    """Generates C for vectors of a given length."""

    def c_options(self, prefix: str, **changes: Any) -> dict[str, Any]:
        return super().c_options(prefix, lanes=self.backend.lanes, **changes)


class Lanes(ml.CBackend):
    """C with vectors of a given length, and the memory of no compiled object on disk is kept."""

    _engine_type = LanesEngine

    def __init__(self, lanes: int | None, **options: Any) -> None:
        super().__init__(**options)
        self.lanes = lanes


def generate(seed: int, backend: str = "c", mode: str | None = None) -> tuple[Network, Setting]:
    """Make the network and the setting of a seed.

    Parameters
    ----------
    seed : int
        What everything is drawn from.
    backend : str, optional
        Where it runs: "c", "numpy", "torch", "jax", "mlx" or "ggml".
    mode : str, optional
        One of `MODES`; default: drawn.
    """
    random = np.random.default_rng([seed, 7])
    setting = drawn(random, backend, mode)
    for attempt in range(20):
        random = np.random.default_rng([seed, attempt])
        network = Network(
            random,
            dtype=setting.dtype,
            batch=int(random.choice([1, 1, 1, 2, 2, 3, 4, 6])),
            bits={"int8_weights": 8, "int4_weights": 4}.get(setting.options.get("quantize", ""), 0),
            is_smooth=setting.mode in ("gradients", "steps"),
            is_training=setting.mode in ("outputs", "gradients", "steps") and "block" not in setting.options,
        )
        if grow(network, setting):
            if setting.options.get("block"):
                setting.options["block"] = int(network.divisor(network.batch))
            return network.pruned(), setting
    raise RuntimeError(f"seed {seed} makes no network")


def drawn(random: np.random.Generator, backend: str, mode: str | None) -> Setting:
    """Draw a setting."""
    mode = mode or str(random.choice(MODES, p=[0.36, 0.24, 0.1, 0.22, 0.08]))
    dtype = str(random.choice(["float32", "float64", "float16", "bfloat16"], p=[0.8, 0.1, 0.05, 0.05]))
    if mode == "steps" or (mode == "gradients" and dtype.endswith("16")) or (backend == "ggml" and dtype == "float64"):
        dtype = "float32"
    is_forward = mode in ("packed", "data")
    precision = "bfloat16" if is_forward and dtype == "float32" and random.random() < 0.05 else None
    options: dict[str, Any] = {}
    lanes = None
    if backend in ("c", "ggml"):
        options["num_threads"] = int(random.choice([1, 1, 2, 3, 5]))
    if backend == "c":
        options["flags"] = ["-O0"] if random.random() < 0.96 else []
        if random.random() < 0.25:
            lanes = int(random.choice([1, 4, 8]))
        way = random.random()
        if mode == "packed" and dtype == "float32" and precision is None and way < 0.12:
            options["quantize"] = str(random.choice(["int8_weights", "int4_weights"]))
        elif is_forward and way < 0.3:
            options["block"] = 1
        elif is_forward and way < 0.36:
            options["batch"] = "batch"
    optimizer = str(random.choice(["sgd", "adam"]))
    return Setting(backend, mode, dtype, options, lanes, precision, optimizer)


def grow(network: Network, setting: Setting) -> bool:
    """Add blocks and choose outputs; false if nothing came of it."""
    n = network
    count = n.number(2, 9)
    try:
        kinds = list(STARTS)
        kind = kinds[int(n.random.choice(len(kinds), p=list(STARTS.values())))]
        values = [(kind, sequences.start(n, kind))]
        if n.chance(0.15):
            values.insert(0, (kind, sequences.start(n, kind)))
    except RejectedError:
        return False
    added = 0
    for _ in range(count * 3):
        kind, x = values[-1] if n.chance(0.8) else values[int(n.random.integers(len(values)))]
        _, y, of = step(n, x, kind)
        if y is not None:
            values.append((of, y))
            added += 1
        if added >= count:
            break
    if not added:
        return False
    last = values[-1][1]
    if setting.mode == "steps" or (setting.mode != "data" and n.chance(0.15)):
        try:
            last = sequences.loss(n, last)
        except RejectedError:
            if setting.mode == "steps":
                return False
    names = [last.name]
    if setting.mode != "steps":
        for _ in range(n.choose(0, 0, 0, 1, 2)):
            names.append(n.choose(*values)[1].name)
    outputs = [name for name in dict.fromkeys(names) if name not in n.inputs]
    n.outputs = outputs
    if not outputs:
        return False
    if setting.mode in ("gradients", "steps"):
        return any(kind.is_weight for kind in n.pruned().inputs.values())
    return True
