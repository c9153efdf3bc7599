"""`profile`: how long each step of a model takes in C, and how far that is from what the machine can do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core, tables
from ..backends.with_manualgrad.c_backend import CBackend
from ..compiled import internals
from ..compiled.parameters import Parameters
from ..errors import InvalidValueError, UnsupportedOpError
from . import flame_graph, roofline
from .inputs import complete, narrowed, others

if TYPE_CHECKING:
    from ..compiled.physical_model import PhysicalModel

__all__ = ["Profile", "ProfileRow", "profile"]

#: Framework -> its own profiler.
_OTHERS = {"torch": "torch.profiler.profile", "jax": "jax.profiler.trace", "mlx": "mlx.core.metal.start_capture"}
#: Runs whose times are not taken: memory is touched for the first time, threads wake.
_WARM_UP = 2


@dataclass(frozen=True)
class ProfileRow:
    """A step of the generated C.

    Attributes
    ----------
    path : str
        Which part of the model it belongs to; of steps that were joined, the last.
    name : str
        The op, or the path of the value that it computes.
    what : str
        What it computes.
    seconds : float
        Median of its time.
    operations : int or None
        Operations on numbers, a multiplication with an addition being two; of convolutions and matrix products those
        of the definition. None where they depend on the data.
    bytes : int
        Bytes of the tensors that it reads or writes, each once.
    """

    path: str
    name: str
    what: str
    seconds: float
    operations: int | None
    bytes: int

    @property
    def operations_per_second(self) -> float | None:
        """Operations in a second."""
        return None if self.operations is None or not self.seconds else self.operations / self.seconds

    @property
    def bytes_per_second(self) -> float | None:
        """Bytes in a second."""
        return self.bytes / self.seconds if self.seconds else None


class Profile(tables.Report):
    """Times of the steps of a model; printed as a table, the longest first, in a notebook below a flame graph.

    Attributes
    ----------
    rows : tuple of ProfileRow
        The steps in the order in which they run.
    seconds : float
        Median time of a run.
    runs : int
        How many runs were measured.
    threads : int
        Threads of a run.
    peak_operations, peak_bandwidth : float
        What the machine can do at most with so many threads, measured: operations on float32, and bytes from memory,
        in a second.
    """

    def __init__(
        self, rows: tuple[ProfileRow, ...], seconds: float, runs: int, threads: int, peak: tuple[float, float]
    ) -> None:
        self.rows = rows
        self.seconds = seconds
        self.runs = runs
        self.threads = threads
        self.peak_operations, self.peak_bandwidth = peak

    def __iter__(self) -> Iterator[ProfileRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def sorted(self, by: str = "time") -> tuple[ProfileRow, ...]:
        """Return the rows, the longest first (``"time"``) or as they run (``"order"``)."""
        if by not in ("time", "order"):
            raise InvalidValueError(f"by is {by!r}", hint='give "time" or "order"')
        return self.rows if by == "order" else tuple(sorted(self.rows, key=lambda row: -row.seconds))

    def share(self, row: ProfileRow) -> float:
        """Return the part of the whole time that a step takes."""
        total = sum(row.seconds for row in self.rows)
        return row.seconds / total if total else 0.0

    def share_of_peak(self, row: ProfileRow) -> float | None:
        """Return the part of the machine's multiply-adds that a step reaches; None where operations are not known.

        It may be above 1: Winograd's algorithm needs fewer multiplications than the definition.
        """
        speed = row.operations_per_second
        return None if speed is None else speed / self.peak_operations

    def is_memory_bound(self, row: ProfileRow) -> bool:
        """Whether reading and writing its tensors takes the machine longer than computing."""
        return row.bytes / self.peak_bandwidth > (row.operations or 0) / self.peak_operations

    def table(self, by: str = "time") -> str:
        """Return the table as text, sorted by ``"time"`` or in ``"order"``."""
        return tables.text(*self._cells(by))

    def flame_graph(self, title: str = "model") -> str:
        """Return a flame graph as SVG: a frame for each submodel, as wide as its steps take.

        Parameters
        ----------
        title : str, default "model"
            What the frame of the whole model is called.
        """
        return flame_graph.svg(self, title)

    def roofline(self) -> str:
        """Return a roofline plot as SVG: FLOPs per byte of each step against its FLOP/s, below the machine's peaks."""
        return roofline.picture(self)

    def _repr_html_(self) -> str:
        return self.flame_graph() + super()._repr_html_()

    _schema = "mithril.profile/1"

    def _facts(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "runs": self.runs,
            "threads": self.threads,
            "peak_operations": self.peak_operations,
            "peak_bandwidth": self.peak_bandwidth,
            "rows": [{**tables.plain(row), "share": self.share(row)} for row in self.rows],
        }

    def _cells(self, by: str = "time") -> tuple[list[str], list[list[str]]]:
        head = ["time", "share", "path", "name", "what", "MFLOP", "GFLOP/s", "of peak", "MB", "GB/s"]
        return head, [self._row(row) for row in self.sorted(by)]

    def _row(self, row: ProfileRow) -> list[str]:
        speed, share = row.operations_per_second, self.share_of_peak(row)
        computing = ["", "", ""]
        if row.operations and speed is not None and share is not None:
            computing = [f"{row.operations / 1e6:.2f}", f"{speed / 1e9:.1f}", f"{share:.0%}"]
        moving = ["", ""]
        if self.is_memory_bound(row) and row.bytes_per_second is not None:
            moving = [f"{row.bytes / 1e6:.2f}", f"{row.bytes_per_second / 1e9:.1f}"]
        times = [tables.seconds(row.seconds), f"{self.share(row):.1%}"]
        return [*times, row.path, row.name, row.what, *computing, *moving]

    def _sentences(self) -> list[str]:
        known = sum(row.operations or 0 for row in self.rows)
        reached = known / self.seconds / self.peak_operations if self.seconds else 0.0
        count = f"{self.threads} thread" + ("s" if self.threads > 1 else "")
        return [
            f"{tables.seconds(self.seconds)} a run on {count}, median of {self.runs} runs; {reached:.0%} of the peak",
            f"peak of {count}, measured: {self.peak_operations / 1e9:.0f} GFLOP/s of float32, "
            f"{self.peak_bandwidth / 1e9:.1f} GB/s read from memory",
        ]


