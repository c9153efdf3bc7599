"""`check`: how a backend will run each op of a model, before anything is generated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from typing_extensions import Unpack

from .. import _core, tables
from ..backends.backend import Backend
from ..backends.custom import is_plain
from ..backends.keywords import CheckOptions, passes_on
from ..backends.registry import BUILT_IN
from ..backends.with_manualgrad.interpreter_backend import InterpreterBackend
from ..backends.with_manualgrad.numpy_backend import NumpyBackend
from ..compiled.compile import compile
from ..errors import BackendUnavailableError, MithrilError, UnsupportedOpError
from .chosen import make
from .inspection import compiled, gradient_names
from .oracle import OPAQUE

__all__ = ["CheckResult", "CheckRow", "check"]

#: So many parts of an expansion are shown.
_SHOWN = 4


@dataclass
class CheckRow:
    """All uses of an op with one dtype that a backend runs in one way.

    Attributes
    ----------
    op : str
        Name of the op.
    dtype : str or None
        Dtype of its first tensor.
    support : str
        ``"native"``: the framework's own; ``"expanded"``: by other ops; ``"reference"``: on the host, by the
        reference interpreter; ``"missing"``: not at all.
    into : tuple of str
        The ops that it is expanded into.
    lacking : tuple of str
        The ops among them that are missing.
    count : int
        Number of uses.
    path : str or None
        Path in the model of the first use.
    where : str or None
        The user's line of the first use.
    """

    op: str
    dtype: str | None
    support: str
    into: tuple[str, ...]
    lacking: tuple[str, ...]
    count: int
    path: str | None
    where: str | None

    @property
    def place(self) -> str:
        """Path and line of the first use."""
        return " ".join(part for part in (self.path or "", f"({self.where})" if self.where else "") if part)


@dataclass(repr=False)
class CheckResult(tables.Report):
    """What `check` found: a sequence of rows, printed as a table.

    Attributes
    ----------
    backend : str
        Name of the backend.
    rows : list of CheckRow
        One per op, dtype and kind of support, in order of the model.
    warnings : list of str
        What runs, but not everywhere or not well.
    problems : list of str
        What stands against compiling besides missing ops: an op without gradient.
    """

    backend: str
    rows: list[CheckRow] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything runs."""
        return not self.missing and not self.problems

    @property
    def native(self) -> list[CheckRow]:
        """What the framework runs by itself."""
        return self._of("native")

    @property
    def expanded(self) -> list[CheckRow]:
        """What runs by other ops."""
        return self._of("expanded")

    @property
    def reference(self) -> list[CheckRow]:
        """What runs on the host, by the reference interpreter."""
        return self._of("reference")

    @property
    def missing(self) -> list[CheckRow]:
        """What does not run."""
        return self._of("missing")

    def _of(self, support: str) -> list[CheckRow]:
        return [row for row in self.rows if row.support == support]

    def __iter__(self) -> Iterator[CheckRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    _schema: ClassVar[str] = "mithril.check/1"

    def _facts(self) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "ok": self.ok,
            "rows": self.rows,
            "warnings": self.warnings,
            "problems": self.problems,
        }

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        head = ["op", "dtype", "support", "uses", "first at"]
        cells = []
        for row in self.rows:
            support = row.support
            if row.lacking and row.lacking != (row.op,):
                support += f": {', '.join(row.lacking)}"
            elif row.into and row.support == "expanded":
                shown = [*row.into[:_SHOWN], "…"] if len(row.into) > _SHOWN + 1 else row.into
                support += f" into {', '.join(shown)}"
            cells.append([row.op, row.dtype or "", support, str(row.count), row.place])
        return head, cells

    def _sentences(self) -> list[str]:
        counts = {kind: sum(r.count for r in self._of(kind)) for kind in ("native", "expanded", "reference", "missing")}
        said = ", ".join(f"{n} {kind}" for kind, n in counts.items() if n)
        verdict = "runs" if self.ok else "does not run"
        lines = [f"{self.backend}: {verdict}; uses of ops: {said}"]
        return lines + [f"warning: {w}" for w in self.warnings] + [f"problem: {p}" for p in self.problems]


