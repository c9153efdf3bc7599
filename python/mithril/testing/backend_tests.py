"""The standard tests of a backend: every op, its gradients and special values against the reference interpreter."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from .. import _core
from ..backends.backend import Backend
from ..backends.exchange import numpy_dtype
from ..backends.with_manualgrad.interpreter_backend import InterpreterBackend
from ..errors import (
    BackendUnavailableError,
    BackendWarning,
    InvalidValueError,
    MithrilError,
    TypeInferenceError,
    UnsupportedOpError,
)
from .cases import Case, cases
from .compiled import run_compiled
from .gradient_tests import gradient_problems
from .results import Outcome, Results
from .special import special_cases

__all__ = ["DTYPES", "Results", "agree", "run_backend_tests"]

#: Units of the dtype's epsilon that a result may be off by; see docs/tolerances.md.
UNITS = {"Exact": 0, "Rounded": 1, "Elementwise": 4, "Contraction": 8, "Decomposition": 256, "Random": 16}
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
#: All dtypes that cases are made in.
DTYPES = (*EPSILON, "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool")


def run_backend_tests(
    backend: Backend,
    ops: Iterable[str] | None = None,
    *,
    dtypes: Iterable[Any] | None = None,
    gradients: bool | None = None,
    special: bool | None = None,
) -> Results:
    """Test a backend: creating arrays, and every op against the reference interpreter.

    Parameters
    ----------
    backend : Backend
        An instance.
    ops : iterable of str, optional
        Only these ops. Without further arguments, those are tested in the dtype of the backend alone, without
        gradients and special values.
    dtypes : iterable of dtype, optional
        Dtypes of the cases (default: all).
    gradients : bool, optional
        Whether gradients are compared: those of the backend, and those of Mithril's gradient graph on it, with
        those of the interpreter in float64.
    special : bool, optional
        Whether NaN, infinities and zeros of both signs are tried.

    Returns
    -------
    Results
        Has ``passed``, ``failed``, ``total`` and lists of what did not pass; prints as a table.

    Notes
    -----
    Where ops at once are those of another framework (GGML), each case runs as a compiled model.
    What a backend lacks, so that it would run on the host, counts as unsupported. What `Backend.limitations`
    lists has to fail: a limitation that holds no more is a failure.

    Examples
    --------
    >>> import mithril as ml
    >>> from mithril.testing.backend_tests import run_backend_tests
    >>> results = run_backend_tests(ml.NumpyBackend(), ["add", "matmul"])
    >>> results.passed == results.total > 0
    True
    """
    everything = ops is None
    default = str(backend.default_dtype)
    chosen = _dtypes(DTYPES if everything else (default,)) if dtypes is None else _dtypes(dtypes)
    rows = _rows(ops)
    results = Results(backend=str(backend))
    tests = _Tests(backend)
    with _strictly(backend):
        for dtype in chosen:
            results.add(tests.creation(dtype))
            if dtype in tests.absent:
                continue
            for row in rows:
                results.add(tests.op(row, dtype, dtype == chosen[0]))
                if everything if special is None else special:
                    results.add(tests.special(row, dtype))
        if everything if gradients is None else gradients:
            for row in rows:
                results.add(tests.gradients(row))
    return results


def _dtypes(values: Iterable[Any]) -> list[str]:
    from ..dtypes import normalize

    return [str(normalize(dtype)) for dtype in ([values] if isinstance(values, str) else values)]


@functools.cache
def _all_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = _core.op_definitions()
    return rows


def _rows(ops: Iterable[str] | None) -> list[dict[str, Any]]:
    rows = _all_rows()
    if ops is None:
        return rows
    names = [ops] if isinstance(ops, str) else list(ops)
    known = {name for row in rows for name in (row["name"], *row["aliases"])}
    if unknown := [name for name in names if name not in known]:
        raise InvalidValueError(f"there is no op called {unknown[0]!r}", hint="docs/ops.md lists all")
    return [row for row in rows if {row["name"], *row["aliases"]} & set(names)]


class _strictly:
    """While it is entered, a backend refuses what it would otherwise run on the host."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._quiet = np.errstate(all="ignore")
        self._filter = warnings.catch_warnings()

    def __enter__(self) -> None:
        self._before = self._backend.engine.strict
        self._backend.engine.strict = True
        self._backend.engine.forget_ops()
        self._quiet.__enter__()
        self._filter.__enter__()
        warnings.simplefilter("ignore", BackendWarning)

    def __exit__(self, *error: Any) -> None:
        self._filter.__exit__(*error)
        self._quiet.__exit__(*error)
        self._backend.engine.strict = self._before
        self._backend.engine.forget_ops()


