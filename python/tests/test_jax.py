"""What is JAX's alone: 64 bits, devices, the compiler, transformations by the user, the digits of its functions."""

import os
import subprocess
import sys

import mithril as ml
import numpy as np
import pytest
from mithril import errors
from mithril.models import create_gpt
from mithril.testing.backend_tests import EPSILON

jax = pytest.importorskip("jax")
jnp = jax.numpy

RANDOM = np.random.default_rng(0)


def run(program, **environment):
    """Run a program in a process of its own, where JAX has not started yet."""
    environment = {**os.environ, **environment}
    result = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


# --- 64 bits ------------------------------------------------------------------------------------------------------


def tokens():
    """Looks up int64 tokens; drops some of what it finds."""
    model = ml.Model()
    model |= ml.Embedding(7, 3)(input="input", output="found")
    model += ml.Dropout(0.5)(output="output")
    return model


def test_wide_models_leave_the_setting_alone():
    assert not jax.config.jax_enable_x64
    backend = ml.JaxBackend(dtype="float64")
    compiled = ml.compile(tokens(), backend, shapes={"input": [4]}, dtypes={"input": "int64"})
    outputs, gradients = compiled.evaluate(compiled.get_parameters(), {"input": np.arange(4)}, True)
    assert outputs["output"].dtype == gradients["embedding.weight"].dtype == jnp.float64
    assert backend.grad(lambda x: backend.sum(backend.exp(x)))(backend.ones(2)).dtype == jnp.float64
    assert not jax.config.jax_enable_x64
    assert jnp.ones(2).dtype == jnp.float32


def test_enable_x64_is_real():
    program = """
import jax, mithril as ml
backend = ml.JaxBackend()
assert backend.ones(2).dtype == "float32"
backend.enable_x64()
assert jax.numpy.ones(2).dtype == backend.ones(2).dtype == backend.array([1.5]).dtype == "float64"
assert backend.exp(backend.randn(3)).dtype == "float64"
model = ml.Model()
model |= ml.Linear(2)(input="input", output="output")
compiled = ml.compile(model, backend, shapes={"input": [4, 3]})
params, data = compiled.get_parameters(), {"input": backend.ones((4, 3))}
loss = compiled.loss_function(lambda outputs: outputs["output"].sum())
assert jax.jit(jax.grad(loss))(params, data)["linear.weight"].dtype == "float64"
"""
    run(program)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "checkpoint"])
def test_wide_models_inside_transformations_of_the_user(transform):
    backend = ml.JaxBackend()
    compiled = ml.compile(tokens(), backend, shapes={"input": [4]}, dtypes={"input": "int64"})
    params, data = compiled.get_parameters(), {"input": backend.array(np.arange(4), "int64")}
    loss = compiled.loss_function(lambda outputs: (outputs["output"] ** 2).sum())
    actual = transform(jax.grad(loss))(params, data)["embedding.weight"]
    outputs = compiled.function(params, data)["output"]
    expected = np.zeros((7, 3))
    expected[:4] = 2 * np.asarray(outputs) * (np.asarray(outputs) != 0) * 2
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_float64_inside_transformations_asks_for_64_bits():
    backend = ml.JaxBackend(dtype="float64")
    model = ml.Model()
    model |= ml.Linear(2)(input="input", output="output")
    compiled = ml.compile(model, backend, shapes={"input": [4, 3]})
    params, data = compiled.get_parameters(), {"input": backend.ones((4, 3))}
    loss = compiled.loss_function(lambda outputs: outputs["output"].sum())
    for transform in (jax.jit, jax.grad, jax.value_and_grad):
        with pytest.raises(errors.InvalidValueError, match=r"64 bits turned off[\s\S]*enable_x64"):
            transform(loss)(params, data)
    with pytest.raises(errors.InvalidValueError, match="enable_x64"):
        jax.grad(lambda x: backend.sum(backend.exp(x)))(backend.ones(2))
    with jax.enable_x64(True):
        assert jax.jit(jax.grad(loss))(params, data)["linear.weight"].dtype == jnp.float64


# --- devices ------------------------------------------------------------------------------------------------------


