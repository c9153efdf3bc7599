"""Checklist B: what the backends can do."""

import bdb
import functools
import linecache
import re
import warnings

import mithril as ml
import numpy as np
import pytest
from checklist import ROOT, Page, Proven, constructs
from checklist_deployment import jit_everywhere, models_are_compared
from documented import FRAMEWORKS, available, backend, inputs, reference_results
from networks import classifier

X = {"input": inputs(2, 5)}


def close(actual):
    np.testing.assert_allclose(np.asarray(actual), reference_results("classifier")[0], rtol=1e-4, atol=1e-6)


def options_of_jax():
    used = constructs("jax", needs="device", device="gpu", precision="bfloat16", pre_allocate=True)
    assert used.precision == "bfloat16"
    assert used.default_dtype == "float32"


def options_of_torch():
    used = constructs("torch", needs="device", device="cuda", enable_amp=True, cudnn_benchmark=True)
    assert used.precision in ("bfloat16", "float16")
    for spelling in ("enable_amp", "use_amp", "amp"):
        assert constructs("torch", device="cpu", **{spelling: True}).precision is not None


def options_of_mlx():
    used = constructs("mlx", dtype=ml.float16, device_mesh=(1,))
    assert used.default_dtype == "float16"
    assert constructs("mlx", device_mesh=1).device == constructs("mlx").device


def options_of_numpy():
    compiled = ml.compile(model=classifier(), backend=ml.NumpyBackend(dtype=ml.float64, seed=1))
    actual = compiled(inputs(2, 5))
    assert actual.dtype == np.float64
    close(actual)


def options_of_c():
    compiled = ml.compile(model=classifier(), backend=ml.CBackend(dtype=ml.float32, seed=1), shapes={"input": [2, 5]})
    close(compiled(inputs(2, 5)))


def options_of_ggml():
    model = ml.Model()
    model |= ml.Linear(8)(input="input", output="output")
    backend = ml.GGMLBackend(mem_size=4 * 1024 * 1024 * 1024, quantize="int8")
    assert (backend.memory_limit, backend.quantize) == (4 * 2**30, [("*", "q8_0")])
    options = {"shapes": {"input": [2, 64]}, "static_inference": True, "static_shapes": True}
    compiled = ml.compile(model=model, backend=backend, **options)
    params = compiled.randomize_params(seed=1)
    [row] = ml.quantization_report(compiled, params).rows
    assert (row.path, row.type) == ("linear.weight", "q8_0")
    x = inputs(2, 64)
    expected = x @ np.asarray(params["linear.weight"]).T + np.asarray(params["linear.bias"])
    np.testing.assert_allclose(compiled.evaluate(params, {"input": x})["output"], expected, atol=0.03)
    with pytest.raises(ml.errors.MithrilError, match="bytes"):
        ml.compile(model, ml.GGMLBackend(mem_size="1KB"), **options)


def arguments_by_name():
    close(ml.compile(model=classifier(), backend=ml.NumpyBackend(dtype=ml.float32, seed=1))(inputs(2, 5)))
    with pytest.raises(TypeError, match="did you mean"):
        ml.compile(model=classifier(), backend=ml.NumpyBackend(), shaps={})


def static_shapes():
    for name in available():
        for options in ({"static_shapes": True}, {"static_inference": True, "static_shapes": True}):
            with pytest.raises(ml.errors.UnresolvedShapeError, match="input"):
                ml.compile(classifier(), backend(name), **options)
            close(ml.compile(classifier(), backend(name, seed=1), shapes={"input": [2, 5]}, **options)(X["input"]))


def gradient_checkpointing():
    for name in available():
        for spelling in ("gradient_checkpointing", "checkpoint"):
            compiled = ml.compile(classifier(), backend(name), shapes={"input": [2, 5]}, **{spelling: True})
            _, actual = compiled.evaluate(compiled.randomize_params(seed=1), X, True)
            for key, value in reference_results("classifier")[1].items():
                np.testing.assert_allclose(np.asarray(actual[key]), value, rtol=1e-3, atol=1e-6)


def nothing_is_mutated():
    for name in available():
        compiled = ml.compile(classifier(), backend(name), shapes={"input": [2, 5]})
        params, x = compiled.randomize_params(seed=1), backend(name).array(inputs(2, 5))
        before = {k: backend(name).to_numpy(v).copy() for k, v in params.items()}
        compiled.evaluate(params, {"input": x}, True)
        np.testing.assert_array_equal(np.asarray(x), inputs(2, 5))
        for key, value in params.items():
            np.testing.assert_array_equal(np.asarray(value), before[key])