class _Tests:
    """The tests of one backend."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.reference = InterpreterBackend(dtype=backend.default_dtype)
        #: Dtypes of which the backend has no arrays.
        self.absent: set[str] = set()

    def creation(self, dtype: str) -> Iterator[Outcome]:
        backend = self.backend
        host = np.array([[1, 0], [0, 1]]).astype(numpy_dtype(dtype))

        def tensor() -> str | None:
            return agree(np.asarray(backend.to_numpy(backend.tensor(host, dtype))), host, 0)

        def filled(method: str, value: int) -> str | None:
            actual = np.asarray(backend.to_numpy(getattr(backend, method)((2, 3), dtype=dtype)))
            return agree(actual, np.full((2, 3), value).astype(host.dtype), 0)

        tests: dict[str, Callable[[], str | None]] = {
            "tensor": tensor,
            "zeros": lambda: filled("zeros", 0),
            "ones": lambda: filled("ones", 1),
        }
        if dtype != backend.default_dtype and (reason := self._absence(dtype)):
            self.absent.add(dtype)
            yield Outcome("tensor", dtype, f"tensor of {dtype}", "skipped", reason)
            return
        yield from (_judge(name, dtype, name, test) for name, test in tests.items())

    def _absence(self, dtype: str) -> str | None:
        """Reason why the backend has no arrays of a dtype."""
        try:
            self.backend.engine.native_dtype(dtype)
        except MithrilError as error:
            return error.message
        except Exception as error:  # a failing backend may raise anything
            return f"{type(error).__name__}: {error}"
        return None

    def op(self, row: dict[str, Any], dtype: str, is_first: bool) -> Iterator[Outcome]:
        """Cases with floats in this dtype, or with integers or booleans in their place."""
        by_dtype: dict[str, list[Outcome]] = {}
        for case in cases(row):
            converted = convert(case, row, dtype)
            if converted is None or (not is_first and not _has_floats(case)):
                continue
            of = dtype_of(converted, str(self.backend.default_dtype))
            outcome = self._case(row, converted, of, is_float="float" in dtype)
            by_dtype.setdefault(of, []).extend([outcome] if outcome else [])
        for of, outcomes in by_dtype.items():
            yield from self._limit(outcomes, row["name"], of)

    def special(self, row: dict[str, Any], dtype: str) -> Iterator[Outcome]:
        # What is known of special values alone says so.
        known = known_limitation(self.backend.limitations, f"special:{row['name']}", dtype)
        name = row["name"] if known is None else f"special:{row['name']}"
        for case in special_cases(row, dtype):
            outcome = self._case(row, case, dtype, is_float=False)
            yield from self._limit([outcome] if outcome else [], name, dtype)

    def _case(self, row: dict[str, Any], case: Case, dtype: str, is_float: bool) -> Outcome | None:
        """Run a case; None if it is not one that the row gives, and makes no sense: a singular matrix, say."""
        label = str(case) if dtype == self.backend.default_dtype else f"{case} of {dtype}"
        try:
            expected = self.reference.engine.apply_op(case.op, _native(case, self.reference))
        except MithrilError as refusal:
            is_type = isinstance(refusal, TypeInferenceError)
            return self._refusal(case, label, dtype, refusal) if is_float or is_type else None
        units = UNITS[row["tolerance"]] + (0 if row["primitive"] else 4)
        return _judge(case.op, dtype, label, lambda: _run(self.backend, case, expected, units))

    def _refusal(self, case: Case, label: str, dtype: str, refusal: MithrilError) -> Outcome:
        """Judge a case that the reference refuses: every backend has to refuse it, with the same code."""
        if not isinstance(refusal, TypeInferenceError):
            return Outcome(case.op, dtype, label, "failed", f"the reference: {refusal.message}")
        try:
            self.backend.engine.apply_op(case.op, _native(case, self.backend))
        except MithrilError as error:
            same = error.code == refusal.code
            text = refusal.message if same else f"refused with {error.code}, not {refusal.code}"
            return Outcome(case.op, dtype, label, "refused" if same else "failed", text)
        except Exception as error:  # a failing backend may raise anything
            return Outcome(case.op, dtype, label, "failed", f"{type(error).__name__}: {error}")
        return Outcome(case.op, dtype, label, "failed", f"the reference refuses this ({refusal.message})")

    def gradients(self, row: dict[str, Any]) -> Iterator[Outcome]:
        default = str(self.backend.default_dtype)
        for autodiff in self.backend.engine.autodiff:
            column = f"{default} gradient" + ("" if autodiff == self.backend.engine.autodiff[0] else f" ({autodiff})")
            outcomes = []
            for case in cases(row):
                converted = convert(case, row, default)
                if converted is None or not _has_floats(case):
                    continue
                problem = gradient_problems(self.backend, converted, autodiff, EPSILON[default])
                if problem is not None:
                    outcomes.append(_judge(case.op, column, f"gradient of {case}", problem))
            yield from self._limit(outcomes, f"gradient:{row['name']}", default)

    def _limit(self, outcomes: list[Outcome], op: str, dtype: str) -> list[Outcome]:
        """Where a limitation of the backend is known, failing is what is expected, and passing is stale."""
        reason = known_limitation(self.backend.limitations, op, dtype)
        tried = [o for o in outcomes if o.status != "refused"]
        if reason is None or not tried:
            return outcomes
        broken = [o for o in tried if o.status in ("failed", "unsupported")]
        if not broken:
            first = tried[0]
            text = f"works, but is listed as limited: {reason}"
            stale = Outcome(first.op, first.dtype, f"{op} of {dtype}", "failed", text)
            return [*(o for o in outcomes if o is not first), stale]
        return [
            Outcome(o.op, o.dtype, o.label, "limited", f"{o.detail} (known: {reason})") if o in broken else o
            for o in outcomes
        ]


def known_limitation(limitations: Mapping[tuple[str, str], str], op: str, dtype: str) -> str | None:
    """Reason why an op is known not to work in a dtype; None if nothing is known."""
    for (ops, dtypes), reason in limitations.items():
        if fnmatchcase(op, ops) and fnmatchcase(dtype, dtypes):
            return reason
    return None


def _judge(op: str, dtype: str, label: str, test: Callable[[], str | None]) -> Outcome:
    try:
        problem = test()
    except (UnsupportedOpError, BackendUnavailableError) as error:
        return Outcome(op, dtype, label, "unsupported", error.message)
    except Exception as error:  # a failing backend may raise anything
        return Outcome(op, dtype, label, "failed", f"{type(error).__name__}: {error}")
    return Outcome(op, dtype, label, "passed" if problem is None else "failed", problem or "")


# --- cases in a dtype ---------------------------------------------------------------------------------------------


def _has_floats(case: Case) -> bool:
    return any(isinstance(a, np.ndarray) and a.dtype == np.float64 for a in case.args)


def dtype_of(case: Case, default: str) -> str:
    """Dtype of the first array of a case."""
    first = next((a for a in case.args if isinstance(a, np.ndarray)), None)
    return default if first is None else str(first.dtype.name)


def convert(case: Case, row: dict[str, Any], dtype: str) -> Case | None:
    """Put a dtype in the place of the floats of a case; None if the op takes none of that kind there."""
    kind = "float" if "float" in dtype else "bool" if dtype == "bool" else "integer"
    last = len(row["ports"]) - 1
    args: list[Any] = []
    for i, arg in enumerate(case.args):
        if not isinstance(arg, np.ndarray) or arg.dtype != np.float64:
            args.append(arg)
            continue
        if kind not in str(row["ports"][min(i, last)].get("kinds", "")):
            return None
        args.append(_values(arg, dtype, kind))
    return Case(case.op, case.text, tuple(args))


def _values(array: np.ndarray[Any, Any], dtype: str, kind: str) -> Any:
    if kind == "float":
        return array.astype(numpy_dtype(dtype))
    if kind == "bool":
        return np.asarray(array > array.mean()) if array.size else array.astype(np.bool_)
    # No zeros: integers are not divided by them. Small, so that products of several fit.
    steps = np.arange(array.size).reshape(array.shape) % 3
    whole = np.where(array < 0, np.floor(array) - steps, np.floor(array) + 1 + steps)
    # Of a single element NumPy makes a number that is not an array.
    return np.asarray(np.abs(whole) if dtype.startswith("uint") else whole, numpy_dtype(dtype))


def _native(case: Case, backend: Backend) -> list[Any]:
    """Arguments of a case as arrays of a backend."""
    return [backend.tensor(a, a.dtype.name) if isinstance(a, np.ndarray) else a for a in case.args]


def _run(backend: Backend, case: Case, expected: Any, units: float) -> str | None:
    actual = (
        run_compiled(backend, case)
        if backend.engine.tests_compiled_ops
        else backend.engine.apply_op(case.op, _native(case, backend))
    )
    pairs = zip(actual, expected, strict=True) if isinstance(expected, tuple) else [(actual, expected)]
    problems = (agree(np.asarray(backend.to_numpy(a)), np.asarray(b), units) for a, b in pairs)
    return next((p for p in problems if p), None)


def agree(actual: Any, expected: Any, units: float) -> str | None:
    """Compare two arrays: None if they agree up to some units of epsilon, otherwise what differs."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return f"{actual.dtype}{list(actual.shape)}, not {expected.dtype}{list(expected.shape)}"
    if actual.dtype.name not in EPSILON:
        return None if np.array_equal(actual, expected) else f"{actual}, not {expected}"
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return "other infinite or NaN elements"
    if not finite.any():
        return None
    error = np.abs(a[finite] - b[finite]).max() / max(np.abs(b[finite]).max(), 1e-30) / EPSILON[actual.dtype.name]
    return None if error <= units else f"{error:.1f} epsilon off, {units} are allowed"
