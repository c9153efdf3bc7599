"""Functions of JAX whose sizes have names: parts, padding and windows that follow from them, for several sizes."""

import mithril as ml
import numpy as np
import pytest
from mithril import errors

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax

FUNCTIONS = {
    "halves": lambda x: (x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]),
    "numbers": lambda x: (x / x.shape[0], x * (1 / x.shape[1]), x / jnp.sqrt(x.shape[1])),
    "padded": lambda x: jnp.pad(x, ((1, 0), (0, -x.shape[1] % 4)), constant_values=2.0),
    "padded_with_data": lambda x: lax.pad(x, x[0, 0], ((0, 0, 0), (-1, -x.shape[1] % 4, 0))),
    "rolled": lambda x: (jnp.roll(x, 1, 1), jnp.roll(x, x.shape[1] // 2, 1)),
    "set": lambda x: (x.at[:, 1:].set(x[:, :-1]), x.at[:, -1].set(0.0), x.at[:, ::2].set(1.0), x.at[:, :2].set(3.0)),
    "added": lambda x: (x.at[0].add(2.0), x.at[:, 1].add(x[:, 0])),
    "multiplied": lambda x: (x.at[:, -3:].mul(2.0), x.at[0].max(0.5)),
    "dropped": lambda x: x.at[jnp.arange(3) + 2].set(7.0, mode="drop"),
    "pooled": lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID"),
    "summed": lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3), (1, 1), ((0, 0), (1, 1))),
    "updated": lambda x: lax.dynamic_update_slice(x, x[:1, :2], (1, 1)),
    "part": lambda x: lax.dynamic_slice_in_dim(x, jnp.argmax(x[0]), x.shape[1] - 2, 1),
}


def named(x):
    (spec,) = jax.export.symbolic_args_specs((x,), "n, t", constraints=["t >= 6", "n >= 2"])
    return spec


@pytest.mark.parametrize("name", FUNCTIONS)
def test_named_sizes(name):
    function = FUNCTIONS[name]
    model, _ = ml.from_jax(function, named(np.zeros((4, 12), np.float32)))
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={model.input_keys[0]: ["n", "t"]})
    for sizes in ((4, 12), (5, 9), (3, 8), (2, 7)):
        x = np.random.default_rng(0).standard_normal(sizes, np.float32)
        results = compiled.evaluate({}, {model.input_keys[0]: x}).values()
        for actual, expected in zip(results, jax.tree.leaves(function(jnp.asarray(x))), strict=True):
            assert (actual.shape, str(actual.dtype)) == (expected.shape, str(expected.dtype))
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_padding_that_may_be_negative_is_an_error():
    with pytest.raises(errors.UnsupportedOpError, match=r"sizes (that )?have names"):
        ml.from_jax(lambda x: lax.pad(x, 0.0, ((0, 0, 0), (0, x.shape[0] - x.shape[1], 0))), named(np.zeros((4, 12))))