def test_everything_lives_on_the_device_of_the_backend():
    program = """
import jax, numpy as np, mithril as ml
first, second = jax.devices()
backend = ml.JaxBackend(device="cpu:1")
assert backend.devices == ("cpu:0", "cpu:1") and repr(backend).startswith("JaxBackend(device='cpu:1'")
def there(*arrays):
    for array in arrays:
        assert array.devices() == {second}, array.devices()
there(backend.ones(2), backend.randn(3), backend.array([1, 2]), backend.eye(3), backend.exp(jax.numpy.ones(2)))
there(backend.add(jax.device_put(np.ones(2), first), backend.ones(2)), backend.arange(3))
model = ml.Model()
model |= ml.Linear(4)(input="input", output="hidden")
model += ml.LayerNorm()(output="normed")
model += ml.Dropout(0.5)(output="output")
for jit in (False, True):
    for autodiff in ("native", "graph"):
        compiled = ml.compile(model, backend, shapes={"input": ["batch", 3]}, jit=jit, autodiff=autodiff)
        params = compiled.get_parameters()
        there(*params.values(), *compiled.state.values())
        for data in (np.ones((2, 3)), jax.numpy.ones((2, 3)), jax.device_put(np.ones((2, 3), np.float32), first)):
            outputs, gradients = compiled.evaluate(params, {"input": data}, True)
            there(*outputs.values(), *gradients.values(), *compiled.state.values())
try:
    compiled.evaluate({k: jax.device_put(v, first) for k, v in params.items()}, {"input": np.ones((2, 3))})
except ml.errors.ParameterError as error:
    assert "cpu:0" in str(error) and "cpu:1" in str(error) and "backend.array" in str(error), error
else:
    raise AssertionError("parameters of another device are taken")
backend.set_device("cpu:0")
assert backend.ones(2).devices() == backend.add(backend.ones(2), 1.0).devices() == {first}
assert ml.JaxBackend(device=second).device == ml.JaxBackend(device=1).device == "cpu:1"
"""
    run(program, XLA_FLAGS="--xla_force_host_platform_device_count=2")


@pytest.mark.parametrize("device", ["gpu", "cuda:0", "cpu:5", "cpu:-1", "cpu:x", 99, "nonsense"])
def test_a_missing_device_is_said_with_what_is_there(device):
    if jax.devices()[0].platform != "cpu":
        pytest.skip("needs a machine without an accelerator that JAX finds")
    with pytest.raises(errors.BackendUnavailableError, match=r"finds cpu:0[\s\S]*pip install \"jax\[cuda13\]\""):
        ml.JaxBackend(device=device)


def test_preallocation_is_set_before_jax_starts():
    program = """
import os, mithril as ml
ml.JaxBackend(pre_allocate={0}{1})
assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
"""
    for name in ("False", "False, seed=1"):
        run("import warnings; warnings.simplefilter('ignore')" + program.format(name, ""))


def test_preallocation_that_has_no_effect_is_said():
    from mithril.backends.with_autograd.jax_backend.devices import preallocate

    jax.devices()
    assert not preallocate(False)
    assert preallocate(True)
    if jax.devices()[0].platform == "cpu":
        with pytest.warns(errors.IgnoredOptionWarning, match="nothing on the CPU"):
            ml.JaxBackend(pre_allocate=True)


def test_precision_by_name_is_that_of_the_products():
    backend = ml.JaxBackend(precision="float32")
    model = ml.Model()
    model |= ml.Linear(2)(input="input", output="output")
    compiled = ml.compile(model, backend, shapes={"input": [4, 3]})
    assert "HIGHEST" in str(
        jax.make_jaxpr(compiled.function)(dict(compiled.get_parameters()), {"input": jnp.ones((4, 3))})
    )
    assert "HIGHEST" not in str(jax.make_jaxpr(lambda a: a @ a)(jnp.ones((3, 3))))
    half = ml.compile(model, ml.JaxBackend(precision="bfloat16"), shapes={"input": [4, 3]})
    assert "bfloat16" in half.source
    assert half(np.ones((4, 3))).dtype == jnp.float32


# --- the compiler -------------------------------------------------------------------------------------------------


