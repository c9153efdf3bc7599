"""Running statistics go where parameters go; frozen parameters, initial values, losses of every kind."""

import copy
import pickle

import mithril as ml
import numpy as np
import pytest

KINDS = {"numpy": "NumpyBackend", "torch": "TorchBackend", "jax": "JaxBackend", "mlx": "MlxBackend", "c": "CBackend"}
STATISTICS = ("norm.running_mean", "norm.running_var")
SHAPES = {"input": ["batch", 5]}


def backend_of(name):
    try:
        return getattr(ml, KINDS[name])()
    except ml.errors.BackendUnavailableError as error:
        pytest.skip(str(error))


def network():
    model = ml.Model()
    model |= ml.Linear(4, name="first")(input="input", output="hidden")
    model += ml.BatchNorm1d(name="norm")()
    model += ml.Linear(3, name="last")(output="output")
    return model


def examples():
    random = np.random.default_rng(0)
    return random.normal(3, 2, (32, 5)).astype("f4"), random.integers(0, 3, 32)


def trained(backend, **options):
    compiled = ml.compile(network(), backend, shapes=SHAPES)
    ml.train.fit(compiled, examples(), epochs=2, batch_size=8, progress=False, **options)
    return compiled


def frozen(backend):
    return ml.compile(network(), backend, shapes=SHAPES, inference=True)


def outputs(compiled, params):
    return compiled.backend.to_numpy(compiled.evaluate(params, {"input": examples()[0]})["output"])


def by_hand(params, state):
    """The network as NumPy computes it."""
    p = {name: np.asarray(value, np.float64) for name, value in {**params, **state}.items()}
    hidden = examples()[0] @ p["first.weight"].T + p["first.bias"]
    normal = (hidden - p["norm.running_mean"]) / np.sqrt(p["norm.running_var"] + 1e-5)
    return (normal * p["norm.weight"] + p["norm.bias"]) @ p["last.weight"].T + p["last.bias"]


@pytest.mark.parametrize("name", KINDS)
def test_a_copy_of_all_entries_is_a_copy_of_the_trained_model(name, tmp_path):
    source = trained(backend_of(name))
    host = {key: source.backend.to_numpy(value) for key, value in source.get_parameters().items()}
    state = {key: source.backend.to_numpy(source.state[key]) for key in STATISTICS}
    expected = by_hand(host, state)
    assert np.abs(state["norm.running_mean"]).max() > 0.1, "they were trained"
    ml.save(source.get_parameters(), tmp_path / "params.safetensors")
    for other in KINDS:
        try:
            target = frozen(getattr(ml, KINDS[other])())
        except ml.errors.BackendUnavailableError:
            continue
        copied = {key: target.backend.array(value) for key, value in host.items()}
        loaded = ml.load(tmp_path / "params.safetensors")
        for params in (copied, ml.transfer(source.get_parameters(), to=target.backend)):
            np.testing.assert_allclose(outputs(target, params), expected, atol=2e-5)
        for params in (host, loaded, source.get_parameters()):
            fresh = frozen(target.backend)
            np.testing.assert_allclose(outputs(fresh, fresh.load_params(params)), expected, atol=2e-5)


@pytest.mark.parametrize("name", KINDS)
def test_lost_statistics_are_an_error(name):
    source = trained(backend_of(name))
    without = {key: source.parameters[key] for key in source.parameter_keys}
    compiled = frozen(source.backend)
    with pytest.raises(ml.errors.ParameterError, match=r"lacks the running statistics 'norm.running_mean'"):
        outputs(compiled, without)
    with pytest.raises(ml.errors.ParameterError, match=r"lacks 'norm.running_mean'.*"):
        compiled.load_params(without)
    with pytest.raises(ml.errors.ParameterError, match=r"lacks the running statistics 'norm.running_var'"):
        outputs(compiled, {**without, STATISTICS[0]: source.parameters[STATISTICS[0]]})
    expected = outputs(compiled, dict(source.parameters))
    compiled.state.update(source.state)
    np.testing.assert_allclose(outputs(compiled, without), expected)


