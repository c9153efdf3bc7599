"""The backends that tests run on: one table, from which a test takes its parameters."""

import functools
import importlib.util

import mithril as ml
import pytest

#: Name of a backend -> its class, and the module that must be installed.
BACKENDS = {
    "numpy": ("NumpyBackend", "numpy"),
    "torch": ("TorchBackend", "torch"),
    "jax": ("JaxBackend", "jax"),
    "mlx": ("MlxBackend", "mlx"),
}
#: Those that differentiate by themselves.
NATIVE = tuple(name for name in BACKENDS if name != "numpy")
FLOATS = ("float64", "float32", "float16", "bfloat16")


@functools.cache
def backend(name, dtype="float32", **options):
    """A backend by its name, or a skipped test where its framework is not installed."""
    kind, module = BACKENDS[name]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    return getattr(ml, kind)(dtype=dtype, **options)
