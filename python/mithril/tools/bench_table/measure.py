"""One cell of a table, in a process of its own: ``python -m mithril.tools.bench_table.measure SPEC REPORT``.

The report is a file of lines of JSON, so that what was found until the process was ended is known too.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from time import perf_counter
from typing import Any

import numpy as np

from ... import dtypes
from ...backends.memory import process_memory
from ...backends.registry import get_backend
from ...backends.with_autograd.jax_backend.devices import find_device
from ...compiled import internals
from ...compiled.compile import compile
from ...compiled.physical_model import PhysicalModel
from ...errors import MithrilError
from ...optim import SGD
from ...train.step import TrainingStep
from .frameworks import FRAMEWORKS
from .workloads import WORKLOADS, Workload

__all__ = ["prepare", "prepare_by_hand"]

#: A call is measured this often at most, and this long.
_MOST_CALLS, _LONGEST, _LONGEST_QUICK = 200, 5.0, 1.0
#: Calls that are not counted, as long as there is time.
_WARM_UP = 2

#: A call that returns when its results are there; the outputs as NumPy arrays; what the call counts as memory.
Prepared = tuple[Callable[[], Any], Callable[[], list[Any]], Callable[[], int | None]]


def prepare(work: Workload, spec: Mapping[str, Any], report: Callable[..., None]) -> Prepared:
    """Compile a model with Mithril, and return a call.

    Parameters
    ----------
    work : Workload
        The row.
    spec : mapping
        ``backend``, ``device``, ``table``, ``batch``, ``quick`` and ``jit``.
    report : callable
        Called with the name and value of each result.
    """
    backend = _backend(spec)
    report(device=_described(backend))
    is_training = spec["table"] == "training"
    data = work.data(spec["table"], spec["batch"], spec["quick"])
    inputs = {name: value for name, value in data.items() if name != "target"}
    options: dict[str, Any] = {"jit": True} if spec["jit"] else {}
    caches = [name for name in data if name.startswith("past_")]
    if caches and not is_training and spec["backend"] in ("c", "ggml"):
        # A decoder writes new keys and values in place; the data of each call are then those of the call before.
        options["donate"] = caches
    shapes = {name: list(value.shape) for name, value in inputs.items()}
    model = work.build(work.of(spec["quick"]), is_training)
    report(stage="compiling")
    compiled = compile(model, backend, shapes=shapes, inference=not is_training, **options)
    params = compiled.load_params(_weights(compiled), strict=False)
    arrays = {name: backend.tensor(value, _dtype(value)) for name, value in data.items()}
    if is_training:
        step = TrainingStep(compiled, SGD(0.01, momentum=0.9), loss=work.mithril_loss())
        backend.synchronize([dict(step.params), arrays])

        def train() -> Any:
            outputs = step(arrays)
            backend.synchronize([outputs, dict(step.params)])
            return outputs[step.loss]

        return train, lambda: [backend.to_numpy(train())], lambda: _device_peak(backend)
    backend.synchronize([dict(params), arrays])

    def run() -> Any:
        outputs = compiled.evaluate(params, arrays)
        backend.synchronize(outputs)
        return outputs

    def outputs() -> list[Any]:
        result = run()
        first = next(name for name in ("output", "logits_per_image") if name in result)
        return [backend.to_numpy(result[first])]

    return run, outputs, lambda: _device_peak(backend)


def prepare_by_hand(work: Workload, spec: Mapping[str, Any], report: Callable[..., None]) -> Prepared:
    """Return a call of the network that is written by hand, with the parameters that Mithril's model starts with."""
    # On the device that Mithril's takes.
    backend = _backend(spec)
    report(device=_described(backend))
    f = FRAMEWORKS[spec["backend"]](backend.device)
    is_training = spec["table"] == "training"
    sizes, data = work.of(spec["quick"]), work.data(spec["table"], spec["batch"], spec["quick"])
    shapes = {name: list(value.shape) for name, value in data.items() if name != "target"}
    compiled = compile(work.build(sizes, is_training), get_backend("numpy"), shapes=shapes, inference=not is_training)
    plain = {_short(name): f.array(value) for name, value in _weights(compiled).items()}
    state = {name: f.array(np.asarray(value)) for name, value in compiled.state.items() if "." in name}
    report(stage="compiling")
    if "position" in data:
        # These have no empty place for what is new.
        data = {n: np.delete(value, -1, axis=2) if n.startswith("past_") else value for n, value in data.items()}
        del data["position"], data["padding"]
    arrays = {name: f.array(np.ascontiguousarray(value)) for name, value in data.items()}
    forward = work.network(f, sizes, is_training)
    if is_training:
        step = f.step(work.hand_loss(f, forward), plain, state, spec["jit"])

        def train() -> Any:
            value = step(arrays)
            f.wait(value)
            return value

        return train, lambda: [f.to_numpy(train())], lambda: _device_peak(backend)
    evaluate = f.forward(forward, spec["jit"])

    def run() -> Any:
        outputs, _ = evaluate(plain, state, arrays)
        f.wait(outputs)
        return outputs

    return run, lambda: [f.to_numpy(run()[0])], lambda: _device_peak(backend)


