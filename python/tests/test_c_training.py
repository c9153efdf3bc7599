"""Training in C: a step as one program against gradients and optimizers of NumPy, one after the other."""

import re
import subprocess

import mithril as ml
import numpy as np
import pytest
from mithril.errors import MithrilError, NumericsError
from mithril.examples import digits_in_c

RULES = {
    "SGD": lambda: ml.optim.SGD(0.3, momentum=0.9),
    "Adam": lambda: ml.optim.Adam(0.1, groups={"*.bias": {"learning_rate_factor": 0.5}}),
}


def network():
    """Batch norm has states of its own. What stands before it has no bias, whose gradient would be noise."""
    model = ml.Model()
    model |= ml.Linear(7, use_bias=False)(input="input")
    model += ml.BatchNorm1d(7)
    model += ml.Gelu()
    model += ml.Linear(3)(output="logits")
    model |= ml.CrossEntropy()(input="logits", target="target", output="loss")
    return model


SHAPES, TYPES = {"input": [6, 5], "target": [6]}, {"target": "int64"}


def batch(seed=0):
    return {"input": np.random.default_rng(seed).standard_normal((6, 5)).astype(np.float32), "target": np.arange(6) % 3}


def compiled(backend, **options):
    return ml.compile(network(), backend, shapes=SHAPES, dtypes=TYPES, **options)


def states(model, optimizer):
    """All that a step changes, by the names of a training step."""
    slots = {f"{n}.{slot}": value for n, kept in optimizer.state.items() for slot, value in kept.items()}
    return {**model.parameters, **model.state, **slots}


def trained_by_numpy(optimizer, seeds):
    """Losses, and all that was changed."""
    model, losses = compiled(ml.NumpyBackend()), []
    for seed in seeds:
        outputs, gradients = model.evaluate(model.parameters, batch(seed), {"loss": 1.0})
        losses.append(float(outputs["loss"]))
        for name, value in optimizer.update(model.parameters, gradients).items():
            model.parameters[name] = value
    return losses, states(model, optimizer)


def close(actual, expected):
    assert actual.keys() >= expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("rule", RULES)
def test_a_step_is_one_program(rule):
    optimizer, seeds = RULES[rule](), (1, 2, 3)
    expected = trained_by_numpy(RULES[rule](), seeds)
    model = compiled(ml.CBackend())
    weight, first = model.parameters["linear_1.weight"], model.parameters["linear_1.weight"].copy()
    step = ml.train.TrainingStep(model, optimizer, loss="loss")
    assert step.is_fused(batch())
    losses = [float(step(batch(seed))["loss"]) for seed in seeds]
    np.testing.assert_allclose(losses, expected[0], rtol=1e-5)
    close(states(model, optimizer), expected[1])
    # The parameters are changed where they lie, and the optimizer counts.
    assert model.parameters["linear_1.weight"] is weight
    assert not np.array_equal(weight, first)
    assert optimizer.steps == 3
    # What was learned goes on in the ordinary way, and back.
    outputs, gradients = model.evaluate(model.parameters, batch(), {"loss": 1.0})
    for name, value in optimizer.update(model.parameters, gradients).items():
        model.parameters[name] = value
    losses += [float(outputs["loss"]), float(step(batch(4))["loss"])]
    expected = trained_by_numpy(RULES[rule](), (1, 2, 3, 0, 4))
    np.testing.assert_allclose(losses, expected[0], rtol=1e-4)
    close(states(model, optimizer), expected[1])


def test_a_step_that_fails_changes_nothing():
    model, optimizer = compiled(ml.CBackend()), ml.optim.Adam(0.1)
    step = ml.train.TrainingStep(model, optimizer, loss="loss")
    step(batch())
    before = {name: value.copy() for name, value in states(model, optimizer).items()}
    with pytest.raises(MithrilError):
        step({**batch(), "target": np.full(6, 7)})
    after = states(model, optimizer)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert optimizer.steps == 1