@pytest.mark.parametrize("how", ["loop", "plain loop", "names of gradients", "optimizer", "plain optimizer"])
@pytest.mark.parametrize("name", KINDS)
def test_every_loop_keeps_the_statistics_up_to_date(name, how):
    backend = backend_of(name)
    compiled = ml.compile(network(), backend, shapes=SHAPES)
    optimizer = ml.optim.AdamW(0.001, weight_decay=10.0)
    params = compiled.get_parameters()
    params = dict(params) if "plain" in how else params
    mean = np.zeros(4)
    for _ in range(5):
        weights = {key: np.asarray(backend.to_numpy(params[key]), np.float64) for key in ("first.weight", "first.bias")}
        mean = 0.9 * mean + 0.1 * (examples()[0] @ weights["first.weight"].T + weights["first.bias"]).mean(0)
        _, gradients = compiled.evaluate(params, {"input": examples()[0]}, {"output": backend.ones(32, 3)})
        if "optimizer" in how:
            params = optimizer.update(params, gradients)
        else:
            for key in params if "loop" in how else gradients:
                params[key] = params[key] - 0.01 * gradients[key]
    np.testing.assert_allclose(backend.to_numpy(params["norm.running_mean"]), mean, atol=1e-4)
    np.testing.assert_allclose(backend.to_numpy(compiled.state["norm.running_mean"]), mean, atol=1e-4)


@pytest.mark.parametrize("kind", ["parameters", "dict"])
def test_trees_of_jax_hold_statistics(kind):
    backend = backend_of("jax")
    import jax

    compiled = ml.compile(network(), backend, shapes=SHAPES, freeze=["last"])
    params = compiled.get_parameters() if kind == "parameters" else dict(compiled.get_parameters())
    before = np.asarray(params["last.weight"])
    for _ in range(3):
        _, gradients = compiled.evaluate(params, {"input": examples()[0]}, {"output": backend.ones(32, 3)})
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
    np.testing.assert_array_equal(params["norm.running_mean"], compiled.state["norm.running_mean"])
    params = ml.optim.SGD(0.1, weight_decay=0.5).update(params, gradients)
    np.testing.assert_array_equal(params["norm.running_mean"], compiled.state["norm.running_mean"])
    np.testing.assert_array_equal(params["last.weight"], before)


def test_parameters_of_two_kinds_keep_their_own_statistics():
    compiled = ml.compile(network(), ml.NumpyBackend(), shapes=SHAPES)
    own, other = compiled.get_parameters(), compiled.randomize_params()
    before = {key: np.array(value) for key, value in own.items()}
    compiled.evaluate(other, {"input": examples()[0]}, {"output": np.ones((32, 3), "f4")})
    assert not np.array_equal(other["norm.running_mean"], before["norm.running_mean"])
    for key, value in own.items():
        np.testing.assert_array_equal(value, before[key])


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_copies_of_models_have_statistics_of_their_own(duplicate):
    source = trained(ml.NumpyBackend())
    copied = duplicate(source)
    for key in STATISTICS:
        np.testing.assert_array_equal(copied.parameters[key], source.parameters[key])
    copied.parameters["norm.running_mean"] = np.full(4, 7.0)
    assert copied.state["norm.running_mean"][0] == 7 != source.state["norm.running_mean"][0]
    assert isinstance(copy.copy(source.parameters), ml.Parameters)
    assert list(pickle.loads(pickle.dumps(source.parameters))) == list(source.parameters)


def test_averages_bring_the_statistics_along():
    average = ml.optim.EMA(0.5)
    source = trained(ml.NumpyBackend(), ema=average)
    np.testing.assert_array_equal(average.params["norm.running_mean"], source.state["norm.running_mean"])
    outputs(frozen(source.backend), average.params)


# --- drawing ----------------------------------------------------------------------------------------------------


