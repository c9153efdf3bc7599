"""The standard tests of a backend: every op against the reference interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from .. import _core
from ..backends.backend import Backend
from ..backends.with_manualgrad.interpreter_backend import InterpreterBackend
from ..errors import BackendUnavailableError, MithrilError, TypeInferenceError, UnsupportedOpError
from .cases import Case, cases

__all__ = ["Results", "agree", "run_backend_tests"]

#: Units of the dtype's epsilon that a result may be off by; see docs/tolerances.md.
UNITS = {"Exact": 0, "Rounded": 1, "Elementwise": 4, "Contraction": 8, "Decomposition": 256, "Random": 16}
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


@dataclass
class Results:
    """What `run_backend_tests` found.

    Attributes
    ----------
    passed : int
        Number of cases with the right result.
    failures : list of str
        For each case with another result or an error: the case, and what happened.
    unsupported : list of str
        For each case that the backend says it does not support: the case, and its reason.
    refused : list of str
        Cases that the reference and the backend refuse alike: the op does not take the dtype.
    limited : list of str
        Cases that fail as `Backend.limitations` says: the case, and the reason.
    """

    passed: int = 0
    failures: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    limited: list[str] = field(default_factory=list)

    @property
    def failed(self) -> int:
        """Number of cases that failed."""
        return len(self.failures)

    def add(self, other: Results) -> None:
        """Count the cases of another result too."""
        self.passed += other.passed
        for name in ("failures", "unsupported", "refused", "limited"):
            getattr(self, name).extend(getattr(other, name))

    @property
    def total(self) -> int:
        """Number of all cases."""
        return self.passed + self.failed + len(self.unsupported) + len(self.refused) + len(self.limited)


def run_backend_tests(backend: Backend, ops: list[str] | None = None) -> Results:
    """Test a backend: creating arrays, and every op against the reference interpreter.

    Parameters
    ----------
    backend : Backend
        An instance.
    ops : list of str, optional
        Only these ops (default: all).

    Returns
    -------
    Results

    Examples
    --------
    >>> import mithril as ml
    >>> from mithril.testing.backend_tests import run_backend_tests
    >>> results = run_backend_tests(ml.NumpyBackend(), ["add", "matmul"])
    >>> results.passed == results.total > 0
    True
    """
    results = Results()
    reference = InterpreterBackend(dtype=backend.default_dtype)
    for label, problem in _creation(backend):
        _count(results, label, problem)
    for row in _core.op_rows():
        if ops is not None and row["name"] not in ops:
            continue
        units = UNITS[row["tolerance"]] + (0 if row["primitive"] else 4)
        by_dtype: dict[str, Results] = {}
        for case in cases(row):
            part = by_dtype.setdefault(_dtype(case, backend), Results())
            try:
                wanted = reference._op(case.op, _native(case, reference))
            except TypeInferenceError as refusal:
                _count_refusal(part, backend, case, refusal)
                continue
            _count(part, str(case), lambda case=case, wanted=wanted, units=units: _run(backend, case, wanted, units))
        for dtype, part in by_dtype.items():
            _limit(part, row["name"], dtype, backend.limitations)
            results.add(part)
    return results


def _limit(part: Results, op: str, dtype: str, limitations: Mapping[tuple[str, str], str]) -> None:
    """Where a limitation of the backend is known, failing is what is expected, and passing is stale."""
    for (ops, dtypes), reason in limitations.items():
        if fnmatchcase(op, ops) and fnmatchcase(dtype, dtypes):
            broken = [*part.failures, *part.unsupported]
            part.failures, part.unsupported = [], []
            part.limited = [f"{label} (known: {reason})" for label in broken]
            if not broken and part.passed:
                part.passed -= 1
                part.failures = [f"{op} of {dtype}: works, but is listed as limited: {reason}"]
            return


def _dtype(case: Case, backend: Backend) -> str:
    """Dtype of the first array of a case, as a backend is given it."""
    arrays = (a for a in case.args if isinstance(a, np.ndarray))
    first = next(arrays, None)
    return str(backend.default_dtype) if first is None or first.dtype == np.float64 else str(first.dtype.name)


def _creation(backend: Backend) -> Iterator[tuple[str, Any]]:
    def tensor() -> str | None:
        return agree(backend.to_numpy(backend.tensor([[1, 2], [3, 4]], dtype="float32")), _square(), 0)

    def filled(method: str, value: float) -> str | None:
        found = backend.to_numpy(getattr(backend, method)((2, 3), dtype="float32"))
        return agree(found, np.full((2, 3), value, np.float32), 0)

    yield "tensor", tensor
    yield "zeros", lambda: filled("zeros", 0.0)
    yield "ones", lambda: filled("ones", 1.0)


def _square() -> Any:
    return np.array([[1, 2], [3, 4]], np.float32)


def _count(results: Results, label: str, test: Any) -> None:
    try:
        problem = test()
    except (UnsupportedOpError, BackendUnavailableError) as error:
        results.unsupported.append(f"{label}: {error.message}")
    except Exception as error:  # a failing backend may raise anything
        results.failures.append(f"{label}: {type(error).__name__}: {error}")
    else:
        if problem is None:
            results.passed += 1
        else:
            results.failures.append(f"{label}: {problem}")


def _count_refusal(results: Results, backend: Backend, case: Case, refusal: TypeInferenceError) -> None:
    """Count a case that the reference refuses: every backend has to refuse it, with the same code."""
    try:
        backend._op(case.op, _native(case, backend))
    except MithrilError as error:
        if error.code == refusal.code:
            results.refused.append(f"{case}: {refusal.message}")
        else:
            results.failures.append(f"{case}: refused with {error.code}, not {refusal.code}")
    except Exception as error:  # a failing backend may raise anything
        results.failures.append(f"{case}: {type(error).__name__}: {error}")
    else:
        results.failures.append(f"{case}: the reference refuses this ({refusal.message})")


def _native(case: Case, backend: Backend) -> list[Any]:
    """Arguments of a case as arrays of a backend, floats in its default dtype."""
    return [_array(backend, a) if isinstance(a, np.ndarray) else a for a in case.args]


def _array(backend: Backend, array: Any) -> Any:
    return backend.tensor(array, backend.default_dtype if array.dtype == np.float64 else array.dtype.name)


def _run(backend: Backend, case: Case, wanted: Any, units: float) -> str | None:
    found = backend._op(case.op, _native(case, backend))
    pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
    problems = (agree(np.asarray(backend.to_numpy(a)), np.asarray(b), units) for a, b in pairs)
    return next((p for p in problems if p), None)


def agree(found: Any, wanted: Any, units: float) -> str | None:
    """Compare two arrays: None if they agree up to some units of epsilon, otherwise what differs."""
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return f"{found.dtype}{list(found.shape)}, not {wanted.dtype}{list(wanted.shape)}"
    if found.dtype.name not in EPSILON:
        return None if np.array_equal(found, wanted) else f"{found}, not {wanted}"
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return "other infinite or NaN elements"
    if not finite.any():
        return None
    error = np.abs(a[finite] - b[finite]).max() / max(np.abs(b[finite]).max(), 1e-30) / EPSILON[found.dtype.name]
    return None if error <= units else f"{error:.1f} epsilon off, {units} are allowed"
