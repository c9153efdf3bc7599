"""Every op on every backend against the reference interpreter, in every float dtype."""

import os

import pytest
from backends import BACKENDS, FLOATS, backend
from mithril import _core
from mithril.testing import cases
from mithril.testing.backend_tests import run_backend_tests

ROWS = _core.op_definitions()
#: Ops that refuse the half precisions, with an error that says to cast.
NO_HALF = {row["name"] for row in ROWS if row["family"] in ("decompose", "factor", "least_squares")}


#: XLA compiles each op for a third of a second: JAX takes float32 and one of the others in turn, and with
#: `make test-all` each of them. The tests of layers and gradients run it in float64 too.
OTHERS = tuple(dtype for dtype in FLOATS if dtype != "float32")


def is_chosen(number, dtype, name):
    everything = name != "jax" or "MITHRIL_TEST_ALL" in os.environ
    return everything or dtype in ("float32", OTHERS[number % len(OTHERS)])


CHOSEN = [
    pytest.param(row, dtype, name, id=f"{row['name']}-{dtype}-{name}")
    for name in BACKENDS
    for dtype in FLOATS
    for number, row in enumerate(ROWS)
    if is_chosen(number, dtype, name)
]


@pytest.mark.parametrize(("row", "dtype", "name"), CHOSEN)
def test_ops_agree_with_the_reference(row, dtype, name):
    results = run_backend_tests(backend(name, dtype), [row["name"]])
    assert results.failures == []
    assert results.unsupported == []
    # Nothing is left out: the three tests of creating arrays, and every case.
    assert results.total == 3 + len(list(cases(row)))
    if dtype in ("float64", "float32") or row["name"] not in NO_HALF:
        assert results.refused == []
