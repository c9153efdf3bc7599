"""Lambda with functions that cannot be traced: called as they are, where Python runs, and nowhere silently."""

import mithril as ml
import numpy as np
import pytest
from backends import BACKENDS, NATIVE, backend
from mithril.errors import BackendWarning, InvalidValueError, ModelFileError, ShapeError, TypeInferenceError
from mithril.errors import UnsupportedOpError as Unsupported


def sinc(x):
    return np.sinc(x)


def sinc_backward(grad_output, inputs, outputs):
    [x] = inputs
    with np.errstate(all="ignore"):
        slope = (np.cos(np.pi * x) - np.sinc(x)) / x
    return (grad_output * np.where(x == 0, 0, slope)).astype(x.dtype)


def dense(function, **options):
    """A learned layer, and the function."""
    model = ml.Model()
    model |= ml.Linear(3, use_bias=False)(input="input", weight="w", output="hidden")
    model |= ml.Lambda(function, **options)(input="hidden", output="output")
    return model


X = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)


@pytest.mark.parametrize("name", BACKENDS)
def test_an_opaque_function_runs_where_python_runs(name):
    one = backend(name)
    compiled = ml.compile(dense(sinc, opaque=True), one, shapes={"input": ["batch", 4]})
    params = compiled.randomize_params(seed=0)
    outputs = one.to_numpy(compiled.evaluate(params, {"input": X})["output"])
    np.testing.assert_allclose(outputs, np.sinc(X @ one.to_numpy(params["w"]).T), rtol=1e-4, atol=1e-6)
    assert 'host_call("sinc_' in compiled.source


def test_the_interpreter_does_not_run_python():
    compiled = ml.compile(dense(sinc, opaque=True), ml.InterpreterBackend(), shapes={"input": ["batch", 4]})
    with pytest.raises(Unsupported, match="the interpreter cannot call the Python function `sinc_"):
        compiled(X)


@pytest.mark.parametrize("name", NATIVE)
def test_native_gradients_do_not_pass_through_numpy(name):
    compiled = ml.compile(dense(sinc, opaque=True), backend(name), shapes={"input": [2, 4]})
    with pytest.raises(Unsupported, match=r"the function sinc_.* differentiate"):
        compiled.evaluate(compiled.randomize_params(), {"input": X}, True)


