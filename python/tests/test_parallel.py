"""Several devices: layouts, plans, the virtual mesh, and the engines of all backends in processes of their own."""

import importlib.util
import os
import subprocess
import sys
import warnings
from pathlib import Path

import mithril as ml
import numpy as np
import pytest
from mesh_program import check, check_local_statistics, check_reductions, convolutional, perceptron
from mithril import errors

PROGRAM = Path(__file__).parent / "mesh_program.py"


def test_virtual_meshes_agree_with_one_device():
    check("interpreter", 4)
    check_reductions("interpreter", 4)


def test_local_statistics_are_those_of_the_parts():
    # Parameters of the norm are summed, as all are; forward, only the new running statistics are exchanged.
    compiled = check_local_statistics("interpreter", 4)
    plan = ml.plan(compiled, compiled.parallel_plan.layout)
    assert [(c.op, c.axis) for c in plan.communications] == [("all_reduce", "data")] * 2
    assert {"norm"} == {c.path for c in plan.communications}


def test_local_statistics_with_divided_channels():
    """Two parts of the batch, each with its own statistics, on two devices each."""
    layout = ml.Layout(ml.Mesh(data=2, model=2), batch="data", parameters="model", batch_statistics="local")
    model, data = convolutional()
    compiled = ml.compile(model, ml.InterpreterBackend(), layout=layout, shapes={"input": [8, 2, 8, 8]})
    single = ml.compile(model, ml.NumpyBackend(), shapes={"input": [4, 2, 8, 8]})
    params = single.randomize_params(seed=1)
    params = {key: value for key, value in params.items() if "running" not in key}
    expected = [single.evaluate(params, {"input": part})["output"] for part in np.split(data["input"], 2)]
    actual = compiled.evaluate(params, data)["output"]
    np.testing.assert_allclose(actual, np.concatenate(expected), rtol=1e-5, atol=1e-6)


def test_a_training_with_local_statistics_is_that_of_the_parts():
    model, data = convolutional()
    x, target = data["input"], np.arange(8) % 4
    layout = ml.Layout(ml.Mesh(data=2), batch="data", batch_statistics="local")
    compiled = ml.compile(model, ml.InterpreterBackend(), layout=layout)
    single = ml.compile(model, ml.NumpyBackend(), shapes={"input": [4, 2, 8, 8]})
    params = {key: value for key, value in single.randomize_params(seed=1).items() if "running" not in key}
    compiled.load_params({**params, "norm.running_mean": np.zeros(8, np.float32), "norm.running_var": np.ones(8)})
    step = ml.train.TrainingStep(compiled, ml.optim.SGD(0.5), loss="cross_entropy")
    for _ in range(2):
        outputs = step({"input": x, "target": target})
        losses, gradients = [], []
        for half in (slice(0, 4), slice(4, 8)):
            logits = single.evaluate(params, {"input": x[half]})["output"]
            scaled = np.exp(logits - logits.max(1, keepdims=True))
            shares = scaled / scaled.sum(1, keepdims=True)
            losses.append(-np.log(shares[np.arange(4), target[half]]).mean())
            seed = (shares - np.eye(4, dtype=np.float32)[target[half]]) / 8
            gradients.append(single.evaluate(params, {"input": x[half]}, {"output": seed})[1])
        np.testing.assert_allclose(outputs[step.loss], np.mean(losses), rtol=1e-5)
        params = {key: value - 0.5 * sum(part[key] for part in gradients) for key, value in params.items()}
    for key, value in params.items():
        np.testing.assert_allclose(step.params[key], value, rtol=1e-4, atol=1e-5, err_msg=key)


def test_mistakes_with_local_statistics():
    mesh = ml.Mesh(data=4)
    with pytest.raises(errors.InvalidValueError, match="divides no batch"):
        ml.Layout(mesh, parameters="data", batch_statistics="local")
    with pytest.raises(errors.InvalidValueError, match=r"'device'.*\n.*\"whole\" or \"local\""):
        ml.Layout(mesh, batch="data", batch_statistics="device")
    layout = ml.Layout(mesh, batch="data", batch_statistics="local")
    model, data = convolutional()
    compiled = ml.compile(model, ml.InterpreterBackend(), layout=layout)
    with pytest.raises(errors.ShapeError, match="6 examples of batch_norm do not divide into 4 groups") as caught:
        compiled.evaluate(compiled.get_parameters(), {"input": data["input"][:6]})
    assert "multiple of 4" in caught.value.hint
    with pytest.raises(errors.ShapeError, match="one value per channel of each of 4 groups"):
        ml.compile(ml.BatchNorm1d(), ml.InterpreterBackend(), layout=layout, shapes={"input": [4, 3]})


