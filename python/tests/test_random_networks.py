"""Random networks on every backend, against their ops applied one by one in float64; see `tools/random_networks`.

Half of the seeds are new each time, or begin with what the environment variable MITHRIL_RANDOM_SEED says; a failure
names its seed and prints the smallest program that was found to show it.
"""

import importlib.util
import os
import subprocess
import sys
import time

import mithril as ml
import numpy as np
import pytest

from tools.random_networks import compare, minimize, sequences
from tools.random_networks.common import BLOCKS, attempt, grown
from tools.random_networks.network import Network
from tools.random_networks.processes import results
from tools.random_networks.settings import MODES, Setting, generate

FRESH = int(os.environ.get("MITHRIL_RANDOM_SEED") or time.time_ns() // 1000 % 1_000_000_000)

#: Networks of a test, and tests with seeds that stay and with new ones.
EACH, PARTS = 10, 5

#: Seeds that stay. The first found that C took repeated pixels for padding, the next ones that it packed a second
#: factor of a product before it was made.
FIXED = [200238, 100, 100014, 100154, 100366, 100396, 100465, 100487, *range(EACH * PARTS - 8)]

#: Other backends, with the module that they need and how many networks they compute.
OTHERS = {"numpy": ("numpy", 12), "torch": ("torch", 8), "jax": ("jax", 4), "mlx": ("mlx", 4), "ggml": ("numpy", 8)}


def check(seeds, backend):
    rows = results([(seed, backend) for seed in seeds], minimize=True)
    wrong = [f"seed {r['seed']}: {r['setting']}\n{r['text']}\n{r['program']}" for r in rows if r["text"]]
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("part", range(PARTS))
def test_networks_in_c(part):
    check(FIXED[part * EACH : (part + 1) * EACH], "c")


@pytest.mark.parametrize("part", range(PARTS))
def test_new_networks_in_c(part):
    first = FRESH + part * EACH
    print(f"MITHRIL_RANDOM_SEED={FRESH}: seeds from {first}")
    check(range(first, first + EACH), "c")


@pytest.mark.parametrize("backend", OTHERS)
def test_networks_on_other_backends(backend):
    module, count = OTHERS[backend]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    check(range(count), backend)


@pytest.mark.parametrize("kind", BLOCKS)
def test_every_block_makes_something(kind):
    missing = set(BLOCKS[kind])
    for seed in range(60):
        n = Network(np.random.default_rng(seed), batch=2)
        x = grown(n, sequences.start(n, kind), kind)
        for name in sorted(missing):
            mark = n.mark()
            if attempt(n, x, kind, name)[0] is not None:
                missing.discard(name)
            n.back(mark)
        if not missing:
            return
    assert not missing


@pytest.mark.parametrize("mode", MODES)
def test_a_seed_is_a_network(mode):
    first, second = (generate(11, "c", mode) for _ in range(2))
    assert [str(call) for call in first[0].calls] == [str(call) for call in second[0].calls]
    assert str(first[1]) == str(second[1])
    assert first[1].mode == mode


class Careless(ml.NumpyBackend):
    """A backend with a mistake that a test of this op with few numbers may not find."""

    def tanh(self, input):
        output = super().tanh(input)
        return (
            np.where(np.arange(output.size).reshape(output.shape) < 300, output, 0.0) if output.size > 300 else output
        )


def test_what_is_wrong_is_found_and_made_smaller(monkeypatch):
    monkeypatch.setattr(compare, "backend_of", lambda setting: Careless(dtype=setting.dtype))
    setting = Setting("numpy", "packed")
    for seed in range(100):
        network, _ = generate(seed, "numpy", "packed")
        network.dtype = "float32"
        used = [call for call in network.calls if call.op == "tanh"]
        if len(network.calls) > 12 and any(network.values[call.names[0]].size > 300 for call in used):
            outcome = compare.compare(network, setting, seed)
            if not outcome:
                break
    else:
        pytest.fail("no network found the mistake")
    small, _ = minimize.shrunk(network, setting, seed, time.monotonic() + 60)
    assert "tanh" in [call.op for call in small.calls]
    assert len(small.calls) <= 2
    # What is printed is a program; the mistake is not in the backend that it names.
    program = minimize.program(small, setting, seed)
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "off by 0.0" in completed.stdout
