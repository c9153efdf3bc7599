"""PyTorch's database of ops against our rows, on every backend; see `op_database`.

What is compared is a sample, another one with the environment variable MITHRIL_RANDOM_SEED; with MITHRIL_TEST_ALL it is
all of it, with new numbers each time.
"""

import fnmatch
import importlib.util
import os
import random
import time

import pytest

if importlib.util.find_spec("expecttest") is None:
    pytest.skip("expecttest is not installed, which PyTorch's database needs", allow_module_level=True)

import op_database
from mithril.testing.backend_tests import DTYPES
from op_database_names import ADAPTED, DIFFERENT, OTHERWISE, REFUSED

EVERYTHING = "MITHRIL_TEST_ALL" in os.environ
SEED = int(os.environ.get("MITHRIL_RANDOM_SEED") or (time.time_ns() // 1000 % 1_000_000_000 if EVERYTHING else 1))

#: How many pairs of an entry and a dtype a backend is tried with: as many as take some seconds.
COUNTS = {"interpreter": 30, "numpy": 60, "torch": 60, "mlx": 40, "ggml": 20, "jax": 10, "c": 8}


# One test, so that one process loads the database.
@pytest.mark.timeout(0 if EVERYTHING else 600)
def test_ops_compute_what_pytorch_computes():
    print(f"MITHRIL_RANDOM_SEED={SEED}")
    known = set(op_database.entries()) | {info.name for info in op_database.entries().values()}
    assert {*ADAPTED, *OTHERWISE} <= known, "these are not entries of the database"
    for entry, *_ in (*DIFFERENT, *REFUSED):
        assert fnmatch.filter(known, entry.removeprefix("gradient:")), f"{entry} is not an entry of the database"
    # Of other dtypes only all is run: frameworks are slow there.
    pairs, problems = op_database.plan(dtypes=DTYPES if EVERYTHING else ("float32",)), []
    assert len({label for label, _ in pairs}) > 150
    for name, count in COUNTS.items():
        chosen = pairs if EVERYTHING else random.Random(f"{SEED} {name}").sample(pairs, count)
        tally = op_database.run([name], chosen, limit=None if EVERYTHING else 1, seed=SEED)
        print(name, dict(tally.counts))
        assert tally.counts["passed"] >= count / 2
        problems += tally.problems
    assert not problems, "\n".join(problems)


def test_a_wrong_op_is_found(monkeypatch):
    """What is compared is compared."""
    import mithril as ml

    class Wrong(ml.NumpyBackend):
        class _engine_type(ml.NumpyBackend._engine_type):
            def load_op(self, name, signature):
                return super().load_op("cos" if name == "sin" else name, signature)

    monkeypatch.setattr(ml, "get_backend", lambda name: Wrong())
    tally = op_database.run(["numpy"], [("sin", "float32"), ("exp", "float32")])
    assert tally.problems
    assert all("sin of float32" in problem for problem in tally.problems)
