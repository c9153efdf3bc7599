"""What is asked for is done or refused: placements, devices, spellings that differ, sizes that do not fit."""

from __future__ import annotations

import subprocess
import sys

import mithril as ml
import pytest
from mithril.backends.parallel import data_parallel

FOUR_DEVICES = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax
import mithril as ml
from mithril.backends.parallel import data_parallel

model = ml.Model()
model |= ml.Linear(3, name="layer1")(input="input", output="hidden")
model |= ml.Linear(2, name="layer2")(input="hidden", output="output")
backend = ml.JaxBackend()
assert len(backend.devices) == 4, backend.devices
for placement in ({"layer1": 1, "layer2": 1}, {"layer2": 3}, {"layer1": 4}):
    try:
        backend.place_model(model, placement)
    except ml.errors.BackendUnavailableError as error:
        print(error)
    else:
        raise AssertionError(placement)
assert backend.place_model(model, {"layer1": 0, "layer2": 0}) is model
# On several devices it is a pipeline.
pipeline = ml.compile(backend.place_model(model, {"layer1": 0, "layer2": 1}), backend, shapes={"input": [2, 4]})
staged = pipeline.evaluate(pipeline.randomize_params(seed=0), {"input": backend.ones(2, 4)})["output"]
single = ml.compile(model, backend, shapes={"input": [2, 4]})
whole = single.evaluate(single.randomize_params(seed=0), {"input": backend.ones(2, 4)})["output"]
assert abs(staged - whole).max() < 1e-6
for backend in (ml.JaxBackend(device="cpu:1"), ml.JaxBackend(devices=["cpu:1"])):
    assert backend.place_model(model, {"layer1": 1, "layer2": 1}) is model
    compiled = ml.compile(model, backend, shapes={"input": [2, 4]})
    output = compiled.evaluate(compiled.randomize_params(seed=0), {"input": backend.ones(2, 4)})["output"]
    assert output.devices() == {jax.devices()[1]}, output.devices()
divided = data_parallel(lambda x, factor: (x * factor, x.sum()), backend=backend, num_devices=4)
x = backend.arange(8.0)
doubled, total = divided(x, 2.0)
assert doubled.tolist() == (2 * x).tolist() and float(total) == 28.0
assert len(doubled.sharding.device_set) == 4, doubled.sharding
try:
    divided(x[:6], 2.0)
except ml.errors.InvalidValueError as error:
    print(error)
try:
    data_parallel(lambda x: x, backend=backend, num_devices=8)
except ml.errors.BackendUnavailableError as error:
    print(error)