def test_parameters_are_drawn_anew_at_every_call():
    backend = ml.NumpyBackend(seed=3)
    compiled = ml.compile(network(), backend, shapes=SHAPES)
    store = compiled.get_parameters()
    kept = store["first.weight"].copy()
    one, two = compiled.randomize_params(), compiled.randomize_params()
    assert not np.array_equal(one["first.weight"], two["first.weight"])
    assert not np.array_equal(one["first.weight"], kept)
    np.testing.assert_array_equal(compiled.get_parameters()["first.weight"], kept)
    again = ml.compile(network(), ml.NumpyBackend(seed=3), shapes=SHAPES)
    again.get_parameters()
    np.testing.assert_array_equal(again.randomize_params()["first.weight"], one["first.weight"])
    for seeded in (compiled, again):
        np.testing.assert_array_equal(seeded.randomize_params(seed=3)["first.weight"], kept)
    backend.set_seed(3)
    np.testing.assert_array_equal(compiled.randomize_params()["first.weight"], kept)


def test_initializers_by_layer_and_pattern():
    table = np.arange(20.0).reshape(4, 5)
    chosen = {"last": "zeros", "*.bias": 0.5, "first.weight": table, "*.weight": ("uniform", 0.0)}
    params = ml.compile(network(), ml.NumpyBackend(), shapes=SHAPES, initializers=chosen).get_parameters()
    np.testing.assert_array_equal(params["first.weight"], table)
    assert params["last.bias"].any() == params["last.weight"].any() == params["norm.weight"].any() == False  # noqa: E712
    assert set(params["first.bias"]) == set(params["norm.bias"]) == {0.5}


def drawn(initializer, shape=(48, 40, 3, 3)):
    """Initial weights of a convolution, in float64."""
    out, inner, *window = shape
    model, backend = ml.Conv2d(out, tuple(window)), ml.NumpyBackend(dtype="float64", seed=5)
    shapes = {"input": [1, inner, 8, 8]}
    return ml.compile(model, backend, shapes=shapes, initializers={"weight": initializer}).get_parameters()["weight"]


@pytest.mark.parametrize("name", ["kaiming_uniform", "kaiming_normal", "xavier_uniform", "xavier_normal"])
def test_initializers_of_pytorch_draw_as_there(name):
    torch = pytest.importorskip("torch")
    theirs = getattr(torch.nn.init, f"{name}_")(torch.empty(48, 40, 3, 3, dtype=torch.float64)).numpy()
    ours = drawn(name)
    # Of 17,280 numbers, the deviation is known to half a percent, and the largest uniform ones are close to the bound.
    assert ours.std() == pytest.approx(theirs.std(), rel=0.03)
    assert abs(ours.mean()) < 4 * theirs.std() / ours.size**0.5
    if name.endswith("uniform"):
        assert np.abs(ours).max() == pytest.approx(np.abs(theirs).max(), rel=0.005)


@pytest.mark.parametrize("name", ["he_uniform", "he_normal", "glorot_uniform", "glorot_normal", "lecun_normal"])
def test_initializers_of_jax_draw_as_there(name):
    jax = pytest.importorskip("jax")
    initializer = getattr(jax.nn.initializers, name)(in_axis=1, out_axis=0)
    theirs = np.asarray(initializer(jax.random.key(3), (48, 40, 3, 3), "float32"), "float64")
    ours = drawn(name)
    assert ours.std() == pytest.approx(theirs.std(), rel=0.03)
    assert np.abs(ours).max() == pytest.approx(np.abs(theirs).max(), rel=0.005)


def test_initializers_with_numbers():
    assert np.abs(drawn(("truncated_normal", 0.5))).max() == pytest.approx(1.0, rel=0.005)
    out = drawn(("variance_scaling", 3.0, "fan_out", "uniform"))
    assert np.abs(out).max() == pytest.approx((9 / (48 * 9)) ** 0.5, rel=0.005)
    np.testing.assert_array_equal(drawn("fan_in"), drawn(("variance_scaling", 1 / 3, "fan_in", "uniform")))


