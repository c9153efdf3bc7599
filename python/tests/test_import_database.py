"""PyTorch's databases of ops and of modules, imported by `from_torch`; see `import_database`.

What is compared is a sample, another one with the environment variable MITHRIL_RANDOM_SEED; with MITHRIL_TEST_ALL it is
all of it.
"""

import fnmatch
import importlib.util
import os
import random

import pytest

if importlib.util.find_spec("expecttest") is None:
    pytest.skip("expecttest is not installed, which PyTorch's databases need", allow_module_level=True)

import import_database
import mithril as ml
import torch

EVERYTHING = "MITHRIL_TEST_ALL" in os.environ
SEED = int(os.environ.get("MITHRIL_RANDOM_SEED") or 1)


# One test, so that one process loads the databases.
@pytest.mark.timeout(0 if EVERYTHING else 600)
def test_samples_compute_what_pytorch_computes():
    print(f"MITHRIL_RANDOM_SEED={SEED}")
    samples = [*import_database.op_samples(torch.float64), *import_database.module_samples(torch.float64)]
    names = [name for name, _ in (*samples, *import_database.op_samples(torch.int64))]
    for table in (import_database.REFUSED, import_database.DIFFERENT):
        for pattern in " ".join(table.values()).split():
            assert fnmatch.filter(names, pattern), f"{pattern} is not an entry of the databases"
    assert len(samples) > 600
    chosen = samples if EVERYTHING else random.Random(SEED).sample(samples, 45)
    tally = import_database.run(chosen, ml.NumpyBackend(dtype="float64"), 1000 if EVERYTHING else 1, SEED)
    print(dict(tally.counts))
    assert not tally.problems, "\n".join(tally.problems)
    assert tally.counts["passed"] > 2 * tally.counts["refused"]


def test_a_wrong_conversion_is_found(monkeypatch):
    """What is compared is compared."""
    from mithril.frontend.torch.ops import OPS

    monkeypatch.setitem(OPS, "aten.sin.default", OPS["aten.cos.default"])
    samples = [sample for sample in import_database.op_samples(torch.float64) if sample[0] in ("sin", "exp")]
    tally = import_database.run(samples, ml.NumpyBackend(dtype="float64"), 1)
    assert [problem.partition(":")[0] for problem in tally.problems] == ["sin"]
