"""JAX's harnesses of its primitives against `from_jax` and backends; see `jax_harnesses`.

What is compared is a sample, another one with the environment variable MITHRIL_RANDOM_SEED; with MITHRIL_TEST_ALL it is
all of it.
"""

import fnmatch
import importlib.util
import os

import mithril as ml
import pytest

pytest.importorskip("jax")
# JAX's list is no public part of it, and needs absl.
if not all(importlib.util.find_spec(name) for name in ("absl", "jax._src.internal_test_util")):
    pytest.skip("this JAX comes without its harnesses", allow_module_level=True)

import jax_harnesses
from jax_harnesses import CHECKED, DIFFERENT, REFUSED

EVERYTHING = "MITHRIL_TEST_ALL" in os.environ
SEED = int(os.environ.get("MITHRIL_RANDOM_SEED") or 1)

#: Backends; one of so many groups is tried on each.
COUNTS = {"numpy": 1, "torch": 12, "c": 20}


@pytest.mark.timeout(0 if EVERYTHING else 600)
@pytest.mark.parametrize("name", COUNTS)
def test_functions_compute_what_jax_computes(name):
    print(f"MITHRIL_RANDOM_SEED={SEED}")
    chosen = jax_harnesses.sample(None if EVERYTHING else 1, seed=f"{name} {SEED}")
    chosen = chosen if EVERYTHING else chosen[SEED % COUNTS[name] :: COUNTS[name]]
    tally = jax_harnesses.run([name], chosen, gradients=name != "numpy" or EVERYTHING)
    print(*tally.table(), sep="\n")
    assert tally.total["right"] >= 0.75 * tally.total.total()
    assert not tally.problems, "\n".join(tally.problems)


def test_exceptions_are_of_harnesses():
    groups = {h.group_name for h in jax_harnesses.harnesses()}
    names = [h.fullname for h in jax_harnesses.harnesses()]
    assert len(groups) > 120
    for group, _ in REFUSED:
        assert fnmatch.filter(groups, group), f"{group} is not a group"
    for name in (*CHECKED, *(name for name, _ in DIFFERENT)):
        assert fnmatch.filter(names, name.removeprefix("gradient:")), f"{name} is not a harness"


def test_a_wrong_conversion_is_found():
    """What is compared is compared."""

    def wrong(function, args):
        return ml.from_jax(lambda *xs: [-y for y in function(*xs)], args)

    chosen = jax_harnesses.sample(1, ["sin", "exp"], ["float32"])
    tally = jax_harnesses.run(["numpy"], chosen, make=wrong)
    assert len(tally.problems) == 2
    assert all("epsilon off" in problem for problem in tally.problems)
