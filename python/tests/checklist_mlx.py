"""Checklist E: MLX."""

import functools
import pickle
import weakref

import mithril as ml
import numpy as np
import pytest
from checklist import ROOT, Page, constructs
from checklist_comparison import gradient_checkpointing
from checklist_deployment import jit_everywhere, memory_is_known
from documented import available, backend, inputs, reference_results
from networks import classifier, cnn

_page = functools.partial(Page, "mlx-backend.md")
X = inputs(2, 5)


def mlx():
    if not available(("mlx",)):
        pytest.skip("mlx is not installed")
    return ml.MLXBackend


def names():
    from mithril.backends import MLXBackend

    assert MLXBackend is ml.MlxBackend is ml.MLXBackend
    if available(("mlx",)):
        assert repr(MLXBackend()).startswith("MlxBackend(")


def empty_models():
    for name in available():
        with pytest.raises(ml.errors.MithrilError) as caught:
            ml.compile(ml.Model(), backend(name))
        assert caught.value.hint


def options():
    mlx()
    import mlx.core as mx

    used = constructs(
        "mlx",
        needs="device",
        device=mx.gpu,
        dtype=mx.float16,
        random_seed=42,
        compute_precision="float32",
        use_graph=True,
    )
    assert (used.default_dtype, used.precision, used.jit) == ("float16", "float32", True)
    assert constructs("mlx", use_graph=False).jit is False
    np.testing.assert_array_equal(
        used.to_numpy(used.randn(4)), used.to_numpy(constructs("mlx", dtype="float16", seed=42).randn(4))
    )


def dtypes():
    mlx()
    import mlx.core as mx

    for dtype in ("float32", "float16", "bfloat16"):
        assert constructs("mlx", dtype=getattr(mx, dtype)).zeros(1).dtype == getattr(mx, dtype)


def devices():
    mlx()
    import mlx.core as mx

    constructs("mlx", needs="device", device=mx.gpu)
    assert constructs("mlx", device=mx.cpu).device == "cpu"


def memory_options():
    mlx()
    import mlx.core as mx

    before = mx.set_memory_limit(2**40)
    try:
        used = constructs("mlx", memory_limit="4GB", auto_free_tensors=True)
        assert mx.set_memory_limit(2**40) == 4 * 10**9
        assert ml.compile(classifier(), used)(X).shape == (2, 10)
    finally:
        mx.set_memory_limit(before)


def arrays():
    for name in available():
        used = backend(name)
        assert used.dtype(used.array([[1, 2, 3], [4, 5, 6]])) == "int64"
        assert used.dtype(used.array(np.random.default_rng(0).normal(size=(3, 4)))) == "float32"
        for array in (used.zeros(3, 4), used.ones(3, 4), used.randn(3, 4)):
            assert used.shape(array) == (3, 4)


def conversions():
    mlx()
    import mlx.core as mx

    for name in available():
        used = backend(name)
        mx_array = mx.arange(6.0).reshape(2, 3)
        x = used.from_mlx(mx_array)
        assert used.dtype(x) == "float32"
        again = used.to_mlx(x)
        assert isinstance(again, mx.array)
        assert mx.array_equal(again, mx_array)
        if name == "mlx":
            assert x is mx_array is again
        np.testing.assert_array_equal(used.to_numpy(x), np.arange(6.0).reshape(2, 3))


def what_numpy_can_read():
    class Tensor:
        def __array__(self, dtype=None, copy=None):
            return np.arange(3.0, dtype=dtype)

    for name in available():
        used = backend(name)
        np.testing.assert_array_equal(used.to_numpy(used.from_mlx(Tensor())), [0, 1, 2])
        np.testing.assert_array_equal(used.to_numpy(used.array(Tensor())), [0, 1, 2])


def output_gradients():
    for name in available():
        compiled = ml.compile(classifier(), backend(name), shapes={"input": [2, 5]})
        params, target = compiled.randomize_params(seed=1), backend(name).array(inputs(2, 10, seed=3))
        outputs = compiled.evaluate(params, {"input": X})
        loss_gradients = outputs["output"] - target
        again, gradients = compiled.evaluate(params, {"input": X}, output_gradients={"output": loss_gradients})
        assert list(gradients) == list(params)
        np.testing.assert_allclose(
            np.asarray(again["output"]), reference_results("classifier")[0], rtol=1e-4, atol=1e-6
        )
        _, computed = compiled.evaluate(
            params,
            {"input": X},
            output_gradients=lambda outputs: {"output": outputs["output"] - target},  # noqa: B023
        )
        for key, value in gradients.items():
            np.testing.assert_allclose(np.asarray(computed[key]), np.asarray(value), rtol=1e-5, atol=1e-7)