mesh = ml.JaxBackend(device_mesh=(2, 2))
assert str(mesh.layout) == "Layout(Mesh(data=2, model=2), batch='data', parameters='model')", mesh.layout
assert ml.JaxBackend(device_mesh=(1,)).layout is None
sharded = ml.JaxBackend(parallel_strategy="fully_sharded")
assert str(sharded.layout) == "Layout(Mesh(data=4), batch='data', parameters='data')", sharded.layout
two = ml.JaxBackend(parallel_strategy="data_parallel", devices=["cpu:2", "cpu:3"])
output = ml.compile(model, two, shapes={"input": [2, 4]})(two.ones(2, 4))
assert output.devices() == set(jax.devices()[2:]), output.devices()
"""


def layers():
    model = ml.Model()
    model |= ml.Linear(3, name="layer1")(input="input", output="hidden")
    model |= ml.Linear(2, name="layer2")(input="hidden", output="output")
    return model


def test_a_placement_on_another_device_is_refused_before_anything_runs():
    pytest.importorskip("jax")
    done = subprocess.run([sys.executable, "-c", FOUR_DEVICES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "layer 'layer1' is placed on device 1 (cpu:1)" in done.stdout
    assert "JaxBackend(device='cpu:1')" in done.stdout
    assert "a batch of 6 does not divide among 4 devices" in done.stdout
    assert "Mesh(data=8) has 8 devices; JAX finds 4" in done.stdout


def test_numbers_count_devices_of_the_kind_of_the_backend(monkeypatch):
    backend = ml.NumpyBackend()
    monkeypatch.setattr(type(backend), "devices", ("cpu", "cuda:0", "cuda:1"))
    assert backend.place_model(layers(), {"layer1": 0}) is not None
    assert data_parallel(backend.exp, backend=backend) == backend.exp
    with pytest.raises(ml.errors.BackendUnavailableError, match="finds cpu"):
        backend.place_model(layers(), {"layer1": 1})
    monkeypatch.setattr(backend, "device", "cuda:1")
    with pytest.raises(ml.errors.BackendUnavailableError, match=r"device 0 \(cuda:0\)"):
        backend.place_model(layers(), {"layer1": 0})
    assert backend.place_model(layers(), {"layer1": 1}) is not None


def test_a_list_of_one_device_is_that_device():
    pytest.importorskip("torch")
    assert ml.TorchBackend(devices=["cpu"]).device == "cpu"
    with pytest.raises(ml.errors.ConflictingOptionError, match="devices"):
        ml.TorchBackend(device="cpu", devices=["meta"])
    with pytest.raises(ml.errors.BackendUnavailableError):
        ml.TorchBackend(devices=["cuda:99"])


def test_a_tpu_on_pytorch_names_torch_xla():
    pytest.importorskip("torch")
    with pytest.raises(ml.errors.BackendUnavailableError) as caught:
        ml.TorchBackend(device="tpu")
    assert "torch_xla" in str(caught.value)
    assert "pip install" in str(caught.value)


@pytest.mark.parametrize("make", [ml.MlxBackend, ml.InterpreterBackend])
def test_int8_says_where_it_is_possible(make):
    pytest.importorskip({"MlxBackend": "mlx"}.get(make.__name__, "numpy"))
    with pytest.raises(TypeError) as caught:
        make(quantize="int8")
    for name in ("TorchBackend", "JaxBackend", "NumpyBackend", "CBackend", "GGMLBackend"):
        assert name in str(caught.value)


#: Two values that differ for each option of `compile` and of backends that has several spellings.
VALUES = {
    "dtypes": ({"input": "float32"}, {}),
    "inference": (True, False),
    "gradient_checkpointing": (True, False),
    "precision": ("float16", "bfloat16"),
    "dtype": ("float32", "float64"),
    "seed": (1, 0),
    "device": ("cpu", "other"),
    "jit": (True, False),
    "amp": (True, False),
    "memory_limit": (1000, "2KB"),
    "pre_allocate": (True, False),
}


def test_every_pair_of_spellings_of_an_option_conflicts_if_the_values_differ():
    from itertools import permutations

    from mithril.backends import options
    from mithril.compiled import compile as compiling

    for table, call in (
        (
            compiling.ALIASES,
            lambda **options: ml.compile(layers(), ml.NumpyBackend(), shapes={"input": [2, 4]}, **options),
        ),
        (options.ALIASES, lambda **spelled: options.normalize("Backend", spelled, tuple(options.ALIASES.values()))),
    ):
        for option in set(table.values()):
            spellings = [option, *(alias for alias, of in table.items() if of == option)]
            for one, other in permutations(spellings, 2):
                for first, second in permutations(VALUES[option]):
                    with pytest.raises(ml.errors.ConflictingOptionError):
                        call(**{one: first, other: second})
            same = {name: VALUES[option][1] for name in spellings if option != "precision"}
            call(**same)


def test_the_pages_quote_what_conflicts():
    for options in (
        {"inference": True, "static_inference": False},
        {"inference": False, "static_inference": True},
        {"checkpoint": True, "gradient_checkpointing": False},
        {"checkpoint": False, "gradient_checkpointing": True},
    ):
        with pytest.raises(ml.errors.ConflictingOptionError):
            ml.compile(layers(), ml.NumpyBackend(), shapes={"input": [2, 4]}, **options)


@pytest.mark.parametrize(
    ("layer", "shape", "words"),
    [
        (lambda: ml.Conv2d(4, 3), [1, 3, 2, 2], "kernel of conv2d spans 3"),
        (lambda: ml.Conv2d(4, 3), [None, 3, 2, 2], "kernel of conv2d spans 3"),
        (lambda: ml.Conv2d(4, 3), ["batch", 3, 2, 2], "kernel of conv2d spans 3"),
        (lambda: ml.Conv1d(4, 3), [1, 3, 2], "kernel of conv1d spans 3"),
        (lambda: ml.Conv2d(4, 3, dilation=3), [1, 3, 6, 6], "kernel of conv2d spans 7"),
        (lambda: ml.ConvTranspose2d(4, 3, padding=5), [1, 3, 2, 2], "size -6"),
        (lambda: behind(ml.MaxPool2d(3)), [None, 3, 4, 4], "kernel of max_pool2d spans 3"),
        (lambda: behind(ml.AvgPool2d(3)), [2, 3, 4, 4], "kernel of avg_pool2d spans 3"),
        (lambda: behind(ml.Reshape((5, 7))), [2, 3, 4, 4], "cannot be reshaped"),
        (lambda: behind(ml.PixelShuffle(3)), [2, 3, 4, 4], "pixel_shuffle"),
        (lambda: behind(ml.Conv2d(4, 5)), [2, 3, 4, 4], "kernel of conv2d spans 5"),
    ],
)
def test_what_does_not_fit_is_said_when_compiling_and_not_that_shapes_are_missing(layer, shape, words):
    with pytest.raises(ml.errors.ShapeError) as caught:
        ml.compile(layer(), ml.NumpyBackend(), shapes={"input": shape})
    assert not isinstance(caught.value, ml.errors.UnresolvedShapeError)
    assert words in str(caught.value)


def behind(layer):
    """Make a network with a layer behind a convolution, and one behind that whose sizes follow from it."""
    model = ml.Model()
    model |= ml.Conv2d(4, 3)(input="input")
    model += layer()
    model += ml.Flatten()()
    model += ml.Linear(3)(output="output")
    return model


def test_sizes_that_stay_open_are_not_refused():
    compiled = ml.compile(behind(ml.MaxPool2d(3)), ml.NumpyBackend(), shapes={"input": [None, 3, None, None]})
    with pytest.raises(ml.errors.UnresolvedShapeError):
        compiled.randomize_params()["linear.weight"]
    ml.compile(ml.Conv2d(4, 3), ml.NumpyBackend(), shapes={"input": [None, 3, None, None]}).randomize_params(seed=0)
