"""Every op on the NumPy backend against the reference interpreter, in every float dtype."""

import mithril as ml
import numpy as np
import pytest
from mithril import _core
from mithril.testing import cases

ROWS = _core.op_rows()
#: Units of the dtype's epsilon; see docs/tolerances.md.
UNITS = {"Exact": 0, "Rounded": 1, "Elementwise": 4, "Contraction": 8, "Decomposition": 256, "Random": 16}
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def with_floats(args, dtype, backend):
    def convert(arg):
        if isinstance(arg, np.ndarray) and arg.dtype == np.float64:
            return backend.tensor(arg, dtype)
        return arg

    return [convert(a) for a in args]


def assert_close(found, wanted, units, label):
    assert found.dtype == wanted.dtype, label
    assert found.shape == wanted.shape, label
    if found.dtype.kind != "f" and found.dtype.name != "bfloat16":
        np.testing.assert_array_equal(found, wanted, err_msg=label)
        return
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b), err_msg=label)
    finite = np.isfinite(b)
    np.testing.assert_array_equal(a[~finite & ~np.isnan(b)], b[~finite & ~np.isnan(b)], err_msg=label)
    if finite.any():
        scale = np.abs(b[finite]).max()
        error = np.abs(a[finite] - b[finite]).max() / max(scale, 1e-30) / EPSILON[found.dtype.name]
        assert error <= units, f"{label}: {error:.1f} epsilon"


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["name"])
def test_numpy_agrees_with_the_reference(row, dtype):
    numpy, reference = ml.NumpyBackend(dtype=dtype), ml.InterpreterBackend(dtype=dtype)
    for case in cases(row):
        args = with_floats(case.args, dtype, numpy)
        try:
            wanted = reference._op(case.op, args)
        except ml.MithrilError as error:
            # An op that refuses a dtype does so on every backend, with the same code.
            with pytest.raises(ml.MithrilError) as refused:
                numpy._op(case.op, args)
            assert refused.value.code == error.code
            continue
        found = numpy._op(case.op, args)
        pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
        units = UNITS[row["tolerance"]] + (0 if row["primitive"] else 4)
        for a, b in pairs:
            assert_close(np.asarray(a), np.asarray(b), units, str(case))
