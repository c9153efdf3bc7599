"""Public functions of JAX, by namespace: what is converted computes what JAX computes, all others say why not."""

import inspect

import mithril as ml
import numpy as np
import pytest
from mithril.errors import UnsupportedOpError

jax = pytest.importorskip("jax")
jnp = jax.numpy
special = pytest.importorskip("jax.scipy.special")

RNG = np.random.default_rng(0)


def x(*shape):
    return RNG.uniform(0.1, 0.9, shape).astype(np.float32)


MATRIX = (lambda m: m @ m.T + np.eye(4, dtype=np.float32))(x(4, 4))
#: Arguments to try: arrays, and what is known when tracing.
ARGUMENTS = (
    *(((x(3, 4),), ()), ((x(3, 4), x(3, 4) + 1), ()), ((x(5),), ()), ((x(5), x(5)), ()), ((MATRIX,), ())),
    *(((MATRIX, x(4)), ()), ((x(3, 4),), (0,)), ((x(5),), (3,)), ((x(2, 3), x(2, 3)), ()), ((x(4, 4),), (-2,))),
    *(((x(4), x(4), x(4)), ()), ((np.array([1, 2, 0]), x(3)), ()), ((x(2, 3, 4, 4), x(2, 3, 4, 4), x(2, 3, 4, 4)), ())),
    (([x(2, 3), x(3, 4), x(4, 2)],), ()),
)
#: What is refused, and the primitive that the error names.
REFUSED = {
    "linalg": {"eig": "eig", "eigvals": "eig"},
    "fft": {},
    "nn": {},
    "special": {
        **dict.fromkeys(("exp1", "expi", "expn", "hyp1f1", "hyp2f1"), "while whose number of iterations is data"),
        **{"betainc": "regularized_incomplete_beta", "gammainc": "igamma", "gammaincc": "igammac"},
        **{"polygamma": "an order that is not known"},
    },
}
#: Factors have signs of their own.
SIGNS = {"eigh", "qr", "svd"}
NAMESPACES = {"linalg": jnp.linalg, "fft": jnp.fft, "nn": jax.nn, "special": special}


def is_result(value):
    leaves = jax.tree_util.tree_leaves(value)
    return bool(leaves) and all(hasattr(leaf, "dtype") for leaf in leaves)


def cases(namespace):
    """Functions of a namespace with arguments that JAX accepts."""
    for name, function in sorted(vars(namespace).items()):
        if name.startswith("_") or not callable(function) or inspect.isclass(function) or inspect.ismodule(function):
            continue
        for arrays, known in ARGUMENTS:
            try:
                if is_result(function(*arrays, *known)):
                    yield name, function, arrays, known
                    break
            # Each says in its own way that it takes other arguments.
            except Exception:
                continue


def parts(value):
    """Take complex results apart, and drop signs."""
    return jax.tree_util.tree_map(lambda v: (v.real, v.imag) if jnp.iscomplexobj(v) else v, value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_functions_compute_what_jax_computes(namespace):
    found = {name: (function, arrays, known) for name, function, arrays, known in cases(NAMESPACES[namespace])}
    assert len(found) > 10
    converted = {name: case for name, case in found.items() if name not in REFUSED[namespace]}

    def function(arguments):
        results = {}
        for name, (own, _, known) in converted.items():
            value = parts(own(*arguments[name], *known))
            results[name] = jax.tree_util.tree_map(jnp.abs, value) if name in SIGNS else value
        # Each is a value of its own, not an input or a constant.
        return jax.tree_util.tree_map(lambda v: v | False if v.dtype == bool else v + 0 * v, results)

    arguments = {name: arrays for name, (_, arrays, _) in converted.items()}
    model, params = ml.from_jax(function, (arguments,))
    data = {key: np.asarray(leaf) for key, leaf in inputs(arguments).items() if key in model.input_keys}
    outputs = list(ml.compile(model, ml.NumpyBackend()).evaluate(params, data).values())
    right = function(arguments)
    expected = [
        (jax.tree_util.keystr(path), np.asarray(leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(right)
    ]
    assert len(outputs) == len(expected)
    wrong = [
        f"{name}: {value}, not {exact}"
        for value, (name, exact) in zip(outputs, expected, strict=True)
        if value.shape != exact.shape
        or value.dtype != exact.dtype
        or not np.allclose(value, exact, rtol=2e-4, atol=2e-5, equal_nan=True)
    ]
    assert not wrong, "\n".join(wrong)


def inputs(arguments):
    """Name leaves as `from_jax` does."""
    leaves = jax.tree_util.tree_leaves_with_path({"arguments": arguments})
    return {"_".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path): leaf for path, leaf in leaves}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_refused_functions_say_why(namespace):
    for name, function, arrays, known in cases(NAMESPACES[namespace]):
        if name in REFUSED[namespace]:

            def called(arguments, function=function, known=known):
                return parts(function(*arguments, *known))

            with pytest.raises(UnsupportedOpError, match=REFUSED[namespace][name]):
                ml.from_jax(called, (arrays,))