def training_loop():
    for name in available(("numpy", "torch", "jax", "mlx")):
        compiled_model = ml.compile(classifier(), backend(name))
        params = compiled_model.get_parameters()
        targets = backend(name).array(np.eye(10, dtype=np.float32)[:8])
        losses = []
        for _ in range(10):
            outputs, gradients = compiled_model.evaluate(
                params,
                {"input": inputs(8, 5)},
                output_gradients=lambda outputs: {"output": 2 * (outputs["output"] - targets)},  # noqa: B023
            )
            losses.append(float(((outputs["output"] - targets) ** 2).sum()))
            for key, grad in gradients.items():
                params[key] = params[key] - 0.05 * grad
        assert losses[-1] < losses[0]


def optimizers():
    mlx()
    import mlx.optimizers as optim

    compiled = ml.compile(classifier(), ml.MLXBackend(), shapes={"input": [2, 5]})
    params = dict(compiled.randomize_params(seed=1))
    _, gradients = compiled.evaluate(params, {"input": X}, True)
    actual = [
        ml.optim.Adam(learning_rate=0.001).update(params, gradients),
        ml.optim.from_mlx(optim.Adam(learning_rate=0.001)).update(params, gradients),
        optim.Adam(learning_rate=0.001).apply_gradients(gradients, params),
    ]
    assert all(new.keys() == params.keys() for new in actual)
    np.testing.assert_allclose(np.asarray(actual[1]["linear.weight"]), np.asarray(actual[2]["linear.weight"]))


def pure_functions():
    mlx()
    import mlx.core as mx

    compiled = ml.compile(classifier(), ml.MLXBackend(use_graph=True), shapes={"input": [2, 5]})
    params, x = dict(compiled.randomize_params(seed=1)), {"input": mx.array(X)}
    loss = compiled.loss_function(lambda outputs: outputs["output"].sum())
    value, gradients = mx.compile(mx.value_and_grad(loss))(params, x)
    assert value.shape == ()
    _, ours = compiled.evaluate(params, x, True)
    for key in ours:
        np.testing.assert_allclose(np.asarray(gradients[key]), np.asarray(ours[key]), rtol=1e-3, atol=1e-6)


def functions_as_layers():
    for name in available():
        used = backend(name)

        def custom_activation(x):
            return used.maximum(0.01 * x, x)  # noqa: B023

        model = ml.Model()
        model |= ml.Linear(dimension=64)(input="input", output="hidden")
        model += ml.Lambda(custom_activation)(input="hidden", output="hidden_act")
        model += ml.Linear(dimension=10)(input="hidden_act", output="output")
        assert tuple(ml.compile(model, used)(X).shape) == (2, 10)
        np.testing.assert_allclose(used.to_numpy(custom_activation(used.array([-100.0, 2.0]))), [-1, 2])


def pickles():
    for name in available():
        used = backend(name)
        compiled = ml.compile(classifier(), used, shapes={"input": [2, 5]})
        params = compiled.randomize_params(seed=1)
        kept = pickle.dumps({k: used.to_numpy(v) for k, v in params.items()})
        loaded = {k: used.array(v) for k, v in pickle.loads(kept).items()}
        actual = compiled.evaluate(loaded, {"input": X})["output"]
        np.testing.assert_allclose(np.asarray(actual), reference_results("classifier")[0], rtol=1e-4, atol=1e-6)


def ignored(option):
    def program():
        with pytest.warns(ml.errors.IgnoredOptionWarning, match=option):
            used = mlx()(**{option: True})
        assert used.ignored_options == (option,)

    return program


def precision():
    for precision in ("float32", "float16"):
        constructs("mlx", compute_precision=precision)
    assert constructs("mlx", dtype="float32", compute_precision="float32").precision is None


def no_hidden_references():
    for name in available(("numpy", "torch")):
        used = backend(name)
        large_tensor = used.zeros(100, 100)
        used.add(large_tensor, 1.0)
        ml.compile(classifier(), used)(used.zeros(2, 5))
        kept = weakref.ref(large_tensor)
        del large_tensor
        assert kept() is None


def looking_inside(capsys=None):
    for name in available():
        used = backend(name)
        tensor = used.array([[1.0, 2.0, 3.0, float("nan")]] * 3)
        assert f"Shape: {used.shape(tensor)}, Dtype: {used.dtype(tensor)}" == "Shape: (3, 4), Dtype: float32"
        assert bool(used.isnan(tensor).any())
        assert not bool(used.isnan(used.ones(3)).any())


