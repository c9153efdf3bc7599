"""`from_jax` keeps the gradients that `jax.custom_vjp` and `jax.custom_jvp` say."""

import functools

import mithril as ml
import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import export, lax  # noqa: E402


@jax.custom_vjp
def rounded(x):
    return jnp.round(x)


rounded.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def reversed_gradient(x, factor):
    return x


reversed_gradient.defvjp(lambda x, factor: (x, None), lambda factor, _, g: (-factor * g,))


@jax.custom_jvp
def product(x, y):
    return jnp.sin(x) @ y


@product.defjvp
def product_jvp(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    return product(x, y), 2.0 * (jnp.cos(x) * dx) @ y + x @ dy


@jax.custom_vjp
def both(x, y, i):
    return x * y, x[i]


both.defvjp(
    lambda x, y, i: ((x * y, x[i]), (x, y, i)),
    lambda r, g: (jnp.zeros_like(r[0]).at[r[2]].add(g[1] * 3), jnp.cos(r[1]) * g[0], None),
)


@jax.custom_vjp
def turned(z):
    return z * 1j


turned.defvjp(lambda z: (z * 1j, None), lambda _, g: (g * 3j,))


def f(*shape):
    return (np.random.default_rng(sum(shape)).standard_normal(shape) * 2).astype(np.float32)


def complexes(w, x):
    z = turned(lax.complex(w * x, x + w))
    return jnp.real(z) * 2 + jnp.imag(z)


#: Name -> function of a parameter and an input.
FUNCTIONS = {
    "straight_through": lambda w, x: rounded(w * x) * x,
    "nondiff": lambda w, x: jnp.tanh(reversed_gradient(w, 0.5) * x) * w,
    "jvp": lambda w, x: product(x * w, w[:, None] * x.T),
    "several": lambda w, x: jnp.concatenate([*both(w, x[0], 1)[:1], both(w, x[0], 1)[1][None]]),
    "same_twice": lambda w, x: product(w[None] * x, (w[None] * x).T) + both(w, w, 0)[0].sum(),
    "in_jit": lambda w, x: jax.jit(lambda v: rounded(v) + v)(w) * x,
    "in_scan": lambda w, x: lax.scan(lambda c, row: (rounded(c * row), c), w, x)[1],
    "in_checkpoint": lambda w, x: jax.checkpoint(lambda v: rounded(jnp.sin(v * x)))(w),
    "vmapped": lambda w, x: jax.vmap(lambda row: rounded(row * w))(x),
    "complex": complexes,
}
#: Name -> backend and options of `compile`.
BACKENDS = {
    "torch": (ml.TorchBackend, {}),
    "torch, graph": (ml.TorchBackend, {"autodiff": "graph"}),
    "jax": (ml.JaxBackend, {}),
    "numpy": (ml.NumpyBackend, {}),
    "c": (ml.CBackend, {}),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_the_rule(name, backend):
    function, w, x = FUNCTIONS[name], f(4), f(3, 4)
    expected, pull = jax.vjp(lambda w: function(w, x), w)
    cotangent = f(*expected.shape)
    model, params = ml.from_jax(lambda params, x: function(params["w"], x), (x,), params={"w": w})
    make, options = BACKENDS[backend]
    backend = make()
    compiled = ml.compile(model, backend, shapes={"x": list(x.shape)}, **options)
    outputs, gradients = compiled.evaluate(
        {"w": backend.array(params["w"])}, {"x": x}, output_gradients={"output": backend.array(cotangent)}
    )
    np.testing.assert_allclose(backend.to_numpy(outputs["output"]), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(backend.to_numpy(gradients["w"]), pull(cotangent)[0], rtol=1e-4, atol=1e-4)


def test_the_rule_costs_nothing_where_there_are_no_gradients():
    model, _ = ml.from_jax(lambda w, x: product(x * w, x.T), (f(3, 4),), params=f(4))
    source = ml.compile(model, ml.NumpyBackend(), inference=True).source
    assert "np.sin" in source
    assert "np.cos" not in source


def test_functions_of_jax_itself_stay_short():
    model, _ = ml.from_jax(lambda w, x: jax.nn.relu(x * w), (f(3, 4),), params=f(4))
    source = ml.compile(model, ml.JaxBackend()).source
    assert "maximum" in source
    assert "replace_gradient" not in source


NONLINEAR = {
    "clipped": lambda _, g: (jnp.clip(g, -1, 1),),
    "with_a_constant": lambda _, g: (g * 2 + 1,),
    "a_constant": lambda _, g: (jnp.ones_like(g),),
    "squared": lambda _, g: (g * g,),
    "divided": lambda _, g: (g / (jnp.linalg.norm(g) + 1),),
    "stopped": lambda _, g: (lax.stop_gradient(g),),
}


@pytest.mark.parametrize("rule", NONLINEAR.values(), ids=NONLINEAR)
def test_a_rule_that_is_not_linear_is_said(rule):
    doubled = jax.custom_vjp(lambda x: x * 2)
    doubled.defvjp(lambda x: (x * 2, None), rule)
    with pytest.warns(UserWarning, match=r"not linear at .*test_from_jax_rules.py"):
        model, params = ml.from_jax(lambda w, x: doubled(x * w), (f(3, 4),), params=f(4))
    (weight,) = params
    outputs, gradients = ml.compile(model, ml.NumpyBackend()).evaluate(params, {"x": f(3, 4)}, output_gradients=True)
    np.testing.assert_allclose(outputs["output"], f(3, 4) * f(4) * 2, rtol=1e-6)
    np.testing.assert_allclose(gradients[weight], f(3, 4).sum(0) * 2, rtol=1e-5)


@pytest.mark.parametrize("name", ["straight_through", "jvp"])
def test_sizes_may_have_names(name):
    function, w, x = FUNCTIONS[name], f(4), f(5, 4)
    (example,) = export.symbolic_args_specs((f(3, 4),), "n, 4")
    model, params = ml.from_jax(lambda params, x: function(params["w"], x), (example,), params={"w": w})
    expected, pull = jax.vjp(lambda w: function(w, x), w)
    cotangent = f(*expected.shape)
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"x": [5, 4]})
    _, gradients = compiled.evaluate(params, {"x": x}, output_gradients={"output": cotangent})
    np.testing.assert_allclose(gradients["w"], pull(cotangent)[0], rtol=1e-4, atol=1e-4)
