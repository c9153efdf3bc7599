"""`run_backend_tests`: it passes what is right, finds planted mistakes, and says what is lacking."""

import mithril as ml
import numpy as np
import pytest
from custom_backends import Handful, mlp
from mithril import _core
from mithril.errors import InvalidValueError
from mithril.testing.backend_tests import run_backend_tests


class Wrong(ml.NumpyBackend):
    """A backend with one wrong op."""

    class _engine_type(ml.NumpyBackend._engine_type):
        def load_op(self, name, signature):
            return super().load_op("cos" if name == "sin" else name, signature)


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


def test_check_says_what_a_backend_defines():
    result = ml.check(mlp(), Handful(), shapes={"input": [2, 4], "target": [2]})
    support = {row.op: row.support for row in result}
    assert result.ok
    assert support["relu"] == "reference"
    model = ml.Model()
    model |= ml.Linear(3)(input="input", output="output")
    assert [row.support for row in ml.check(model, Handful(), shapes={"input": [2, 4]})] == ["expanded"]


PLANTED = {
    "wrong axis": ("softmax", lambda x, axis=-1: np.exp(x) / np.exp(x).sum(axis=0, keepdims=True), "epsilon off"),
    "wrong dtype": ("exp", lambda x: np.exp(x).astype(np.float64), "returns float64"),
    "wrong shape": ("flip", lambda x, axis=None: np.flip(x, axis)[..., None], "returns shape"),
    "off by one": ("argmax", lambda x, axis=None, keepdim=False: np.argmax(x, axis, keepdims=keepdim) + 1, "not"),
    "NaN is swallowed": ("maximum", lambda a, b: np.fmax(a, b), "NaN"),
    "raises": ("tan", lambda x: 1 / 0, "division by zero"),
    "rounds too early": ("log1p", lambda x: np.log(1 + x.astype(np.float16)).astype(x.dtype), "epsilon off"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_mistakes_are_found(name):
    op, function, text = PLANTED[name]
    wrong = type("Wrong", (ml.NumpyBackend,), {op: staticmethod(function)})
    results = run_backend_tests(wrong(), [op], special=True, dtypes=["float32"])
    assert results.failed > 0
    assert all(line.startswith(op) for line in results.failures)
    assert any(text in line for line in results.failures)
    assert run_backend_tests(ml.NumpyBackend(), [op], special=True, dtypes=["float32"]).failures == []


def test_a_planted_gradient_is_found():
    class Wrong(ml.NumpyBackend):
        def backward_tanh(self, grad_output, inputs, outputs):
            return grad_output * (1 - outputs[0])

    results = run_backend_tests(Wrong(), ["tanh", "sin"], gradients=True)
    assert [line.split(":")[0] for line in results.failures] == [
        f"gradient of tanh {case}" for case in ("[2,3]", "[]", "[2,1,3,2]")
    ]
    assert run_backend_tests(ml.NumpyBackend(), ["tanh", "sin"], gradients=True).failures == []

    class Limited(Wrong):
        limitations = {("gradient:tanh", "*"): "a mistake"}

    assert run_backend_tests(Limited(), ["tanh", "sin"], gradients=True).failures == []


def test_what_a_backend_lacks_is_unsupported_and_what_it_defines_is_tested():
    ops = ["add", "exp", "subtract", "conv2d", "linear"]
    results = run_backend_tests(Handful(), ops, dtypes=["float32", "float16"])
    assert results.failures == []
    cells = {row[0]: row[1:] for row in results.rows()[1]}
    assert cells["add"][0] == cells["exp"][0] == cells["tensor"][0] == "ok"
    assert cells["subtract"][0] == "unsupported"
    assert "Handful has no subtract" in results.unsupported[0]
    assert cells["linear"][0] == "ok"
    # Some of the cases of conv2d need what its method does not take.
    assert "unsupported" in cells["conv2d"][0]
    assert cells["tensor"][1] == "skipped"
    assert len(results.skipped) == 1
    text, page = str(results), results.to_markdown()
    assert f"{results.passed} passed" in text
    assert "unsupported:" in text
    assert "| subtract | unsupported |" in page
    assert f"failed=0, unsupported={len(results.unsupported)}" in repr(results)
    with pytest.raises(InvalidValueError, match="no op called 'frobnicate'"):
        run_backend_tests(Handful(), ["frobnicate"])


def test_the_whole_suite_passes_on_numpy():
    results = run_backend_tests(ml.NumpyBackend())
    assert results.failures == []
    assert results.unsupported == []
    assert results.skipped == []
    assert results.total > 9000
    # Only what factors matrices, in half precision, sums of booleans, and uint64 beside int64.
    families = ("decompose", "factor", "least_squares")
    linear_algebra = [row["name"] for row in _core.op_definitions() if row["family"] in families]
    sums = "of bool: `accumulate` of index_put adds up"
    refused = [line for line in results.refused if sums not in line and "no dtype holds both" not in line]
    assert all(line.split()[0] in linear_algebra and "float16 is not possible" in line for line in refused)
