"""The backend tests of the package onnx: all are read; a sample, or all of them with MITHRIL_TEST_ALL, run."""

import os
import random

import mithril as ml
import pytest

pytest.importorskip("onnx")
import onnx_nodes
from onnx_nodes import BACKENDS, CONVERTED, NODES, NotRun, run

ALL = {**NODES, **CONVERTED}

#: Every how many-th case runs, and from which on: the samples differ from backend to backend.
STEPS = {"numpy": (0, 7), "c": (3, 60), "torch": (5, 60), "jax": (9, 120), "mlx": (11, 120), "ggml": (13, 120)}


def _sample():
    whole = os.environ.get("MITHRIL_TEST_ALL")
    for backend, (first, step) in STEPS.items():
        for name in list(ALL) if whole else list(ALL)[first::step]:
            yield pytest.param(backend, name, id=f"{backend}-{name}")


@pytest.fixture(scope="module")
def backends():
    by_name = {}
    for name, kind in BACKENDS.items():
        try:
            by_name[name] = kind()
        except ml.errors.MithrilError as error:
            by_name[name] = error
    return by_name


@pytest.mark.parametrize(("backend", "name"), list(_sample()))
def test_backend_tests(backends, backend, name):
    own = backends[backend]
    if isinstance(own, ml.errors.MithrilError):
        pytest.skip(f"{backend} does not run here: {own}")
    try:
        run(ALL[name], own)
    except NotRun as reason:
        pytest.skip(reason.reason)


def test_the_page_says_what_is_read():
    """Counts and exceptions in docs/onnx.md are those of this version; none is left without a reason."""
    text = onnx_nodes.PAGE.read_text(encoding="utf-8")
    assert onnx_nodes.reading_table() in text, "run python/tests/onnx_nodes.py --write"


def test_damaged_files_are_read_or_refused():
    """Node tests with a few bytes changed: each is a model or an error with a code, and no internal one."""
    rng = random.Random(0)
    files = [case.model.SerializeToString() for case in NODES.values()]
    files = [data for data in files if len(data) < 20_000]
    refused, count = 0, 100_000 if os.environ.get("MITHRIL_TEST_ALL") else 2000
    for _ in range(count):
        data = bytearray(rng.choice(files))
        for _ in range(rng.randint(1, 3)):
            at, how = rng.randrange(len(data)), rng.randrange(4)
            if how == 0:
                data[at] = rng.randrange(256)
            elif how == 1:
                data[at] ^= 1 << rng.randrange(8)
            elif how == 2:
                data.insert(at, rng.randrange(256))
            elif len(data) > 1:
                del data[at]
        try:
            ml.from_onnx(bytes(data))
        except ml.errors.MithrilError as error:
            refused += 1
            assert error.code != "M0999", error
    assert count // 2 < refused < count