@pytest.mark.parametrize("name", NATIVE)
def test_native_gradients_pass_through_the_framework(name):
    functions = {}
    if name == "torch":
        import torch

        functions["torch"] = lambda x: torch.sin(x)
    elif name == "jax":
        import jax.numpy as jnp

        functions["jax"] = lambda x: jnp.sin(x)
    else:
        import mlx.core as mx

        functions["mlx"] = lambda x: mx.sin(x)
    one = backend(name)
    compiled = ml.compile(dense(functions[name], opaque=True), one, shapes={"input": [2, 4]})
    params = compiled.randomize_params(seed=0)
    gradients = compiled.evaluate(params, {"input": X}, True)[1]
    hidden = X @ one.to_numpy(params["w"]).T
    np.testing.assert_allclose(one.to_numpy(gradients["w"]), np.cos(hidden).T @ X, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backward_gives_the_gradient_in_our_graph(name):
    one = backend(name)
    model = dense(sinc, backward=sinc_backward)
    if name != "numpy":
        # The functions are of NumPy: their arrays become the framework's.
        def forward(x):
            return sinc(one.to_numpy(x))

        def backward(grad_output, inputs, outputs):
            return sinc_backward(one.to_numpy(grad_output), [one.to_numpy(inputs[0])], None)

        model = dense(forward, backward=backward)
    compiled = ml.compile(model, one, shapes={"input": ["batch", 4]}, autodiff="graph")
    params = compiled.randomize_params(seed=0)
    gradients = compiled.evaluate(params, {"input": X}, True)[1]
    hidden = (X @ one.to_numpy(params["w"]).T).astype(np.float64)
    slope = (np.cos(np.pi * hidden) - np.sinc(hidden)) / hidden
    np.testing.assert_allclose(one.to_numpy(gradients["w"]), slope.T @ X, rtol=1e-3, atol=1e-4)


def test_without_a_backward_there_is_no_gradient_in_our_graph():
    compiled = ml.compile(dense(sinc, opaque=True), ml.NumpyBackend(), shapes={"input": [2, 4]})
    with pytest.raises(Unsupported, match=r"`sinc_.*` has no gradient") as caught:
        compiled.evaluate(compiled.randomize_params(), {"input": X}, True)
    assert "backward=" in caught.value.hint


def test_shapes_and_dtypes_are_declared_and_checked():
    both = ml.Lambda(
        lambda a, b: (np.concatenate([a, b], -1), a.argmax(-1)), shape="n k, n l -> n 5, n", dtype=["float32", "int64"],
        outputs=2,
    )  # fmt: skip
    compiled = ml.compile(both, ml.NumpyBackend(), shapes={"a": ["n", 2], "b": ["n", 3]})
    outputs = compiled.evaluate({}, {"a": X[:, :2], "b": X[:, 1:]})
    np.testing.assert_array_equal(outputs["output_0"], np.concatenate([X[:, :2], X[:, 1:]], -1))
    np.testing.assert_array_equal(outputs["output_1"], X[:, :2].argmax(-1))

    def run(function, **options):
        model = ml.Lambda(function, opaque=True, **options)
        return ml.compile(model, ml.NumpyBackend(), shapes={"input": ["n", 4]})(X)

    assert run(lambda x: x.sum(-1), shape="n k -> n").shape == (2,)
    assert run(lambda x: x[:1, :1], shape=(1, 1)).shape == (1, 1)
    with pytest.raises(ShapeError, match=r"returns shape \[2\], but \[2, 4\] is expected") as caught:
        run(lambda x: x.sum(-1))
    assert "shape=" in caught.value.hint
    with pytest.raises(TypeInferenceError, match="returns float64, but float32 is expected"):
        run(lambda x: x.astype(np.float64))
    with pytest.raises(TypeInferenceError, match="returns a list"):
        run(lambda x: [[0.0]])
    with pytest.raises(InvalidValueError, match="returns 1 arrays, but is declared to return 2"):
        ml.compile(ml.Lambda(sinc, outputs=2, opaque=True), ml.NumpyBackend(), shapes={"input": [2, 4]})(X)
    with pytest.raises(InvalidValueError, match="outputs is 0"):
        ml.Lambda(sinc, opaque=True, outputs=0)
    with pytest.raises(InvalidValueError, match="shape is 'n k'"):
        ml.Lambda(sinc, shape="n k")


def test_a_function_that_cannot_be_traced_is_called_with_a_warning_or_refused():
    with pytest.warns(BackendWarning, match="Lambda calls sinc as it is, since it cannot be traced"):
        model = ml.Lambda(sinc)
    output = ml.compile(model, ml.NumpyBackend(), shapes={"input": [3]})([0.0, 0.5, 1.0])
    np.testing.assert_allclose(output, np.sinc([0.0, 0.5, 1.0]), atol=1e-6)
    with pytest.raises(InvalidValueError, match="sinc cannot be traced"):
        ml.Lambda(sinc, opaque=False)
    backend = ml.NumpyBackend()
    # What can be traced is, without a word.
    model = ml.Lambda(lambda x: backend.exp(x))
    assert "host_call" not in ml.compile(model, backend, shapes={"input": [3]}).source


def test_a_model_with_an_opaque_function_cannot_be_saved(tmp_path):
    with pytest.raises(ModelFileError, match="a Python function"):
        ml.save(dense(sinc, opaque=True), tmp_path / "model.json")
    assert not (tmp_path / "model.json").exists()


def test_two_functions_of_one_name_stay_two():
    model = ml.Model()
    model |= ml.Lambda(lambda x: np.sinc(x), opaque=True)(input="input", output="a")
    model |= ml.Lambda(lambda x: np.cbrt(x), opaque=True)(input="input", output="b")
    outputs = ml.compile(model, ml.NumpyBackend(), shapes={"input": [1]})(np.float32([8.0]))
    np.testing.assert_allclose([outputs["a"][0], outputs["b"][0]], [np.sinc(8), 2], atol=1e-6)