def profile(
    model: PhysicalModel,
    params: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    output_gradients: Any = None,
    *,
    runs: int = 20,
) -> Profile:
    """Measure the steps of a model that was compiled for C.

    The C is generated once more with clocks between its steps, where all threads wait for each other; without them a
    run is a little faster.

    Parameters
    ----------
    model : PhysicalModel
        The model, compiled for `CBackend`.
    params : mapping, optional
        Parameters, also packed ones. Default, and if empty: those that belong to the model.
    data : mapping, optional
        Data, by name. Default: random numbers.
    output_gradients : optional
        As of `evaluate`: the gradients are measured as well.
    runs : int, optional
        How many runs are measured (default 20).

    Returns
    -------
    Profile
    """
    backend = model.backend
    if not isinstance(backend, CBackend):
        other = _OTHERS.get(backend.name)
        own = f"; {other} measures what {backend.name} does" if other else ""
        raise UnsupportedOpError(
            f"steps are measured in C only, the model is compiled for {backend.name}",
            hint=f"compile it for ml.CBackend(), or compare whole models by ml.benchmark{own}",
        )
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
        raise InvalidValueError(f"runs is {runs!r}", hint="give a positive number")
    if data is None:
        options = internals.compile_options(model)
        data = complete(
            internals.logical_model(model),
            backend,
            options["shapes"],
            None,
            0,
            narrowed([backend.default_dtype]),
            others(options),
        )
    # As `evaluate` does; parameters that are drawn when they are needed are not asked for their number.
    params = params if type(params) is Parameters else params or model.get_parameters()
    source, arguments = _call(model, params, data, output_gradients)
    times, steps = source.profile(*arguments, runs=runs + _WARM_UP)
    measured = np.array(times[_WARM_UP:]).reshape(runs, len(steps))
    rows = zip(steps, np.median(measured, axis=0), strict=True)
    result = tuple(
        ProfileRow(path, name, what, float(seconds), operations, size)
        for (name, path, what, operations, size), seconds in rows
    )
    operations, bandwidth, threads = _core.c_peak(backend.engine.c_options("peak"))
    total = float(np.median(measured.sum(axis=1)))
    return Profile(result, total, runs, threads, (operations, bandwidth))


def _call(model: PhysicalModel, params: Any, data: Mapping[str, Any], output_gradients: Any) -> tuple[Any, Any]:
    """Return the program in C and what it is called with."""
    program, data = internals.prepare_call(model, params, data)
    if output_gradients is None:
        return program.module.source, (params, data, internals.state_for(model, params))
    if not internals.compile_options(model)["training"]:
        raise UnsupportedOpError(
            "the model was compiled for inference and has no gradients", hint="compile it without inference=True"
        )
    cotangents = internals.cotangents_of(model, program, params, data, output_gradients)
    module, _ = program.gradient(tuple(sorted(cotangents)))
    source: Any = module.source
    return source, (params, data, internals.state_for(model, params), cotangents)