def generated_code_can_be_stepped():
    for name in available(("numpy", *FRAMEWORKS)):
        compiled = ml.compile(classifier(), backend(name), shapes={"input": [2, 5]}, jit=False)
        lines = []

        class Stepper(bdb.Bdb):
            def user_line(self, frame):
                lines.append(linecache.getline(frame.f_code.co_filename, frame.f_lineno))  # noqa: B023

        Stepper().runcall(compiled.evaluate, {}, X)
        assert any("hidden1 = " in line for line in lines), name


def options_of_the_compiler():
    if not available(("torch",)):
        pytest.skip("torch is not installed")
    for options in ({"backend": "eager"}, {"backend": "inductor", "mode": "max-autotune"}):
        compiled = ml.compile(classifier(), ml.TorchBackend(seed=1), jit=True, jit_options=options)
    close(ml.compile(classifier(), ml.TorchBackend(seed=1), jit=True, jit_options={"backend": "eager"})(X["input"]))
    compiled = ml.compile(classifier(), ml.TorchBackend(), jit=True, jit_options={"backend": "nonsense"})
    with pytest.raises(Exception, match="nonsense"):
        compiled(X["input"])


def only_numpy_is_required():
    text = (ROOT / "pyproject.toml").read_text()
    [required] = re.findall(r"^dependencies = (\[.*\])$", text, re.MULTILINE)
    assert {re.match(r'"([a-z_]+)', r.strip())[1] for r in required[1:-1].split(", ")} == {"numpy", "typing_extensions"}


def inference_only():
    for name in available():
        compiled = ml.compile(model=classifier(), backend=backend(name, seed=1), inference=True)
        close(compiled(X["input"]))
        with pytest.raises(ml.errors.UnsupportedOpError, match="inference"):
            compiled.evaluate({}, X, True)


def meshes_of_several_devices():
    if available(("jax",)):
        with pytest.raises(ml.errors.BackendUnavailableError, match="devices"):
            backend("jax", device_mesh=(2, 2))
    if available(("torch",)):
        # What its workers compute is shown by test_workers.py.
        assert str(backend("torch", device_mesh=(4,)).layout) == "Layout(Mesh(data=4), batch='data')"


def all_options_of_jax():
    options = {"dtype": ml.float32, "device_mesh": (1,), "pre_allocate": True, "precision": "bfloat16"}
    assert constructs("jax", needs="device", device="gpu", **options).precision == "bfloat16"
    meshes_of_several_devices()


def all_options_of_torch():
    options = {"dtype": ml.float32, "device_mesh": (1,), "enable_amp": True, "cudnn_benchmark": True}
    assert constructs("torch", needs="device", device="cuda:0", **options).default_dtype == "float32"
    meshes_of_several_devices()


def dtypes_of_backends():
    for name in available(("numpy", *FRAMEWORKS)):
        for dtype in (ml.float16, ml.bfloat16, ml.float32, ml.float64):
            compiled = ml.compile(classifier(), backend(name, dtype=dtype))
            assert backend(name).dtype(compiled(X["input"])) == dtype


def gradients_of_gradients():
    for name in available():
        used = backend(name)
        second = used.grad(lambda x, b=used: b.sum(b.grad(lambda y: b.sum(b.power(y, 4)))(x)))
        np.testing.assert_allclose(used.to_numpy(second(used.array([1.0, 2.0]))), [12, 48], rtol=1e-5)


def mixed_precision():
    for name in available():
        compiled = ml.compile(classifier(), backend(name, precision="bfloat16", seed=1))
        actual = compiled(X["input"])
        assert backend(name).dtype(actual) == "float32"
        np.testing.assert_allclose(np.asarray(actual), reference_results("classifier")[0], atol=2e-2)


def features():
    gradients_of_gradients()
    mixed_precision()


def devices_that_are_not_there():
    for name in available(("numpy", *FRAMEWORKS)):
        with pytest.raises(ml.errors.BackendUnavailableError) as caught:
            type(backend(name))(device="cuda:63")
        assert caught.value.hint


def torch_has_no_tpu():
    devices_that_are_not_there()
    with pytest.raises(ml.errors.BackendUnavailableError):
        ml.TorchBackend(device="tpu")


