"""All backends by `ml.compare`, value by value and gradient by gradient; see `tools/compare_all`.

A sample of known models, layers and random programs; half of the random ones are new each time, or begin with what the
environment variable MITHRIL_RANDOM_SEED says. With MITHRIL_TEST_ALL all models and layers are compared.
"""

import importlib.util
import os
import time

import mithril as ml
import pytest
from mithril import _core

from tools.compare_all import layers, programs, worker, zoo

ALL = "MITHRIL_TEST_ALL" in os.environ
FRESH = int(os.environ.get("MITHRIL_RANDOM_SEED") or time.time_ns() // 1000 % 1_000_000_000)
#: Backends to how many random programs of each kind they compare, in a second or two; C and JAX compile each op.
COUNTS = {"interpreter": 2, "torch": 1, "jax": 0, "mlx": 2, "c": 1, "ggml": 2}


def chosen(backend: str) -> list[str]:
    """Return the names of the programs that a backend compares."""
    count = 25 if ALL else COUNTS[backend]
    print(f"MITHRIL_RANDOM_SEED={FRESH}")
    seeds = [*range(count), *range(FRESH, FRESH + count)]
    if ALL:
        return programs.names(programs.KINDS, seeds)
    number = FRESH % len(layers.CASES)
    some = ["layer:17", f"layer:{number}", *programs.names(["attention"], seeds)]
    return [*some, "zoo:bert"] if backend == "mlx" else some


@pytest.mark.parametrize("backend", programs.BACKENDS)
def test_backends_agree(backend):
    if importlib.util.find_spec(programs.BACKENDS[backend]) is None:
        pytest.skip(f"{programs.BACKENDS[backend]} is not installed")
    rows = worker.results(chosen(backend), backend)
    wrong = [f"{r['name']} on {r['backend']}: {r['text']}\n{r['program']}" for r in rows if r["text"]]
    assert not wrong, "\n\n".join(wrong)


def test_no_known_model_is_forgotten():
    known = {row["name"].removeprefix("create_") for row in _core.zoo_definitions()}
    compared = {name.split()[0] for name in (*zoo.MODELS, *zoo.VARIANTS)}
    assert known == compared | set(zoo.SIZES)
    assert set(zoo.SIZES.values()) <= compared


class Careless(ml.NumpyBackend):
    """A backend with a softmax that is off by a little."""

    def softmax(self, input, axis=-1):
        return super().softmax(input, axis) * 1.0001


def test_a_mistake_is_found():
    mutant = programs.program("attention:0")
    assert "softmax" in mutant.text
    result = mutant.compare(Careless())
    assert not result.agree
    assert result.first_difference.op == "softmax"
    assert len(next(iter(result.reports.values())).gradients) == len(mutant.params)


def test_a_process_that_ends_is_a_result():
    results = worker.results(["layer:99999999", "layer:17"], "interpreter")
    assert [r["name"] for r in results] == ["layer:99999999", "layer:17"]
    assert "the process ended (1)" in results[0]["text"]
    assert "IndexError" in results[0]["text"]
    assert not results[1]["text"]
