"""Every known model on every backend by `ml.compare`, value by value and gradient by gradient: small configurations."""

import importlib.util
import os

import mithril as ml
import pytest
from test_zoo_c import MODELS

#: Backends, with the module that they need. All models on all of them take minutes: with MITHRIL_TEST_ALL.
MODULES = {"torch": "torch", "mlx": "mlx", "ggml": "numpy", "jax": "jax", "c": "numpy"}
QUICK = {"bert"}
PAIRS = [
    (name, backend)
    for name in MODELS
    for backend in MODULES
    if "MITHRIL_TEST_ALL" in os.environ or (name in QUICK and backend in ("torch", "mlx"))
]


@pytest.mark.parametrize(("name", "backend"), PAIRS)
def test_backends_agree(name, backend):
    if importlib.util.find_spec(MODULES[backend]) is None:
        pytest.skip(f"{MODULES[backend]} is not installed")
    build, data = MODELS[name]
    result = ml.compare(build(), ["numpy", backend], data=data)
    assert result.agree, str(result)