def convolutional():
    model = ml.Model()
    model |= ml.Convolution2D(4, kernel_size=3, padding=1)(input="input", output="conv")
    model += ml.BatchNorm2D()(output="normed")
    model += ml.Relu()(output="hidden")
    model += ml.MaxPool2D(2)(output="pooled")
    model += ml.Flatten(1)(output="flat")
    model += ml.Dropout(0.3)(output="dropped")
    model += ml.Linear(2)(output="output")
    return model


@pytest.mark.parametrize("autodiff", ["native", "graph"])
def test_a_compiled_training_is_the_same_training(autodiff):
    images = RANDOM.normal(size=(6, 3, 8, 8)).astype(np.float32)
    target = RANDOM.normal(size=(6, 2)).astype(np.float32)

    def train(jit):
        backend = ml.JaxBackend()
        compiled = ml.compile(
            convolutional(), backend, shapes={"input": ["batch", 3, 8, 8]}, jit=jit, autodiff=autodiff
        )
        params = compiled.randomize_params(seed=3)
        for size in (6, 4, 6):
            goal = target[:size]
            outputs, gradients = compiled.evaluate(
                params, {"input": images[:size]}, lambda out, goal=goal: {"output": 2 * (out["output"] - goal)}
            )
            params = jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients)
        return params, compiled.state, outputs, compiled.compile_stats

    *plain, _ = train(False)
    *compiled, stats = train(True)
    for actual, expected in zip(compiled, plain, strict=True):
        assert list(actual) == list(expected)
        for name in expected:
            np.testing.assert_allclose(actual[name], expected[name], rtol=2e-4, atol=2e-5, err_msg=name)
    # One compilation for each of two sizes.
    assert [c.what for c in stats.compilations].count("gradients") == 2
    assert "[4, 3, 8, 8], was float32 [6, 3, 8, 8]" in str(stats)


def test_gpt_is_compiled_with_its_dropout():
    model = create_gpt(vocab_size=11, block_size=6, num_layers=1, num_heads=2, dims=8)
    model += ml.Dropout(0.2)(output="dropped")
    runs = []
    for jit in (False, True):
        compiled = ml.compile(model, ml.JaxBackend(), shapes={"input": ["batch", 6]}, jit=jit)
        params = compiled.randomize_params(seed=0)
        for size in (2, 3):
            data = {"input": np.arange(6 * size).reshape(size, 6) % 11}
            runs.append(compiled.evaluate(params, data, True))
    for plain, fast in zip(runs[:2], runs[2:], strict=True):
        for a, b in zip(plain, fast, strict=True):
            for name in a:
                scale = float(jnp.abs(a[name]).max()) + 1e-6
                np.testing.assert_allclose(b[name], a[name], atol=2e-5 * scale, err_msg=name)


# --- transformations by the user ----------------------------------------------------------------------------------


def regression():
    backend = ml.JaxBackend()
    model = ml.Model()
    model |= ml.Linear(8)(input="input", output="hidden")
    model += ml.Tanh()(output="active")
    model += ml.Linear(1)(output="output")
    return backend, ml.compile(model, backend, shapes={"input": ["batch", 3]})


def test_vmap_over_examples_and_over_parameters():
    backend, compiled = regression()
    params, data = compiled.get_parameters(), RANDOM.normal(size=(5, 2, 3)).astype(np.float32)
    expected = [compiled.function(params, {"input": x})["output"] for x in data]
    actual = jax.vmap(compiled.function, in_axes=(None, 0))(params, {"input": data})["output"]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    other = compiled.randomize_params(seed=9)
    both = jax.tree.map(lambda a, b: jnp.stack([a, b]), params, other)
    actual = jax.vmap(compiled.function, in_axes=(0, None))(both, {"input": data[0]})["output"]
    np.testing.assert_allclose(actual[1], compiled.function(other, {"input": data[0]})["output"], rtol=1e-5, atol=1e-6)
    mapped = backend.vmap(lambda x, y: backend.sum(backend.multiply(x, y)))(
        backend.array(data[0]), backend.array(data[1])
    )
    np.testing.assert_allclose(mapped, (data[0] * data[1]).sum(1), rtol=1e-5)