@pytest.mark.parametrize("shape", [(6, 40, 3, 3), (48, 2, 3, 3), (18, 2, 3, 3)])
def test_orthogonal_initial_values(shape):
    matrix = drawn(("orthogonal", 2.0), shape).reshape(shape[0], -1)
    long = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    np.testing.assert_allclose(long.T @ long, 4 * np.eye(long.shape[1]), atol=1e-12)
    # Neither sign is preferred.
    assert (matrix > 0).mean() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    ("initializers", "message"),
    [
        ({"lst.*": "zeros"}, "fits no parameter"),
        ({"last": "zero"}, "did you mean 'zeros'"),
        ({"last": "normal"}, "without the standard deviation"),
        ({"last": ("normal", -1)}, "initializer of 'last'"),
        ({"last": "trunc_normal"}, "did you mean 'truncated_normal'"),
        ({"last": ("kaiming_norml", 2)}, "did you mean 'kaiming_normal'"),
        ({"last": ("variance_scaling", 2.0, "fan_it", "normal")}, "fan_in, fan_out, fan_avg"),
        ({"last": "variance_scaling"}, "without scale, fan and distribution"),
        ({"last": "orthogonal"}, "`last.bias` is orthogonal, but its shape .* has fewer than 2 axes"),
        ({"last": None}, "initializer of 'last'"),
        ({"last": float("nan")}, "initializer of 'last'"),
        (["last"], "initializers is a list"),
        ({"first.weight": np.zeros((2, 2))}, "has shape"),
    ],
)
def test_mistakes_in_initializers(initializers, message):
    with pytest.raises(ml.errors.MithrilError, match=message):
        ml.compile(network(), ml.NumpyBackend(), shapes=SHAPES, initializers=initializers).get_parameters()


# --- freezing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["compile", "fit", "optimizer", "step", "model"])
@pytest.mark.parametrize("name", KINDS)
def test_frozen_parameters_stay_as_they_are(name, where):
    backend, model = backend_of(name), network()
    if where == "model":
        model.set_differentiability({"first.weight": False, "first.bias": False})
    compiled = ml.compile(model, backend, shapes=SHAPES, **({"freeze": ["first.*"]} if where == "compile" else {}))
    assert "first.weight" in compiled.parameter_keys
    assert "first.weight" not in compiled.input_keys
    before = {key: np.array(backend.to_numpy(value)) for key, value in compiled.get_parameters().items()}
    optimizer = ml.optim.AdamW(0.1, weight_decay=0.1, **({"freeze": ["first"]} if where == "optimizer" else {}))
    inputs, target = examples()
    freeze = {"freeze": ["first.*"]}
    if where == "step":
        step = ml.train.TrainingStep(compiled, optimizer, loss="cross_entropy", **freeze)
        step({"input": inputs, "target": target})
    else:
        options = {"optimizer": optimizer, **(freeze if where == "fit" else {})}
        ml.train.fit(compiled, (inputs, target), progress=False, **options)
    changed = {key for key, value in compiled.parameters.items() if not np.array_equal(before[key], value)}
    assert changed == before.keys() - {"first.weight", "first.bias"}


def test_freezing_is_of_gradients_alone():
    compiled = ml.compile(network(), ml.NumpyBackend(), shapes=SHAPES, freeze=["first"])
    _, gradients = compiled.evaluate({}, {"input": examples()[0]}, {"output": np.ones((32, 3), "f4")})
    assert set(gradients) == {"norm.weight", "norm.bias", "last.weight", "last.bias"}
    assert not gradients["first.weight"].any()
    assert compiled.frozen_keys == ("first.weight", "first.bias")
    with pytest.raises(ml.errors.ParameterError, match=r"fits no parameter(.|\n)*did you mean 'first"):
        ml.compile(network(), ml.NumpyBackend(), freeze=["frst.*"])
    with pytest.raises(ml.errors.ConflictingOptionError, match="trainable_keys and by freeze"):
        ml.compile(network(), ml.NumpyBackend(), freeze=["first"], trainable_keys=["first.bias"])
    with pytest.raises(ml.errors.InvalidValueError, match="freeze is a string"):
        ml.compile(network(), ml.NumpyBackend(), freeze="first")