def launched(name, devices, *rest):
    """The command that runs the program on so many devices, and its environment."""
    program = [str(PROGRAM), name.partition(" ")[0], str(devices), *map(str, rest)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    if name == "jax":
        flags = f"--xla_force_host_platform_device_count={devices} {os.environ.get('XLA_FLAGS', '')}"
        return [sys.executable, *program], {**environment, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    if name == "torch by torchrun":
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={devices}"]
        return [*run, *program], environment
    engine = {"numpy": "mpi", "jax processes": "jax"}.get(name, name)
    run = [sys.executable, "-m", "mithril", "launch", "-n", str(devices), "--engine", engine]
    return [*run, *program], {**environment, "JAX_PLATFORMS": "cpu"}


ENGINES = [("jax", "jax", 4), ("torch", "torch", 2), ("numpy", "mpi4py", 4), ("mlx", "mlx", 2)]
if "MITHRIL_TEST_ALL" in os.environ:
    ENGINES += [("torch by torchrun", "torch", 2), ("jax processes", "jax", 2)]


@pytest.mark.parametrize(("name", "module", "devices"), ENGINES)
def test_engines_agree_with_one_device(name, module, devices, tmp_path):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    command, environment = launched(name, devices, *([] if name == "jax" else [tmp_path]))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert "agrees" in done.stdout, done.stdout[-4000:] + done.stderr[-4000:]


FAULTS = [("numpy", "mpi4py", "silence")]
if "MITHRIL_TEST_ALL" in os.environ:
    FAULTS += [("torch", "torch", "fault"), ("torch", "torch", "silence"), ("jax processes", "jax", "fault")]
    FAULTS += [("numpy", "mpi4py", "fault"), ("mlx", "mlx", "fault")]


@pytest.mark.parametrize(("name", "module", "fault"), FAULTS)
def test_processes_do_not_wait_for_one_that_is_gone(name, module, fault):
    command, environment = launched(name, 2, fault)
    if importlib.util.find_spec(module.partition(" ")[0]) is None:
        pytest.skip(f"{module} is not installed")
    environment["MITHRIL_MESH_TIMEOUT"] = "3"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    text = done.stdout + done.stderr
    assert "agrees" not in text
    assert ("a mistake of the user" if fault == "fault" else "does not answer") in text, text[-4000:]


MEGATRON = ml.Layout(ml.Mesh(data=2, model=4), {"up.*": "model", "down.weight": (None, "model")}, batch="data")


def test_the_known_optimum_of_two_linear_layers_is_found():
    layout = ml.Layout(ml.Mesh(model=4), {"up.*": "model", "down.weight": (None, "model")})
    block = ml.Model()
    block |= ml.Linear(64, name="up")(input="input")
    block += ml.Gelu()
    block += ml.Linear(16, name="down")(output="output")
    plan = ml.plan(block, layout, shapes={"input": [32, 16]})
    assert [c.op for c in plan.communications] == ["all_reduce"]
    assert plan.bytes_sent == 2 * 32 * 16 * 4 * 3 // 4
    # Data parallelism reduces each gradient once, and nothing else.
    plan = ml.plan(block, ml.Mesh(data=4), shapes={"input": [32, 16]}, gradients=True)
    assert [c.op for c in plan.communications] == ["all_reduce"] * 4
    assert plan.bytes_sent == 2 * (64 * 16 + 64 + 16 * 64 + 16) * 4 * 3 // 4
    # Fully sharded: parameters are gathered, the gradients of what is divided are reduced in parts.
    plan = ml.plan(
        block, ml.Layout(ml.Mesh(data=4), batch="data", parameters="data"), shapes={"input": [512, 16]}, gradients=True
    )
    assert sorted(c.op for c in plan.communications) == ["all_gather"] * 2 + ["all_reduce"] * 2 + ["reduce_scatter"] * 2
    assert plan.memory["parameters"] == (2 * 64 * 16 // 4 + 64 + 16) * 4


def test_a_plan_is_printed():
    model, data = perceptron()
    plan = ml.plan(model, MEGATRON, shapes={"input": list(data["input"].shape)}, gradients=True)
    text = str(plan)
    assert "all_reduce" in text
    assert "model (4)" in text
    assert "each of 8 devices sends" in text
    assert "8 devices" in plan.to_markdown()
    compiled = ml.compile(model, ml.InterpreterBackend(), layout=MEGATRON, shapes={"input": [8, 12]})
    assert str(ml.plan(compiled, gradients=True)) == text


def test_softmax_over_a_divided_axis_keeps_the_logits_where_they_are():
    model = ml.Model()
    model |= ml.Softmax(-1)(input="input", output="output")
    layout = ml.Layout(ml.Mesh(model=4), {"input": (None, "model")})
    plan = ml.plan(model, layout, shapes={"input": [8, 4096]})
    assert {c.op for c in plan.communications} == {"all_reduce"}
    assert plan.bytes_sent == 2 * 2 * 8 * 4 * 3 // 4


def linear():
    model = ml.Model()
    model |= ml.Linear(6, name="layer")(input="input", output="output")
    return model


MISTAKES = [
    (lambda: ml.Mesh(), errors.InvalidValueError, "a mesh without axes"),
    (lambda: ml.Mesh(data=0), errors.InvalidValueError, "size 0"),
    (lambda: ml.Mesh(data=2.0), errors.InvalidValueError, "size 2.0"),
    (lambda: ml.Layout("data"), errors.InvalidValueError, "is not a mesh"),
    (lambda: ml.Layout(ml.Mesh(data=2), batch="date"), errors.InvalidValueError, "did you mean 'data'"),
    (lambda: ml.Layout(ml.Mesh(data=2), {"w": ("data", "data")}), errors.InvalidValueError, "twice"),
    (lambda: ml.Layout(ml.Mesh(data=2), {"w": ("x",)}), errors.InvalidValueError, "which Mesh(data=2) does not have"),
    (
        lambda: ml.plan(linear(), ml.Mesh(data=4), shapes={"input": [6, 3]}),
        errors.InvalidValueError,
        "axis 0 of `input`, f32[6, 3], does not divide into 4 parts",
    ),
    (
        lambda: ml.plan(linear(), ml.Layout(ml.Mesh(m=2), {"layer.wight": "m"}), shapes={"input": [6, 3]}),
        errors.InvalidValueError,
        "did you mean `layer.weight`",
    ),
    (
        lambda: ml.plan(linear(), ml.Layout(ml.Mesh(m=2), {"layer.bias": (None, "m")}), shapes={"input": [6, 3]}),
        errors.InvalidValueError,
        "has 2 axes, the tensor f32[6] has 1",
    ),
    (lambda: ml.plan(linear(), ml.Mesh(data=2)), errors.UnresolvedShapeError, "shapes"),
    (lambda: ml.plan(linear(), ml.Mesh(data=2), shapes={"input": ["b", 3]}), errors.UnresolvedShapeError, "not known"),
    (lambda: ml.plan(linear(), 4, shapes={"input": [6, 3]}), errors.InvalidValueError, "4 is not a layout"),
    (lambda: ml.compile(linear(), ml.NumpyBackend(), layout=4), errors.InvalidValueError, "4 is not a layout"),
    (
        lambda: ml.compile(linear(), ml.CBackend(), layout=ml.Mesh(data=2)),
        errors.BackendUnavailableError,
        "CBackend calls C in one process",
    ),
    (
        lambda: ml.compile(linear(), ml.TorchBackend(), layout=ml.Mesh(data=2), autodiff="native"),
        errors.ConflictingOptionError,
        "gradient graph",
    ),
    (
        lambda: ml.compile(linear(), ml.InterpreterBackend(), layout=ml.Mesh(data=1 << 30)),
        errors.BackendUnavailableError,
        "a virtual mesh at most 1024",
    ),
    (
        lambda: ml.compile(linear(), ml.NumpyBackend(quantize="int8"), layout=ml.Mesh(data=2), inference=True),
        errors.ConflictingOptionError,
        "weights in 8 bits",
    ),
    (
        lambda: ml.compile(linear(), ml.TorchBackend(), layout=ml.Mesh(data=2)),
        errors.BackendUnavailableError,
        "mithril launch -n 2 script.py",
    ),
    (
        lambda: ml.compile(linear(), ml.JaxBackend(), layout=ml.Mesh(data=4096)),
        errors.BackendUnavailableError,
        "--xla_force_host_platform_device_count=4096",
    ),
]


@pytest.mark.parametrize(("call", "kind", "text"), MISTAKES)
def test_mistakes(call, kind, text):
    for name in ("torch", "jax"):
        if name in str(text) and importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    with pytest.raises(kind) as caught:
        call()
    assert text in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("sizes", [[6], [8, 6]])
def test_a_batch_that_does_not_divide_is_padded(sizes):
    compiled = ml.compile(linear(), ml.InterpreterBackend(), layout=ml.Mesh(data=4))
    params = ml.compile(linear(), ml.NumpyBackend(), shapes={"input": [4, 3]}).randomize_params(seed=0)
    for size in sizes:
        x = np.random.default_rng(0).standard_normal((size, 3)).astype(np.float32)
        expected = ml.compile(linear(), ml.NumpyBackend()).evaluate(params, {"input": x}, True)
        with warnings.catch_warnings():
            warnings.simplefilter("error", errors.PartitionWarning)
            actual = compiled.evaluate(params, {"input": x}, True)
        np.testing.assert_allclose(actual[0]["output"], expected[0]["output"], rtol=1e-5)
        np.testing.assert_allclose(actual[1]["layer.weight"], expected[1]["layer.weight"], rtol=1e-5)


def test_a_batch_that_cannot_be_padded_is_computed_by_every_device():
    model = ml.Model()
    model |= ml.Softmax(axis=0)(input="input", output="output")
    x = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    compiled = ml.compile(model, ml.InterpreterBackend(), layout=ml.Mesh(data=4))
    compiled.evaluate({}, {"input": np.ones((8, 3), np.float32)})
    with pytest.warns(errors.PartitionWarning, match=r"does not divide into 4 parts .* every device computes"):
        actual = compiled.evaluate({}, {"input": x})
    expected = ml.compile(model, ml.NumpyBackend()).evaluate({}, {"input": x})
    np.testing.assert_allclose(actual["output"], expected["output"], rtol=1e-5)
    # What is fixed is not made larger: the error says what fits.
    with pytest.raises(errors.InvalidValueError, match=r"axis 0 of `input`.* does not divide into 4 parts") as caught:
        ml.compile(model, ml.InterpreterBackend(), layout=ml.Mesh(data=4), shapes={"input": [6, 3]})
    assert "such as 8" in caught.value.hint


def with_statistics():
    """Statistics over the batch, and random numbers for each example."""
    model = ml.Model()
    model |= ml.Conv2d(4, 3, bias=False, name="conv")(input="input", output="hidden")
    model += ml.BatchNorm2d(name="norm")
    model += ml.Relu()
    model += ml.Dropout(0.3)
    model += ml.Flatten()
    model += ml.Linear(4, name="head")(output="output")
    return model, {"input": [3, 5, 5]}, 4, []


def recurrent():
    model = ml.Model()
    model |= ml.LSTM(6, length=5, batch_first=True, name="lstm")(input="input", output="hidden")
    model |= ml.Linear(4, name="head")(input="hidden", output="output")
    return model, {"input": [5, 3]}, None, [5, 4]


def transformer():
    model = ml.models.create_gpt(vocab_size=16, num_layers=1, num_heads=2, dims=8, block_size=6)
    return model, {"input": [6]}, 16, [6]


@pytest.mark.parametrize(
    ("build", "loss"), [(with_statistics, "cross_entropy"), (recurrent, "mse"), (transformer, "token_cross_entropy")]
)
def test_a_training_with_batches_that_do_not_divide_is_that_of_one_device(build, loss):
    model, shapes, classes, target = build()
    random = np.random.default_rng(1)
    data = {"input": random.standard_normal((11, *shapes["input"])).astype(np.float32)}
    if build is transformer:
        data["input"] = random.integers(0, 16, (11, 6))
    labels = random.integers(0, classes, (11, *target)) if classes else random.standard_normal((11, *target))
    data["target"] = labels if classes else labels.astype(np.float32)
    histories = []
    for layout in (None, ml.Mesh(data=4), ml.Layout(ml.Mesh(data=2, model=2), batch="data", parameters="model")):
        backend = ml.NumpyBackend(seed=3) if layout is None else ml.InterpreterBackend(seed=3)
        compiled = ml.compile(model, backend, layout=layout)
        with warnings.catch_warnings():
            warnings.simplefilter("error", errors.PartitionWarning)
            history = ml.train.fit(
                compiled,
                data,
                loss=loss,
                optimizer=ml.optim.AdamW(0.01),
                epochs=2,
                batch_size=8,
                drop_last=False,
                validation={name: array[:7] for name, array in data.items()},
                progress=False,
            )
        histories.append([*history.batches["loss"], *history["val_loss"]])
    for history in histories[1:]:
        np.testing.assert_allclose(history, histories[0], rtol=1e-5)