def verbose():
    import contextlib
    import io

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for name in available():
            ml.compile(classifier(), backend(name), shapes={"input": [2, 5]}, verbose=True)
    assert printed.getvalue().count("compiled") >= len(available())


def nans_are_found():
    model = ml.Model()
    model |= ml.Log()(input="input", output="logarithm")
    model += ml.Relu()(output="output")
    for name in available():
        compiled = ml.compile(model, backend(name), shapes={"input": [2]})
        assert "log" in str(compiled.find_nans({}, {"input": np.array([-1.0, 1.0])}))


def classifier_as_written():
    X, y = inputs(100, 784), np.random.default_rng(1).integers(0, 10, size=(100,))
    y_one_hot = np.zeros((100, 10), np.float32)
    y_one_hot[np.arange(100), y] = 1
    for name in available(("numpy", "jax", "mlx")):
        used = backend(name)
        compiled_model = ml.compile(classifier(), used)
        params = compiled_model.get_parameters()
        for key in ("output", "logits"):
            for _ in range(3):
                predictions = compiled_model.evaluate(params, {"input": X.astype(np.float64)})["output"]
                loss_grad = predictions - y_one_hot if name != "mlx" else predictions - used.array(y_one_hot)
                _, gradients = compiled_model.evaluate(params, {"input": X}, output_gradients={key: loss_grad})
                for parameter, grad in gradients.items():
                    params[parameter] = params[parameter] - 0.01 * grad
                accuracy = np.mean(np.argmax(predictions, axis=1) == y)
                assert len(f"Accuracy: {accuracy:.4f}") == 16
        assert accuracy > 0.3


def image_model():
    for name in available():
        actual = ml.compile(cnn(), backend(name, dtype="float16"))(inputs(2, 3, 8, 8))
        assert backend(name).dtype(actual) == "float16"
        np.testing.assert_allclose(
            np.asarray(ml.compile(cnn(), backend(name, seed=1))(inputs(2, 3, 8, 8))),
            reference_results("cnn")[0],
            rtol=1e-3,
            atol=1e-4,
        )


def requirements():
    text = (ROOT / "pyproject.toml").read_text()
    page = (ROOT / "docs" / "mlx-backend.md").read_text()
    from mithril.backends.frameworks import FRAMEWORKS

    assert 'requires-python = ">=3.10"' in text
    assert f"Requires Python 3.10 and MLX {FRAMEWORKS['mlx.core'][2]} or newer" in page


_lazy = _page("z = backend.add(x, y) # not computed yet")
_compared = _page("## Compared")