def test_partial_dicts():
    source = trained(ml.NumpyBackend())
    part = {key: value for key, value in source.parameters.items() if key.startswith("first")}
    compiled = ml.compile(network(), ml.NumpyBackend(), shapes=SHAPES)
    kept = compiled.get_parameters()["last.weight"].copy()
    with pytest.raises(ml.errors.ParameterError, match="strict=False"):
        compiled.load_params(part)
    compiled.load_params(part, strict=False)
    np.testing.assert_array_equal(compiled.parameters["first.weight"], part["first.weight"])
    np.testing.assert_array_equal(compiled.parameters["last.weight"], kept)
    with pytest.warns(ml.errors.UnusedKeyWarning, match="'head.weight'"):
        compiled.load_params({**part, "head.weight": kept}, strict=False)
    with pytest.raises(ml.errors.ParameterError, match="not in the model"):
        compiled.load_params({"head.weight": kept}, strict=False)


# --- what models and losses are made of -------------------------------------------------------------------------


@pytest.mark.parametrize("value", [2.0, [1.0, 2.0, 3.0], np.array([1.0, 2.0, 3.0])])
def test_a_value_that_is_learned_is_where_training_starts(value, tmp_path):
    x = ml.IOKey("input", shape=["batch", 3])
    model = ml.Model.create(output=x * ml.IOKey("scale", value=value, differentiable=True))
    ml.save(model, tmp_path / "model.json")
    for each in (model, ml.load(tmp_path / "model.json")):
        compiled = ml.compile(each, ml.NumpyBackend())
        inputs = np.random.default_rng(0).normal(size=(32, 3))
        assert compiled.parameter_keys == ("scale",)
        outputs = compiled.evaluate({}, {"input": inputs})["output"]
        np.testing.assert_allclose(outputs, inputs * value, rtol=1e-6)
        ml.train.fit(
            compiled, (inputs, 5 * inputs), loss="mse", optimizer=ml.optim.SGD(0.5), epochs=100, progress=False
        )
        np.testing.assert_allclose(compiled.parameters["scale"], 5, atol=1e-3)
    constant = np.asarray(value)
    fixed = ml.compile(ml.Model.create(output=x * ml.IOKey("scale", value=constant)), ml.NumpyBackend())
    assert fixed.parameter_keys == ()


def declared(style):
    x = ml.IOKey("input")
    if style == "create":
        return ml.Model.create(logits=ml.Linear(3)(x))
    model = ml.Model()
    model |= ml.Linear(3)(input="input", output="hidden")
    model += ml.Relu()(output="unused")
    model.set_outputs(logits=model.hidden)
    return model


@pytest.mark.parametrize("style", ["create", "set_outputs"])
def test_outputs_are_added_to_those_that_were_declared(style):
    model = declared(style)
    model |= ml.CrossEntropy()(input="logits", target="target", output=ml.IOKey("loss", expose=True))
    assert list(model.output_keys) == ["logits", "loss"]
    assert "logits" not in model.input_keys


@pytest.mark.parametrize("style", ["create", "set_outputs"])
def test_losses_and_metrics_of_every_kind(style):
    inputs, target = examples()
    expected = None
    for loss in ("cross_entropy", ml.CrossEntropy(), lambda logits, target: ml.CrossEntropy()(logits, target)):
        compiled = ml.compile(declared(style), ml.NumpyBackend())
        metrics = {"accuracy": "accuracy", "smooth": ml.CrossEntropy(label_smoothing=0.1), "again": ml.CrossEntropy()}
        history = ml.train.fit(compiled, (inputs, target), loss=loss, metrics=metrics, progress=False)
        expected = expected or history.epochs[0]
        assert history["loss"] == [expected["loss"]] == history["again"] != history["smooth"]
    smooth = ml.compile(declared(style), ml.NumpyBackend())
    loss = ml.CrossEntropy(label_smoothing=0.1)
    assert ml.train.fit(smooth, (inputs, target), loss=loss, progress=False)["loss"] == history["smooth"]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (ml.CrossEntropy, r"the class CrossEntropy(.|\n)*CrossEntropy\(\)"),
        (3, "the loss is a int"),
        ("crossentropy", "did you mean 'cross_entropy'"),
        (lambda o, t: 3.0, "returns a float"),
        (lambda o, t: o.mean(), "does not use 't'"),
        (lambda *all: all[0], "does not say by name"),
        (lambda o, t: (o - t) ** 2, "must be one number"),
        (ml.MSELoss(reduction="none"), "must be one number"),
    ],
)
def test_mistakes_in_losses(loss, message):
    compiled = ml.compile(declared("create"), ml.NumpyBackend())
    inputs = examples()[0]
    with pytest.raises((ml.errors.MithrilError, TypeError), match=message):
        ml.train.fit(compiled, (inputs, inputs[:, :3]), loss=loss, progress=False)


