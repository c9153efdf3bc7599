"""Checklist C: the interface of backends."""

import functools
import importlib
from abc import ABC

import mithril as ml
import numpy as np
import pytest
from checklist import ROOT, Page, Proven, constructs, unchanged_jax
from checklist_deployment import memory_is_known, models_are_not_used_up
from documented import available, backend, inputs, reference_results
from networks import classifier


def import_path(path, name):
    def program():
        kind = getattr(importlib.import_module(f"mithril.backends.{path}"), name)
        assert kind is getattr(ml, name) is getattr(ml.backends, name)
        assert issubclass(kind, ml.backends.backend.Backend)

    return program


def abstract_base():
    from mithril.backends.backend import Backend

    assert issubclass(Backend, ABC)
    assert {"tensor", "zeros", "ones"} <= vars(Backend).keys()


def creators():
    for name in available():
        used = backend(name)
        for array in (used.zeros((2, 3), "int64"), used.zeros(2, 3, dtype="int64"), used.zeros([2, 3], dtype=np.int64)):
            assert (used.shape(array), used.dtype(array)) == ((2, 3), "int64")
        assert used.shape(used.ones(3, 4)) == (3, 4)
        assert used.dtype(used.ones((3, 4))) == "float32"
        for dtype in ("float32", ml.float32, np.float32, float):
            assert used.dtype(used.tensor([1, 2, 3], dtype=dtype)) == "float32"


def logical_models():
    from mithril.models import LogicalModel

    assert LogicalModel is ml.Model
    assert isinstance(classifier(), LogicalModel)


def method_form_of_compile():
    for name in available():
        physical_model = classifier().compile(backend(name, seed=1), jit=False, shapes={"input": ["batch", 5]})
        output = physical_model(inputs(2, 5))
        np.testing.assert_allclose(np.asarray(output), reference_results("classifier")[0], rtol=1e-4, atol=1e-6)


def options_of_jax():
    used = constructs("jax", needs="platform", jit_compile=True, platform="gpu", precision="float32")
    assert used.jit is True
    assert used.default_dtype == "float32"


def options_of_torch():
    used = constructs("torch", needs="device", device="cuda", use_amp=True, compile=True)
    assert used.jit is True
    assert used.precision is not None


def options_of_mlx():
    used = constructs("mlx", seed=42, default_dtype="float16")
    assert used.default_dtype == "float16"
    np.testing.assert_array_equal(
        used.to_numpy(used.randn(3)), used.to_numpy(constructs("mlx", random_seed=42, dtype="float16").randn(3))
    )
    with pytest.raises(ml.errors.ConflictingOptionError, match=r"seed.*random_seed"):
        ml.MlxBackend(seed=1, random_seed=2)


def devices_can_be_set():
    for name in available():
        used = backend(name)
        for method in ("set_platform", "set_device", "set_default_device"):
            getattr(used, method)("cpu")
            with pytest.raises(ml.errors.BackendUnavailableError):
                getattr(used, method)("cuda:63")
            assert used.device.startswith("cpu")


def x64():
    if not available(("jax",)):
        pytest.skip("jax is not installed")
    with unchanged_jax():
        ml.JaxBackend().enable_x64()
        import jax.numpy as jnp

        assert jnp.ones(1, dtype="float64").dtype == "float64"


def deterministic():
    if not available(("torch",)):
        pytest.skip("torch is not installed")
    import torch

    try:
        ml.TorchBackend().enable_deterministic()
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def operations():
    for name in available():
        used = backend(name)
        x = used.tensor([1, 2, 3], dtype="float32")
        y = used.tensor([4, 5, 6], dtype="float32")
        z, w = used.add(x, y), used.matmul(x, y)
        a, b = used.relu(z), used.sigmoid(w)
        c, d = used.reduce_sum(a), used.reduce_mean(b)
        np.testing.assert_array_equal(used.to_numpy(z), [5, 7, 9])
        assert (float(w), float(c)) == (32.0, 21.0)
        np.testing.assert_allclose(float(d), 1 / (1 + np.exp(-32.0)), rtol=1e-6)


def conversions():
    for name in available():
        used = backend(name)
        tensor = used.from_numpy(np.arange(6.0).reshape(2, 3))
        np.testing.assert_array_equal(used.to_numpy(tensor), np.arange(6.0).reshape(2, 3))
        shape, dtype = used.shape(tensor), used.dtype(tensor)
        assert shape == (2, 3)
        assert all(type(n) is int for n in shape)
        assert dtype == "float32" == str(dtype)
        assert dtype is ml.float32 or dtype == ml.float32