def migration(first, second):
    def program():
        absent = {first, second} - set(available((first, second)))
        if absent:
            pytest.skip(f"not installed: {', '.join(sorted(absent))}")
        kinds = {"jax": ml.JaxBackend, "torch": ml.TorchBackend, "mlx": ml.MLXBackend}
        one = kinds[first](dtype=ml.float32)
        model = ml.compile(classifier(), one)
        params = model.randomize_params(seed=1)
        close(model.evaluate(params, X)["output"])
        arrays = {k: one.to_numpy(v) for k, v in params.items()}
        other = kinds[second](dtype=ml.float32)
        moved = {k: other.array(v) for k, v in arrays.items()}
        close(ml.compile(classifier(), other).evaluate(moved, X)["output"])

    return program


def table_of_backends():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = ml.backends.table()
    assert set(available()) <= set(table)
    assert {"c", "ggml"} <= set(table)


_c = Page("backend-comparison.md", "| `CBackend` | C, by the compiler of the machine | by the gradient graph")
_ggml = Page("backend-comparison.md", "| `GGMLBackend` | ggml, part of the extension module | by the gradient graph")
_page = functools.partial(Page, "backend-comparison.md")
_unmeasured = _page("of PyTorch and JAX on an NVIDIA GPU. Apple silicon and TPUs: not measured")
_choice = _page("**NVIDIA GPU**: PyTorch or JAX. **TPU**: JAX. **AMD GPU**: PyTorch. **Apple silicon**: MLX.")
_parallel = _page("Pipelines run on PyTorch, NumPy and JAX")
_jax_to_torch, _torch_to_mlx = migration("jax", "torch"), migration("torch", "mlx")

