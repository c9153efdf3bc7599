"""Makes a network that fails smaller, and writes it as a program that shows what is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .compare import compare
from .network import EXACT, Call, Input, Network
from .settings import Setting


def smallest(network: Network, setting: Setting, seed: int, seconds: float = 60.0) -> str:
    """Return the program of the smallest network that still fails.

    Parameters
    ----------
    network : Network
        A network that fails.
    setting : Setting
        How it fails.
    seed : int
        What its data was drawn from.
    seconds : float, optional
        How long to look for a smaller one.
    """
    until = time.monotonic() + seconds
    network, setting = shrunk(network, setting, seed, until)
    return program(network, setting, seed)


def fails(network: Network, setting: Setting, seed: int) -> bool:
    """Whether a network still computes wrong numbers: for new numbers, so that the program shows it."""
    if not network.outputs or not network.calls:
        return False
    try:
        with np.errstate(all="ignore"):
            network.values = network.evaluate(EXACT, network.draw(seed))
        return any(not d.message for d in compare(network, setting, seed).differences)
    except Exception:
        return False


def shrunk(network: Network, setting: Setting, seed: int, until: float) -> tuple[Network, Setting]:
    """Make network and setting as small as the time allows."""
    for simpler in simpler_settings(setting):
        if time.monotonic() < until and fails(network.pruned(), simpler, seed):
            setting = simpler
    changed = True
    while changed and time.monotonic() < until:
        changed = False
        for candidate in smaller_networks(network):
            if time.monotonic() > until:
                break
            if len(candidate.calls) < len(network.calls) and fails(candidate, setting, seed):
                network, changed = candidate, True
                break
    return network, setting


def simpler_settings(setting: Setting) -> Iterator[Setting]:
    """Settings with one thing less."""
    for name in ("block", "batch", "quantize"):
        if name in setting.options:
            yield replace(setting, options={k: v for k, v in setting.options.items() if k != name})
    yield replace(setting, options={**setting.options, "num_threads": 1})
    if setting.lanes is not None:
        yield replace(setting, lanes=None)
    if setting.mode == "gradients":
        yield replace(setting, mode="outputs")


def smaller_networks(network: Network) -> Iterator[Network]:
    """Networks with fewer calls: one output, other outputs, no beginning, a call less."""
    if len(network.outputs) > 1:
        for name in network.outputs:
            yield network.pruned([name])
    calls, floats = network.calls, network.values
    if len(network.outputs) == 1:
        # What came before may be wrong already.
        for part in (2, 4, 8, 16):
            for at in sorted({len(calls) * k // part for k in range(1, part, 2)}):
                name = calls[at].names[0]
                if floats[name].dtype.kind == "f":
                    yield network.pruned([name])
    for size in (len(calls) // 2, len(calls) // 4, len(calls) // 8, 2, 1):
        if size > 0:
            for start in range(0, len(calls), size):
                if (smaller := without(network, calls[start : start + size])) is not None:
                    yield smaller


def without(network: Network, left_out: list[Call]) -> Network | None:
    """Return the network in which what these calls made is data."""
    produced = {name for call in left_out for name in call.names}
    kept = [call for call in network.calls if call not in left_out]
    needed = {name for call in kept for name in call.reads()} & produced
    if not kept or produced & set(network.outputs):
        return None
    inputs = dict(network.inputs)
    for name in needed:
        array = network.values[name]
        if array.dtype.kind != "f" or not np.isfinite(array).all():
            return None
        scale, mean = (float(f"{v:.2g}") for v in (array.std(), array.mean()))
        is_weight = all(
            read in network.inputs and network.inputs[read].is_weight
            for call in left_out
            if name in call.names
            for read in call.reads()
        )
        inputs[name] = Input(array.shape, "normal", (scale or 1.0, mean), is_weight)
    return replace(network, inputs=inputs, calls=kept).pruned()


def program(network: Network, setting: Setting, seed: int) -> str:
    """Return Python that shows the difference."""
    options = ", ".join(f"{name}={value!r}" for name, value in {"dtype": setting.dtype, **setting.options}.items())
    kinds = {"c": "CBackend", "ggml": "GgmlBackend", "torch": "TorchBackend", "jax": "JaxBackend", "mlx": "MlxBackend"}
    name = kinds.get(setting.backend, "NumpyBackend")
    lines = [
        "import mithril as ml",
        "import numpy as np",
        "",
        "ops = ml.NumpyBackend()",
        f"random = np.random.default_rng({seed})",
        "arrays = {",
        *(f'    "{name}": {shape.source("random")},' for name, shape in network.inputs.items()),
        "}",
        f'arrays = {{name: a.astype("{setting.dtype}") if a.dtype.kind == "f" else a for name, a in arrays.items()}}',
        f"weights = {[name for name, shape in network.inputs.items() if shape.is_weight]}",
        "values = {name: ml.IOKey(name, dtype=str(a.dtype)) for name, a in arrays.items()}",
        "",
        "",
        f"def network({', '.join(network.inputs)}):",
        *(f"    {call}" for call in network.calls),
        f"    return {{{', '.join(f'{name!r}: {name}' for name in network.outputs)}}}",
        "",
        "",
        f"# {setting}",
        "options = {",
        '    "shapes": {name: list(a.shape) for name, a in arrays.items()},',
        f'    "inference": {setting.mode in ("packed", "data")},',
    ]
    if setting.mode == "data":
        lines.append('    "data_keys": list(arrays),')
    else:
        lines.append('    "trainable_keys": weights,')
        lines.append('    "data_keys": [name for name in arrays if name not in weights],')
    if setting.precision:
        lines.append(f'    "precision": {setting.precision!r},')
    lines += ["}", "model = ml.Model.create(**network(**values))"]
    params = "{}" if setting.mode == "data" else "{name: arrays[name] for name in weights}"
    data = "arrays" if setting.mode == "data" else "{name: a for name, a in arrays.items() if name not in weights}"
    gradients = ""
    if setting.mode in ("gradients", "steps"):
        gradients = ", {name: np.ones(a.shape, a.dtype) for name, a in network(**arrays).items()}"
    lines += [
        f"params, data = {params}, {data}",
        "results = []",
        f"backends = [ml.NumpyBackend(dtype={setting.dtype!r}), ml.{name}({options})]",
        "for backend in backends:",
        "    compiled = ml.compile(model, backend, **options)",
        f"    values = compiled.evaluate(dict(params), data{gradients})",
        "    values = values if isinstance(values, dict) else {**values[0], **values[1]}",
        "    results.append({name: np.asarray(backend.to_numpy(a), np.float64) for name, a in values.items()})",
        "for name, right in results[0].items():",
        '    print(name, "off by", abs(results[1][name] - right).max() / abs(right).max())',
    ]
    return "\n".join(lines)