def random_numbers():
    first = ml.NumpyBackend(seed=42).random_normal(shape=(3, 4), mean=0.0, stddev=1.0)
    for name in available():
        used = backend(name)
        used.set_seed(42)
        drawn = used.to_numpy(used.random_normal(shape=(3, 4), mean=0.0, stddev=1.0))
        np.testing.assert_allclose(drawn, first, rtol=1e-5, atol=1e-6)
        used.set_seed(42)
        np.testing.assert_array_equal(used.to_numpy(used.randn(3, 4)), drawn)


def gradient_of_a_function():
    for name in available():
        used = backend(name)
        grad_f = used.grad(lambda x, b=used: b.reduce_sum(b.power(x, 2)))
        grad_x = grad_f(used.tensor([1.0, 2.0, 3.0]))
        assert str(used.to_numpy(grad_x)) == "[2. 4. 6.]"


def data_parallel_of_one():
    from mithril.backends.with_autograd.jax_backend.parallel import data_parallel

    used = backend("jax")
    parallel_fn = data_parallel(used.exp, backend=used, num_devices=1)
    np.testing.assert_array_equal(used.to_numpy(parallel_fn(used.zeros(3))), [1, 1, 1])


def layers():
    model = ml.Model()
    model |= ml.Linear(4, name="layer1")(input="input")
    model += ml.Linear(4, name="layer2")(output="output")
    return model


def placement_of_one():
    for name in available():
        model = layers()
        assert backend(name).place_model(model, {"layer1": 0, "layer2": 0}) is model
        with pytest.raises(ml.errors.KeyNotFoundError, match="layer"):
            backend(name).place_model(model, {"layer3": 0})


def backends_of_users():
    class MyCustomBackend(ml.Backend):
        def __init__(self, *args, **kwargs):
            super().__init__()

        def tensor(self, data, dtype=None):
            return np.array(data, dtype=dtype)

        def zeros(self, shape, dtype=None):
            return np.zeros(shape, dtype)

        def ones(self, shape, dtype=None):
            return np.ones(shape, dtype)

    with pytest.warns(ml.errors.BackendWarning, match="MyCustomBackend has no"):
        compiled = ml.compile(classifier(), MyCustomBackend(1, further=2), shapes={"input": [2, 5]})
    outputs = compiled.evaluate(compiled.randomize_params(seed=1), {"input": inputs(2, 5)})
    np.testing.assert_allclose(outputs["output"], reference_results("classifier")[0], rtol=1e-5)


def examples():
    for module in ("examples.digits", "mithril.examples.digits", "examples.gpt.model"):
        importlib.import_module(module)
    assert "examples.digits" in (ROOT / "Makefile").read_text()


_numpy = Proven("test_c.py", "test_arrays_and_ops_at_once_are_those_of_numpy")
_several = Proven("test_devices.py", "test_a_placement_on_another_device_is_refused_before_anything_runs")
_placed = Proven("test_pipelines.py", "test_a_pipeline_computes_what_one_device_does")
_autograd, _manual = "with_autograd.{}_backend", "with_manualgrad.{}_backend"
_page = functools.partial(Page, "backends.md")

