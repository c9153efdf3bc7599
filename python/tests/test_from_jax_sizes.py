"""Functions of JAX with sizes that have names: values for several sizes against JAX, and what cannot be converted."""

import mithril as ml
import numpy as np
import pytest
from mithril.errors import ShapeError, UnsupportedOpError

jax = pytest.importorskip("jax")
jnp = jax.numpy
lax = jax.lax

RANDOM = np.random.default_rng(0)
PARAMS = {
    "square": RANDOM.normal(size=(8, 8)).astype(np.float32),
    "table": RANDOM.normal(size=(11, 8)).astype(np.float32),
    "kernel": RANDOM.normal(size=(3, 3, 2, 4)).astype(np.float32),
}


def specs(*texts, dtypes=(jnp.float32,) * 3):
    """Examples of inputs whose sizes have names."""
    scope = jax.export.SymbolicScope()
    shapes = [jax.export.symbolic_shape(text, scope=scope) for text in texts]
    return tuple(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=False))


def attention(params, x):
    n, t, d = x.shape
    q = (x @ params["square"]).reshape(n, t, 2, d // 2).transpose(0, 2, 1, 3)
    scores = jnp.where(jnp.tril(jnp.ones((t, t))), q @ q.swapaxes(-1, -2) / np.sqrt(d), -1e9)
    y = (jax.nn.softmax(scores, -1) @ q).transpose(0, 2, 1, 3).reshape(n, t, d)
    y = jnp.concatenate([y - y.mean(-1, keepdims=True), jnp.zeros((n, 1, d))], 1)
    return y.mean(0), jax.nn.gelu(y)[:, :t], x.sum() / n, x[:, -1], x[:, 1:], x[::2], jnp.tile(x[:1], (2, 1, 1))


def shapes(params, x):
    n, t, d = x.shape
    rows = jnp.take(params["square"], jnp.arange(t) % 4, axis=0)
    return rows, x.reshape(-1, d), x.reshape(n * t, d).sum(0), x.flatten(), jnp.ones((t, n)) * x[0, 0, 0], x.T


def embedding(params, tokens):
    y = params["table"][tokens] + params["table"][jnp.arange(tokens.shape[1])]
    logs = jax.nn.log_softmax(y, -1)
    own = jnp.take_along_axis(logs, (tokens % 8)[..., None], -1)
    ordered = (jnp.argmax(logs, -1), jnp.sort(y, 1), jnp.cumsum(y, 1))
    return -own.mean(), jax.nn.one_hot(tokens, 11), jnp.pad(y, ((0, 0), (1, 0), (0, 0))), *ordered


def convolution(params, x):
    y = lax.conv_general_dilated(x, params["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    y = lax.reduce_window(y, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    spread = y - y.mean((0, 1, 2), keepdims=True)
    return spread / jnp.sqrt((spread**2).mean((0, 1, 2), keepdims=True) + 1e-5), y.reshape(y.shape[0], -1)


def recurrent(params, x):
    def step(state, row):
        state = jnp.tanh((row + state) @ params["square"])
        return state, state

    last, states = lax.scan(step, jnp.zeros((x.shape[0], 8)), x.swapaxes(0, 1))
    return last, states.swapaxes(0, 1)


def two(params, x, y):
    return jnp.concatenate([x, y], 0), x @ y.T, jnp.where(x[:, None] > y[None], 1.0, 0.0).sum(-1)


CASES = {
    "attention": (attention, specs("b, t, 8"), [[(3, 5, 8)], [(1, 7, 8)]]),
    "shapes": (shapes, specs("b, t, 8"), [[(3, 5, 8)], [(2, 1, 8)]]),
    "embedding": (embedding, specs("b, t", dtypes=(jnp.int32,)), [[(3, 5)]]),
    "convolution": (convolution, specs("b, 8, 6, 2"), [[(3, 8, 6, 2)]]),
    "recurrent": (recurrent, specs("b, 4, 8"), [[(3, 4, 8)]]),
    "two": (two, specs("b, 8", "c, 8"), [[(6, 8), (3, 8)]]),
}


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax", "mlx", "c"])
@pytest.mark.parametrize("name", CASES)
def test_sizes_are_read_when_the_model_runs(name, backend):
    pytest.importorskip({"c": "numpy", "mlx": "mlx.core"}.get(backend, backend))
    function, args, several = CASES[name]
    model, params = ml.from_jax(function, args, params=PARAMS)
    engine = ml.get_backend(backend)
    compiled = ml.compile(model, engine)
    weights = {key: engine.array(value) for key, value in params.items()}
    for sizes in several:
        data = [
            RANDOM.normal(size=size).astype(np.float32)
            if spec.dtype == np.float32
            else RANDOM.integers(0, 11, size).astype(np.int32)
            for size, spec in zip(sizes, args, strict=True)
        ]
        outputs = compiled.evaluate(
            weights, {k: engine.array(x) for k, x in zip(inputs(model, params), data, strict=True)}
        )
        expected = jax.tree_util.tree_leaves(function(PARAMS, *map(jnp.asarray, data)))
        assert len(outputs) == len(expected)
        for key, actual, right in zip(outputs, outputs.values(), expected, strict=True):
            actual = engine.to_numpy(actual)
            assert actual.shape == right.shape, key
            np.testing.assert_allclose(actual, right, rtol=2e-4, atol=2e-5, err_msg=key)


def inputs(model, params):
    return [key for key in model.input_keys if key not in params]


def test_names_of_sizes_are_kept():
    model, _ = ml.from_jax(lambda x: x.reshape(x.shape[0], -1), specs("batch, 4, 3"))
    assert "np.reshape(x, (batch, 12))" in ml.compile(model, ml.NumpyBackend()).source
    model, _ = ml.from_jax(lambda x, y: x + y, specs("batch, 3", "batch, 3"))
    with pytest.raises(ShapeError, match="2 and 4 would have to be equal"):
        ml.compile(model, ml.NumpyBackend(), shapes={"x": [2, 3], "y": [4, 3]})


@pytest.mark.parametrize(
    ("function", "texts", "text"),
    [
        (lambda x: lax.scan(lambda c, r: (c + r, c), jnp.zeros(3), x)[1], ["n, 3"], "a scan has n steps"),
        (lambda x: x * 2, ["2*n, 3"], r"the size `2\*n` of the input `x` is computed"),
        (lambda x: lax.linalg.lu(x)[0], ["n, n"], "lu cannot be converted for sizes that have names"),
    ],
)
def test_what_cannot_be_converted(function, texts, text):
    with pytest.raises(UnsupportedOpError, match=text):
        ml.from_jax(function, specs(*texts))