#: Random numbers that weights repeat: drawing each of hundreds of millions would take much of a cell's time.
_DRAWN = 1 << 16


def _weights(compiled: PhysicalModel) -> dict[str, np.ndarray[Any, Any]]:
    """Return parameters with which values keep their size from layer to layer."""
    drawn = np.random.default_rng(0).standard_normal(_DRAWN).astype(np.float32)
    arrays = {}
    for name, _, shape in internals.known_program(compiled).params:
        if len(shape) == 1 and name.endswith(("weight", "bias")):
            arrays[name] = np.full(shape, 1.0 if name.endswith("weight") else 0.0, np.float32)
        else:
            scale = np.float32(1 / np.sqrt(max(1, np.prod(shape[1:]))))
            arrays[name] = np.resize(drawn * scale, shape)
    return arrays


def _short(name: str) -> str:
    """Return the name of a parameter as the published model has it, without the part of ours that it is in."""
    for part in ("t5_encode.", "t5_decode."):
        name = name.removeprefix(part)
    return name


def _dtype(value: Any) -> Any:
    return dtypes.float32 if value.dtype.kind == "f" else dtypes.int64


def _backend(spec: Mapping[str, Any]) -> Any:
    device = spec.get("device")
    return get_backend(spec["backend"], **({} if device is None else {"device": device}))


def _described(backend: Any) -> str:
    """Return the device of a backend, and what it is if it is not the processor."""
    if backend.device.startswith("cpu"):
        return str(backend.device)
    if backend.name == "torch" and backend.device.startswith("cuda"):
        return f"{backend.device}: {import_module('torch').cuda.get_device_name(backend.device)}"
    if backend.name == "jax":
        return f"{backend.device}: {find_device(import_module('jax'), backend.device).device_kind}"
    return str(backend.device)


def _device_peak(backend: Any) -> int | None:
    if backend.device.startswith("cpu"):
        return None
    return int(backend.get_memory_info()["peak_bytes"]) or None


def _forget_peak() -> bool:
    """Let Linux forget the peak of this process so far; whether it did."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        return False
    return True


def _peak() -> int:
    try:
        with open("/proc/self/status") as file:
            line = next(line for line in file if line.startswith("VmHWM"))
            return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        return process_memory()["peak"]


def _run(spec: Mapping[str, Any], report: Callable[..., None]) -> None:
    work, budget = WORKLOADS[spec["model"]], perf_counter() + spec["seconds"]
    report(stage="starting")
    # What is imported does not count as memory of the model.
    get_backend(spec["backend"])
    gc.collect()
    before = process_memory()["used"]
    report(stage="building")
    make = prepare_by_hand if spec["hand"] else prepare
    call, _, device_peak = make(work, spec, report)
    report(stage="the first call")
    start = perf_counter()
    call()
    report(first=perf_counter() - start, startup_bytes=max(0, _peak() - before))
    is_forgotten = _forget_peak()
    for _ in range(_WARM_UP):
        if perf_counter() - start > 0.2 * max(0.0, budget - start):
            break
        call()
    report(stage="measuring")
    gc.disable()
    begun, times, told = perf_counter(), list[float](), 0.0
    end = min(begun + (_LONGEST_QUICK if spec["quick"] else _LONGEST), budget)
    while len(times) < _MOST_CALLS and (len(times) < 3 or perf_counter() < end):
        start = perf_counter()
        call()
        now = perf_counter()
        times.append(now - start)
        if now - told > 0.5:
            told = now
            peak = device_peak() or max(0, _peak() - before)
            report(times=times, peak_bytes=peak, is_whole_run=not is_forgotten)
    report(times=times, peak_bytes=device_peak() or max(0, _peak() - before), is_whole_run=not is_forgotten)
    report(stage="done")


def main() -> int:
    """Measure the cell that the arguments name."""
    spec = json.loads(sys.argv[1])
    with open(sys.argv[2], "a", encoding="utf-8") as file:

        def report(**fields: Any) -> None:
            file.write(json.dumps(fields, default=str) + "\n")
            file.flush()

        try:
            _run(spec, report)
        except MithrilError as error:
            report(error=error.message)
            return 1
        except Exception as error:
            report(error=f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
