"""Functions of JAX as models: values, gradients, names and errors, against JAX itself."""

import dataclasses

import mithril as ml
import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy
lax = jax.lax

RNG = np.random.default_rng(0)
X = np.sin(np.arange(24, dtype=np.float32)).reshape(4, 6)
IDS = np.array([2, 0, 3], np.int32)
IMAGE = np.sin(np.arange(2 * 8 * 10 * 3, dtype=np.float32)).reshape(2, 8, 10, 3)
KERNEL = np.cos(np.arange(3 * 3 * 3 * 4, dtype=np.float32)).reshape(3, 3, 3, 4)
NHWC = ("NHWC", "HWIO", "NHWC")


def conv(x, w, stride, padding, **more):
    return lax.conv_general_dilated(x, w, stride, padding, dimension_numbers=NHWC, **more)


def scanned(x):
    def body(carry, row):
        return 0.5 * carry + row, jnp.tanh(carry)

    return lax.scan(body, x[0], x), lax.scan(body, x[0], x, reverse=True)


#: Functions by name, with their arguments: those of one primitive or family at a time.
FUNCTIONS = {
    "arithmetic": (lambda x: (x + 1) * 2 - x / 3 + x**3 + x**-1 + (-x) % 2 + jnp.abs(x) ** 1.5, X + 2),
    "functions": (lambda x: jnp.exp(x) + jnp.log1p(x * x) + jnp.sqrt(x + 3) + jnp.cbrt(x) + lax.rsqrt(x + 3), X),
    "special": (lambda x: jax.scipy.special.erf(x) + jax.nn.sigmoid(x) + jnp.arctan2(x, 2.0) + jnp.sinh(x), X),
    "activations": (lambda x: jax.nn.relu(x) + jax.nn.gelu(x) + jax.nn.gelu(x, approximate=False) + jax.nn.silu(x), X),
    "more activations": (lambda x: jax.nn.elu(x) + jax.nn.softplus(x) + jax.nn.leaky_relu(x) + jax.nn.hard_swish(x), X),
    "rounding": (lambda x: jnp.round(x * 5) + jnp.floor(x) - jnp.ceil(x) + jnp.trunc(x * 3), X),
    "integers": (
        lambda i: (i // 2, i % 3, -i // 2, i & 1, i | 4, ~i, i ^ 2, i.astype(float)),
        IDS,
    ),
    "unsigned integers": (
        lambda i, k: (i * 3 + 1, i - 5, i // 7, i % 7, ~i, i < 9, i.max(), i.astype(float), k[i % 3]),
        np.array([0, 1, 2**31, 2**32 - 1], np.uint32),
        np.array([7, 2**15, 2**16 - 1], np.uint16),
    ),
    "comparisons": (lambda x: (x > 0, (x > 0) & ~(x < 0.5), jnp.where(x > 0, x, 0), jnp.where(x > 0, 1.0, 2.0)), X),
    "clip": (lambda x: jnp.clip(x, -0.5, 0.25), X),
    "softmax": (lambda x: (jax.nn.softmax(x), jax.nn.log_softmax(x, axis=0), jax.nn.logsumexp(x, 1)), X),
    "statistics": (
        lambda x: (x.mean(0), x.var(1), x.std(), x.sum(), x.max(0), x.min(), x.prod(1), jnp.median(x, 1)),
        X,
    ),
    "norms": (lambda x: jax.nn.standardize(x) + x / jnp.linalg.norm(x, axis=1, keepdims=True), X),
    "any and all": (lambda x: ((x > 0).any(1), (x > 0).all(), (x > 0).sum(0), jnp.count_nonzero(x > 0)), X),
    "arg": (lambda x: (x.argmax(1), x.argmin(0), jnp.argsort(x, 1), x.argmax()), X),
    "scans": (lambda x: (jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cummax(x, 1), lax.cumsum(x, 0, reverse=True)), X),
    "sort": (lambda x: (jnp.sort(x, 0), lax.sort((x, 2 * x), dimension=1, num_keys=1), lax.top_k(x, 3)), X),
    "shapes": (
        lambda x: (x.T, x.reshape(2, -1), x[None, :, None], x.ravel(), jnp.squeeze(x[:1]), jnp.moveaxis(x, 0, 1)),
        X,
    ),
    "slices": (lambda x: (x[1:3], x[:, ::-1], x[::2, 1:-1:2], x[-1], x[1, 2], x[..., 0]), X),
    "joining": (
        lambda x: (jnp.concatenate([x, x[:1], jnp.ones((2, 6))]), jnp.stack([x, 2 * x], 1), jnp.split(x, 3, 1)),
        X,
    ),
    "padding": (
        lambda x: (jnp.pad(x, ((1, 2), (0, 3))), jnp.pad(x, 1, mode="edge"), lax.pad(x, 2.0, ((-1, 1, 0), (0, -2, 0)))),
        X,
    ),
    "repeating": (
        lambda x: (
            jnp.tile(x, (2, 1)),
            jnp.repeat(x, 2, 1),
            jnp.roll(x, 1, 0),
            jnp.flip(x),
            jnp.broadcast_to(x, (2, 4, 6)),
        ),
        X,
    ),
    "triangles": (
        lambda x: (jnp.tril(x), jnp.triu(x, 1), jnp.eye(4) @ x, x + jnp.arange(6.0), jnp.linspace(0, 1, 6) * x),
        X,
    ),
    "products": (
        lambda x: (x @ x.T, jnp.dot(x, x[0]), jnp.outer(x[0], x[1]), jnp.einsum("ab,cb->ca", x, x), jnp.vdot(x, x)),
        X,
    ),
    "batched": (lambda x: jnp.einsum("bhqd,bhkd->bhqk", x, x) @ jnp.swapaxes(x, 0, 1).swapaxes(0, 1), IMAGE),
    "contractions": (lambda x: lax.dot_general(x, x, (((1, 3), (1, 3)), ((0,), (0,)))), IMAGE),
    "take": (lambda x, i: (x[i], jnp.take(x, i, axis=0), jnp.take(x, i, axis=1), x[:, i], x[i, i], x[i][:, i]), X, IDS),
    "negative": (
        lambda x, i: (x[-i - 1], jnp.take(x, i + 2, axis=0), x.at[i + 2].get(mode="fill", fill_value=7.0)),
        X,
        IDS,
    ),
    "clipped": (lambda x, i: (jnp.take(x, i + 2, axis=0, mode="clip"), x.at[i * 3].get(mode="clip")), X, IDS),
    "along": (lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1)[:, :2], axis=1), X),
    "windows of rows": (lambda x, i: jax.vmap(lambda k: lax.dynamic_slice(x, (k, k), (2, 3)))(i), X, IDS),
    "set": (lambda x, i: (x.at[0].set(1.0), x.at[i].set(2.0), x.at[:, i].add(x[:, :3]), x.at[1, 2].set(-1.0)), X, IDS),
    "add": (lambda x, i: (x.at[i % 2].add(1.0), x.at[i, i].add(x[0, :3]), x.at[1:3, 2:4].set(0.0)), X, IDS),
    "dropped": (lambda x, i: (x.at[i + 2].set(9.0), x.at[i + 2].add(1.0), x.at[:, i * 3].add(1.0)), X, IDS),
    "dynamic": (
        lambda x, i: (lax.dynamic_slice(x, (i[0], 1), (2, 3)), lax.dynamic_slice_in_dim(x, i[1] + 9, 2, 1), x[i[0]]),
        X,
        IDS,
    ),
    "dynamic update": (
        lambda x, i: (lax.dynamic_update_slice(x, x[:2, :3] * 9, (i[0], i[1])), x.at[i[0]].set(0.0)),
        X,
        IDS,
    ),
    "one hot": (lambda i: jax.nn.one_hot(i, 5), IDS),
    "convolution": (lambda x: conv(x, KERNEL, (2, 1), "SAME"), IMAGE),
    "dilated": (lambda x: conv(x, KERNEL, (1, 1), [(2, 1), (0, 3)], rhs_dilation=(2, 1)), IMAGE),
    "depthwise": (
        lambda x: conv(x, jnp.tile(KERNEL[:, :, :1], 3)[..., :6], (1, 1), "VALID", feature_group_count=3),
        IMAGE,
    ),
    "transposed": (lambda x: lax.conv_transpose(x, KERNEL, (2, 2), "SAME"), IMAGE),
    "pooling": (
        lambda x: (
            lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
            lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4,
        ),
        IMAGE,
    ),
    "scan": (scanned, X),
    "fori": (lambda x: lax.fori_loop(0, 3, lambda i, c: c * 0.5 + i, x), X),
    "cond": (lambda x: lax.cond(x.shape[0] > 2, jnp.sin, jnp.cos, x) + lax.switch(1, [jnp.sin, jnp.exp], x), X),
    "jit": (lambda x: jax.jit(jax.checkpoint(lambda y: jnp.sin(y) * 2))(x), X),
    "dtypes": (
        lambda x: (x.astype(jnp.int32), (x > 0).astype(jnp.float32), x.astype(jnp.bfloat16).astype(jnp.float32)),
        X,
    ),
    "vmap": (lambda x: jax.vmap(lambda a, b: jnp.dot(a, b) * a, in_axes=(0, 0))(x, 2 * x), X),
    "constants": (lambda x: {"a": x + 1, "b": [x, jnp.ones(3)], "c": {"d": jnp.arange(20.0)}}, X),
    "interpolation": (lambda x: jax.image.resize(x, (2, 16, 20, 3), "bilinear"), IMAGE),
}