def set_whole(compiled, values):
    compiled.state = {**compiled.state, **values}


def set_in_place(compiled, values):
    compiled.state.update(values)


@pytest.mark.parametrize("assign", [set_whole, set_in_place])
@pytest.mark.parametrize("name", KINDS)
def test_a_state_that_was_set_is_used_or_refused(name, assign):
    source = trained(backend_of(name))
    backend = source.backend
    compiled = frozen(backend)
    measured = {key: source.state[key] for key in STATISTICS}
    expected = outputs(frozen(backend), dict(source.parameters))
    weights = {key: source.parameters[key] for key in source.parameter_keys}

    initial = compiled.randomize_params(seed=1)
    assign(compiled, measured)
    for params in ({**initial, **weights}, {**initial, **weights, **measured}, weights):
        for _ in range(2):
            np.testing.assert_allclose(outputs(compiled, params), expected, atol=2e-5)

    others = {key: value + 1 for key, value in measured.items()}
    with pytest.raises(ml.errors.ParameterError, match="the state of the model was set to others"):
        outputs(compiled, {**weights, **others})
    compiled.load_params({**weights, **others})
    shifted = outputs(compiled, {**weights, **others})
    assert not np.allclose(shifted, expected, atol=1e-3)


def test_training_goes_on_from_a_state_that_was_set():
    data, cotangents = {"input": examples()[0]}, {"output": np.ones((32, 3), "f4")}
    compiled = ml.compile(network(), ml.NumpyBackend(), shapes=SHAPES)
    params = compiled.randomize_params(seed=0)
    compiled.state = {**compiled.state, "norm.running_mean": np.full(4, 5, "f4")}
    compiled.evaluate(params, data, cotangents)
    first = compiled.state["norm.running_mean"]
    assert (first > 3).all(), "it started at 5"
    np.testing.assert_array_equal(params["norm.running_mean"], first)
    compiled.evaluate(params, data, cotangents)
    assert (compiled.state["norm.running_mean"] < first).all()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_copies_know_which_state_was_set(duplicate):
    compiled = frozen(ml.NumpyBackend())
    params = compiled.randomize_params(seed=0)
    compiled.state = {**compiled.state, "norm.running_mean": np.full(4, 5, "f4")}
    np.testing.assert_array_equal(outputs(duplicate(compiled), params), outputs(compiled, params))
    plain = {key: params[key] for key in compiled.parameter_keys}
    with pytest.raises(ml.errors.ParameterError, match="lacks the running statistics"):
        outputs(duplicate(frozen(ml.NumpyBackend())), plain)


@pytest.mark.parametrize("backend", [ml.NumpyBackend, ml.CBackend])
def test_a_training_step_uses_a_state_set_between_steps(backend):
    compiled = ml.compile(network(), backend(), shapes=SHAPES)
    inputs, labels = examples()
    step = ml.train.TrainingStep(compiled, ml.optim.SGD(0.0), loss=ml.CrossEntropy())
    step({"input": inputs, "target": labels})
    compiled.state = {**compiled.state, "norm.running_mean": np.full(4, 50, "f4")}
    step({"input": inputs, "target": labels})
    assert (compiled.state["norm.running_mean"] > 30).all()
