"""What docs/ops.md promises to the last unit, on every backend: floors of quotients, integers that stay integers."""

import mithril as ml
import numpy as np
import pytest
from backends import BACKENDS, backend
from mithril import _core
from mithril.backends.exchange import numpy_dtype
from mithril.testing.backend_tests import run_backend_tests

NAMES = ("interpreter", *BACKENDS, "c", "ggml")


def backend_named(name):
    return backend(name) if name in BACKENDS else ml.get_backend(name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_floor_divide_is_the_floor_of_the_exact_quotient(name, dtype):
    """Where the quotient has more digits than a half, rounding it before its floor is taken shows."""
    random, native = np.random.default_rng(0), numpy_dtype(dtype)
    left, right = (
        (random.choice([-1, 1], 20_000) * np.exp(random.uniform(-5, 9, 20_000))).astype(native) for _ in range(2)
    )
    exact = [x.astype(np.float64) for x in (left, right)]
    on = backend_named(name)
    x, y = on.tensor(left, dtype), on.tensor(right, dtype)
    for op, function in (("floor_divide", np.floor_divide), ("remainder", np.remainder)):
        actual = np.asarray(on.to_numpy(getattr(on, op)(x, y))).astype(np.float64)
        with np.errstate(over="ignore"):
            expected = function(*exact).astype(native).astype(np.float64)
        np.testing.assert_array_equal(actual, expected, err_msg=op)
    # A plain number is one of the dtype.
    actual = np.asarray(on.to_numpy(on.floor_divide(x, 0.1))).astype(np.float64)
    with np.errstate(over="ignore"):
        expected = (
            np.floor_divide(exact[0], np.array(0.1).astype(native).astype(np.float64)).astype(native).astype(np.float64)
        )
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", NAMES)
def test_activations_that_only_choose_keep_integers(name):
    on = backend_named(name)
    x = on.tensor(np.array([-9, -1, 0, 1, 5, 9], np.int32), "int32")
    for op, options, expected in (
        ("relu", {}, [0, 0, 0, 1, 5, 9]),
        ("relu6", {}, [0, 0, 0, 1, 5, 6]),
        ("hard_tanh", {}, [-1, -1, 0, 1, 1, 1]),
        ("hard_tanh", {"min": -2, "max": float("inf")}, [-2, -1, 0, 1, 5, 9]),
        ("clip", {"min": -2, "max": 5}, [-2, -1, 0, 1, 5, 5]),
    ):
        actual = np.asarray(on.to_numpy(getattr(on, op)(x, **options)))
        assert actual.dtype == np.int32, op
        assert actual.tolist() == expected
    # Between fractions there are no integers.
    actual = np.asarray(on.to_numpy(on.hard_tanh(x, min=-0.5, max=0.5)))
    assert actual.dtype == np.float32
    assert actual.tolist() == [-0.5, -0.5, 0, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("name", ["numpy", "torch", "mlx"])
def test_what_frameworks_do_otherwise_with_integers(name):
    """Ops of which a framework's own refuses integers, or gives another dtype."""
    ops = ["einsum", "prod", "interpolate", "windows", "binary_cross_entropy", "gelu"]
    results = run_backend_tests(
        backend_named(name), ops, dtypes=["float32", "bfloat16", "int32", "uint8"], special=True
    )
    assert results.failures == []
    assert results.unsupported == []


def test_results_that_are_computed_alike_are_both_there_on_mlx():
    """MLX's compiler lost one of two equal results of a function with gradients."""
    on = backend_named("mlx")
    x = ml.IOKey("x")
    views = {"a": _core.apply_op("transpose", [x, None]), "b": _core.apply_op("swapaxes", [x, 0, 1])}
    compiled = ml.compile(ml.Model.create(**views), on, shapes={"x": [2, 3]}, trainable_keys=["x"], jit=True)
    params = {"x": on.array(np.arange(6.0).reshape(2, 3))}
    outputs, gradients = compiled.evaluate(params, {}, {"a": on.ones(3, 2), "b": on.ones(3, 2)})
    assert np.array_equal(on.to_numpy(outputs["a"]), on.to_numpy(outputs["b"]))
    assert on.to_numpy(gradients["x"]).tolist() == [[2.0] * 3] * 2


def test_gradients_of_large_determinants_on_mlx():
    """MLX differentiates those of matrices of three rows at most."""
    results = run_backend_tests(backend_named("mlx"), ["det", "slogdet"], gradients=True)
    assert results.failures == []
    on, matrix = backend_named("mlx"), np.diag([1.0, 2.0, 3.0, 4.0]) + 0.1
    x = ml.IOKey("x")
    sign, log = _core.apply_op("slogdet", [x])
    model = ml.Model.create(sign=sign, log=log, det=_core.apply_op("det", [x]))
    compiled = ml.compile(model, on, shapes={"x": [4, 4]}, trainable_keys=["x"])
    ones = {name: on.array(1.0) for name in ("log", "det")}
    _, gradients = compiled.evaluate({"x": on.array(matrix)}, {}, ones)
    expected = (1 + np.linalg.det(matrix)) * np.linalg.inv(matrix).T
    np.testing.assert_allclose(on.to_numpy(gradients["x"]), expected, rtol=1e-4)
