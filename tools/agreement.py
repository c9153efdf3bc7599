"""Measures how far every op of every backend is from double precision, and writes docs/agreement.md.

``make agreement`` runs it; with ``--missing`` only the ops that the page lacks are measured. Figures depend on the
machine and on the versions of the frameworks, which the page names; tests check that the page has all ops, and that
nothing in it is beyond the tolerances.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import mithril as ml
import numpy as np
from mithril import _core
from mithril.errors import BackendUnavailableError, MithrilError, TypeInferenceError, UnsupportedOpError
from mithril.testing.backend_tests import EPSILON
from mithril.testing.cases import Case, cases
from mithril.tools.oracle import off

PAGE = Path(__file__).resolve().parents[1] / "docs" / "agreement.md"
BACKENDS = ("numpy", "torch", "jax", "mlx")
PACKAGES = {"numpy": "numpy", "torch": "torch", "jax": "jax", "mlx": "mlx"}
DTYPES = ("float64", "float32", "float16", "bfloat16")
HEAD = """# Agreement

How far every op of every backend is from the same op in double precision, on the same inputs: the largest error over
the cases of the op, in units of the epsilon of the dtype (f64 2⁻⁵², f32 2⁻²³, f16 2⁻¹⁰, bf16 2⁻⁷), relative to
the largest element of the result. What an op may be off by is in [tolerances.md](tolerances.md).

Each cell holds four figures: f64 · f32 · f16 · bf16. **0** is exact, **-** is a dtype that the op does not take or
the backend does not have, **✗** is a result with other infinities, NaN, integers, or an error: a known limitation of
the backend (`Backend.limitations`) or a defect. The truth in double precision is the reference interpreter's; f64
itself is compared with it, so that half a unit may be the interpreter's own.

Written by `make agreement` with {versions}.

"""


def main() -> None:
    """Measure what is installed and write the page."""
    backends = dict(_available())
    rows = _core.op_definitions()
    known = {}
    if "--missing" in sys.argv[1:]:
        known = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    lines = [HEAD.format(versions=", ".join(f"{name} {metadata.version(PACKAGES[name])}" for name in backends))]
    family = None
    for number, row in enumerate(rows):
        if row["family"] != family:
            family = row["family"]
            lines += [f"\n## {family}\n", f"| op | {' | '.join(backends)} |", "|---" * (len(backends) + 1) + "|"]
        cells = known.get(row["name"]) or " | ".join(
            " · ".join(_figure(backend, row) for backend in errors) for errors in backends.values()
        )
        lines.append(f"| `{row['name']}` | {cells} |")
        print(f"\r{number + 1} of {len(rows)} ops", end="", file=sys.stderr, flush=True)
    PAGE.write_text(re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n", encoding="utf-8")


def _available() -> Iterator[tuple[str, list[Any]]]:
    for name in BACKENDS:
        try:
            yield name, [ml.get_backend(name, dtype=dtype, device="cpu") for dtype in DTYPES]
        except BackendUnavailableError as error:
            print(error.message, file=sys.stderr)


def _figure(backend: Any, row: dict[str, Any]) -> str:
    """Largest error of an op on a backend, as text."""
    errors = [error for case in cases(row) if (error := _error(backend, row, case)) is not None]
    if not errors:
        return "-"
    return "✗" if np.isinf(max(errors)) else f"{max(errors):.2g}"


def _error(backend: Any, row: dict[str, Any], case: Case) -> float | None:
    """Error of one case; None if the op is not there for the dtype."""
    dtype = str(backend.default_dtype)
    arrays = [a for a in case.args if isinstance(a, np.ndarray)]
    if arrays and not any(a.dtype == np.float64 for a in arrays) and dtype != "float32":
        # Nothing in the case depends on the dtype of floats.
        return None
    arguments = [_converted(backend, a) if isinstance(a, np.ndarray) else a for a in case.args]
    truth_type = dtype if row["tolerance"] == "Random" else "float64"
    reference = ml.InterpreterBackend(dtype=truth_type)
    try:
        exact = [_exact(backend, reference, a) for a in arguments]
        expected = reference._op(case.op, exact)
    except MithrilError:
        return None
    try:
        actual = backend._op(case.op, arguments)
        pairs = zip(actual, expected, strict=True) if isinstance(expected, tuple) else [(actual, expected)]
        # Some frameworks compute, and fail, when a result is looked at.
        return max(_off(np.asarray(backend.to_numpy(a)), np.asarray(b)) for a, b in pairs)
    except (UnsupportedOpError, TypeInferenceError):
        return None
    except Exception:
        return np.inf


def _converted(backend: Any, array: Any) -> Any:
    return backend.tensor(array, backend.default_dtype if array.dtype == np.float64 else array.dtype.name)


def _exact(backend: Any, reference: Any, argument: Any) -> Any:
    """Widen an argument to the dtype of the truth: the numbers that the backend was given."""
    if not hasattr(argument, "shape"):
        return argument
    host = np.asarray(backend.to_numpy(argument))
    return reference.tensor(host.astype(np.float64) if host.dtype.name in EPSILON else host)


def _off(actual: Any, expected: Any) -> float:
    if np.iscomplexobj(actual):
        actual = np.stack([actual.real, actual.imag])
    if np.iscomplexobj(expected):
        expected = np.stack([expected.real, expected.imag])
    return off(actual, expected, actual.dtype.name)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
