"""Plain numbers beside integer tensors, on every backend: refused where the dtype cannot hold them, and compared as the
numbers that they are. The oracle is NumPy 2."""

import mithril as ml
import numpy as np
import pytest
from backends import BACKENDS, backend
from mithril import errors

EVERY = (*BACKENDS, "interpreter", "c", "ggml")
CASES = [("uint8", -3), ("uint8", 300), ("int8", 200), ("int16", -40_000), ("int32", 2**40)]
ARITHMETIC = {"add": ml.Add, "maximum": ml.Maximum, "floor_divide": ml.FloorDivide, "bitwise_and": ml.BitwiseAnd}
COMPARISONS = {
    "equal": ml.Equal,
    "not_equal": ml.NotEqual,
    "less": ml.Less,
    "less_equal": ml.LessEqual,
    "greater": ml.Greater,
    "greater_equal": ml.GreaterEqual,
}


def make(name):
    if name in BACKENDS:
        return backend(name)
    return {"interpreter": ml.InterpreterBackend, "c": ml.CBackend, "ggml": ml.GGMLBackend}[name]()


@pytest.mark.parametrize(("dtype", "number"), CASES)
@pytest.mark.parametrize("name", EVERY)
def test_numbers_that_do_not_fit_are_refused(name, dtype, number):
    chosen = make(name)
    x = chosen.tensor(np.ones(3, dtype), dtype)
    for op in ARITHMETIC:
        with pytest.raises(OverflowError):
            getattr(np, op)(np.ones(3, dtype), number)
        with pytest.raises(errors.NumericsError, match=f"{op} is {number}, which {dtype} cannot hold"):
            getattr(chosen, op)(x, number)
    with pytest.raises(errors.NumericsError, match="clip is"):
        chosen.clip(x, 0, number) if number > 0 else chosen.clip(x, number, 1)


@pytest.mark.parametrize(("dtype", "number"), CASES)
def test_the_error_is_at_its_line(dtype, number):
    for op, layer in ARITHMETIC.items():
        model = ml.Model()
        with pytest.raises(errors.NumericsError, match=f"{op} is {number}") as caught:
            model |= layer(name="part")(left=ml.IOKey("x", dtype=dtype), right=number, output="y")
        assert caught.value.code == "M0901"
        assert "test_numbers.py" in str(caught.value)
        assert f"{dtype} holds numbers" in caught.value.notes[0]
        assert "cast" in caught.value.hint


def test_a_dtype_that_is_told_later_is_an_error_when_compiling():
    model = ml.Model()
    model |= ml.Add(name="part")(left="x", right=300, output="y")
    with pytest.raises(errors.NumericsError, match="which uint8 cannot hold") as caught:
        ml.compile(model, ml.NumpyBackend(), dtypes={"x": "uint8"}, shapes={"x": [3]})
    assert caught.value.path == "part"
    # A size that is known when running only.
    model = ml.Model()
    model |= ml.Abs()(input=ml.IOKey("x", dtype="uint8", shape=["n"]), output="positive")
    model |= ml.Add()(left="positive", right=model.positive.shape[0], output="y")
    for chosen in (ml.NumpyBackend(), ml.CBackend()):
        compiled = ml.compile(model, chosen)
        assert compiled.evaluate({}, {"x": np.zeros(255, "uint8")})["y"][0] == 255
        with pytest.raises(errors.NumericsError, match="300, which uint8"):
            compiled.evaluate({}, {"x": np.zeros(300, "uint8")})


@pytest.mark.parametrize("name", EVERY)
def test_comparisons_are_exact(name):
    chosen = make(name)
    for dtype, number in CASES:
        range_of = np.iinfo(dtype)
        x = np.array([range_of.min, 0, 44, range_of.max], dtype)
        model = ml.Model()
        for op, layer in COMPARISONS.items():
            model |= layer()(left=ml.IOKey("x", dtype=dtype), right=number, output=op)
            model |= layer()(left=number, right="x", output=f"{op}_turned")
        outputs = ml.compile(model, chosen, shapes={"x": [4]}).evaluate({}, {"x": chosen.tensor(x, dtype)})
        for op in COMPARISONS:
            expected = getattr(np, op)(x, number), getattr(np, op)(number, x)
            np.testing.assert_array_equal(chosen.to_numpy(outputs[op]), expected[0], err_msg=op)
            np.testing.assert_array_equal(chosen.to_numpy(outputs[f"{op}_turned"]), expected[1], err_msg=op)
            at_once = getattr(chosen, op)(chosen.tensor(x, dtype), number)
            np.testing.assert_array_equal(chosen.to_numpy(at_once), expected[0], err_msg=op)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", ["prod", "sum", "mean", "var", "cumsum", "cumprod"])
@pytest.mark.parametrize("name", BACKENDS)
def test_halves_are_brought_together_in_float32(name, op, dtype):
    """What comes out is the number in double, rounded once, as far as float32 knows it."""
    run = backend(name, dtype=dtype)
    random = np.random.default_rng(0)
    for shape, axis in [((3, 2000), 1), ((300, 4), 0), ((2, 3, 17), 2)]:
        x = run.to_numpy(run.array(random.uniform(0.985, 1.015, shape)))
        exact = x.astype(np.float64)
        expected = getattr(np, op)(exact, axis=axis)
        model = ml.Model()
        options = {"correction": 0} if op == "var" else {}
        layer = {"prod": ml.Prod, "sum": ml.Sum, "mean": ml.Mean, "var": ml.Var, "cumsum": ml.CumSum}
        model |= layer.get(op, ml.CumProd)(axis=axis, **options)(input="input", output="output")
        compiled = ml.compile(model, run, shapes={"input": list(shape)}, data_keys={"input"}, inference=True)
        actual = run.to_numpy(compiled.evaluate({}, {"input": run.array(x)})["output"]).astype(np.float64)
        epsilon = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
        np.testing.assert_allclose(actual, expected, rtol=0.51 * epsilon, atol=1e-7)
