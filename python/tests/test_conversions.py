"""Conversions to floats of two bytes: they are rounded once, and hand gradients on."""

from typing import Any

import mithril as ml
import ml_dtypes
import numpy as np
import pytest
from backends import BACKENDS, backend
from mithril.backends.with_manualgrad.interpreter_backend import InterpreterBackend
from mithril.testing import Case
from mithril.testing.compiled import run_compiled

#: Backends whose ops at once are those of another framework, so that ops run as compiled models.
COMPILED = {"c": ml.CBackend, "ggml": ml.GGMLBackend}
#: Ties of bfloat16 with something behind them, which float32 does not hold, and what they are as bfloat16.
INTEGERS = {
    2**24 + 2**16 + 1: 2**24 + 2**17,
    2**30 + 2**22 + 1: 2**30 + 2**23,
    2**30 + 2**22: 2**30,
    65535: 65536,
    3: 3,
}
#: Of both halves, and what they are in each.
FLOATS = {
    "float16": {1 + 2**-11 + 2**-40: 1 + 2**-10, 1 + 2**-11: 1, 65519.999999: 65504, -1 - 2**-11 - 2**-40: -1 - 2**-10},
    "bfloat16": {1 + 2**-8 + 2**-40: 1 + 2**-7, 1 + 2**-8: 1, 3.3e38: 3.2964854e38, -1 - 2**-8 - 2**-40: -1 - 2**-7},
}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e300, -1e300, 1e-300]


def converted(name: str, x: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    if name in COMPILED:
        actual = np.asarray(run_compiled(COMPILED[name](dtype="float32"), Case("cast", "", (x, ml.DType(dtype)))))
    else:
        one = InterpreterBackend() if name == "interpreter" else backend(name, "float64")
        actual = np.asarray(one.to_numpy(one._op("cast", [one.tensor(x, x.dtype.name), ml.DType(dtype)])))
    assert actual.dtype == (ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    return actual.astype(np.float64)


@pytest.mark.parametrize("name", [*BACKENDS, "interpreter", *COMPILED])
@pytest.mark.parametrize("source", ["int32", "uint32", "int64", "uint64"])
def test_integers_are_rounded_once(source, name):
    actual = converted(name, np.array(list(INTEGERS), source), "bfloat16")
    np.testing.assert_array_equal(actual, np.array(list(INTEGERS.values()), np.float64))


@pytest.mark.parametrize("name", [*BACKENDS, "interpreter", *COMPILED])
@pytest.mark.parametrize("dtype", FLOATS)
def test_doubles_are_rounded_once(dtype, name):
    actual = converted(name, np.array(list(FLOATS[dtype])), dtype)
    np.testing.assert_allclose(actual, np.array(list(FLOATS[dtype].values()), np.float64), rtol=2**-12)
    actual = converted(name, np.array(SPECIAL), dtype)
    np.testing.assert_array_equal(actual, [0, 0, np.inf, -np.inf, np.nan, np.inf, -np.inf, 0])
    assert list(np.signbit(actual[:2])) == [False, True]


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "numpy"])
@pytest.mark.parametrize("autodiff", ["native", "graph"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_pass_through(dtype, autodiff, name):
    """Of what was moved on the way as of everything else."""
    model = ml.Model()
    model |= ml.Multiply()(left=ml.IOKey("w", differentiable=True, shape=[4]), right=2.0, output="twice")
    model |= ml.Cast(dtype=dtype)(input="twice", output="half")
    model |= ml.Cast(dtype="float64")(input="half", output=ml.IOKey("output"))
    one = backend(name, "float64")
    compiled = ml.compile(model, one, autodiff=autodiff)
    w = np.array(list(FLOATS[dtype])) / 4
    gradients = compiled.evaluate_gradients({"w": one.array(w)}, output_gradients={"output": one.array(np.ones(4))})
    np.testing.assert_array_equal(one.to_numpy(gradients["w"]), np.full(4, 2.0))
