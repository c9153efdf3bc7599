"""`find_nans`: where NaN and infinities come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .. import _core, tables
from ..compiled import internals
from .inspection import Node, Value, gradient_names, nodes, run

if TYPE_CHECKING:
    from ..compiled.physical_model import PhysicalModel

__all__ = ["NanOrigin", "NanReport", "Range", "find_nans"]

Array = np.ndarray[Any, Any]

#: Largest numbers of the dtypes that overflow in practice.
_LARGEST = {"float16": 65504.0, "bfloat16": 3.39e38, "float32": 3.4e38, "float64": 1.8e308}
#: Ops that need inputs above a bound, or inside an interval.
_POSITIVE = ("log", "log2", "log10", "rsqrt", "reciprocal")
_NOT_NEGATIVE = ("sqrt", "power")
_UNIT = ("arcsin", "arccos", "arctanh", "logit")
_DIVIDING = ("divide", "floor_divide", "mod", "remainder")


@dataclass(frozen=True)
class Range:
    """What an array holds.

    Attributes
    ----------
    name : str
        Name or path of the array.
    low, high : float
        Smallest and largest finite element; NaN if there is none.
    nan, inf : int
        Number of elements that are NaN, and that are infinite.
    size : int
        Number of all elements.
    """

    name: str
    low: float
    high: float
    nan: int
    inf: int
    size: int

    @classmethod
    def of(cls, name: str, array: Array) -> Range:
        """Range of an array."""
        wide = array.astype(np.float64)
        finite = wide[np.isfinite(wide)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (np.nan, np.nan)
        return cls(name, low, high, int(np.isnan(wide).sum()), int(np.isinf(wide).sum()), wide.size)

    def __str__(self) -> str:
        parts = [f"{self.low:.4g} to {self.high:.4g}"] if self.low == self.low else []
        parts += [f"{self.nan} NaN"] if self.nan else []
        parts += [f"{self.inf} infinite"] if self.inf else []
        return f"`{self.name}`: {', '.join(parts) or 'empty'} of {self.size}"


@dataclass(frozen=True)
class NanOrigin:
    """A place where NaN or infinities come up that were not there before.

    Attributes
    ----------
    kind : str
        ``"input"``: they were given; ``"value"``: an op of the model makes them; ``"gradient"``: an op of its
        gradients.
    op : str
        The op; empty for an input.
    path : str or None
        Path in the model.
    where : str or None
        The user's line.
    result : Range
        What came out.
    inputs : tuple of Range
        What went in.
    hint : str or None
        What helps, if that is known.
    """

    kind: str
    op: str
    path: str | None
    where: str | None
    result: Range
    inputs: tuple[Range, ...] = ()
    hint: str | None = None

    def __str__(self) -> str:
        what = "NaN" if self.result.nan else "infinities"
        if self.kind == "input":
            return f"{what} in what is given: {self.result}"
        place = (f" in `{self.path}`" if self.path else "") + (f" at {self.where}" if self.where else "")
        part = "the gradient, by " if self.kind == "gradient" else ""
        lines = [f"{what} in {part}op `{self.op}`{place}: {self.result}" if self.op else f"{what}: {self.result}"]
        lines += [f"  input {text}" for text in self.inputs]
        return "\n".join(lines + ([f"  help: {self.hint}"] if self.hint else []))


@dataclass(repr=False)
class NanReport(tables.Report):
    """What `find_nans` found; true if it found something.

    Attributes
    ----------
    origins : list of NanOrigin
        Where NaN and infinities come up, in the order of evaluation.
    """

    origins: list[NanOrigin] = field(default_factory=list)

    @property
    def first(self) -> NanOrigin | None:
        """The first of them."""
        return self.origins[0] if self.origins else None

    def __bool__(self) -> bool:
        return bool(self.origins)

    def __iter__(self) -> Iterator[NanOrigin]:
        return iter(self.origins)

    def __len__(self) -> int:
        return len(self.origins)

    def __str__(self) -> str:
        return "\n".join(str(origin) for origin in self.origins) or "all values are finite"

    _schema: ClassVar[str] = "mithril.nans/1"

    def _facts(self) -> dict[str, Any]:
        return {"origins": self.origins}

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        head = ["kind", "op", "path", "line", "result", "help"]
        rows = [[o.kind, o.op, o.path or "", o.where or "", str(o.result), o.hint or ""] for o in self.origins]
        return head, rows


def find_nans(
    physical: PhysicalModel,
    params: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    output_gradients: Any = None,
) -> NanReport:
    """Find the ops where NaN and infinities come up, in the values or, if asked for, in the gradients.

    The model is evaluated with all of its values kept; its state does not change.

    Parameters
    ----------
    physical : PhysicalModel
        The model; ``physical.find_nans(params, data)`` is the same.
    params, data, output_gradients
        As for `PhysicalModel.evaluate`; with ``output_gradients`` the gradients are searched too.

    Returns
    -------
    NanReport
        True if there are any; iterates over their origins, each with path, line, ranges and a hint.

    Examples
    --------
    >>> import mithril as ml
    >>> model = ml.Model()
    >>> model |= ml.Log()(input="input", output="output")
    >>> compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [3]})
    >>> compiled.find_nans({}, {"input": [1.0, 0.5, -2.0]}).first.op
    'log'
    """
    params = physical.get_parameters() if params is None else params
    program, prepared = internals.prepare_call(physical, params, {} if data is None else data)
    backend, state = physical.backend, internals.state_for(physical, params)
    report = NanReport()
    values = run(program.core, backend, params, prepared, state)
    report.origins += _input_origins(nodes(program.core), values)
    report.origins += _walk(nodes(program.core), values, "value")
    if output_gradients is None:
        return report
    seeds = internals.cotangents_of(physical, program, params, prepared, output_gradients)
    names = gradient_names(program.core)[1]
    core = _core.with_gradients(program.core, list(seeds), names)
    further = {f"cotangent:{name}": value for name, value in seeds.items()}
    values = run(core, backend, params, {**prepared, **further}, state)
    forward = {(origin.op, origin.path) for origin in report.origins}
    origins = _walk(nodes(core), values, "gradient")
    report.origins += [origin for origin in origins if (origin.op, origin.path) not in forward]
    if not report.origins and internals.program_settings(physical).autodiff == "native":
        _, gradients = program.gradient(tuple(sorted(seeds)))[1](params, prepared, state, seeds)[:2]
        ranges = [Range.of(name, np.asarray(backend.to_numpy(array))) for name, array in gradients.items()]
        hint = "the framework's own gradient alone is not finite: compile with autodiff='graph'"
        report.origins += [NanOrigin("gradient", "", None, None, r, hint=hint) for r in ranges if r.nan or r.inf]
    return report


def _input_origins(all_nodes: list[Node], values: Mapping[int, Array]) -> list[NanOrigin]:
    inputs = {value.position: value for node in all_nodes for value in node.inputs if value.role != "value"}
    ranges = [Range.of(value.name or "", values[at]) for at, value in inputs.items() if _is_float(values[at])]
    return [NanOrigin("input", "", r.name, None, r) for r in ranges if r.nan or r.inf]


def _walk(all_nodes: list[Node], values: Mapping[int, Array], kind: str) -> list[NanOrigin]:
    """Nodes whose results hold what no input of theirs does."""
    origins = []
    for node in all_nodes:
        inputs = [Range.of(_name(value), values[value.position]) for value in node.inputs if _has(values, value)]
        for value in node.outputs:
            if not _has(values, value):
                continue
            result = Range.of(_name(value, node), values[value.position])
            has_nan, has_inf = any(i.nan for i in inputs), any(i.inf for i in inputs)
            is_new = (result.nan and not has_nan) or (result.inf and not has_inf and not has_nan)
            if is_new and not (not result.nan and _is_meant(node)):
                hint = _hint(node, inputs, result, values[value.position].dtype.name)
                origins.append(NanOrigin(kind, node.op, node.path, node.where, result, tuple(inputs), hint))
    return origins


def _has(values: Mapping[int, Array], value: Value) -> bool:
    return value.position in values and _is_float(values[value.position])


def _is_float(array: Array) -> bool:
    return "float" in array.dtype.name


def _is_meant(node: Node) -> bool:
    """Whether the model itself says infinity here, as masks do."""
    literals = (x for x in node.literals.values() if isinstance(x, (float, np.ndarray)))
    return any(_is_float(np.asarray(x)) and np.isinf(np.asarray(x, np.float64)).any() for x in literals)


def _name(value: Value, node: Node | None = None) -> str:
    return value.name or (node and node.path) or "value"


def _hint(node: Node, inputs: list[Range], result: Range, dtype: str) -> str | None:
    low = min((i.low for i in inputs), default=0.0)
    if node.op in _POSITIVE and low <= 0:
        return f"the input reaches {low:.4g}: keep it above zero, e.g. clip it from below or add a small number"
    if node.op in _NOT_NEGATIVE and low < 0:
        return f"the input reaches {low:.4g}: keep it from being negative"
    if node.op in _UNIT and any(i.low <= -1 or i.high >= 1 for i in inputs):
        return "the input leaves the interval where this is defined: clip it"
    if node.op in _DIVIDING and inputs and inputs[-1].low <= 0 <= inputs[-1].high:
        return "the divisor may be zero: add a small number to it (the gradient of a square root is such a case)"
    if node.op in ("softmax", "log_softmax", "logsumexp", "scaled_dot_product_attention") and any(
        i.inf for i in inputs
    ):
        return "all of a row is masked: leave one place open, or mask with a large negative number"
    if dtype == "float16" and (result.inf or result.nan):
        return (
            f"float16 holds numbers up to {_LARGEST[dtype]:.0f}: use bfloat16, or keep this part in float32 "
            "(precision='bfloat16', or a cast)"
        )
    if result.inf and not result.nan:
        return f"the result is beyond {_LARGEST.get(dtype, np.inf):.3g}, the largest {dtype}: scale the inputs down"
    return None