ITEMS = {
    **{
        f"B{n}": (f"overview: {what}", table_of_backends)
        for n, what in enumerate(("JAX", "PyTorch", "MLX", "NumPy"), 1)
    },
    "B5": ("overview: C", _c),
    "B6": ("overview: GGML", _ggml),
    **{
        f"B{n}": (f"gradients, jit, precision: {what}", features)
        for n, what in enumerate(("JAX", "PyTorch", "MLX", "NumPy"), 7)
    },
    "B11": ("gradients, jit, precision: C", _c),
    "B12": ("gradients, jit, precision: GGML", _ggml),
    "B13": ("hardware: JAX", devices_that_are_not_there),
    "B14": ("hardware: PyTorch", torch_has_no_tpu),
    "B15": ("hardware: MLX", devices_that_are_not_there),
    "B16": ("hardware: NumPy", devices_that_are_not_there),
    "B17": ("hardware: C", _c),
    "B18": ("hardware: GGML", _ggml),
    **{f"B{n}": (f"parallelism: {what}", _parallel) for n, what in enumerate(("JAX", "PyTorch", "MLX", "NumPy"), 19)},
    "B23": ("parallelism: C", _parallel),
    "B24": ("parallelism: GGML", _ggml),
    **{
        f"B{n}": (f"dtypes: {what}", dtypes_of_backends)
        for n, what in enumerate(("JAX", "PyTorch", "MLX", "NumPy"), 25)
    },
    "B29": ("dtypes: C", _c),
    "B30": ("dtypes: GGML", _ggml),
    "B31": ("device mesh", meshes_of_several_devices),
    "B32": ("transformations: vmap of a compiled model", Page("jax-backend.md", "jax.vmap(compiled.function")),
    "B33": ("ml.JaxBackend(...)", options_of_jax),
    "B34": ('JaxBackend(device="gpu")', options_of_jax),
    "B35": ('JaxBackend(precision="bfloat16")', options_of_jax),
    "B36": ("JaxBackend(pre_allocate=True)", options_of_jax),
    "B37": ("compile(model=model)", arguments_by_name),
    "B38": ("compile(backend=backend)", arguments_by_name),
    "B39": ("compile(static_shapes=True)", static_shapes),
    "B40": ("compile(gradient_checkpointing=True)", gradient_checkpointing),
    "B41": ("throughput on TPUs", _unmeasured),
    "B42": ("memory through fusion", _unmeasured),
    "B43": ("no mutation", nothing_is_mutated),
    "B44": ("debugging, line by line", generated_code_can_be_stepped),
    "B45": ("ml.TorchBackend(...)", options_of_torch),
    "B46": ('TorchBackend(device="cuda")', options_of_torch),
    "B47": ("TorchBackend(enable_amp=True)", options_of_torch),
    "B48": ("TorchBackend(cudnn_benchmark=True)", options_of_torch),
    "B49": ("jit=True on PyTorch", jit_everywhere),
    "B50": ("jit_options={...}", options_of_the_compiler),
    "B51": ('"backend": "inductor"', options_of_the_compiler),
    "B52": ('"mode": "max-autotune"', options_of_the_compiler),
    "B53": ("control flow that depends on values", _page("A model has no loops or branches that depend on values")),
    "B54": ("ml.MLXBackend(...)", options_of_mlx),
    "B55": ("MLXBackend(dtype=ml.float16)", options_of_mlx),
    "B56": ("MLXBackend(device_mesh=(1,))", options_of_mlx),
    "B57": ("faster than PyTorch on Apple's machines", _unmeasured),
    "B58": ("float64 on MLX: on the CPU", dtypes_of_backends),
    "B59": ("nothing required beyond NumPy", only_numpy_is_required),
    "B60": ("NumPy is the reference", models_are_compared),
    "B61": ("ml.NumpyBackend(dtype=ml.float32)", arguments_by_name),
    "B62": ("compile(inference=True)", inference_only),
    "B63": ("slower than others", _page("at the speed of NumPy")),
    "B64": ("C, GGML: overhead", _ggml),
    "B65": ("C, GGML: static inference", options_of_ggml),
    "B66": ("C, GGML: memory", options_of_ggml),
    "B67": ("ml.GGMLBackend(...)", options_of_ggml),
    "B68": ("GGMLBackend(mem_size=4 * 1024 * 1024 * 1024)", options_of_ggml),
    "B69": ('GGMLBackend(quantize="int8")', options_of_ggml),
    "B70": ("compile(static_inference=True)", static_shapes),
    "B71": ("compile(static_inference=True, static_shapes=True)", static_shapes),
    "B72": ("what is experimental", Page("backends.md", "## Experimental backends")),
    "B73": ("choice: training", _page("## Which one?")),
    **{f"B{n}": (f"choice: {what}", _choice) for n, what in enumerate(("NVIDIA", "TPU", "AMD", "Apple silicon"), 74)},
    "B78": ("choice: CPU", _page("**On a machine without a GPU**")),
    "B79": ("choice: large models", _parallel),
    "B80": ("choice: shapes that change", _page("**Shapes change from call to call**: PyTorch")),
    "B81": ("choice: control flow", _page("A model has no loops or branches that depend on values")),
    "B82": ("choice: fixed shapes", _page("**Shapes are fixed**: JAX")),
    "B83": ("choice: deployment", _page("**Deployment**")),
    **{
        f"B{n}": (f"JaxBackend({what})", all_options_of_jax)
        for n, what in enumerate(("dtype=", "device=", "device_mesh=", "pre_allocate=", "precision="), 84)
    },
    **{
        f"B{n}": (f"TorchBackend({what})", all_options_of_torch)
        for n, what in enumerate(("dtype=", "device=", "device_mesh=", "enable_amp=", "cudnn_benchmark="), 89)
    },
    "B94": ("MLXBackend(dtype=ml.float16)", options_of_mlx),
    "B95": ("MLXBackend(device_mesh=(1,))", options_of_mlx),
    "B96": ("NumpyBackend(dtype=ml.float64)", options_of_numpy),
    "B97": ("GGMLBackend(mem_size=)", options_of_ggml),
    "B98": ("GGMLBackend(quantize=)", options_of_ggml),
    "B99": ("ml.CBackend(...)", options_of_c),
    "B100": ("CBackend(dtype=ml.float32)", options_of_c),
    **{f"B{n}": ("measured speed and memory of ResNet and ViT", _unmeasured) for n in range(101, 111)},
    "B111": ("ml.JaxBackend(dtype=ml.float32)", _jax_to_torch),
    "B112": ("ml.compile(model, jax_backend)", _jax_to_torch),
    "B113": ("jax_model.randomize_params()", _jax_to_torch),
    "B114": ("jax_backend.to_numpy(v)", _jax_to_torch),
    "B115": ("torch_backend.array(v)", _jax_to_torch),
    "B116": ("torch_model.randomize_params()", _torch_to_mlx),
    "B117": ("torch_backend.to_numpy(v)", _torch_to_mlx),
    "B118": ("ml.MLXBackend(dtype=ml.float32)", _torch_to_mlx),
    "B119": ("mlx_backend.array(v)", _torch_to_mlx),
    "B120": ("page on JAX", Page("jax-backend.md", "# JAX")),
    "B121": ("page on PyTorch", Page("pytorch-backend.md", "# PyTorch")),
    "B122": ("page on MLX", Page("mlx-backend.md", "# MLX")),
    "B123": ("backends.md#experimental-backends", Proven("test_docs.py", "test_links_lead_somewhere")),
}