ITEMS = {
    "E1": ("gradients", output_gradients),
    "E2": ("lazy", _lazy),
    "E3": ("memory", memory_options),
    "E4": ("Metal", devices),
    "E5": ("compiler", jit_everywhere),
    "E6": ("pip install mlx", _page('pip install ".[mlx]"')),
    "E7": ("from mithril.backends import MLXBackend", names),
    "E8": ("MLXBackend()", names),
    "E9": ("ml.Model()", empty_models),
    "E10": ("ml.compile(model, backend)", empty_models),
    "E11": ("MLXBackend(dtype=mx.float16)", options),
    "E12": ("MLXBackend(device=mx.gpu)", options),
    "E13": ("MLXBackend(random_seed=42)", options),
    "E14": ('MLXBackend(compute_precision="float32")', options),
    "E15": ("MLXBackend(use_graph=True)", options),
    "E16": ("MLXBackend(dtype=mx.float32)", dtypes),
    "E17": ("MLXBackend(dtype=mx.bfloat16)", dtypes),
    "E18": ("MLXBackend(device=mx.gpu)", devices),
    "E19": ("MLXBackend(device=mx.cpu)", devices),
    "E20": ('MLXBackend(memory_limit="4GB")', memory_options),
    "E21": ("MLXBackend(auto_free_tensors=True)", memory_options),
    "E22": ("backend.array([[1, 2, 3], [4, 5, 6]])", arrays),
    "E23": ("backend.array(x_np)", arrays),
    "E24": ("backend.zeros(3, 4)", arrays),
    "E25": ("backend.ones(3, 4)", arrays),
    "E26": ("backend.randn(3, 4)", arrays),
    "E27": ("backend.from_mlx(mx_array)", conversions),
    "E28": ("backend.to_mlx(x)", conversions),
    "E29": ("backend.to_numpy(x)", conversions),
    "E30": ('compiled_model.evaluate(params, {"input": inputs})', output_gradients),
    "E31": ('compute_loss(outputs["output"], targets)', _page('loss = compute_loss(outputs["output"], targets)')),
    "E32": ("outputs, gradients = compiled_model.evaluate(...)", output_gradients),
    "E33": ('output_gradients={"output": loss_gradients}', output_gradients),
    "E34": ("backend.add(x, y) computes nothing yet", _lazy),
    "E35": ("backend.to_numpy(z) computes", _lazy),
    "E36": ("MLXBackend(use_graph=True)", options),
    "E37": ("@mx.compile", pure_functions),
    "E38": ("model_fn(params, inputs)", pure_functions),
    "E39": ("mx.grad of a loss", pure_functions),
    "E40": ("forward_backward(params, inputs, targets)", _page("loss, grads = forward_backward(params,")),
    "E41": ("batch_size = 32", _page("batch_size = 32")),
    "E42": ("compiled_model.get_parameters()", training_loop),
    "E43": ("output gradients made of the outputs", training_loop),
    "E44": ("for name, grad in gradients.items()", training_loop),
    "E45": ("params[name] = params[name] - learning_rate * grad", training_loop),
    "E46": ("import mlx.optimizers as optim", optimizers),
    "E47": ("optim.Adam(learning_rate=0.001)", optimizers),
    "E48": ("_, gradients = compiled_model.evaluate(...)", optimizers),
    "E49": ("backend.to_mlx(grad) for grad in gradients.values()", conversions),
    "E50": ("optimizer.apply_gradients(gradients, params)", optimizers),
    "E51": ("backend.from_mlx(param) for param in params.values()", conversions),
    "E52": ("backend.maximum(0.01 * x, x)", functions_as_layers),
    "E53": ('model |= ml.Linear(dimension=64)(input="input", output="hidden")', functions_as_layers),
    "E54": ("model += ml.Lambda(custom_activation)(...)", functions_as_layers),
    "E55": ("model += ml.Linear(dimension=10)(...)", functions_as_layers),
    "E56": ("pickle.dump({k: backend.to_numpy(v) ...})", pickles),
    "E57": ("pickle.load", _page("loaded_params = pickle.load(f)")),
    "E58": ("backend.array(v) for v in loaded_params.values()", pickles),
    "E59": ("MLXBackend(enable_mps_optimization=True)", ignored("enable_mps_optimization")),
    "E60": ("MLXBackend(use_ane=True)", ignored("use_ane")),
    "E61": ("arrays of other frameworks", what_numpy_can_read),
    "E62": ('MLXBackend(compute_precision="float32")', precision),
    "E63": ('MLXBackend(compute_precision="float16")', precision),
    "E64": ("del large_tensor", no_hidden_references),
    "E65": ("backend.get_memory_info()", memory_is_known),
    "E66": ("memory_info['used']", memory_is_known),
    "E67": ("ml.compile(model, backend, verbose=True)", verbose),
    "E68": ("backend.shape(tensor), backend.dtype(tensor)", looking_inside),
    "E69": ("backend.isnan(tensor).any()", looking_inside),
    "E70": ("MLXBackend(use_graph=False)", options),
    "E71": ("out of memory", gradient_checkpointing),
    "E72": ("slow compilation", verbose),
    "E73": ("numbers explode: find_nans", nans_are_found),
    "E74": ('MLXBackend(dtype=mx.float32, compute_precision="float32")', precision),
    "E75": ('model |= ml.Linear(dimension=128)(input="input", output="hidden1")', classifier_as_written),
    "E76": ('model += ml.Relu()(input="hidden1", output="hidden1_act")', classifier_as_written),
    "E77": ('model += ml.Softmax()(input="logits", output="output")', classifier_as_written),
    "E78": ("float64 data of NumPy", classifier_as_written),
    "E79": ('compiled_model.evaluate(params, {"input": X})', classifier_as_written),
    "E80": ("predictions - y_one_hot", classifier_as_written),
    "E81": ("np.argmax(predictions, axis=1)", classifier_as_written),
    "E82": ("np.mean(pred_classes == y)", classifier_as_written),
    "E83": ('print(f"Epoch {epoch}, Accuracy: {accuracy:.4f}")', classifier_as_written),
    "E84": ('ml.Conv2d(filters=16, kernel_size=3, stride=1, padding="same")', image_model),
    "E85": ("ml.MaxPool2d(kernel_size=2)", image_model),
    "E86": ("ml.Flatten()", image_model),
    "E87": ("operating systems", _page("The tests run it on Linux on the CPU.")),
    "E88": ("oldest Python", requirements),
    "E89": ("oldest MLX", requirements),
    **{
        f"E{n}": (f"compared: {what}", _compared)
        for n, what in enumerate(
            ("Apple silicon", "gradients", "lazy evaluation", "compiler", "several devices", "Neural Engine"), 90
        )
    },
}
