"""What holds for all tests."""

import hashlib
import importlib.metadata
import importlib.util
import itertools
import os
import signal
import sys
from pathlib import Path

import pytest

#: What XLA compiled, under keys of all that it depends on: the same small programs come again in other tests, in other
#: processes, and when the tests run again.
COMPILED = Path(__file__).parents[2] / "target" / "jax"

#: Files of thousands of tests that each run a few numbers once. There LLVM, behind XLA's own passes, need not optimize
#: what it compiles, as in the tests of JAX itself; with `make test-all` it does.
OPS = {"test_indexing_ops", "test_layers", "test_native_gradients", "test_op_values", "test_ops"}

#: With its older emitters, XLA compiles the small programs of the tests in two thirds of the time; `make test-all` uses
#: the default ones. An unknown flag ends the process, so the flags are set only for versions that know them.
QUICK_FLAGS = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
if "MITHRIL_TEST_ALL" not in os.environ and importlib.util.find_spec("jax") is not None:
    version = importlib.metadata.version("jax").split(".")[:2]
    if "XLA_FLAGS" not in os.environ and version in (["0", "9"], ["0", "10"]):
        os.environ["XLA_FLAGS"] = QUICK_FLAGS

_finished = itertools.count(1)

# A shell starts background jobs with SIGINT ignored, and their children inherit that: tests that interrupt would hang.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--sample", type=int, metavar="N", help="run one in N of the tests, always the same ones")


def pytest_collection_modifyitems(config, items):
    count = config.getoption("--sample")
    if count:
        kept = [i for i in items if int.from_bytes(hashlib.blake2b(i.nodeid.encode()).digest()[:4], "big") % count == 0]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


@pytest.fixture(autouse=True)
def bounded_memory():
    """Let JAX forget now and then what it compiled: thousands of tiny programs take gigabytes."""
    yield
    if next(_finished) % 100 == 0 and "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


@pytest.fixture(autouse=True)
def settings_of_frameworks(request):
    """Put back what a test set for the whole process."""
    jax, torch = sys.modules.get("jax"), sys.modules.get("torch")
    if jax is not None:
        quick = request.module.__name__ in OPS and "MITHRIL_TEST_ALL" not in os.environ
        jax.config.update("jax_disable_most_optimizations", quick)
        if jax.config.jax_compilation_cache_dir is None:
            jax.config.update("jax_compilation_cache_dir", str(COMPILED))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
            jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    wide = jax is not None and jax.config.jax_enable_x64
    strict = torch is not None and torch.are_deterministic_algorithms_enabled()
    yield
    if jax := sys.modules.get("jax"):
        jax.config.update("jax_enable_x64", wide)
    if torch := sys.modules.get("torch"):
        torch.use_deterministic_algorithms(strict)
