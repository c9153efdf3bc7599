"""Arguments of the wrong kind, of every op: what is raised is an error of Mithril, and nothing panics."""

import mithril as ml
import numpy as np
import pytest
from mithril import _core
from mithril._core import IOKey, Model
from mithril.backends.signatures import ports
from mithril.errors import MithrilError

VALUES = (None, 1, 0.5, -1, True, "sum", (0,), (1, 1), [2, 2], "x", float("nan"), 10**12)
ARRAYS = (np.ones((2, 2), np.float32), np.ones((), np.int64), np.zeros((0, 3), np.float32))
NAMES = [row["name"] for row in _core.op_definitions()]


def constant(value):
    return IOKey(value=value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("first", range(0, len(NAMES), 30))
def test_wrong_arguments_are_errors(first):
    for name in NAMES[first : first + 30]:
        known = ports(name)
        kinds = [known.rows[i]["kind"] for i in range(len(known.names))]
        usual = [ARRAYS[0] if kind in ("tensor", "variadic") else known.default(i) for i, kind in enumerate(kinds)]
        for i in range(len(usual)):
            for value in (*VALUES, *ARRAYS):
                try:
                    results = _core.apply_op(name, [constant(x) for x in (*usual[:i], value, *usual[i + 1 :])])
                    results = results if isinstance(results, tuple) else (results,)
                    # Constants are computed when compiling.
                    ml.compile(Model.create(**{f"y{n}": y for n, y in enumerate(results)}), ml.NumpyBackend())
                except MithrilError:
                    pass