def test_fit_takes_steps_in_c_and_keeps_what_there_was_if_it_fails():
    data = {"input": np.concatenate([batch(seed)["input"] for seed in range(4)]), "target": np.arange(24) % 3}
    histories = []
    for backend in (ml.CBackend(), ml.NumpyBackend()):
        model = compiled(backend)
        history = ml.train.fit(model, data, epochs=3, batch_size=6, optimizer=ml.optim.Adam(0.01), progress=False)
        histories.append(history["loss"])
    np.testing.assert_allclose(*histories, rtol=1e-4)
    data["input"][13] = np.nan
    for backend in (ml.CBackend(), ml.NumpyBackend()):
        model = compiled(backend)
        before = {name: value.copy() for name, value in model.parameters.items()}
        assert before.keys() > set(model.parameter_keys), "statistics are among them"
        with pytest.raises(NumericsError):
            ml.train.fit(model, data, batch_size=6, shuffle=False, progress=False)
        assert all(np.array_equal(before[name], model.parameters[name]) for name in before)


@pytest.mark.parametrize("rule", RULES)
def test_a_training_step_is_exported(tmp_path, rule):
    model = compiled(ml.NumpyBackend())
    # With a rate that changes much, so that the loss of the third step tells whether the steps before were right.
    exported = model.export(tmp_path, prefix="step", data=batch(), optimizer=RULES[rule](), loss="loss")
    assert exported.check.splitlines()[-1] == "ok"
    # What the optimizer remembers and the parameter are written together, each in one loop.
    source = (tmp_path / "step.c").read_text()
    comments = [" ".join(text.split()) for text in re.findall(r"/\*(.*?)\*/", source, re.S)]
    assert all(text.endswith("element by element in one pass.") for text in comments if text.startswith("new_param_"))
    calls = re.findall(r"step_new_param_\d+\(([^()]*)\);", " ".join(source.split()))
    for name in model.parameter_keys:
        (update,) = (call for call in calls if f" {name.replace('.', '_')}," in call)
        assert update.count(f"{name.replace('.', '_')}_") == {"SGD": 1, "Adam": 2}[rule]
    header = (tmp_path / "step.h").read_text()
    listed = re.findall(r"^     (\d+): (\S+), (\w+) (\[.*\])$", header[header.index("parameter or state") :], re.M)
    sizes = [np.dtype(kind).itemsize * int(np.prod(eval(shape))) for _, _, kind, shape in listed]
    dump = f"""const size_t sizes[] = {{{", ".join(map(str, sizes))}}};
      FILE *out = fopen("states", "wb");
      for (int i = 0; i < {len(sizes)}; i++) fwrite(step_weight(model, i), 1, sizes[i], out);
      fclose(out);
      clock_t start"""
    main = (tmp_path / "main.c").read_text()
    assert "CALLS = 3 }" in main
    assert "clock_t start" in main
    (tmp_path / "main.c").write_text(main.replace("CALLS = 3 }", "CALLS = 2 }").replace("clock_t start", dump))
    subprocess.run(["make", "-s", "check", "CFLAGS=-O1"], cwd=tmp_path, check=True)
    # One step is missing.
    assert subprocess.run(["./check"], cwd=tmp_path, stdout=subprocess.DEVNULL).returncode == 1
    raw, states = (tmp_path / "states").read_bytes(), {}
    for (_, name, kind, shape), size in zip(listed, sizes, strict=True):
        states[name], raw = np.frombuffer(raw[:size], kind).reshape(eval(shape)), raw[size:]
    close(states, trained_by_numpy(RULES[rule](), (0, 0))[1])


def test_gradients_of_largest_elements_go_to_the_first():
    # Windows that overlap, edges, elements that are equal, and NaN; lines long enough for vectors.
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 4, (2, 2, 21, 40)).astype(np.float32)
    x[0, 0, 5:9, 20:22] = np.nan
    x[1] = -np.inf
    for options in ({"stride": 2, "padding": 1}, {"stride": 1, "padding": 1}, {"stride": 3}, {"stride": 2}):
        model = ml.Model()
        image = ml.IOKey("image", shape=[*x.shape], differentiable=True)
        model |= ml.MaxPool2d(3, **options)(input=image, output="output")
        gradients = []
        for backend in (ml.CBackend(), ml.NumpyBackend()):
            pm = ml.compile(model, backend)
            output = pm.evaluate({"image": x})["output"]
            weights = np.arange(output.size, dtype=np.float32).reshape(output.shape) % 7 + 1
            gradients.append(pm.evaluate({"image": x}, {}, {"output": weights})[1]["image"])
        np.testing.assert_array_equal(*gradients)


