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
