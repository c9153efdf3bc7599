"""What holds for all tests."""

import itertools
import sys

import pytest

_finished = itertools.count(1)


@pytest.fixture(autouse=True)
def bounded_memory():
    """Let JAX forget now and then what it compiled: thousands of tiny programs take gigabytes."""
    yield
    if next(_finished) % 100 == 0 and "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
