"""Optimizers against torch.optim and mlx, training, weights from elsewhere, files of parameters; on every backend."""

import copy

import mithril as ml
import numpy as np
import pytest
import torch

BACKENDS = ["numpy", "torch", "jax", "mlx"]


@pytest.fixture(params=BACKENDS)
def backend(request):
    try:
        return ml.get_backend(request.param)
    except ml.errors.BackendUnavailableError as error:
        pytest.skip(str(error))


def line():
    model = ml.Model()
    model |= ml.Linear(2)(input="input", output="output")
    return model


def line_data(n=64):
    x = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
    return x, x @ np.array([[1.0, -1.0], [2.0, 0.5], [0.0, 3.0]], np.float32) + np.array([0.5, -0.5], np.float32)


# --- optimizers -------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "sgd": (ml.optim.SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (ml.optim.SGD(0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "nesterov": (
        ml.optim.SGD(0.1, momentum=0.8, nesterov=True, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.8, nesterov=True, weight_decay=0.1),
    ),
    "adam": (ml.optim.Adam(0.1), lambda p: torch.optim.Adam(p, 0.1)),
    "adam-options": (
        ml.optim.Adam(learning_rate=0.1, betas=(0.7, 0.9), eps=1e-3, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, 0.1, betas=(0.7, 0.9), eps=1e-3, weight_decay=0.1),
    ),
    "adamw": (ml.optim.AdamW(0.1), lambda p: torch.optim.AdamW(p, 0.1)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_as_those_of_torch(backend, name):
    ours, theirs = OPTIMIZERS[name]
    optimizer = copy.deepcopy(ours)
    rng = np.random.default_rng(0)
    start = {"w": rng.normal(size=(3, 2)), "b": rng.normal(size=())}
    params = {n: backend.array(v) for n, v in start.items()}
    leaves = {n: torch.tensor(v).requires_grad_() for n, v in start.items()}
    reference = theirs(list(leaves.values()))
    for step in range(6):
        gradients = {n: rng.normal(size=v.shape) for n, v in start.items()}
        if step == 3:
            del gradients["b"]
        for n, leaf in leaves.items():
            leaf.grad = torch.tensor(gradients[n]) if n in gradients else None
        reference.step()
        params = optimizer.update(params, {n: backend.array(g) for n, g in gradients.items()})
    for n, leaf in leaves.items():
        assert backend.dtype(params[n]) == "float32"
        np.testing.assert_allclose(backend.to_numpy(params[n]), leaf.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_learning_rate_may_be_a_schedule():
    optimizer = ml.optim.SGD(lambda step: 1.0 / step)
    params = {"w": np.zeros(1)}
    for _ in range(3):
        params = optimizer.apply_gradients({"w": np.ones(1)}, params)
    np.testing.assert_allclose(params["w"], [-(1 + 1 / 2 + 1 / 3)])


def test_mlx_optimizers_return_the_parameters():
    mx = pytest.importorskip("mlx.core")
    optimizers = pytest.importorskip("mlx.optimizers")
    params = {"w": mx.array([1.0, 2.0]), "fixed": mx.array([3.0])}
    adapted, ours = ml.optim.from_mlx(optimizers.Adam(learning_rate=0.1, bias_correction=True)), ml.optim.Adam(0.1)
    actual, expected = params, params
    for _ in range(3):
        actual = adapted.update(actual, {"w": mx.array([1.0, -2.0])})
        expected = ours.update(expected, {"w": mx.array([1.0, -2.0])})
    assert params["w"].tolist() == [1.0, 2.0]
    assert actual["fixed"].tolist() == [3.0]
    np.testing.assert_allclose(np.array(actual["w"]), np.array(expected["w"]), rtol=1e-5)
    with pytest.raises(ml.errors.InvalidValueError, match="is not an optimizer of MLX"):
        ml.optim.from_mlx(optimizers.Adam)


def test_optimizers_say_what_is_wrong():
    w = np.ones(2)
    optimizer = ml.optim.Adam()
    with pytest.raises(ml.errors.ParameterError, match="did you mean 'weight'"):
        optimizer.update({"weight": w}, {"weigth": w})
    with pytest.raises(ml.errors.ParameterError, match=r"shape \[2\], its gradient \[3, 2\]"):
        optimizer.update({"w": w}, {"w": np.ones((3, 2))})
    with pytest.raises(ml.errors.ParameterError, match="Tensor"):
        optimizer.update({"w": w}, {"w": torch.ones(2)})
    with pytest.raises(ml.errors.ParameterError, match="params is a list"):
        optimizer.update([w], {"w": w})
    assert optimizer.steps == 0
    for options in ({"learning_rate": -1}, {"learning_rate": "fast"}, {"betas": (0.9, 1.0)}, {"betas": (0.9,)}):
        with pytest.raises(ml.errors.InvalidValueError, match=next(iter(options))):
            ml.optim.Adam(**options)
    with pytest.raises(ml.errors.InvalidValueError, match="momentum"):
        ml.optim.SGD(nesterov=True)


# --- training ---------------------------------------------------------------------------------------------------


def test_train_model_finds_a_line(backend):
    x, y = line_data()
    compiled = ml.compile(line(), backend, data_keys={"input"})
    seen = []
    params = ml.train.train_model(
        compiled,
        backend,
        {"input": x, "target": y},
        loss="mse",
        learning_rate=0.1,
        epochs=30,
        batch_size=16,
        on_epoch=lambda epoch, loss: seen.append((epoch, loss)),
    )
    assert params is compiled.get_parameters()
    assert [epoch for epoch, _ in seen] == list(range(1, 31))
    assert seen[-1][1] < 1e-4
    np.testing.assert_allclose(backend.to_numpy(params["linear.bias"]), [0.5, -0.5], atol=1e-2)
    np.testing.assert_allclose(backend.to_numpy(compiled(x)), y, atol=5e-2)


def test_train_model_of_the_documentation(backend):
    """A classifier without a loss of its own, no shapes, batches as pairs; see document 000, line 139."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    model = ml.Model()
    model |= ml.BatchNorm1d(name="norm")(input="input", output="normed")
    model += ml.Linear(2, name="fc")(output="output")
    with pytest.warns(ml.errors.UnusedKeyWarning, match="target"):
        compiled = ml.compile(model, backend=backend, data_keys={"input", "target"})
    batches = [(x[i : i + 16], y[i : i + 16]) for i in range(0, 64, 16)]
    params = ml.train.train_model(compiled, backend, batches, learning_rate=0.2, epochs=20)
    frozen = ml.compile(model, ml.NumpyBackend(), inference=True)
    frozen.load_params({**params, **compiled.state})
    assert np.abs(frozen.state["norm.running_var"] - x.var(0)).max() < 0.5 < np.abs(1 - 0.9**80)
    assert (frozen(x).argmax(1) == y).mean() > 0.95


def test_train_model_follows_the_optimizer():
    x, y = line_data()
    model = line()
    model |= ml.MSELoss()(input=ml.IOKey("output", expose=True), target="target", output="loss")
    compiled = ml.compile(model, ml.NumpyBackend(dtype="float64"), shapes={"input": [64, 3], "target": [64, 2]})
    start = {name: torch.tensor(value).requires_grad_() for name, value in compiled.get_parameters().items()}
    params = ml.train.train_model(
        compiled, compiled.backend, [{"input": x, "target": y}], optimizer=ml.optim.Adam(0.1), epochs=5
    )
    reference = torch.optim.Adam(start.values(), 0.1)
    for _ in range(5):
        reference.zero_grad()
        output = torch.from_numpy(x).double() @ start["linear.weight"].T + start["linear.bias"]
        torch.nn.functional.mse_loss(output, torch.from_numpy(y).double()).backward()
        reference.step()
    for name, value in start.items():
        np.testing.assert_allclose(params[name], value.detach().numpy(), rtol=1e-9)


def test_train_model_says_what_is_wrong():
    x, y = line_data()
    data = {"input": x, "target": y}
    backend = ml.NumpyBackend()
    compiled = ml.compile(line(), backend)
    train = ml.train.train_model
    with pytest.raises(ml.errors.InvalidValueError, match="another backend"):
        train(compiled, ml.NumpyBackend(), data)
    with pytest.raises(ml.errors.InvalidValueError, match="compile it first"):
        train(line(), backend, data)
    with pytest.raises(ml.errors.InvalidValueError, match="'mean_squared'"):
        train(compiled, backend, data, loss="mean_squared")
    with pytest.raises(ml.errors.InvalidValueError, match="epochs"):
        train(compiled, backend, data, epochs=0)
    with pytest.raises(ml.errors.ParameterError, match="64 examples, and a batch has 65"):
        train(compiled, backend, data, loss="mse", batch_size=65)
    with pytest.raises(ml.errors.InvalidValueError, match="epoch 2 hold no batch"):
        train(compiled, backend, iter([(x, y)]), loss="mse", epochs=2)
    with pytest.raises(ml.errors.ParameterError, match="different numbers"):
        train(compiled, backend, {"input": x, "target": y[:3]}, loss="mse")
    with pytest.raises(ml.errors.ParameterError, match="of type float"):
        train(compiled, backend, [1.0], loss="mse")
    with pytest.raises(ml.errors.NumericsError, match="batch 1 of epoch 1 is nan"):
        train(compiled, backend, [(x * np.nan, y)], loss="mse")
    with pytest.raises(ml.errors.UnsupportedOpError, match="inference"):
        train(ml.compile(line(), backend, inference=True), backend, data, loss="mse")


# --- weights ----------------------------------------------------------------------------------------------------


def test_transfer_to_every_backend(backend):
    source = ml.compile(line(), ml.NumpyBackend(), shapes={"input": [2, 3]})
    params = source.randomize_params(seed=1)
    moved = ml.transfer(params, to=backend)
    target = ml.compile(line(), backend, shapes={"input": [2, 3]})
    x = line_data(2)[0]
    output = backend.to_numpy(target.evaluate(moved, {"input": x})["output"])
    np.testing.assert_allclose(output, source.evaluate(params, {"input": x})["output"], rtol=1e-5, atol=1e-6)
    for name, value in ml.transfer(moved, to=ml.NumpyBackend()).items():
        np.testing.assert_array_equal(value, params[name])
        assert value is not params[name]


def test_transfer_says_what_is_wrong():
    with pytest.raises(ml.errors.InvalidValueError, match="not a NumpyBackend"):
        ml.transfer({}, to=ml.NumpyBackend)
    with pytest.raises(ml.errors.ParameterError, match="'w' is not an array"):
        ml.transfer({"w": "text"}, to=ml.NumpyBackend())


@pytest.mark.parametrize("shapes", [None, {"input": [2, 3]}])
def test_load_params(backend, shapes):
    weights = {"linear.weight": torch.arange(6.0, dtype=torch.float64).reshape(2, 3), "linear.bias": [1.0, 2.0]}
    compiled = ml.compile(line(), backend, shapes=shapes)
    params = compiled.load_params(weights)
    assert params is compiled.get_parameters()
    output = backend.to_numpy(compiled.evaluate({}, {"input": np.ones((2, 3))})["output"])
    np.testing.assert_array_equal(output, [[4, 14]] * 2)
    with pytest.raises(ml.errors.ParameterError, match=r"did you mean 'linear\.bias'"):
        compiled.load_params({**weights, "linear.bia": [1, 2]})
    with pytest.raises(ml.errors.ParameterError, match=r"lacks 'linear\.weight'"):
        compiled.load_params({"linear.bias": [3, 4]})
    with pytest.raises(ml.errors.ParameterError, match=r"'linear\.weight' is not an array"):
        compiled.load_params({**weights, "linear.weight": None})
    with pytest.raises(ml.errors.ParameterError, match="params is a list"):
        compiled.load_params([1, 2])
    if shapes:
        with pytest.raises(ml.errors.ParameterError, match=r"shape \[3, 2\], but must be \[2, 3\]"):
            compiled.load_params({**weights, "linear.weight": weights["linear.weight"].T})
    np.testing.assert_array_equal(backend.to_numpy(params["linear.bias"]), [1, 2])


# --- files ------------------------------------------------------------------------------------------------------


def test_parameters_are_saved_as_safetensors(backend, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    compiled = ml.compile(line(), backend, shapes={"input": [2, 3]})
    params = compiled.randomize_params(seed=1)
    path = tmp_path / "params.safetensors"
    ml.save(params, path)
    theirs = safetensors.load_file(path)
    again = ml.load(path)
    assert set(theirs) == set(again) == set(params)
    for name, value in params.items():
        np.testing.assert_array_equal(again[name], backend.to_numpy(value))
        np.testing.assert_array_equal(theirs[name].numpy(), backend.to_numpy(value))
    compiled.load_params(again)


def test_all_dtypes_are_saved(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "all.safetensors"
    names = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
    tensors = {n: torch.tensor([[0.0, 1.0, 100.0]]).to(getattr(torch, n)).T for n in names}
    tensors |= {"empty": torch.zeros(0, 2), "scalar": torch.tensor(2.5)}
    ml.save(tensors, path)
    theirs, ours = safetensors.load_file(path), ml.load(path)
    for name, tensor in tensors.items():
        assert torch.equal(theirs[name], tensor), name
        assert ours[name].shape == tuple(tensor.shape)
        np.testing.assert_array_equal(ours[name].astype(np.float64), tensor.double().numpy())
    safetensors.save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    assert {name: array.dtype.name for name, array in ml.load(path).items() if name in names} == {n: n for n in names}


def test_files_of_parameters_say_what_is_wrong(tmp_path):
    pytest.importorskip("safetensors")
    path = tmp_path / "params.safetensors"
    ml.save({"w": np.arange(4)}, path)
    whole = path.read_bytes()
    for broken in (whole[:-1], whole[:4], b"", b"\xff" * 8 + whole[8:], whole.replace(b"I64", b"I65")):
        path.write_bytes(broken)
        with pytest.raises(ml.errors.ModelFileError, match=r"params\.safetensors"):
            ml.load(path)
    with pytest.raises(ml.errors.InvalidValueError, match="safetensors"):
        ml.save({"w": np.ones(1)}, tmp_path / "params.pkl")
    with pytest.raises(ml.errors.InvalidValueError, match="a file of parameters"):
        ml.save(line(), path)
    with pytest.raises(ml.errors.ParameterError, match="'w' cannot be saved"):
        ml.save({"w": "text"}, path)
    with pytest.raises(ml.errors.ParameterError, match="1 is a int"):
        ml.save({1: np.ones(1)}, path)
    with pytest.raises(ml.errors.InvalidValueError, match="not a list"):
        ml.save([1], path)
    with pytest.raises(ml.errors.ModelFileError, match="cannot be read"):
        ml.load(tmp_path / "absent.safetensors")