def test_jacobian():
    backend = ml.JaxBackend(dtype="float64")
    x = backend.array([1.0, 2.0])
    actual = backend.jacobian(lambda x: backend.multiply(x, backend.sum(x)))(x)
    np.testing.assert_allclose(actual, [[4.0, 1.0], [2.0, 5.0]])
    assert actual.dtype == jnp.float64


def test_parameters_are_a_tree():
    _, compiled = regression()
    params = compiled.get_parameters()
    leaves, structure = jax.tree.flatten(params)
    again = jax.tree.unflatten(structure, leaves)
    assert type(again) is type(params)
    assert again == params
    assert all(name in str(jax.tree_util.tree_flatten_with_path(params)[0]) for name in params)


def test_optax_trains_a_model():
    optax = pytest.importorskip("optax")
    _, compiled = regression()
    inputs = RANDOM.normal(size=(64, 3)).astype(np.float32)
    target = jnp.asarray(np.sin(inputs.sum(1, keepdims=True)))
    loss = compiled.loss_function(lambda outputs, target: ((outputs["output"] - target) ** 2).mean())
    optimizer = optax.adam(0.02)

    @jax.jit
    def step(params, state):
        value, gradients = jax.value_and_grad(loss)(params, {"input": inputs}, target)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    params = compiled.randomize_params(seed=0)
    state, values = optimizer.init(params), []
    for _ in range(200):
        params, state, value = step(params, state)
        values.append(float(value))
    assert values[-1] < 0.1 * values[0]
    np.testing.assert_allclose(float(loss(params, {"input": inputs}, target)), values[-1], rtol=0.2)


def test_a_first_call_inside_jit_leaves_nothing_behind():
    """The shapes become known while JAX traces; what is made then must not be a part of that trace."""
    model = ml.Model()
    model |= ml.Linear(4)(input="input", output="hidden")
    model += ml.BatchNorm1d()(output="output")
    compiled = ml.compile(model, ml.JaxBackend())
    x = RANDOM.normal(size=(5, 3)).astype(np.float32)
    params = compiled.get_parameters()
    first = jax.jit(lambda x: compiled.function(params, {"input": x})["output"])(x)
    np.testing.assert_allclose(compiled.evaluate(params, {"input": x})["output"], first, rtol=1e-4, atol=1e-5)
    jax.tree.map(np.asarray, dict(compiled.state))


# --- digits -------------------------------------------------------------------------------------------------------

#: Functions of one number whose results JAX has few digits of: helpers take care of them.
CORRECTED = ["log1p", "atanh", "erfc", "erfinv", "sinh", "cosh"]


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CORRECTED)
def test_digits_of_functions_of_one_number(name, dtype, jit):
    reference, backend = ml.InterpreterBackend(dtype="float64"), ml.JaxBackend(dtype=dtype)
    grids = [np.linspace(-1, 1, 4001), np.linspace(-20, 20, 4001), np.linspace(-750, 750, 2001)]
    near = [1 - 10.0 ** -np.arange(1, 17.0), np.geomspace(1e-30, 1e3, 2001), [np.inf, np.nan, 0.0, 1.0]]
    x = np.concatenate([*grids, *near, -near[0], -near[1], -np.array(near[2])]).astype(dtype)
    expected = np.asarray(reference._op(name, [reference.array(x.astype(np.float64))]))
    function = getattr(backend, name)
    with jax.enable_x64(True):
        actual = np.asarray((jax.jit(function) if jit else function)(backend.array(x, dtype))).astype(np.float64)
    with np.errstate(over="ignore"):
        rounded = expected.astype(dtype).astype(np.float64)
    # The CPU flushes what is below the least normal number.
    ordinary = np.isfinite(rounded) & (np.abs(expected) >= np.finfo(dtype).tiny)
    strange = ~np.isfinite(rounded)
    np.testing.assert_array_equal(actual[strange], rounded[strange])
    error = np.abs(actual[ordinary] / expected[ordinary] - 1) / EPSILON[dtype]
    # 16 is failure; 4 is what all but erfc reach.
    assert error.max() <= (10 if name == "erfc" else 4)
