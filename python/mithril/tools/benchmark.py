"""`benchmark`: how long a model takes on several backends, with asynchronous work waited for."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from typing_extensions import Unpack

from .. import _core, tables
from ..backends.backend import Backend
from ..backends.keywords import CompileOptions, passes_on
from ..compiled import internals
from ..compiled.compile import compile
from ..errors import ConflictingOptionError, InvalidValueError, KeyNotFoundError, MithrilError
from .chosen import available, each
from .chosen import logical as logical_of
from .inputs import complete, narrowed

__all__ = ["BenchmarkResult", "Timing", "benchmark"]

#: Calls after the first that are not counted: caches fill, allocators settle.
_WARM_UP = 3


@dataclass(frozen=True)
class Timing:
    """Times of a model on a backend, in seconds.

    Attributes
    ----------
    compile : float
        `mithril.compile`, with the source that it generates and loads.
    first : float
        The first call: the framework's compiler runs then, if it is asked to.
    times : tuple of float
        Each further call, until its results were there.
    peak_memory : int or None
        Most bytes that the backend's device held, as far as the framework says; None if it does not.
    """

    compile: float
    first: float
    times: tuple[float, ...]
    peak_memory: int | None

    @property
    def median(self) -> float:
        """Median time of a call."""
        return statistics.median(self.times)

    @property
    def minimum(self) -> float:
        """Shortest time of a call."""
        return min(self.times)

    @property
    def spread(self) -> float:
        """Distance between the quartiles, relative to the median."""
        if len(self.times) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.times, n=4)
        return (high - low) / self.median if self.median else 0.0


class BenchmarkResult(tables.Report, Mapping[str, float]):
    """Seconds per call by the name of the backend; printed as a table.

    Attributes
    ----------
    timings : dict
        `Timing` by name.
    not_measured : dict
        The reason, by the name of a backend that could not be measured.
    what : str
        What was measured.
    """

    def __init__(self, what: str, timings: dict[str, Timing], not_measured: dict[str, str]) -> None:
        self.what = what
        self.timings = timings
        self.not_measured = not_measured

    def __getitem__(self, name: str) -> float:
        if name in self.not_measured:
            raise KeyNotFoundError(f"{name!r} was not measured: {self.not_measured[name]}")
        return self.timings[name].median

    def __iter__(self) -> Iterator[str]:
        return iter(self.timings)

    def __len__(self) -> int:
        return len(self.timings)

    _schema = "mithril.bench/1"

    def _facts(self) -> dict[str, Any]:
        rows = [
            {
                "backend": name,
                "compile": t.compile,
                "first": t.first,
                "median": t.median,
                "minimum": t.minimum,
                "spread": t.spread,
                "times": t.times,
                "peak_memory": t.peak_memory,
            }
            for name, t in self.timings.items()
        ]
        return {"what": self.what, "timings": rows, "not_measured": self.not_measured}

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        head = ["backend", "compile", "first call", "median", "minimum", "spread", "peak memory"]
        rows = []
        for name, t in self.timings.items():
            times = [tables.seconds(time) for time in (t.compile, t.first, t.median, t.minimum)]
            memory = "" if t.peak_memory is None else f"{t.peak_memory / 1e6:.1f} MB"
            rows.append([name, *times, f"{t.spread:.0%}", memory])
        rows += [[name, "not measured", "", "", "", "", ""] for name in self.not_measured]
        return head, rows

    def _sentences(self) -> list[str]:
        return [self.what, *(f"{name} is not measured: {reason}" for name, reason in self.not_measured.items())]


@passes_on(compile)
def benchmark(
    model: _core.Model | str | Callable[[], _core.Model],
    input_shape: Sequence[int] | Mapping[str, Any] | None = None,
    backends: Any = ("numpy", "torch", "jax", "mlx", "c"),
    num_runs: int = 100,
    *,
    shapes: Sequence[int] | Mapping[str, Any] | None = None,
    training: bool = False,
    data: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    **options: Unpack[CompileOptions],
) -> BenchmarkResult:
    """Measure how long a call of a model takes on backends.

    Compiling, the first call and the calls after some of warming up are measured apart; each call is waited for
    (`Backend.synchronize`). A backend that is not installed, or whose device is not there, is *not measured*, with
    the reason.

    Parameters
    ----------
    model : Model, str or callable
        The model, the name of one of `mithril.models`, or a function that makes it.
    input_shape : sequence of int or mapping, optional
        As `shapes`.
    backends : list, mapping or str, optional
        Names, classes or instances; the keys of a mapping are the names in the result.
    num_runs : int, optional
        Number of calls that are measured (default 100).
    shapes : sequence of int or mapping, optional
        Shape of the data input, or shapes by name if there are several. Not needed if data are given.
    training : bool, optional
        Measure outputs and gradients together; otherwise outputs alone, compiled for inference (the default).
    data : mapping, optional
        Input name to array. Default: normal numbers; integers 0 and 1.
    params : mapping, optional
        Name to array of parameters, and of running statistics, as for `PhysicalModel.load_params`. Default: drawn.
    seed : int, optional
        Seed of parameters and data that are drawn (default 0).
    **options
        Further options of `compile`, such as ``jit``.

    Returns
    -------
    BenchmarkResult
        A mapping of names to the median in seconds.

    Examples
    --------
    >>> import mithril as ml
    >>> model = ml.Model()
    >>> model |= ml.Linear(4)(input="input", output="output")
    >>> times = ml.benchmark(model, [2, 3], {"plain": ml.NumpyBackend}, num_runs=5)
    >>> 0 < times["plain"] < 1
    True
    """
    if not isinstance(num_runs, int) or num_runs < 1:
        raise InvalidValueError(f"num_runs is {num_runs!r}", hint="give a positive number")
    if shapes is not None and input_shape is not None:
        raise ConflictingOptionError("shapes and input_shape are the same", hint="give shapes alone")
    logical = logical_of(model)
    known = _shapes(logical, shapes if input_shape is None else input_shape)
    timings: dict[str, Timing] = {}
    not_measured: dict[str, str] = {}
    settings = {**options, "inference": options.get("inference", not training)}
    for name, choice in each(backends).items():
        backend = available(choice)
        if isinstance(backend, str):
            not_measured[name] = backend
            continue
        try:
            timings[name] = _measure(logical, backend, known, data, params, num_runs, training, seed, settings)
        except MithrilError as error:
            if _is_about_model(error):
                raise
            not_measured[name] = error.message
    what = "outputs and gradients" if training else "outputs"
    return BenchmarkResult(f"{what} of {logical}, {num_runs} calls, each waited for", timings, not_measured)


def _is_about_model(error: MithrilError) -> bool:
    """Whether an error would be the same on every backend: shapes, names, data, but no missing op or device."""
    return error.code[:3] not in ("M06", "M10")


def _shapes(model: _core.Model, input_shape: Any) -> dict[str, Any]:
    if input_shape is None:
        return {}
    if isinstance(input_shape, Mapping):
        return dict(input_shape)
    names = list(_core.roles(model, {})["data"])
    if len(names) != 1:
        raise InvalidValueError(
            "one shape is given, but the model has several data inputs",
            hint=f"give shapes by name: {{{', '.join(f'{name!r}: [...]' for name in names)}}}",
        )
    return {names[0]: list(input_shape)}


def _measure(
    model: _core.Model,
    backend: Backend,
    shapes: Mapping[str, Any],
    data: Any,
    params: Any,
    num_runs: int,
    training: bool,
    seed: int,
    options: Mapping[str, Any],
) -> Timing:
    inputs = complete(model, backend, shapes, data, seed, narrowed([backend.default_dtype]), options)
    sizes = {**shapes, **{name: list(array.shape) for name, array in inputs.items()}}
    start = perf_counter()
    physical = compile(model, backend, shapes=sizes, **options)
    compiling = perf_counter() - start
    params = physical.randomize_params(seed) if params is None else physical.load_params(params)
    core = internals.known_program(physical).core
    arrays = {name: backend.tensor(inputs[name], dtype) for name, dtype, _ in core.inputs("data")}
    cotangents = _cotangents(core, backend, arrays) if training else None
    backend.synchronize([dict(params), arrays])

    def call() -> float:
        start = perf_counter()
        backend.synchronize(physical.evaluate(params, arrays, cotangents))
        return perf_counter() - start

    first = call()
    for _ in range(min(_WARM_UP, num_runs)):
        call()
    collecting = gc.isenabled()
    gc.disable()
    try:
        times = tuple(call() for _ in range(num_runs))
    finally:
        if collecting:
            gc.enable()
    return Timing(compiling, first, times, _peak_memory(backend))


def _cotangents(core: _core.Compiled, backend: Backend, arrays: Mapping[str, Any]) -> dict[str, Any]:
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    cotangents = {}
    for name in core.output_names:
        dtype = core.output_type(name)[0]
        if "float" in dtype:
            cotangents[name] = backend.tensor(np.ones(core.output_shape(name, shapes)), dtype)
    return cotangents


def _peak_memory(backend: Backend) -> int | None:
    """Peak of a device of its own; that of the process counts everything else too."""
    if backend.device.startswith("cpu"):
        return None
    return int(backend.get_memory_info()["peak_bytes"]) or None