def as_arrays(tree):
    return [np.asarray(x) for x in jax.tree_util.tree_leaves(tree)]


@pytest.mark.parametrize("backend", ["numpy", "c"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_those_of_jax(name, backend):
    function, *args = FUNCTIONS[name]
    model, params = ml.from_jax(function, args)
    assert not params
    expected = as_arrays(jax.jit(function)(*args))
    actual = ml.compile(model, ml.get_backend(backend))(*args)
    actual = list(actual.values()) if isinstance(actual, dict) else [actual]
    assert len(actual) == len(expected)
    for ours, right in zip(actual, expected, strict=True):
        assert ours.shape == right.shape
        assert ours.dtype == right.dtype
        np.testing.assert_allclose(ours, right, rtol=2e-5, atol=2e-5)


# --- networks --------------------------------------------------------------------------------------------------------


def dense(rng, *shape):
    return {
        "kernel": rng.normal(size=shape, scale=0.3).astype(np.float32),
        "bias": rng.normal(size=shape[-1:]).astype(np.float32),
    }


def norm(rng, size):
    return {"scale": rng.normal(size=size).astype(np.float32), "bias": rng.normal(size=size).astype(np.float32)}


def apply_dense(p, x):
    return x @ p["kernel"] + p["bias"]


def apply_norm(p, x):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]


def mlp(p, x):
    return apply_dense(p["out"], jax.nn.gelu(apply_dense(p["in"], x)))


def mlp_params(rng, size, hidden):
    return {"in": dense(rng, size, hidden), "out": dense(rng, hidden, size)}


def patches(p, image):
    x = lax.conv_general_dilated(image, p["kernel"], (4, 4), "VALID", dimension_numbers=NHWC) + p["bias"]
    return x.reshape(x.shape[0], -1, x.shape[-1])


def mixer(params, image):
    x = patches(params["stem"], image)
    for p in params["blocks"]:
        x = x + jnp.swapaxes(mlp(p["tokens"], jnp.swapaxes(apply_norm(p["norm_0"], x), 1, 2)), 1, 2)
        x = x + mlp(p["channels"], apply_norm(p["norm_1"], x))
    return apply_dense(params["head"], x.mean(axis=1))


def mixer_params(rng):
    def block():
        return {
            "norm_0": norm(rng, 8),
            "norm_1": norm(rng, 8),
            "tokens": mlp_params(rng, 4, 6),
            "channels": mlp_params(rng, 8, 12),
        }

    return {"stem": dense(rng, 4, 4, 3, 8), "blocks": [block(), block()], "head": dense(rng, 8, 5)}


def attention(p, x, mask=None):
    b, n, d = x.shape
    q, k, v = jnp.moveaxis(apply_dense(p["qkv"], x).reshape(b, n, 3, 2, d // 2), 2, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(d / 2)
    scores = scores if mask is None else jnp.where(mask, scores, -jnp.inf)
    y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)
    return apply_dense(p["proj"], y.reshape(b, n, d))


def block_params(rng, d):
    return {
        "norm_0": norm(rng, d),
        "norm_1": norm(rng, d),
        "attention": {"qkv": dense(rng, d, 3 * d), "proj": dense(rng, d, d)},
        "mlp": mlp_params(rng, d, 2 * d),
    }


def transformer(p, x, mask=None):
    x = x + attention(p["attention"], apply_norm(p["norm_0"], x), mask)
    return x + mlp(p["mlp"], apply_norm(p["norm_1"], x))


def vit(params, image):
    x = patches(params["stem"], image)
    cls = jnp.broadcast_to(params["cls"], (x.shape[0], 1, x.shape[2]))
    x = jnp.concatenate([cls, x], axis=1) + params["positions"]
    for p in params["blocks"]:
        x = transformer(p, x)
    return apply_dense(params["head"], apply_norm(params["norm"], x)[:, 0])


def vit_params(rng):
    return {
        "stem": dense(rng, 4, 4, 3, 8),
        "cls": rng.normal(size=8).astype(np.float32),
        "positions": rng.normal(size=(5, 8)).astype(np.float32),
        "blocks": [block_params(rng, 8), block_params(rng, 8)],
        "norm": norm(rng, 8),
        "head": dense(rng, 8, 5),
    }


def gpt(params, ids):
    """Layers are stacked and scanned over, as is usual; the embedding is tied to the head."""
    n = ids.shape[1]
    x = params["tokens"][ids] + params["positions"][:n]
    mask = jnp.tril(jnp.ones((n, n), bool))
    x, _ = lax.scan(lambda x, p: (jax.checkpoint(transformer)(p, x, mask), None), x, params["blocks"])
    return apply_norm(params["norm"], x) @ params["tokens"].T


def gpt_params(rng):
    layers = [block_params(rng, 8) for _ in range(3)]
    return {
        "tokens": rng.normal(size=(11, 8)).astype(np.float32),
        "positions": rng.normal(size=(9, 8)).astype(np.float32),
        "blocks": jax.tree_util.tree_map(lambda *xs: np.stack(xs), *layers),
        "norm": norm(rng, 8),
    }


PICTURES = np.sin(np.arange(2 * 8 * 8 * 3, dtype=np.float32)).reshape(2, 8, 8, 3)
TEXTS = (np.arange(14, dtype=np.int32) * 3 % 11).reshape(2, 7)
NETWORKS = {
    "mixer": (mixer, mixer_params, PICTURES),
    "vit": (vit, vit_params, PICTURES),
    "gpt": (gpt, gpt_params, TEXTS),
}


@pytest.mark.parametrize("backend", ["numpy", "torch", "c"])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_and_their_gradients(name, backend):
    function, make, x = NETWORKS[name]
    tree = make(np.random.default_rng(1))
    model, params = ml.from_jax(function, (x,), params=tree)
    chosen = ml.get_backend(backend)
    compiled = ml.compile(model, chosen)
    right, back = jax.vjp(lambda p: function(p, x), tree)
    direction = np.linspace(-1, 1, right.size, dtype=np.float32).reshape(right.shape)
    (expected,) = back(direction)
    (key,) = [key for key in model.input_keys if key not in params]
    arrays = {k: chosen.array(v) for k, v in params.items()}
    outputs, gradients = compiled.evaluate(arrays, {key: chosen.array(x)}, {"output": chosen.array(direction)})
    actual = np.asarray(chosen.to_numpy(outputs["output"]))
    np.testing.assert_allclose(actual, right, rtol=0, atol=3e-5 * np.abs(right).max())
    paths = jax.tree_util.tree_flatten_with_path(expected)[0]
    assert len(paths) == len(params)
    for path, gradient in paths:
        path = ".".join(str(getattr(k, "key", getattr(k, "idx", None))) for k in path)
        actual = np.asarray(chosen.to_numpy(gradients[path]))
        scale = max(1.0, float(np.abs(gradient).max()))
        np.testing.assert_allclose(actual, gradient, rtol=0, atol=5e-5 * scale, err_msg=path)


def test_names_come_from_arguments_and_trees():
    def function(p, first, second, *, third):
        return {"sum": second @ p["mlp/~/linear_0"]["w"] + first["a"], "rest": (third, first["b"] * p["scale"])}

    ones = np.ones((2, 2), np.float32)
    tree = {"mlp/~/linear_0": {"w": ones}, "scale": ones}
    model, params = ml.from_jax(function, ({"a": ones, "b": ones}, ones), {"third": ones}, params=tree)
    assert list(params) == ["mlp.linear_0.w", "scale"]
    assert [k for k in model.input_keys if k not in params] == ["first_a", "first_b", "second", "third"]
    assert model.output_keys == ["rest_0", "rest_1", "sum"]
    assert np.shares_memory(params["scale"], ones)


def test_parameters_may_be_the_first_of_the_arguments():
    tree = {"layers": [{"w": np.ones((6, 2), np.float32)}]}

    def function(params, x):
        return x @ params["layers"][0]["w"]

    model, params = ml.from_jax(function, (tree, X))
    assert list(params) == ["layers.0.w"]
    assert [k for k in model.input_keys if k not in params] == ["x"]
    # Tuples are states, and what is described rather than given is an input.
    assert ml.from_jax(lambda state, x: state[0] * x, ((X,), X))[1] == {}
    model, params = ml.from_jax(function, (jax.eval_shape(lambda: tree), X))
    assert params == {}
    assert list(model.input_keys) == ["params_layers_0_w", "x"]
    # A dict alone is data.
    assert ml.from_jax(lambda batch: batch["x"] * 2, ({"x": X},))[1] == {}


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    weight: object
    bias: object
    width: int = dataclasses.field(metadata={"static": True}, default=3)

    def __call__(self, x):
        return x @ self.weight + self.bias * self.width


def test_a_callable_pytree_brings_its_parameters():
    layer = Layer(np.full((4, 2), 0.5, np.float32), np.arange(2, dtype=np.float32))
    x = np.ones((3, 4), np.float32)
    model, params = ml.from_jax(layer, (x,))
    assert list(params) == [key.name for (key,), _ in jax.tree_util.tree_flatten_with_path(layer)[0]]
    output = ml.compile(model, ml.NumpyBackend()).evaluate(params, {"x": x})["output"]
    np.testing.assert_allclose(output, layer(x))


def test_all_that_is_missing_is_one_error():
    def function(x):
        y = lax.while_loop(lambda v: v.sum() < 10, lambda v: v * 2, x)
        return lax.igammac(lax.igammac(y, x), x) + lax.igamma(x, x)

    with pytest.raises(ml.errors.UnsupportedOpError) as caught:
        ml.from_jax(function, (X,))
    text = str(caught.value)
    assert "`igammac`, 2 times, first at" in text
    assert "`while whose number of iterations is data`, once at" in text
    assert "fori_loop with integers" in text
    assert "`igamma`" in text
    assert "test_from_jax.py" in text


@pytest.mark.parametrize("backend", [ml.NumpyBackend, ml.TorchBackend, ml.CBackend])
def test_no_gradient_flows_where_it_is_stopped(backend):
    tree = {"w": np.linspace(0.5, 2, X.size, dtype="float32").reshape(X.shape)}

    def function(params, x):
        return (params["w"] * lax.stop_gradient(jnp.sin(params["w"]) * x)).sum()

    model, params = ml.from_jax(function, (X,), params=tree)
    target = backend()
    compiled = ml.compile(model, target)
    params = {name: target.array(value) for name, value in params.items()}
    gradients = compiled.evaluate_gradients(params, {"x": target.array(X)}, output_gradients={"output": target.ones()})
    expected = jax.grad(function)(tree, X)["w"]
    np.testing.assert_allclose(target.to_numpy(gradients["w"]), expected, rtol=1e-5, atol=1e-6)


def test_other_things_are_refused():
    with pytest.raises(ml.errors.InvalidValueError, match="not a value of type int"):
        ml.from_jax(3, (X,))
    with pytest.raises(ml.errors.InvalidValueError, match="by name, not a value of type"):
        ml.from_jax(lambda params, x: x * params["w"], {"w": X}, X)
    with pytest.raises(ml.errors.UnsupportedOpError, match="cannot trace"):
        ml.from_jax(lambda x: x @ x, (X,))
    with pytest.raises(ml.errors.UnsupportedOpError, match="too long to be unrolled"):
        ml.from_jax(lambda x: lax.fori_loop(0, 100_000, lambda i, c: c * 0.5, x), (X,))
    with pytest.raises(ml.errors.UnsupportedOpError, match="the output `output` is complex"):
        ml.from_jax(lambda x: x.astype(jnp.complex64) + 1, (X,))
    with pytest.raises(ml.errors.UnsupportedOpError, match=r"the input `x` is complex(?s:.*)real and imaginary"):
        ml.from_jax(lambda x: jnp.abs(x), (X.astype(np.complex64),))


@pytest.mark.parametrize("backend", ["numpy", "c"])
def test_complex_parameters_are_their_parts(backend):
    rng = np.random.default_rng(3)
    tree = {"w": (rng.normal(size=(3, 4)) + 1j * rng.normal(size=(3, 4))).astype(np.complex64), "s": np.float32(1.5)}
    x = rng.normal(size=(2, 3, 6)).astype(np.float32)

    def operator(params, x):
        return jnp.fft.irfft(jnp.cumsum(jnp.fft.rfft(x) * params["w"], -1) * params["s"], 6)

    model, params = ml.from_jax(operator, (x,), params=tree)
    assert params["w"].shape == (3, 4, 2)
    factors = rng.normal(size=x.shape).astype(np.float32)
    results, gradients = ml.compile(model, ml.get_backend(backend)).evaluate(params, {"x": x}, {"output": factors})
    np.testing.assert_allclose(results["output"], operator(tree, x), rtol=1e-4, atol=1e-5)
    expected = jax.grad(lambda params: (operator(params, x) * factors).sum())(tree)
    # JAX returns the conjugate of what the parts have.
    np.testing.assert_allclose(gradients["w"][..., 0], expected["w"].real, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(gradients["w"][..., 1], -expected["w"].imag, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(gradients["s"], expected["s"], rtol=1e-4)


def test_integers_and_halves_at_their_ends():
    """Quotients toward zero also of the least integer; halves away from zero, and nothing else."""
    x = np.array([-128, -127, -7, -1, 0, 5, 127], np.int8)
    y = np.array([3, -3, 2, -1, 5, -5, 7], np.int8)
    halves = np.array([0.49999997, 0.5, -0.5, -0.49999997, 1.5, -2.5, 8388609.0, np.inf, np.nan], np.float32)
    for function, args in (
        (lambda x, y: lax.div(x, y), (x, y)),
        (lambda x: lax.div(x, np.int8(3)), (x,)),
        (lambda x: lax.div(x.astype("uint32"), np.uint32(7)), (x,)),
        (lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), (halves,)),
    ):
        model, _ = ml.from_jax(function, args)
        for backend in (ml.NumpyBackend(), ml.CBackend()):
            output = ml.compile(model, backend).evaluate({}, dict(zip(model.input_keys, args, strict=True)))["output"]
            np.testing.assert_array_equal(backend.to_numpy(output), np.asarray(function(*args)), strict=True)


def test_bits_are_reduced_as_bits():
    x = np.array([6, 3], np.int32)
    model, _ = ml.from_jax(lambda x: lax.reduce_and_p.bind(x, axes=(0,)), (x,))
    value = ml.compile(model, ml.NumpyBackend()).evaluate({}, {"x": x})["output"]
    assert (value, value.dtype) == (2, np.int32)
