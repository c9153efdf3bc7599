"""The one table of option spellings, and the function every constructor uses to read options."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np

from ..errors import BackendUnavailableError, ConflictingOptionError, IgnoredOptionWarning, InvalidValueError
from ..parallel.layout import Layout, Mesh
from ..parallel.pipeline import Pipeline
from ..parallel.strategies import AUTO, AXES, PIPELINE, PlannedLayout, check_name, strategy_layout
from ..suggestions import nearest

#: Accepted spelling -> canonical option.
ALIASES: dict[str, str] = {
    "default_dtype": "dtype",
    "random_seed": "seed",
    "platform": "device",
    "enable_amp": "amp",
    "use_amp": "amp",
    "jit_compile": "jit",
    "compile": "jit",
    "use_graph": "jit",
    "compute_dtype": "precision",
    "compute_precision": "precision",
    "mem_size": "memory_limit",
    "preallocate": "pre_allocate",
}

#: Options of backends that run on several devices.
_SEVERAL = ("device_mesh", "devices", "parallel_strategy")


def normalize(
    owner: str, options: Mapping[str, Any], allowed: tuple[str, ...], ignored: tuple[str, ...] = ()
) -> Options:
    """Bring options to their canonical names.

    Parameters
    ----------
    owner : str
        Class that takes the options, for messages.
    options : mapping
        Options as the user wrote them; None stands for the default.
    allowed : tuple of str
        Canonical options that mean something here.
    ignored : tuple of str
        Canonical options that are accepted and do nothing here, with one warning.

    Returns
    -------
    Options
        Canonical options.

    Raises
    ------
    ConflictingOptionError
        If two spellings of one option are given with different values.
    TypeError
        If an option is not known.
    """
    seen: dict[str, tuple[str, Any]] = {}
    for name, value in options.items():
        canonical = ALIASES.get(name, name)
        if canonical not in allowed and canonical not in ignored:
            raise TypeError(_unknown(owner, name, allowed))
        if value is None:
            continue
        if canonical in seen and seen[canonical][1] != value:
            first = seen[canonical][0]
            raise ConflictingOptionError(
                f"{owner}: `{first}` and `{name}` are the same option and differ", hint=f"give `{canonical}` once"
            )
        seen[canonical] = (name, value)
    for canonical, (name, _) in seen.items():
        if canonical in ignored:
            warn_ignored(owner, name, "it means nothing there")
    return Options(seen)


class Options(dict[str, Any]):
    """Options by their canonical names, which know how the user wrote them."""

    def __init__(self, entries: Mapping[str, tuple[str, Any]]) -> None:
        super().__init__({name: value for name, (_, value) in entries.items()})
        self._spellings = {name: spelling for name, (spelling, _) in entries.items()}

    def spelling(self, name: str) -> str:
        """Return the name of an option as the user wrote it."""
        return self._spellings.get(name, name)


def warn_ignored(owner: str, name: str, reason: str) -> None:
    """Say that an option is accepted and does nothing."""
    warnings.warn(f"{owner} ignores `{name}`: {reason}", IgnoredOptionWarning, stacklevel=5)


def _unknown(owner: str, name: str, allowed: tuple[str, ...]) -> str:
    spellings = [*allowed, *(a for a, c in ALIASES.items() if c in allowed)]
    near = nearest(name, spellings)
    if name.startswith("quantize"):
        return (
            f"{owner} has no option `{name}`: it does not compute with low-bit weights. TorchBackend, JaxBackend, "
            'NumpyBackend and CBackend do with quantize="int8", GGMLBackend with quantize="q8_0"; '
            '`precision="bfloat16"` computes in 16 bits where a backend has it'
        )
    if name in _SEVERAL and name not in allowed:
        cores = "; `num_threads` says how many cores it uses" if "num_threads" in allowed else ""
        return (
            f"{owner} has no option `{name}`: it runs on one device{cores}. NumpyBackend, TorchBackend, JaxBackend and "
            "MlxBackend divide models over several; InterpreterBackend computes all devices of a layout in one process"
        )
    guess = f"; did you mean `{near}`?" if near else "."
    return f"{owner} has no option `{name}`{guess} It takes: {', '.join(allowed)}"


def switch(name: str, value: Any) -> bool:
    """Read an option that is on or off."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidValueError(f"{name} is {value!r}", hint="give True or False")
    return bool(value)


#: Bytes in a unit of memory.
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def memory(name: str, value: Any) -> int:
    """Read an amount of memory in bytes: a number, or a text such as ``"4GB"`` or ``"512MiB"``.

    Examples
    --------
    >>> from mithril.backends.options import memory
    >>> memory("memory_limit", "4GB"), memory("memory_limit", "512 MiB"), memory("memory_limit", 1024)
    (4000000000, 536870912, 1024)
    """
    size = value
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
        unit = _UNITS.get(match.group(2).upper()) if match else None
        size = None if match is None or unit is None else float(match.group(1)) * unit
    if isinstance(size, bool) or not isinstance(size, (int, float, np.integer)) or not 0 < size < 2**63:
        raise InvalidValueError(
            f"{name} is {value!r}", hint='give a number of bytes, or a string such as "4GB" or "512MiB"'
        )
    return int(size)