ITEMS = {
    "C1": (
        "from mithril.backends.with_autograd.jax_backend import JaxBackend",
        import_path(_autograd.format("jax"), "JaxBackend"),
    ),
    "C2": (
        "from mithril.backends.with_autograd.torch_backend import TorchBackend",
        import_path(_autograd.format("torch"), "TorchBackend"),
    ),
    "C3": (
        "from mithril.backends.with_autograd.mlx_backend import MlxBackend",
        import_path(_autograd.format("mlx"), "MlxBackend"),
    ),
    "C4": (
        "from mithril.backends.with_manualgrad.numpy_backend import NumpyBackend",
        import_path(_manual.format("numpy"), "NumpyBackend"),
    ),
    "C5": (
        "from mithril.backends.with_manualgrad.c_backend import CBackend",
        import_path(_manual.format("c"), "CBackend"),
    ),
    "C6": (
        "from mithril.backends.with_manualgrad.ggml_backend import GGMLBackend",
        import_path(_manual.format("ggml"), "GGMLBackend"),
    ),
    "C7": ("mithril.backends.backend.Backend", abstract_base),
    "C8": ("class Backend(ABC)", abstract_base),
    "C9": ("tensor(self, data, dtype=None)", creators),
    "C10": ("zeros(self, shape, dtype=None)", creators),
    "C11": ("ones(self, shape, dtype=None)", creators),
    "C12": ("from mithril.models import LogicalModel", logical_models),
    "C13": ("LogicalModel()", logical_models),
    "C14": ("JaxBackend()", method_form_of_compile),
    "C15": ("model.compile(backend)", method_form_of_compile),
    "C16": ("physical_model(input_data)", method_form_of_compile),
    "C17": ("JaxBackend(jit_compile=True)", options_of_jax),
    "C18": ('JaxBackend(platform="gpu")', options_of_jax),
    "C19": ('JaxBackend(precision="float32")', options_of_jax),
    "C20": ("TorchBackend(...)", options_of_torch),
    "C21": ('TorchBackend(device="cuda")', options_of_torch),
    "C22": ("TorchBackend(use_amp=True)", options_of_torch),
    "C23": ("TorchBackend(compile=True)", options_of_torch),
    "C24": ("MlxBackend(...)", options_of_mlx),
    "C25": ("MlxBackend(seed=42)", options_of_mlx),
    "C26": ('MlxBackend(default_dtype="float16")', options_of_mlx),
    "C27": ('jax_backend.set_platform("gpu")', devices_can_be_set),
    "C28": ("jax_backend.enable_x64()", x64),
    "C29": ("TorchBackend()", devices_can_be_set),
    "C30": ('torch_backend.set_device("cuda:0")', devices_can_be_set),
    "C31": ("torch_backend.enable_deterministic()", deterministic),
    "C32": ("MlxBackend()", devices_can_be_set),
    "C33": ('mlx_backend.set_default_device("gpu")', devices_can_be_set),
    "C34": ('backend.tensor([1, 2, 3], dtype="float32")', operations),
    "C35": ("backend.add(x, y)", operations),
    "C36": ("backend.matmul(x, y)", operations),
    "C37": ("backend.relu(z)", operations),
    "C38": ("backend.sigmoid(w)", operations),
    "C39": ("backend.reduce_sum(a)", operations),
    "C40": ("backend.reduce_mean(b)", operations),
    "C41": (
        "helpers on every backend",
        Proven("test_ggml.py", "test_arrays_and_ops_at_once_are_those_of_numpy"),
    ),
    "C42": ("backend.to_numpy(tensor)", conversions),
    "C43": ("backend.from_numpy(np_array)", conversions),
    "C44": ("backend.shape(tensor)", conversions),
    "C45": ("backend.dtype(tensor)", conversions),
    "C46": ("backend.random_normal(shape=(3, 4), mean=0.0, stddev=1.0)", random_numbers),
    "C47": ("backend.set_seed(42)", random_numbers),
    "C48": ("backend.reduce_sum(backend.power(x, 2))", gradient_of_a_function),
    "C49": ("backend.grad(f)", gradient_of_a_function),
    "C50": ("grad_f(x)", gradient_of_a_function),
    "C51": ("print(backend.to_numpy(grad_x))", gradient_of_a_function),
    "C52": ("from mithril.backends.with_autograd.jax_backend.parallel import data_parallel", data_parallel_of_one),
    "C53": ("data_parallel(fn, backend=jax_backend, num_devices=4)", _several),
    "C54": ("parallel_fn(data_batch)", data_parallel_of_one),
    "C55": ('placement_spec = {"layer1": 0, "layer2": 1}', placement_of_one),
    "C56": ("backend.place_model(model, placement_spec)", _placed),
    "C57": ("class MyCustomBackend(Backend)", backends_of_users),
    "C58": ("__init__(self, *args, **kwargs): super().__init__()", backends_of_users),
    "C59": ("advice: choice", _page("[the comparison](backend-comparison.md)")),
    "C60": ("advice: memory", memory_is_known),
    "C61": ("advice: seeds", random_numbers),
    "C62": ("advice: changing the backend", models_are_not_used_up),
    "C63": ("advice: speed", _page("- **Speed**: use `jit=True`")),
    "C64": ("examples", examples),
}
