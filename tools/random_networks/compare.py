"""Runs networks on a backend, and compares with the ops applied one by one in float64."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import mithril as ml
import numpy as np
from mithril.errors import MithrilError

from .network import EXACT, Network, native
from .settings import Lanes, Setting

#: The unit of rounding.
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

#: How many times as far off as NumPy in the same dtype a backend may be, and by how many units of rounding anyway,
#: relative to the largest number of an output. Winograd's way of convolving takes most of it.
TIMES, UNITS = 24, 300

#: How far off NumPy is where a result is not compared.
WORTHLESS = 0.05

#: A 16-bit float has few digits: what is wrong is off by more than what is rounded often.
UNITS_OF_HALVES = 12

#: Errors that say that an option is not for this network.
REFUSED = (
    "leave out the option block",
    "does not treat each row",
    "does not have one row",
    "batch",
    "block",
)


@dataclass
class Difference:
    """Where a backend differs from what is right."""

    what: str
    #: Largest difference, relative to the largest number, and what is allowed.
    error: float = float("inf")
    allowed: float = 0.0
    #: An error that was raised.
    message: str = ""

    def __str__(self) -> str:
        return self.message or f"{self.what} is off by {self.error:.2g}, {self.allowed:.2g} is allowed"


@dataclass
class Outcome:
    """What came of a network: differences, options that were refused, and the largest error by what is allowed."""

    differences: list[Difference] = field(default_factory=list)
    refused: str = ""
    ratio: float = 0.0

    def __bool__(self) -> bool:
        return not self.differences


@functools.cache
def plain(name: str, dtype: str) -> Any:
    """Return a backend without options."""
    return {"numpy": ml.NumpyBackend, "interpreter": ml.InterpreterBackend}[name](dtype=dtype)


def backend_of(setting: Setting) -> Any:
    """Return the backend of a setting."""
    options = {"dtype": setting.dtype, **setting.options}
    if setting.backend == "c":
        return Lanes(setting.lanes, **options)
    kinds = {"ggml": "GgmlBackend", "torch": "TorchBackend", "jax": "JaxBackend", "mlx": "MlxBackend"}
    return getattr(ml, kinds.get(setting.backend, "NumpyBackend"))(**options)


def compiled(network: Network, setting: Setting, backend: Any) -> Any:
    """Compile a network."""
    weights = [name for name, kind in network.inputs.items() if kind.is_weight]
    data = [name for name in network.inputs if name not in weights]
    shapes = {name: list(kind.shape) for name, kind in network.inputs.items()}
    if setting.options.get("batch") and backend.name == "c":
        for name in data:
            if shapes[name] and shapes[name][0] == network.batch:
                shapes[name][0] = setting.options["batch"]
    is_data = setting.mode == "data"
    return ml.compile(
        network.model(),
        backend,
        shapes=shapes,
        trainable_keys=[] if is_data else weights,
        data_keys=data + weights if is_data else data,
        inference=setting.mode in ("packed", "data"),
        precision=setting.precision,
    )


def cotangents(network: Network, seed: int) -> dict[str, Any]:
    """Return what gradients are multiplied by."""
    random = np.random.default_rng([seed, 1])
    shapes = {name: network.values[name].shape for name in network.outputs}
    return {f"out_{name}": np.asarray(random.standard_normal(shape)) for name, shape in shapes.items()}


def run(
    model: Any, network: Network, setting: Setting, inputs: dict[str, Any], seed: int, dtype: str
) -> dict[str, Any]:
    """Run a compiled network: outputs, gradients or new parameters by name, in float64."""
    backend = model.backend
    arrays = {name: a.astype(native(dtype)) if a.dtype.kind == "f" else a for name, a in inputs.items()}
    weights = {} if setting.mode == "data" else {n: arrays[n] for n, k in network.inputs.items() if k.is_weight}
    data = {name: a for name, a in arrays.items() if name not in weights}
    if setting.mode == "steps":
        return steps(model, network, setting, weights, data)
    on_device = {name: backend.array(a) for name, a in weights.items()}
    if setting.mode == "gradients":
        seeds = {name: backend.array(a.astype(native(dtype))) for name, a in cotangents(network, seed).items()}
        outputs, gradients = model.evaluate(on_device, data, seeds)
        results = {**outputs, **{f"gradient of {name}": g for name, g in gradients.items()}}
    else:
        results = model.evaluate(on_device, data)
    return {name: np.asarray(backend.to_numpy(value)).astype(np.float64) for name, value in results.items()}


def steps(model: Any, network: Network, setting: Setting, weights: Any, data: Any) -> dict[str, Any]:
    """Take two steps of an optimizer."""
    optimizer = ml.optim.SGD(0.05, momentum=0.9) if setting.optimizer == "sgd" else ml.optim.Adam(0.01, eps=1e-3)
    name = f"out_{network.outputs[0]}"
    model.load_params({n: np.array(a) for n, a in weights.items()})
    step = ml.train.TrainingStep(model, optimizer, loss=name)
    losses = [float(step(data)[name]) for _ in range(2)]
    # What the parameters became, by how much they changed.
    changed = {f"step of {n}": np.asarray(model.parameters[n], np.float64) - a for n, a in weights.items()}
    return {"losses": np.array(losses), **changed}


def references(network: Network, setting: Setting, inputs: dict[str, Any], seed: int) -> tuple[Any, Any]:
    """Return what is right, and what NumPy makes of it in the dtype of the setting."""
    dtype = "float32" if setting.dtype == "float64" else setting.dtype
    if setting.mode in ("gradients", "steps") or setting.precision:
        exact = Setting("numpy", setting.mode, "float64", optimizer=setting.optimizer)
        near = Setting("numpy", setting.mode, dtype, precision=setting.precision, optimizer=setting.optimizer)
        return tuple(
            run(compiled(network, s, plain("numpy", s.dtype)), network, s, inputs, seed, s.dtype) for s in (exact, near)
        )
    exact = network.evaluate(EXACT, inputs)
    arrays = {name: a.astype(native(dtype)) if a.dtype.kind == "f" else a for name, a in inputs.items()}
    near = network.evaluate(plain("numpy", dtype), arrays)
    return tuple({f"out_{n}": np.asarray(values[n], np.float64) for n in network.outputs} for values in (exact, near))


def judged(actual: Any, exact: Any, near: Any, setting: Setting) -> list[Difference]:
    """Compare results; the first is the one that is furthest off."""
    unit = EPSILON[setting.precision or setting.dtype]
    units = UNITS_OF_HALVES if unit > 1e-4 else UNITS
    # NumPy in float64 is what is right: what float32 rounds tells what float64 may round.
    scale = unit / EPSILON["float32"] if setting.dtype == "float64" else 1.0
    # Gradients that are noise are measured by the others.
    sizes = [np.abs(v).max(initial=0) for name, v in exact.items() if not name.startswith("out_")]
    usual = float(np.median(sizes)) if sizes else 0.0
    differences = []
    for name, right in exact.items():
        value = actual.get(name)
        if value is None or value.shape != right.shape:
            differences.append(Difference(f"the shape of {name}"))
            continue
        size = max(float(np.abs(right).max(initial=0)), 0.05 * usual, 1e-30)
        with np.errstate(invalid="ignore"):
            error, rounding = (np.abs(v - right) for v in (value, near[name]))
            both = np.isnan(value) & np.isnan(right) | (value == right)
        rounding = float(np.nan_to_num(rounding, nan=0.0, posinf=0.0).max(initial=0)) / size * scale
        worst = float(np.where(both, 0.0, np.nan_to_num(error, nan=np.inf)).max(initial=0)) / size
        # What NumPy computes badly says nothing.
        allowed = np.inf if rounding > WORTHLESS else min(max(TIMES * rounding, units * unit), 0.5)
        differences.append(Difference(name, worst, allowed))
    return sorted(differences, key=lambda d: -d.error / d.allowed if d.allowed else -np.inf)


def compare(network: Network, setting: Setting, seed: int = 0, redraws: int = 2) -> Outcome:
    """Compile and run a network and compare it; what differs has to differ for most draws of its inputs."""
    outcome = Outcome()
    try:
        model = compiled(network, setting, backend_of(setting))
        first = run(model, network, setting, network.inputs_now(), seed, setting.dtype)
    except MithrilError as error:
        text = str(error)
        if any(option in setting.options for option in ("block", "batch")) and any(r in text for r in REFUSED):
            options = {k: v for k, v in setting.options.items() if k not in ("block", "batch")}
            outcome = compare(network, Setting(**{**vars(setting), "options": options}), seed, redraws)
            outcome.refused = text.splitlines()[0]
            return outcome
        return Outcome([Difference("compiling", message=f"{type(error).__name__}: {text}")])
    except Exception as error:
        return Outcome([Difference("running", message=f"{type(error).__name__}: {error}")])
    differences = judged(first, *references(network, setting, network.inputs_now(), seed), setting)
    outcome.ratio = max((d.error / d.allowed for d in differences), default=0.0)
    if outcome.ratio <= 1:
        return outcome
    # Where a number lies on an edge (of a relu, of a maximum), rounding decides: not in most draws.
    again = 0
    for draw in range(1, redraws + 1):
        inputs = network.draw(seed + 1000 * draw)
        values = run(model, network, setting, inputs, seed, setting.dtype)
        other = judged(values, *references(network, setting, inputs, seed), setting)
        again += other[0].error > other[0].allowed
    if again * 2 >= redraws:
        outcome.differences = [d for d in differences if d.error > d.allowed]
    else:
        outcome.refused = f"once: {differences[0]}"
    return outcome
