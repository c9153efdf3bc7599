"""`compare`: the same model on several backends, value by value, and what of the differences is more than rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from typing_extensions import Unpack

from .. import _core, dtypes, tables
from ..backends.backend import Backend
from ..backends.exchange import to_host
from ..backends.keywords import CompileOptions, passes_on
from ..backends.with_manualgrad.numpy_backend import NumpyBackend
from ..compiled import internals
from ..compiled.compile import compile
from ..errors import InvalidValueError, MithrilError
from ..testing.backend_tests import EPSILON
from .chosen import each, make
from .inputs import complete, narrowed, refuse_unknown
from .inspection import Node, gradient_names, nodes, run
from .oracle import GRADIENT_UNITS, OPAQUE, Error, Oracle, off

__all__ = ["BackendReport", "CompareResult", "Difference", "compare"]

#: What accumulates may be so many times what accumulates elsewhere by rounding.
_SPREAD = 16.0


@dataclass(frozen=True)
class Difference:
    """A value on a backend, and how far it is from the truth, in units of epsilon of its dtype.

    Attributes
    ----------
    backend : str
        Name of the backend.
    kind : str
        ``"value"``: of the model; ``"backward"``: of its gradient graph; ``"gradient"``: of one op by the
        backend's own differentiation; ``"output"``, ``"parameter gradient"``: results of the whole program.
    name : str
        Name of the value, or path of what computes it.
    op : str
        Op that computes it.
    path : str or None
        Path in the model.
    where : str or None
        The user's line.
    dtype : str
        Its dtype.
    local : float
        Error of the op on its own inputs.
    allowed : float
        What of that is rounding.
    accumulated : float
        Error with all that came before.
    """

    backend: str
    kind: str
    name: str
    op: str
    path: str | None
    where: str | None
    dtype: str
    local: float
    allowed: float
    accumulated: float

    @property
    def is_defect(self) -> bool:
        """Whether it is more than rounding."""
        return self.local > self.allowed

    @property
    def place(self) -> str:
        """Path and line."""
        path = f" in `{self.path}`" if self.path else ""
        return path + (f" at {self.where}" if self.where else "")

    def __str__(self) -> str:
        what = {
            "value": f"op `{self.op}`",
            "backward": f"op `{self.op}` of the gradient graph",
            "gradient": f"the gradient of op `{self.op}` with respect to `{self.name}`",
            "output": f"output `{self.name}` of the whole program",
            "parameter gradient": f"the gradient of `{self.name}` by the whole program",
        }[self.kind]
        if self.is_defect:
            size = "other integers, infinities or NaN" if np.isinf(self.local) else f"{self.local:.3g} ulp"
            return f"defect in {what}{self.place}: {size}, rounding explains {_limit(self.allowed)}"
        return f"rounding-level in {what}{self.place}: {self.local:.3g} ulp, expected {_limit(self.allowed)}"


@dataclass
class BackendReport:
    """What `compare` found on one backend.

    Attributes
    ----------
    name : str
        Name of the backend.
    backend : Backend
        It.
    differences : list of Difference
        Every value in order of evaluation, then the results of whole programs.
    outputs : dict
        The outputs, as NumPy arrays.
    gradients : dict
        The gradients of the parameters.
    notes : list of str
        What could not be looked at, and why.
    """

    name: str
    backend: Backend
    differences: list[Difference] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def defects(self) -> list[Difference]:
        """What is more than rounding, in order."""
        return [d for d in self.differences if d.is_defect]

    @property
    def largest(self) -> Difference | None:
        """The value nearest to what is allowed, or furthest beyond."""
        return max(self.differences, key=lambda d: _ratio(d.local, d.allowed), default=None)

    def of(self, *kinds: str) -> list[Difference]:
        """Differences of these kinds."""
        return [d for d in self.differences if d.kind in kinds]


@dataclass(repr=False)
class CompareResult(tables.Report):
    """What `compare` found: a report per backend, printed as a table.

    Attributes
    ----------
    reports : dict
        `BackendReport` by name; the first is the reference.
    """

    reports: dict[str, BackendReport]

    @property
    def agree(self) -> bool:
        """Whether all differences are rounding."""
        return self.first_difference is None

    @property
    def first_difference(self) -> Difference | None:
        """The first value in the order of evaluation that rounding does not explain."""
        return next((d for report in self.reports.values() for d in report.defects), None)

    @property
    def differences(self) -> list[Difference]:
        """All values of all backends."""
        return [d for report in self.reports.values() for d in report.differences]

    _schema: ClassVar[str] = "mithril.compare/1"

    def _facts(self) -> dict[str, Any]:
        def row(difference: Difference) -> dict[str, Any]:
            return {**tables.plain(difference), "is_defect": difference.is_defect}

        reports = [
            {
                "backend": report.name,
                "dtype": str(report.backend.default_dtype),
                "agrees": not report.defects,
                "values": len(report.of("value", "backward")),
                "largest": None if report.largest is None else row(report.largest),
                "defects": [row(defect) for defect in report.defects],
                "notes": report.notes,
            }
            for report in self.reports.values()
        ]
        return {"agree": self.agree, "reports": reports}

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        head = ["backend", "dtype", "values", "largest local error", "outputs", "gradients", "verdict"]
        rows = []
        for report in self.reports.values():
            largest = report.largest
            local = f"{largest.local:.3g} of {_limit(largest.allowed)} ({largest.op})" if largest else ""
            defects = len(report.defects)
            verdict = f"{defects} defect{'s' if defects > 1 else ''}" if defects else "rounding-level"
            count = str(len(report.of("value", "backward")))
            cells = [_accumulated(report.of("output")), _accumulated(report.of("parameter gradient"))]
            rows.append([report.name, str(report.backend.default_dtype), count, local, *cells, verdict])
        return head, rows

    def _sentences(self) -> list[str]:
        lines = ["errors in ulp (units of epsilon of the dtype, relative to the largest element) against float64"]
        for report in self.reports.values():
            lines += [f"{report.name}: {note}" for note in report.notes]
            alike: dict[tuple[str, str], list[Difference]] = {}
            for defect in report.defects:
                alike.setdefault((defect.kind, defect.op), []).append(defect)
            for defects in alike.values():
                more = f" (and {len(defects) - 1} more of this kind)" if len(defects) > 1 else ""
                lines.append(f"{report.name}: {defects[0]}{more}")
        return lines

    def to_markdown(self, *, values: bool = False) -> str:
        """Return the table in Markdown; with ``values`` also one of every value."""
        parts = [super().to_markdown()]
        if values:
            head = ["backend", "kind", "value", "op", "local ulp", "allowed", "accumulated ulp"]
            rows = [
                [d.backend, d.kind, d.name, d.op, f"{d.local:.3g}", _limit(d.allowed), f"{d.accumulated:.3g}"]
                for d in self.differences
            ]
            parts += ["", tables.markdown(head, rows)]
        return "\n".join(parts)


@passes_on(compile)
def compare(
    model: _core.Model,
    backends: Any,
    shapes: Mapping[str, Any] | None = None,
    *,
    data: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    gradients: bool = True,
    output_gradients: Mapping[str, Any] | None = None,
    dtype: Any = None,
    seed: int = 0,
    **options: Unpack[CompileOptions],
) -> CompareResult:
    """Run a model on several backends with the same parameters and data, and look at every value.

    Each op is also evaluated in double precision on the very inputs that it had on a backend. The difference is the
    *local* error of the op, and there are bounds for what of it is rounding (docs/tolerances.md): beyond them is a
    defect, however small it is in the result. What the errors add up to is the *accumulated* error; if all ops are
    right, it is rounding, however large it is. Results of whole programs, compiled as usual (``jit=True`` is passed
    on), are compared too, and so are the gradients that a framework finds by itself.

    All values are kept for the comparison: it needs more memory than the model does.

    Parameters
    ----------
    model : Model
        The model.
    backends : list, mapping or str
        Names, classes or instances. A NumPy backend is the reference; if there is none, one is put in front.
    shapes : mapping, optional
        Input name to shape, numbers only; data are then drawn. Not needed if data are given.
    data : mapping, optional
        Input name to array. Default: normal numbers; integers 0 and 1.
    params : mapping, optional
        Name to array of parameters, and of running statistics. Default: drawn by the reference.
    gradients : bool, optional
        Compare gradients too (the default), if the model has float outputs and parameters.
    output_gradients : mapping, optional
        Output name to the gradient there. Default: normal numbers.
    dtype : dtype, optional
        Dtype of backends that are named.
    seed : int, optional
        Seed of what is drawn (default 0).
    **options
        Further options of `compile`.

    Returns
    -------
    CompareResult
        Has ``agree``, ``first_difference``; prints as a table.

    Examples
    --------
    >>> import mithril as ml
    >>> model = ml.Model()
    >>> model |= ml.Linear(4)(input="input", output="hidden")
    >>> model += ml.Gelu()(output="output")
    >>> result = ml.compare(model, ["numpy", "interpreter"], {"input": [2, 3]})
    >>> result.agree
    True
    """
    named = _instances(backends, dtype)
    run_options = {**options, "seed": seed}
    request = _Given(model, named, shapes, data, params, output_gradients, gradients, run_options)
    cache: dict[Any, Any] = {}
    comparisons = {name: _Comparison(name, backend, request, cache) for name, backend in named.items()}
    reference = next(iter(comparisons.values()))
    for comparison in comparisons.values():
        comparison.judge(reference)
    return CompareResult({name: comparison.report for name, comparison in comparisons.items()})


def _instances(backends: Any, dtype: Any) -> dict[str, Backend]:
    options = {} if dtype is None else {"dtype": dtypes.normalize(dtype)}
    named = {name: make(backend, **options) for name, backend in each(backends).items()}
    for name, backend in named.items():
        if dtype is not None and backend.default_dtype != options["dtype"]:
            raise InvalidValueError(
                f"dtype is {options['dtype']}, but the backend {name!r} is of {backend.default_dtype}",
                hint="give names instead of instances, or leave dtype out",
            )
    reference = next((name for name, backend in named.items() if type(backend) is NumpyBackend), None)
    if reference is None:
        first = next(iter(named.values()))
        return {"numpy (reference)": NumpyBackend(dtype=first.default_dtype), **named}
    return {reference: named.pop(reference), **named}


class _Given:
    """What all backends are given: parameters, data, state and cotangents as NumPy arrays."""

    def __init__(
        self,
        model: _core.Model,
        backends: Mapping[str, Backend],
        shapes: Any,
        data: Any,
        params: Any,
        cotangents: Any,
        gradients: bool,
        options: dict[str, Any],
    ) -> None:
        self.seed = options.pop("seed")
        self.model, self.options = model, options
        reference = next(iter(backends.values()))
        narrow = narrowed([backend.default_dtype for backend in backends.values()])
        self.data = complete(model, reference, shapes, data, self.seed, narrow, options)
        self.shapes = {**(shapes or {}), **{name: list(array.shape) for name, array in self.data.items()}}
        physical = self.compile(reference)
        core = internals.known_program(physical).core
        drawn = core.initial([name for name, _, _ in core.inputs("param")], self.seed)
        self.state = {name: reference.to_numpy(value) for name, value in physical.state.items()}
        refuse_unknown("params", params or (), [*drawn, *self.state])
        for name, value in (params or {}).items():
            group = drawn if name in drawn else self.state
            group[name] = to_host(value)
        self.params = {name: narrow(np.asarray(value)) for name, value in drawn.items()}
        outputs, names = gradient_names(core)
        self.has_gradients = gradients and bool(outputs and names) and internals.compile_options(physical)["training"]
        random = np.random.default_rng(self.seed + 1)
        self.cotangents: dict[str, Any] = {}
        for name in outputs if self.has_gradients else ():
            shape = core.output_shape(name, {key: array.shape for key, array in self.data.items()})
            self.cotangents[name] = narrow(random.standard_normal(shape))
        refuse_unknown("output_gradients", cotangents or (), outputs)
        for name, value in (cotangents or {}).items():
            self.cotangents[name] = narrow(to_host(value))
        if cotangents:
            self.cotangents = {name: self.cotangents[name] for name in cotangents}

    def compile(self, backend: Backend) -> Any:
        """Compile the model for the shapes of the data."""
        return compile(self.model, backend, shapes=self.shapes, **self.options)


class _Comparison:
    """One backend: all values, and what is found about them."""

    def __init__(self, name: str, backend: Backend, request: _Given, cache: dict[Any, Any]) -> None:
        self.report = BackendReport(name, backend)
        self.backend, self.request, self.cache = backend, request, cache
        self.physical = request.compile(backend)
        self.core = internals.known_program(self.physical).core
        self.forward = _Values(self.core, self._run(self.core, {}), cache)
        self.backward: _Values | None = None
        if request.has_gradients:
            outputs, names = list(request.cotangents), gradient_names(self.core)[1]
            further = {f"cotangent:{name}": array for name, array in request.cotangents.items()}
            try:
                core = _core.with_gradients(self.core, outputs, names)
                self.backward = _Values(core, self._run(core, further), cache)
            except MithrilError as error:
                self.report.notes.append(f"the gradient graph does not run here: {error.message}")
        opaque = [node for node in self.forward.nodes if node.op in OPAQUE]
        self.report.notes += [f"not judged, a function that cannot be traced {node.place}" for node in opaque]
        self._run_whole()

    def _arrays(self, group: Mapping[str, Any], entries: Any) -> dict[str, Any]:
        return {name: self.backend.tensor(group[name], dtype) for name, dtype, _ in entries}

    def _run(self, core: _core.Compiled, further: Mapping[str, Any]) -> dict[int, Any]:
        data = {**self.request.data, **further}
        groups = zip((self.request.params, data, self.request.state), ("param", "data", "state"), strict=True)
        return run(core, self.backend, *(self._arrays(group, core.inputs(role)) for group, role in groups))

    def _run_whole(self) -> None:
        """Evaluate the model as users do."""
        request, physical, backend = self.request, self.physical, self.backend
        params = self._arrays(request.params, self.core.inputs("param"))
        data = self._arrays(request.data, self.core.inputs("data"))
        state = self._arrays(request.state, self.core.inputs("state"))
        internals.update_state(physical, state)
        outputs = physical.evaluate(params, data)
        self.report.outputs = {name: np.asarray(backend.to_numpy(value)) for name, value in outputs.items()}
        if request.has_gradients:
            internals.update_state(physical, state)
            try:
                _, gradients = physical.evaluate(params, data, request.cotangents)
            except MithrilError as error:
                self.report.notes.append(f"gradients do not run here: {error.message}")
                return
            self.report.gradients = {name: np.asarray(backend.to_numpy(value)) for name, value in gradients.items()}

    def judge(self, reference: _Comparison) -> None:
        """Look at every value, then at the results of the whole programs."""
        add = self.report.differences.extend
        add(self.forward.differences(self.report.name, "value", reference.forward))
        if self.backward is not None:
            other = reference.backward or self.backward
            add(self.backward.differences(self.report.name, "backward", other))
        for name, array in self.report.outputs.items():
            position = _core.output_values(self.core).get(name)
            add(self._whole("output", name, array, self.forward, reference.forward, position))
        if self.report.gradients:
            self._judge_gradients(reference)

    def _judge_gradients(self, reference: _Comparison) -> None:
        mine = self.backward or reference.backward
        if mine is None:
            return
        positions = _core.output_values(mine.core)
        results = []
        for name, array in self.report.gradients.items():
            position = positions.get(f"gradient:{name}")
            other = reference.backward or mine
            results += self._whole("parameter gradient", name, array, mine, other, position)
        if any(d.is_defect for d in results) and self.backend.engine.autodiff[0] == "native":
            self.report.differences += self._gradients_of_ops()
        self.report.differences += results

    def _whole(
        self,
        kind: str,
        name: str,
        array: Any,
        mine: _Values,
        reference: _Values,
        position: int | None,
    ) -> list[Difference]:
        if position is None or position not in mine.truth(reference):
            return []
        dtype = array.dtype.name
        truth = mine.truth(reference)[position]
        error = off(array, truth, dtype)
        expected = GRADIENT_UNITS
        # What is found with all values kept is a measure of rounding, if all ops were right there.
        trusted = [reference] if self.report.defects else [mine, reference]
        for others in trusted:
            if position in others.values:
                expected = max(expected, _SPREAD * off(others.values[position], truth, dtype))
        if error > expected:
            noisy = mine.noisy(reference)[position]
            expected = max(expected, _SPREAD * off(noisy, truth, dtype))
        node = mine.makers.get(position)
        path, where, op = (node.path, node.where, node.op) if node else (None, None, "")
        return [Difference(self.report.name, kind, name, op, path, where, dtype, error, expected, error)]

    def _gradients_of_ops(self) -> list[Difference]:
        """Differentiate every op by itself, to find the one that the backend differentiates wrongly."""
        results = []
        for node in self.forward.nodes:
            try:
                errors = self.forward.oracle.gradients(node, self.backend, self.forward.values)
            except MithrilError:
                # The op has no gradient: nothing flows through it.
                continue
            for value in node.inputs:
                error = errors.get(value.position)
                if error is not None and not error.is_rounding:
                    name = value.name or f"input {value.port}"
                    dtype = self.forward.values[value.position].dtype.name
                    results.append(_difference(self.report.name, "gradient", name, node, dtype, error, error.units))
        return results


class _Values:
    """All values of a program on a backend."""

    def __init__(self, core: _core.Compiled, values: dict[int, Any], cache: dict[Any, Any]) -> None:
        self.core, self.values = core, values
        self.nodes = nodes(core)
        self.oracle = Oracle(core, cache)
        self.makers = {value.position: node for node in self.nodes for value in node.outputs}
        self.ops = [node.op for node in self.nodes]
        self._chains: dict[int | None, dict[int, Any]] = {}

    def truth(self, reference: _Values) -> dict[int, Any]:
        """All values in double precision; those of the reference if it has the same ops."""
        return reference._chain(None) if reference.ops == self.ops else self._chain(None)

    def noisy(self, reference: _Values) -> dict[int, Any]:
        """All values in double precision with rounding after each op."""
        return reference._chain(0) if reference.ops == self.ops else self._chain(0)

    def _chain(self, noise: int | None) -> dict[int, Any]:
        if noise not in self._chains:
            self._chains[noise] = self.oracle.chain(self.nodes, self.values, noise)
        return self._chains[noise]

    def differences(self, backend: str, kind: str, reference: _Values) -> list[Difference]:
        """Local and accumulated error of every value."""
        truth = self.truth(reference)
        results = []
        for node in self.nodes:
            for value in node.outputs:
                if value.position not in self.values:
                    continue
                error = self.oracle.local(node, self.values, value.position)
                accumulated = off(self.values[value.position], truth[value.position], value.dtype)
                name = value.name or node.path or node.op
                results.append(_difference(backend, kind, name, node, value.dtype, error, accumulated))
        return results


def _difference(
    backend: str, kind: str, name: str, node: Node, dtype: str, error: Error, accumulated: float
) -> Difference:
    place = (node.op, node.path, node.where)
    return Difference(backend, kind, name, *place, dtype, error.units, error.allowed, accumulated)


def _ratio(units: float, allowed: float) -> float:
    return units / allowed if allowed else (0.0 if units == 0 else np.inf)


def _limit(units: float) -> str:
    return "anything" if np.isinf(units) else f"≤ {units:.3g}"


def _accumulated(differences: list[Difference]) -> str:
    # What cancels out in exact arithmetic is nothing but rounding: its size says nothing.
    telling = [d for d in differences if d.allowed * EPSILON.get(d.dtype, 0.0) < 1] or differences
    if not telling:
        return ""
    worst = max(telling, key=lambda d: _ratio(d.local, d.allowed))
    return f"{worst.local:.3g} of {_limit(worst.allowed)}"
