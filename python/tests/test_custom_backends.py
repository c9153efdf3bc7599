"""Backends that users write: a few methods, overridden ops, gradients of their own, tests, registration."""

import mithril as ml
from mithril.testing.backend_tests import run_backend_tests


class Wrong(ml.NumpyBackend):
    """A backend with one wrong op."""

    def _load_op(self, name, signature):
        return super()._load_op("cos" if name == "sin" else name, signature)


def test_a_known_limitation_is_counted_and_a_stale_one_fails():
    assert run_backend_tests(Wrong(), ["sin"]).failed > 0

    class Limited(Wrong):
        limitations = {("sin", "float32"): "it is the cosine"}

    results = run_backend_tests(Limited(), ["sin", "exp"])
    assert results.failed == 0
    assert len(results.limited) > 0
    assert "it is the cosine" in results.limited[0]

    class Stale(ml.NumpyBackend):
        limitations = {("ex*", "float*"): "not true"}

    results = run_backend_tests(Stale(), ["exp"])
    assert results.failures == ["exp of float32: works, but is listed as limited: not true"]
    assert results.total == run_backend_tests(ml.NumpyBackend(), ["exp"]).total
