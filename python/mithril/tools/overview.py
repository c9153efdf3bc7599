"""What each backend can do, which one to choose, and the state of this machine."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, ClassVar

from .. import _core, tables
from ..backends.frameworks import FRAMEWORKS
from ..backends.registry import BUILT_IN, list_backends
from ..errors import BackendUnavailableError, InvalidValueError
from ..optional_packages import install
from .chosen import available

__all__ = ["Doctor", "Overview", "Suggestion", "doctor", "overview", "suggest_backend"]

#: Backend -> what it can do. A column of its own says whether it is installed.
FACTS: dict[str, dict[str, str]] = {
    "numpy": {
        "gradients": "gradient graph",
        "higher order": "yes",
        "jit": "no",
        "devices": "CPU",
        "dtypes": "f16, bf16 (with ml_dtypes), f32, f64",
        "several devices": "no",
    },
    "torch": {
        "gradients": "PyTorch's, or gradient graph",
        "higher order": "yes",
        "jit": "torch.compile",
        "devices": "CPU, CUDA, ROCm, MPS, XPU",
        "dtypes": "f16, bf16, f32, f64",
        "several devices": "not in this version",
    },
    "jax": {
        "gradients": "JAX's, or gradient graph",
        "higher order": "yes",
        "jit": "jax.jit",
        "devices": "CPU, GPU, TPU",
        "dtypes": "f16, bf16, f32, f64",
        "several devices": "not in this version",
    },
    "mlx": {
        "gradients": "MLX's, or gradient graph",
        "higher order": "yes",
        "jit": "mlx.core.compile",
        "devices": "CPU, Apple GPU, CUDA",
        "dtypes": "f16, bf16, f32, f64 (CPU)",
        "several devices": "not in this version",
    },
    "c": {
        "gradients": "gradient graph",
        "higher order": "yes",
        "jit": "always: cc",
        "devices": "CPU",
        "dtypes": "f16, bf16 (with ml_dtypes), f32, f64",
        "several devices": "no",
    },
    "ggml": {
        "gradients": "gradient graph",
        "higher order": "yes",
        "jit": "no",
        "devices": "CPU",
        "dtypes": "f32, weights in f16, bf16 and few bits",
        "several devices": "no",
    },
    "interpreter": {
        "gradients": "gradient graph",
        "higher order": "yes",
        "jit": "no",
        "devices": "CPU",
        "dtypes": "f16, bf16, f32, f64",
        "several devices": "no",
    },
}
#: Backend -> module of `FRAMEWORKS` that it needs.
_MODULES = {"torch": "torch", "jax": "jax", "mlx": "mlx.core"}


class Overview(tables.Report, Mapping[str, Mapping[str, str]]):
    """What each backend can do, by name; printed as a table."""

    def __init__(self, rows: dict[str, dict[str, str]]) -> None:
        self._rows = rows

    def __getitem__(self, name: str) -> Mapping[str, str]:
        return self._rows[name]

    def __iter__(self) -> Any:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    _schema = "mithril.backends/1"

    def _facts(self) -> dict[str, Any]:
        return {"backends": self._rows}

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        head = ["backend", *next(iter(self._rows.values()))]
        return head, [[name, *row.values()] for name, row in self._rows.items()]


def overview() -> Overview:
    """Make a table of all backends: gradients, compiler, devices, dtypes, and whether they are installed.

    No framework is imported for it.
    """
    rows = {name: {**facts, "here": installed(name)} for name, facts in FACTS.items()}
    columns = next(iter(rows.values()))
    for name in list_backends():
        if name not in rows:
            rows[name] = {**dict.fromkeys(columns, "?"), "here": "registered"}
    return Overview(rows)


def installed(name: str) -> str:
    """Version of the framework that a backend needs, or how to get it; the framework is not imported."""
    if name in ("numpy", "interpreter"):
        return metadata.version("numpy") if name == "numpy" else "always"
    if name == "ggml":
        return str(_core.ggml_version())
    if name == "c":
        try:
            return str(_core.c_compiler(None, sys.executable))
        except BackendUnavailableError as error:
            return str(error.hint)
    distribution, extra, _ = FRAMEWORKS[_MODULES[name]]
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return install(extra)


# --- which one to choose --------------------------------------------------------------------------------------

#: Hardware -> backends that use it, the best supported first, and why.
_HARDWARE: dict[str, tuple[tuple[str, ...], str]] = {
    "nvidia": (("torch", "jax"), "PyTorch and JAX run on NVIDIA GPUs"),
    "amd": (("torch", "jax"), "PyTorch has wheels for ROCm"),
    "intel": (("torch",), "PyTorch runs on Intel GPUs (xpu)"),
    "tpu": (("jax",), "JAX targets TPUs"),
    "apple": (("mlx", "torch", "jax"), "MLX uses the GPU and the shared memory of Apple silicon"),
    "cpu": (("torch", "jax", "mlx", "c", "ggml", "numpy"), "every backend runs on a CPU"),
}
#: Task -> backends that come first for it, and why; none: as the hardware says.
_TASKS: dict[str, tuple[tuple[str, ...], str]] = {
    "training": ((), "all frameworks train"),
    "inference": ((), "all backends evaluate; jit=True is worth trying"),
    "large models": (("jax",), "XLA fuses and plans memory for the whole program"),
    "static graphs": (("jax",), "XLA compiles the whole program once"),
    "dynamic shapes": (("torch",), "PyTorch runs new shapes without compiling again"),
    "verification": (("numpy", "interpreter"), "readable code without dependencies, in float64 if requested"),
    "deployment": (("c", "ggml"), "one file of C that needs nothing but a compiler"),
}


@dataclass(frozen=True)
class Suggestion:
    """A backend to start with.

    Attributes
    ----------
    name : str
        Name for `get_backend`.
    reason : str
        Why.
    alternatives : tuple of str
        Others that fit, the better first.
    here : str
        Version of its framework, or how to get it.
    """

    name: str
    reason: str
    alternatives: tuple[str, ...]
    here: str

    def __str__(self) -> str:
        others = f"; also: {', '.join(self.alternatives)}" if self.alternatives else ""
        return f"{self.name} ({self.here}): {self.reason}{others}"


def suggest_backend(task: str = "training", hardware: str | None = None) -> Suggestion:
    """Suggest a backend to start with; `benchmark` tells which one is the fastest for a model.

    Parameters
    ----------
    task : str, optional
        ``"training"``, ``"inference"``, ``"large models"``, ``"static graphs"``, ``"dynamic shapes"``,
        ``"verification"`` or ``"deployment"``.
    hardware : str, optional
        ``"nvidia"``, ``"amd"``, ``"intel"``, ``"tpu"``, ``"apple"`` or ``"cpu"``. Default: what this machine has.

    Returns
    -------
    Suggestion

    Examples
    --------
    >>> import mithril as ml
    >>> ml.suggest_backend("training", "apple").name
    'mlx'
    """
    task, hardware = task.lower().replace("_", " "), (hardware or detect_hardware()).lower()
    for what, value, known in (("task", task, _TASKS), ("hardware", hardware, _HARDWARE)):
        if value not in known:
            raise InvalidValueError(f"{what} is {value!r}", hint=f"choose one of {', '.join(known)}")
    first, why = _TASKS[task]
    fitting, because = _HARDWARE[hardware]
    chosen = [name for name in first if name in fitting or task == "verification"]
    ranked = list(dict.fromkeys([*chosen, *fitting]))
    reason = why if chosen else f"{because}; {why}"
    return Suggestion(ranked[0], reason, tuple(ranked[1:]), installed(ranked[0]))


def detect_hardware() -> str:
    """Kind of accelerator that this machine has, as far as can be seen without a framework."""
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return "apple"
    if os.path.exists("/dev/nvidiactl") or shutil.which("nvidia-smi"):
        return "nvidia"
    if os.path.exists("/dev/kfd"):
        return "amd"
    if os.path.exists("/dev/accel0") or os.environ.get("TPU_NAME"):
        return "tpu"
    return "cpu"


# --- the state of this machine --------------------------------------------------------------------------------


@dataclass(repr=False)
class Doctor(tables.Report):
    """State of this machine: what is there, and what to do about what is not.

    Attributes
    ----------
    facts : list of (str, str)
        What is there.
    advice : list of str
        What to do.
    """

    facts: list[tuple[str, str]] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)

    _schema: ClassVar[str] = "mithril.doctor/1"

    def _facts(self) -> dict[str, Any]:
        return {"facts": dict(self.facts), "advice": self.advice}

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        return ["what", "found"], [list(fact) for fact in self.facts]

    def _sentences(self) -> list[str]:
        return self.advice or ["nothing to do"]


def doctor() -> Doctor:
    """Look at this machine: versions, devices, compilers. All frameworks that are installed are imported."""
    report = Doctor()
    python = f"{platform.python_version()} ({sys.executable})"
    report.facts += [("mithril", _core.__version__), ("Python", python), ("system", platform.platform())]
    hardware = detect_hardware()
    report.facts.append(("accelerator", hardware if hardware != "cpu" else "none found"))
    for name in BUILT_IN:
        _examine(report, name, hardware)
    report.facts.append(("ml_dtypes", _version("ml_dtypes") or "not installed"))
    if not _version("ml_dtypes"):
        report.advice.append(f"bfloat16 on NumPy needs ml_dtypes: {install('bfloat16')}")
    compilers = {name: _first_line(name) for name in ("cc", "c++", "clang", "nvcc")}
    report.facts += [(name, line or "not found") for name, line in compilers.items()]
    if _version("torch") and not any(compilers[name] for name in ("c++", "clang")):
        report.advice.append("jit=True on PyTorch needs a C++ compiler: install g++ or clang")
    report.advice.append(f"to start with: {suggest_backend(hardware=hardware)}")
    return report


def _examine(report: Doctor, name: str, hardware: str) -> None:
    backend = available(name)
    if isinstance(backend, str):
        report.facts.append((name, backend))
        return
    devices = ", ".join(backend.devices)
    report.facts.append((name, f"{installed(name)}; devices: {devices}; default: {backend.device}"))
    has_none = all(device.startswith("cpu") for device in backend.devices)
    if has_none and name in _HARDWARE[hardware][0] and hardware != "cpu":
        report.advice.append(f"{name} does not see the {hardware} accelerator: {_INSTALL[name]}")


#: How to get a framework that sees an accelerator.
_INSTALL = {
    "torch": "install the build for it, see https://pytorch.org/get-started/locally",
    "jax": 'for NVIDIA GPUs: pip install "jax[cuda13]"; for TPUs: pip install "jax[tpu]"',
    "mlx": 'on Linux with NVIDIA: pip install "mlx[cuda]"',
    "numpy": "it runs on the CPU only",
}


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _first_line(program: str, arguments: Sequence[str] = ("--version",)) -> str | None:
    path = shutil.which(program)
    if path is None:
        return None
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return f"{path} does not answer"
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else path
