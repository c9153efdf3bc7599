"""What holds for all tests."""

import hashlib
import importlib.metadata
import importlib.util
import itertools
import os
import signal
import sys
from pathlib import Path

import other_device
import pytest

#: What XLA compiled, under keys of all that it depends on: the same small programs come again in other tests, in other
#: processes, and when the tests run again.
COMPILED = Path(__file__).parents[2] / "target" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(COMPILED))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

#: With its older emitters, XLA compiles the small programs of the tests in two thirds of the time. An unknown flag ends
#: the process, so the flags are set only for versions that know them.
QUICK_FLAGS = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
# Tests run a few numbers once: LLVM, behind XLA's own passes, need not optimize what it compiles, as in the tests of
# JAX itself. `make test-all` has all that users have.
if "MITHRIL_TEST_ALL" not in os.environ and importlib.util.find_spec("jax") is not None:
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    version = importlib.metadata.version("jax").split(".")[:2]
    if "XLA_FLAGS" not in os.environ and version in (["0", "9"], ["0", "10"]):
        os.environ["XLA_FLAGS"] = QUICK_FLAGS

_finished = itertools.count(1)

# A shell starts background jobs with SIGINT ignored, and their children inherit that: tests that interrupt would hang.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--sample", type=int, metavar="N", help="run one in N of the tests, always the same ones")
    parser.addoption("--device", metavar="NAME", help="where PyTorch and JAX compute, such as cuda")


def pytest_configure(config):
    if device := config.getoption("--device"):
        other_device.use(device)


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
def settings_of_frameworks():
    """Put back what a test set for the whole process."""
    jax, torch = sys.modules.get("jax"), sys.modules.get("torch")
    wide = jax is not None and jax.config.jax_enable_x64
    strict = torch is not None and torch.are_deterministic_algorithms_enabled()
    yield
    if jax := sys.modules.get("jax"):
        jax.config.update("jax_enable_x64", wide)
    if torch := sys.modules.get("torch"):
        torch.use_deterministic_algorithms(strict)