def test_places_of_extremes_along_other_axes():
    x = np.random.default_rng(0).integers(-9, 9, (30, 70)).astype(np.float32)
    x[7:9, 3:40] = np.nan
    for kind in (np.float32, np.int32):
        values = np.nan_to_num(x).astype(kind) if kind == np.int32 else x
        for name, expected in (("argmax", np.argmax), ("argmin", np.argmin)):
            np.testing.assert_array_equal(getattr(ml.CBackend(), name)(values, axis=0), expected(values, axis=0), name)


def test_digits_are_learned_in_c_as_in_numpy(tmp_path):
    train, test = digits_in_c.batches()
    actual, expected = digits_in_c.train_in_c(tmp_path, train), digits_in_c.train_in_python(train)
    assert len(actual.losses) == digits_in_c.EPOCHS * digits_in_c.BATCHES
    # Rounding grows with every step.
    np.testing.assert_allclose(actual.losses[:20], expected.losses[:20], rtol=1e-5)
    np.testing.assert_allclose(actual.losses, expected.losses, rtol=1e-2)
    assert digits_in_c.accuracy(actual.params, test) > 0.95


def test_gradients_of_weights_where_images_are_parts_of_larger_ones():
    """What a convolution reads, or the gradient of its result, may be the beginning of the rows of another tensor."""
    model = ml.Model()
    # Of the first two the gradients of results are parts of larger images, of the last one the image is.
    for name, stride in (("strided", 2), ("padded", 1)):
        model |= ml.Convolution2D(filters=16, kernel_size=3)(input="input", output=f"{name}_first")
        model |= ml.Pad(((0, 0), (0, 0), (0, 1), (0, 1)))(input=f"{name}_first", output=f"{name}_pad")
        output = ml.IOKey(name, expose=True)
        model |= ml.Convolution2D(filters=16, kernel_size=3, stride=stride)(input=f"{name}_pad", output=output)
    model |= ml.Convolution2D(filters=16, kernel_size=3)(input="input", output="cropped_first")
    model |= ml.Slice((None, None, 0, 0), (None, None, 7, 6))(input="cropped_first", output="cropped_part")
    model |= ml.Convolution2D(filters=16, kernel_size=3)(input="cropped_part", output=ml.IOKey("cropped", expose=True))
    data = {"input": np.random.default_rng(0).standard_normal((2, 16, 10, 10)).astype(np.float32)}
    results = []
    for backend in (ml.NumpyBackend(), ml.CBackend(num_threads=1)):
        own = ml.compile(model, backend, shapes={"input": [2, 16, 10, 10]})
        params = own.randomize_params(seed=0)
        outputs = own.evaluate(params, data)
        assert list(outputs) == ["strided", "padded", "cropped"]
        directions = {k: np.cos(np.arange(v.size, dtype=np.float32)).reshape(v.shape) for k, v in outputs.items()}
        results.append(own.evaluate(params, data, directions)[1])
    close(results[1], results[0])


def test_gradients_are_named_in_the_source():
    model = ml.Model()
    model |= ml.Linear(3)(input="input", output="hidden")
    model += ml.Tanh()(output="output")
    source = ml.compile(model, ml.CBackend(), shapes={"input": [2, 5]}).gradient_source
    for line in (
        "inputs[3]: float[2][3] cotangent:output",
        "outputs[0]: float[2][3] output",
        "outputs[1]: float[3][5] gradient:linear.weight",
        "outputs[2]: float[3] gradient:linear.bias",
    ):
        assert f"   {line}\n" in source
