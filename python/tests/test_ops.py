"""Every op on the NumPy backend against the reference interpreter, in every float dtype."""

import mithril as ml
import numpy as np
import pytest
from mithril import _core
from mithril.testing import cases
from mithril.testing.backend_tests import UNITS, agree

ROWS = _core.op_rows()


def with_floats(args, dtype, backend):
    def convert(arg):
        if isinstance(arg, np.ndarray) and arg.dtype == np.float64:
            return backend.tensor(arg, dtype)
        return arg

    return [convert(a) for a in args]


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
            problem = agree(np.asarray(a), np.asarray(b), units)
            assert problem is None, f"{case}: {problem}"
