"""Gradients and trainings where nothing can be trained: no parameters, all frozen, or outputs of integers alone."""

import mithril as ml
import numpy as np
import pytest

BACKENDS = ("numpy", "torch", "jax", "mlx", "c", "ggml", "interpreter")
X = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)


def backend(name):
    kinds = {"numpy": "Numpy", "torch": "Torch", "jax": "Jax", "mlx": "Mlx", "c": "C", "ggml": "GGML"}
    if name in ("torch", "jax", "mlx"):
        pytest.importorskip(name)
    return getattr(ml, f"{kinds.get(name, 'Interpreter')}Backend")()


def without_parameters():
    model = ml.Model()
    model |= ml.Tanh()(input="input", output="hidden")
    model |= ml.Mean()(input="hidden", output="loss")
    return model


def linear():
    model = ml.Model()
    model |= ml.Linear(3)(input="input", output="hidden")
    model |= ml.Mean()(input="hidden", output="loss")
    return model


def classes():
    model = ml.Model()
    model |= ml.Linear(3)(input="input", output="hidden")
    model |= ml.ArgMax(1)(input="hidden", output="output")
    return model


def with_dropout():
    model = ml.Model()
    model |= ml.BatchNorm1d(name="norm")(input="input", output="hidden")
    model |= ml.Dropout(0.5)(input="hidden", output="output")
    return model


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("autodiff", ["native", "graph"])
def test_gradients_where_nothing_is_trained(name, autodiff):
    own = backend(name)
    options = {"shapes": {"input": ["batch", 4]}}
    if name in ("torch", "jax", "mlx"):
        options["autodiff"] = autodiff
    elif autodiff == "native":
        pytest.skip("it has gradients by our graph only")
    expected = {"plain": np.tanh(X).mean()}
    compiled = ml.compile(without_parameters(), own, **options)
    for seeds in (True, {"loss": 1.0}, {"hidden": np.ones_like(X)}):
        outputs, gradients = compiled.evaluate({}, {"input": X}, output_gradients=seeds)
        np.testing.assert_allclose(own.to_numpy(outputs["loss"]), expected["plain"], rtol=1e-6)
        assert dict(gradients) == {}

    frozen = ml.compile(linear(), own, freeze=["*"], **options)
    params = frozen.randomize_params(seed=0)
    outputs, gradients = frozen.evaluate(params, {"input": X}, output_gradients=True)
    plain = frozen.evaluate(params, {"input": X})
    np.testing.assert_array_equal(own.to_numpy(outputs["loss"]), own.to_numpy(plain["loss"]))
    assert dict(gradients) == {}
    # A loop over the parameters finds zeros, as for single ones that are frozen.
    np.testing.assert_array_equal(own.to_numpy(gradients["linear.weight"]), np.zeros((3, 4)))

    compiled = ml.compile(classes(), own, **options)
    params = compiled.randomize_params(seed=0)
    outputs, gradients = compiled.evaluate(params, {"input": X}, output_gradients=True)
    np.testing.assert_array_equal(
        own.to_numpy(outputs["output"]), own.to_numpy(compiled.evaluate(params, {"input": X})["output"])
    )
    assert {key: own.to_numpy(value).tolist() for key, value in gradients.items()} == {
        "linear.weight": np.zeros((3, 4)).tolist(),
        "linear.bias": np.zeros(3).tolist(),
    }


@pytest.mark.parametrize("name", BACKENDS)
def test_the_state_goes_on_where_nothing_is_trained(name):
    own = backend(name)
    compiled = ml.compile(with_dropout(), own, shapes={"input": [2, 4]}, freeze=["*"])
    params = compiled.get_parameters()
    before = own.to_numpy(compiled.state["norm.running_mean"]).copy()
    first, gradients = compiled.evaluate(params, {"input": X}, output_gradients=True)
    second, _ = compiled.evaluate(params, {"input": X}, output_gradients=True)
    assert dict(gradients) == {}
    assert not np.array_equal(before, own.to_numpy(compiled.state["norm.running_mean"]))
    assert not np.array_equal(own.to_numpy(first["output"]), own.to_numpy(second["output"]))


@pytest.mark.parametrize("name", BACKENDS)
def test_a_training_of_nothing_is_an_error(name):
    own, shapes = backend(name), {"input": ["batch", 4]}
    data = {"input": np.ones((32, 4), np.float32)}
    empty, whole = ml.compile(without_parameters(), own, shapes=shapes), ml.compile(linear(), own, shapes=shapes)
    frozen = ml.compile(linear(), own, shapes=shapes, freeze=["*"])
    sgd, fixed = ml.optim.SGD(0.1), ml.optim.SGD(0.1, freeze=["linear.*"])
    for train in (
        lambda model, **options: ml.train.fit(model, data, progress=False, **options),
        lambda model, **options: ml.train.TrainingStep(model, options.pop("optimizer", sgd), **options)(data),
    ):
        with pytest.raises(ml.MithrilError, match="the model has no parameters to train"):
            train(empty)
        for model, options in ((frozen, {}), (whole, {"freeze": ["linear"]}), (whole, {"optimizer": fixed})):
            with pytest.raises(ml.MithrilError, match="all 2 parameters are frozen"):
                train(model, **options)


def test_exported_trainings_of_nothing_are_errors(tmp_path):
    shapes = {"input": [2, 4]}
    exports = [
        lambda model, how=how: model.export(tmp_path / how, target=how, optimizer=ml.optim.SGD(0.1))
        for how in ("c", "rust")
    ]
    exports.append(lambda model: ml.to_onnx(model, optimizer=ml.optim.SGD(0.1)))
    for model, freeze, match in (
        (without_parameters(), None, "the model has no parameters to train"),
        (linear(), ["*"], "all 2 parameters are frozen"),
        (classes(), None, "no output of floats to minimize: its outputs are output"),
    ):
        compiled = ml.compile(model, ml.NumpyBackend(), shapes=shapes, freeze=freeze)
        compiled.get_parameters()
        for export in exports:
            with pytest.raises(ml.MithrilError, match=match):
                export(compiled)


@pytest.mark.parametrize("name", BACKENDS)
def test_tools_take_models_where_nothing_is_trained(name):
    own = backend(name)
    for model in (without_parameters(), classes()):
        compiled = ml.compile(model, own, shapes={"input": [2, 4]})
        params = compiled.get_parameters()
        assert not compiled.find_nans(params, {"input": X}, output_gradients=True).origins
        assert isinstance(compiled.gradient_source, str)
        if name == "c":
            assert compiled.profile(params, {"input": X}, output_gradients=True).rows