def layout(settings: Options, count: Callable[[], int]) -> Layout | None:
    """Read a layout from ``device_mesh``, ``devices`` and ``parallel_strategy``; None on one device.

    Parameters
    ----------
    settings : Options
        Options of a backend.
    count : callable
        How many devices there are; asked if nothing else says how many are meant.
    """
    sizes = _mesh_sizes(settings.get("device_mesh"))
    strategy, devices = settings.get("parallel_strategy"), settings.get("devices")
    if devices is not None and len(listed(devices)) > 1:
        device_names = listed(devices)
        if sizes is not None and math.prod(sizes) != len(device_names):
            raise ConflictingOptionError(
                f"device_mesh={settings['device_mesh']!r} has {math.prod(sizes)} devices, "
                f"and devices={devices!r} names {len(device_names)}",
                hint="give one of them",
            )
        sizes = sizes or (len(device_names),)
    if strategy is not None:
        for each in _listed(strategy):
            check_name(each, "parallel_strategy")
    if strategy is None and sizes is None:
        return None
    if sizes is None:
        sizes = (count(),)
        if sizes == (1,):
            raise BackendUnavailableError(
                f"parallel_strategy={strategy!r} is for several devices, and there is 1",
                hint="say how many: device_mesh=(4,); the message about those says how to start them",
            )
    if math.prod(sizes) == 1:
        return None
    if strategy == PIPELINE:
        return Pipeline(math.prod(sizes))
    if strategy == AUTO:
        return PlannedLayout(_mesh(("data", "model", "sequence"), sizes))
    if strategy is None and len(sizes) <= 2:
        strategy = ("data_parallel", "model_parallel")[: len(sizes)]
    kinds = () if strategy is None else _listed(strategy)
    if len(kinds) != len(sizes):
        uses = "no strategy says what they divide"
        if strategy is not None:
            uses = f"parallel_strategy={strategy!r} is for {len(kinds)}"
        example = ("data_parallel", "tensor_parallel", "sequence_parallel", "expert_parallel")[: len(sizes)]
        raise InvalidValueError(
            f"device_mesh={settings.get('device_mesh')!r} has {len(sizes)} axes, and {uses}",
            hint=f"give one for each axis, e.g. parallel_strategy={example!r}; or an ml.Layout: "
            "ml.compile(..., layout=ml.Layout(ml.Mesh(...), ...))",
        )
    names = tuple(strategy) if isinstance(strategy, Mapping) else [AXES.get(kind, "stage") for kind in kinds]
    mesh = _mesh(names, sizes)
    return strategy_layout(dict(zip(mesh.axes, kinds, strict=True)), mesh)


def _listed(strategy: Any) -> tuple[Any, ...]:
    """Return the strategy along each axis of the mesh."""
    if isinstance(strategy, Mapping):
        return tuple(strategy.values())
    return tuple(strategy) if isinstance(strategy, (list, tuple)) else (strategy,)


def _mesh(names: Iterable[str], sizes: tuple[int, ...]) -> Mesh:
    """Return the mesh of these sizes; axes of one name are numbered."""
    axes: dict[str, int] = {}
    axis_names = [*names][: len(sizes)]
    for i, (name, size) in enumerate(zip_longest(axis_names, sizes, fillvalue="axis")):
        axes[name if name not in axes else f"{name}{i}"] = int(size)
    return Mesh(**axes)


def _mesh_sizes(mesh: Any) -> tuple[int, ...] | None:
    if mesh is None:
        return None
    sizes = (mesh,) if isinstance(mesh, (int, np.integer)) else tuple(mesh) if isinstance(mesh, Iterable) else (0,)
    if isinstance(mesh, bool) or not sizes or not all(isinstance(n, (int, np.integer)) and n > 0 for n in sizes):
        raise InvalidValueError(f"device_mesh is {mesh!r}", hint="give positive numbers of devices, e.g. (1,)")
    return tuple(int(n) for n in sizes)


def one_of(owner: str, settings: Mapping[str, Any]) -> Any:
    """Return the device of this process; of several ``devices`` of one kind, that of its rank on this machine."""
    device, devices = settings.get("device"), settings.get("devices")
    if devices is None or not listed(devices):
        return device
    names = listed(devices)
    if device is not None and (len(names) > 1 or device != names[0]):
        raise ConflictingOptionError(
            f"{owner}: `device` is {device!r} and `devices` {devices!r}", hint="give `device` alone"
        )
    kinds = {device_key(str(name))[0] for name in names}
    if len(kinds) > 1:
        raise InvalidValueError(
            f"{owner}: devices={devices!r} are of different kinds", hint="give devices of one kind, e.g. ['cpu'] * 4"
        )
    return names[int(os.environ.get("LOCAL_RANK", "0")) % len(names)]


def listed(value: Any) -> list[Any]:
    """Return the devices that ``devices`` names."""
    return [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)


def device_key(name: str) -> tuple[str, int]:
    """Kind and number of a device: ``"cuda"`` and ``"cuda:0"`` are one."""
    kind, _, number = name.lower().partition(":")
    return kind, int(number) if number.isdigit() else 0


def peers(device: str, devices: Iterable[str]) -> list[str]:
    """Devices of the same kind as one of them; placements number these."""
    kind = device_key(device)[0]
    return [name for name in devices if device_key(name)[0] == kind] or [device]


def seed(value: Any) -> int:
    """Read a seed: any integer, wrapped around to 64 bits."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InvalidValueError(f"a seed is an integer, not {value!r}")
    return (int(value) + 2**63) % 2**64 - 2**63