@passes_on(compile)
def check(
    model: _core.Model,
    backend: Backend | type[Backend] | str,
    shapes: Mapping[str, Any] | None = None,
    *,
    gradients: bool = False,
    strict: bool = False,
    **options: Unpack[CheckOptions],
) -> CheckResult:
    """List how a backend runs every op of a model, before anything is generated.

    Parameters
    ----------
    model : Model
        The model.
    backend : Backend, class or str
        Where it is to run. The framework of a backend that is named need not be installed.
    shapes : mapping, optional
        Input name to shape, as for `compile`.
    gradients : bool, optional
        Look at the graph with the gradients of all parameters too, as ``autodiff="graph"`` runs it.
    strict : bool, optional
        Raise an error if something is missing.
    **options
        Further options of `compile`.

    Returns
    -------
    CheckResult
        Has ``ok``, ``native``, ``expanded``, ``reference``, ``missing``; iterates over rows; prints as a table.

    Raises
    ------
    UnsupportedOpError
        If ``strict`` and something is missing; all of it is listed.

    Examples
    --------
    >>> import mithril as ml
    >>> model = ml.Model()
    >>> model |= ml.Linear(4)(input="input", output="hidden")
    >>> model += ml.Flatten()(output="output")
    >>> result = ml.check(model, "numpy", shapes={"input": [2, 3]})
    >>> result.ok
    True
    >>> [(row.op, row.support) for row in result]
    [('linear', 'native'), ('flatten', 'expanded')]
    """
    chosen, note = _backend(backend)
    core = compiled(model, chosen, shapes=shapes, **options)
    name = backend if isinstance(backend, str) else chosen.name
    result = CheckResult(name, warnings=[note] if note else [])
    if gradients:
        outputs, names = gradient_names(core)
        try:
            core = _core.with_gradients(core, outputs, names)
        except MithrilError as error:
            result.problems.append(_sentence(error))
    result.rows = _rows(_core.uses(core, chosen.engine.table))
    if isinstance(chosen, InterpreterBackend):
        # It is the reference: every row has a definition there, or is expanded.
        result.rows = [replace(row, support="native", into=(), lacking=()) for row in result.rows]
    elif (is_plain(chosen) and not strict) or chosen.name == "ggml":
        # What a backend of a user's own lacks runs on the host; so does what ggml cannot say.
        result.rows = [replace(row, support="reference") if row.support == "missing" else row for row in result.rows]
    result.warnings += _warnings(result.rows)
    if strict and not result.ok:
        notes = tuple(f"`{row.op}` of {row.dtype}, {row.count} times, first {row.place}" for row in result.missing)
        text = f"{name} cannot run this model"
        lines = "".join(f"\n  {note}" for note in (*notes, *result.problems))
        raise UnsupportedOpError(f"error[M0601]: {text}{lines}", code="M0601", message=text, notes=notes)
    return result


def _backend(backend: Any) -> tuple[Backend, str | None]:
    """Return the backend, or what stands for one that is not installed: only its table is asked."""
    try:
        return make(backend), None
    except BackendUnavailableError as error:
        name = backend if isinstance(backend, str) else getattr(backend, "name", "")
        if name not in BUILT_IN:
            raise
        stand_in = NumpyBackend()
        stand_in.target = name
        return stand_in, f"{error.message}; its table of ops is still checked"


def _rows(uses: list[dict[str, Any]]) -> list[CheckRow]:
    rows: dict[Any, CheckRow] = {}
    for use in uses:
        into = tuple(op for op, _ in use["parts"])
        lacking = tuple(dict.fromkeys(op for op, _ in use["missing"]))
        key = (use["op"], use["dtype"], use["support"], into, lacking)
        row = rows.get(key)
        if row is None:
            rows[key] = CheckRow(*key, count=1, path=use["path"], where=use["where"])
        else:
            row.count += 1
    return list(rows.values())


def _warnings(rows: list[CheckRow]) -> list[str]:
    texts = []
    for row in rows:
        if row.op in OPAQUE:
            texts.append(
                f"a Python function that Mithril cannot trace runs at {row.place}: the model only runs on "
                "backends whose arrays it takes; write it with backend ops to run it on every backend"
            )
        elif row.support == "reference":
            texts.append(f"`{row.op}` at {row.place} runs on the host, with copies there and back")
    return texts


def _sentence(error: MithrilError) -> str:
    place = f" in `{error.path}`" if error.path else ""
    place += f" at {error.where}" if error.where else ""
    return f"{error.message}{place}" + (f"; {error.hint}" if error.hint else "")
