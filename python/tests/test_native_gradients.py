"""Gradients by the frameworks' own automatic differentiation against those of our gradient graph."""

import functools
import os

import mithril as ml
import numpy as np
import pytest
from backends import NATIVE, backend
from mithril import _core
from mithril.testing import Case, cases
from op_cases import BENDS, TERMS, Single, every_case

ROWS = {row["name"]: row for row in _core.op_definitions()}
EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52}
#: JAX compiles every use of an op, which takes long: in single precision, and the gradient graph, whose ops have
#: tests of their own, with `make test-all` only.
CHOSEN = [(n, d) for n in NATIVE for d in EPSILON if (n, d) != ("jax", "float32") or "MITHRIL_TEST_ALL" in os.environ]
#: Units of epsilon of the largest element.
UNITS = {"Decomposition": 256}
REFERENCE = functools.cache(lambda: ml.NumpyBackend(dtype="float64"))


#: Each program runs once, on a few numbers: the shorter way from XLA's own passes to machine code is enough.
QUICKLY = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}


@functools.cache
def jit_options():
    """Options for what JAX compiles here, as far as its version knows them."""
    if "MITHRIL_TEST_ALL" in os.environ:
        return {}
    import jax

    try:
        jax.jit(lambda x: x, compiler_options=QUICKLY).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return {"compiler_options": QUICKLY}


def quick(name, dtype):
    """A backend; JAX compiles every function anyway, and a model as a whole much faster than one by one."""
    return backend(name, dtype, jit=name == "jax")


def random_cotangents(outputs):
    random = np.random.default_rng(7)
    return {n: random.uniform(-1, 1, v.shape) for n, v in outputs.items() if v.dtype == np.float64}


def gradients_of(case, chosen, cotangents, autodiff):
    """Gradients of a case as NumPy arrays."""
    options = {"jit_options": jit_options()} if isinstance(chosen, ml.JaxBackend) else {}
    _, gradients = Single(case, chosen, autodiff=autodiff, **options).run(cotangents)
    return {key: np.asarray(chosen.to_numpy(value)) for key, value in gradients.items()}


def assert_same(actual, expected, dtype, units, label):
    assert list(actual) == list(expected), label
    for key, value in expected.items():
        where = f"{label}: gradient of {key}"
        a, b = actual[key], value.astype(np.float64)
        assert a.dtype == dtype, where
        assert a.shape == b.shape, where
        a, finite = a.astype(np.float64), np.isfinite(b)
        np.testing.assert_array_equal(a[~finite], b[~finite], err_msg=where)
        scale = TERMS.get(f"{label.rpartition(', ')[0]}: gradient of {key}", np.abs(b[finite]).max(initial=1e-30))
        error = np.abs(a[finite] - b[finite]).max(initial=0) / scale / EPSILON[dtype]
        assert error <= units, f"{where}: {error:.1f} epsilon off, {units} are allowed"


# What the tests of an op on all frameworks compare with; they follow each other.
@functools.lru_cache(8)
def references(op):
    """The cases of an op that have gradients, with cotangents and the gradients on NumPy."""
    references = []
    for case in every_case(ROWS[op]):
        outputs, _ = Single(case, REFERENCE()).run(None)
        cotangents = random_cotangents(outputs)
        if cotangents and any(isinstance(a, np.ndarray) and a.dtype == np.float64 for a in case.args):
            references.append((case, cotangents, gradients_of(case, REFERENCE(), cotangents, "graph")))
    return references


@pytest.mark.parametrize(("name", "dtype"), CHOSEN)
@pytest.mark.parametrize("op", ROWS)
def test_native_gradients_are_those_of_the_graph(name, op, dtype):
    row, chosen = ROWS[op], quick(name, dtype)
    for case, cotangents, expected in references(op):
        units = UNITS.get(row["tolerance"], 64)
        assert_same(gradients_of(case, chosen, cotangents, "native"), expected, dtype, units, f"{case}, native")
        if dtype == "float64" and (name != "jax" or "MITHRIL_TEST_ALL" in os.environ):
            assert_same(gradients_of(case, chosen, cotangents, "graph"), expected, dtype, units, f"{case}, graph")


@pytest.mark.parametrize("bend", BENDS, ids=lambda bend: f"{bend[0]}-{bend[1:]}"[:60])
@pytest.mark.parametrize("name", NATIVE)
def test_native_gradients_where_functions_bend(name, bend):
    op, *args = bend
    case = Case(op, str(args), tuple(np.array(a) if isinstance(a, list) else a for a in args))
    chosen = quick(name, "float64")
    cotangents = random_cotangents(Single(case, REFERENCE()).run(None)[0])
    expected = gradients_of(case, REFERENCE(), cotangents, "graph")
    assert_same(gradients_of(case, chosen, cotangents, "native"), expected, "float64", 64, f"{case}, native")


#: Second derivatives that a framework computes otherwise: framework and op -> the reason.
ONCE = {
    ("torch", "binary_cross_entropy"): "torch adds 1e-12 to the probabilities there",
    ("jax", "scatter_prod"): "JAX differentiates scattered products of unique places alone",
    ("mlx", "scatter_prod"): "MLX does not differentiate the scattered product that the gradient is made of",
}


@pytest.mark.parametrize("op", ROWS)
@pytest.mark.parametrize("name", NATIVE)
def test_second_derivatives(name, op):
    """The gradient of a product with the gradient, for the first case."""
    case = next(iter(cases(ROWS[op])))
    places = [i for i, a in enumerate(case.args) if isinstance(a, np.ndarray) and a.dtype == np.float64]
    actual = REFERENCE()._op(op, case.args)
    if not places or isinstance(actual, tuple) or actual.dtype != np.float64:
        pytest.skip("one output of floats, made of floats")
    if (name, op) in ONCE:
        pytest.skip(ONCE[name, op])
    cotangent = np.random.default_rng(7).uniform(-1, 1, actual.shape)
    directions = {i: np.random.default_rng(i).uniform(-1, 1, case.args[i].shape) for i in places}

    def second(chosen):
        def value(*floats):
            args = list(case.args)
            for i, x in zip(places, floats, strict=True):
                args[i] = x
            return chosen.reduce_sum(chosen.multiply(chosen._op(op, args), chosen.array(cotangent)))

        def along(*floats):
            gradients = chosen.grad(value, range(len(places)))(*floats)
            terms = [
                chosen.reduce_sum(chosen.multiply(g, chosen.array(directions[i])))
                for i, g in zip(places, gradients, strict=True)
            ]
            return functools.reduce(chosen.add, terms)

        gradients = chosen.grad(along, range(len(places)))(*(chosen.array(case.args[i]) for i in places))
        return {str(i): np.asarray(chosen.to_numpy(g)) for i, g in zip(places, gradients, strict=True)}

    expected = second(REFERENCE())
    for key, actual in second(backend(name, "float64")).items():
        error = np.abs(actual - expected[key]).max(initial=0) / (1 + np.abs(expected[key]).max(initial=0))
        assert error <= 256 * EPSILON["float64"], f"{case}: second derivative of {key}: {error}"
