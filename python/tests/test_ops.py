"""Every op on every backend against the reference interpreter, in every float dtype."""

import pytest
from backends import BACKENDS, FLOATS, backend
from mithril import _core
from mithril.testing import cases
from mithril.testing.backend_tests import run_backend_tests

ROWS = _core.op_definitions()
#: Ops that refuse the half precisions, with an error that says to cast.
NO_HALF = {row["name"] for row in ROWS if row["family"] in ("decompose", "factor", "least_squares")}


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["name"])
def test_ops_agree_with_the_reference(row, dtype, name):
    results = run_backend_tests(backend(name, dtype), [row["name"]])
    assert results.failures == []
    assert results.unsupported == []
    # Nothing is left out: the three tests of creating arrays, and every case.
    assert results.total == 3 + len(list(cases(row)))
    if dtype in ("float64", "float32") or row["name"] not in NO_HALF:
        assert results.refused == []
