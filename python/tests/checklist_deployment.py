"""Checklist A: one model on many backends."""

import functools
import subprocess
import sys
import warnings

import mithril as ml
import numpy as np
import pytest
from checklist import Page, Proven, constructs
from documented import FRAMEWORKS, available, backend, inputs, reference_results
from networks import classifier, cnn


def imports_no_framework():
    program = (
        "import sys, mithril as ml, mithril.models\n"
        "from mithril.backends.with_autograd.torch_backend import TorchBackend\n"
        "m = ml.Model()\nm |= ml.Linear(2)(input='input', output='output')\n"
        "ml.compile(m, ml.NumpyBackend(), shapes={'input': [1, 3]})([[1.0, 2.0, 3.0]])\n"
        "assert not {'torch', 'jax', 'mlx', 'mlx.core'} & set(sys.modules), sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def models_are_data():
    model = classifier()
    again = ml.Model.from_json(model.to_json())
    x = inputs(2, 5)
    actual = ml.compile(again, ml.NumpyBackend(seed=1), shapes={"input": [2, 5]})(x)
    np.testing.assert_array_equal(actual, reference_results("classifier")[0])


def models_are_not_used_up():
    model = classifier()
    before = model.to_json()
    for name in available():
        compiled = ml.compile(model, backend(name), shapes={"input": [2, 5]})
        np.testing.assert_allclose(
            np.asarray(compiled.evaluate(compiled.randomize_params(seed=1), {"input": inputs(2, 5)})["output"]),
            reference_results("classifier")[0],
            rtol=1e-4,
            atol=1e-6,
        )
    assert model.to_json() == before


def sources_can_be_read():
    for name in available(("numpy", *FRAMEWORKS)):
        source = ml.compile(classifier(), backend(name), shapes={"input": ["batch", 5]}).source
        assert "def evaluate(params, data, state):" in source
        assert {"numpy": "np", "torch": "torch", "jax": "jnp", "mlx": "mx"}[name] in source


def all_are_backends():
    for name in available():
        assert isinstance(backend(name), ml.backends.backend.Backend)
        assert type(ml.get_backend(name)) is type(backend(name))


@functools.cache
def resnet18():
    from mithril.models import resnet18

    model = resnet18(num_classes=1000)
    assert {"conv1.weight", "bn1.bias", "layer2.0.downsample.0.weight", "fc.bias"} <= set(model.parameter_keys)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = resnet18(n_classes=1000)
    assert other.parameter_keys == model.parameter_keys
    return model


def resnet18_runs_on_numpy():
    compiled = ml.compile(
        resnet18(), backend=ml.NumpyBackend(), shapes={"input": [1, 3, 64, 64]}, data_keys={"input"}, jit=True
    )
    assert compiled.evaluate({}, {"input": inputs(1, 3, 64, 64)})["output"].shape == (1, 1000)


def torch_on_cuda():
    constructs("torch", device="cuda", needs="device")


def forms_of_compile():
    x = inputs(1, 3, 8, 8)
    actual = []
    for shape in ([1, 3, 8, 8], (1, 3, 8, 8), [None, 3, 8, 8], ["batch", 3, 8, 8]):
        for keys in ({"input"}, ["input"], ("input",)):
            compiled = ml.compile(cnn(), backend=ml.NumpyBackend(), shapes={"input": shape}, data_keys=keys)
            actual.append(compiled.evaluate({}, {"input": x})["output"])
    for other in actual:
        np.testing.assert_array_equal(other, actual[0])
    assert isinstance(compiled, ml.PhysicalModel)
    positional = ml.compile(cnn(), ml.NumpyBackend(), shapes={"input": [1, 3, 8, 8]})
    np.testing.assert_array_equal(positional(x), actual[0])


def backends_need_no_options():
    table = {"torch": ml.TorchBackend, "jax": ml.JaxBackend, "mlx": ml.MlxBackend, "numpy": ml.NumpyBackend}
    for name in available(("numpy", *FRAMEWORKS)):
        assert table[name]().name == name


def the_same_names_and_numbers():
    model = cnn()
    by_backend = {name: ml.compile(model, backend(name), shapes={"input": [2, 3, 8, 8]}) for name in available()}
    first = by_backend["numpy"].randomize_params(seed=3)
    for compiled in by_backend.values():
        params = compiled.randomize_params(seed=3)
        assert list(params) == list(first)
        for key, value in params.items():
            np.testing.assert_array_equal(np.asarray(value), first[key])


def models_are_compared():
    names = available(("numpy", *FRAMEWORKS))
    result = ml.compare(classifier(), names, shapes={"input": [2, 5]})
    assert result.agree, str(result)


def benchmark():
    names = available(("numpy", *FRAMEWORKS))
    table = ml.benchmark(classifier(), [2, 5], names, num_runs=2)
    assert all(name in str(table) for name in names)


def gpt():
    from examples.gpt.model import create_gpt
    from mithril.examples.gpt.model import create_gpt as installed

    assert create_gpt is installed
    model = create_gpt(bias=True, block_size=128, dims=768, num_heads=12, num_layers=12, vocab_size=50304)
    assert "transformer.h.11.attn.c_attn.bias" in model.parameter_keys


def gpt_on_mlx():
    from examples.gpt.model import create_gpt

    gpt = create_gpt(bias=True, block_size=100, dims=24, num_heads=12, num_layers=2, vocab_size=50)
    for name in available(("numpy", "mlx")):
        logits = ml.compile(gpt, backend(name), data_keys={"input"})(np.array([[1, 2, 3]]))
        assert tuple(logits.shape) == (1, 3, 50)


def t5():
    from examples.t5 import t5_decode, t5_encode

    config = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_heads": 2, "num_layers": 1, "vocab_size": 30}
    encoder_lm, decoder_lm = t5_encode(config), t5_decode(config)
    # The first encodes and the second decodes, as in the documentation where both are there.
    names = available(("jax", "torch")) or ["numpy"]
    encoder = ml.compile(encoder_lm, backend(names[0]), data_keys={"input"})
    decoder = ml.compile(decoder_lm, backend(names[-1]), data_keys={"input", "memory"})
    memory = encoder(np.array([[12, 7, 29, 1]]))
    assert tuple(memory.shape) == (1, 4, 16)
    assert tuple(decoder(np.array([[0, 5]]), memory).shape) == (1, 2, 30)


def jit_everywhere():
    x = {"input": inputs(2, 5)}
    for name in available():
        compiled = ml.compile(
            classifier(), backend=backend(name), data_keys={"input"}, jit=True, auto_scalar_promotion=True
        )
        params = compiled.randomize_params(seed=1)
        for _ in range(2):
            actual = compiled.evaluate(params, x)["output"]
        np.testing.assert_allclose(np.asarray(actual), reference_results("classifier")[0], rtol=1e-4, atol=1e-6)
        if name in ("torch", "jax"):
            assert "evaluate" in [c.what for c in compiled.compile_stats.compilations]


def arrays_of_numpy():
    for name in available():
        array = backend(name).array(inputs(1, 3, 4))
        assert backend(name).shape(array) == (1, 3, 4)
        assert backend(name).dtype(array) == "float32"
        np.testing.assert_array_equal(backend(name).to_numpy(array), inputs(1, 3, 4))


def empty_parameters():
    for name in available():
        compiled = ml.compile(classifier(), backend(name, seed=1), shapes={"input": [2, 5]})
        x = {"input": backend(name).array(inputs(2, 5))}
        actual = [compiled.evaluate({}, x)["output"] for _ in range(3)]
        for output in actual:
            np.testing.assert_allclose(np.asarray(output), reference_results("classifier")[0], rtol=1e-4, atol=1e-6)
        some = dict(list(compiled.get_parameters().items())[:2])
        with pytest.raises(ml.errors.ParameterError, match="lacks"):
            compiled.evaluate(some, x)


def weights_move():
    first = ml.compile(classifier(), ml.NumpyBackend(), shapes={"input": [2, 5]})
    params, x = first.randomize_params(seed=1), {"input": inputs(2, 5)}
    for name in available():
        other = ml.compile(classifier(), backend(name), shapes={"input": [2, 5]}, data_keys={"input"})
        moved = ml.transfer(params, to=backend(name))
        other.load_params(params)
        for arrays in (moved, {k: backend(name).array(v) for k, v in params.items()}, {}):
            actual = other.evaluate(arrays, x)
            assert list(actual) == ["output"]
            np.testing.assert_allclose(
                np.asarray(actual["output"]), reference_results("classifier")[0], rtol=1e-4, atol=1e-6
            )


def unknown_data_keys():
    for name in available():
        with pytest.warns(ml.errors.UnusedKeyWarning, match="target"):
            compiled = ml.compile(classifier(), backend=backend(name), data_keys={"input", "target"})
        assert tuple(compiled(inputs(2, 5)).shape) == (2, 10)
        with pytest.raises(ml.errors.KeyNotFoundError):
            ml.compile(classifier(), backend=backend(name), data_keys={"input", "target"}, strict=True)


def training():
    from mithril.train import train_model

    data = [(inputs(8, 5, seed=i), np.arange(8) % 10) for i in range(4)]
    for name in available(("numpy", *FRAMEWORKS)):
        used = backend(name)
        with pytest.warns(ml.errors.UnusedKeyWarning):
            compiled = ml.compile(classifier(), backend=used, data_keys={"input", "target"})
        params = train_model(compiled, used, data)
        assert params is compiled.get_parameters()


def torch_parameters_are_plain():
    params = ml.compile(classifier(), backend("torch"), shapes={"input": [2, 5]}).get_parameters()
    arrays = {k: v.cpu().numpy() for k, v in params.items()}
    assert all(not v.requires_grad for v in params.values())
    assert arrays.keys() == params.keys()


def several_devices(strategy):
    def check():
        import torch

        if not torch.cuda.is_available():
            with pytest.raises(ml.errors.BackendUnavailableError, match="cuda:0"):
                ml.TorchBackend(parallel_strategy=strategy, devices=["cuda:0", "cuda:1"])
        # What a mesh of workers computes is shown by test_workers.py.
        assert ml.TorchBackend(parallel_strategy=strategy, devices=["cpu", "cpu"]).layout.mesh.devices == 2

    return check


def arrays_of_other_frameworks():
    produced = [backend(name).array(inputs(2, 5)) for name in available()]
    for name in available():
        compiled = ml.compile(classifier(), backend(name, seed=1), data_keys={"input"})
        for array in produced:
            np.testing.assert_allclose(
                np.asarray(compiled(array)), reference_results("classifier")[0], rtol=1e-4, atol=1e-6
            )


def device_of_a_condition():
    import torch

    ml.TorchBackend(device="cuda" if torch.cuda.is_available() else "cpu")


def clip():
    from examples.clip.model import clip
    from mithril.models import clip as same

    assert clip is same
    model = clip(
        embed_dim=8,
        image_resolution=32,
        vision_layers=(1, 1, 1, 1),
        vision_width=4,
        vision_patch_size=0,
        context_length=7,
        vocab_size=20,
        transformer_width=8,
        transformer_heads=2,
        transformer_layers=1,
    )
    shapes = {"image": [1, 3, 32, 32], "text": [2, 7]}
    rng = np.random.default_rng(0)
    data = {"image": rng.normal(size=(1, 3, 32, 32)), "text": rng.integers(0, 20, (2, 7))}
    results = []
    for name in available():
        compiled = ml.compile(model, backend(name), shapes=shapes, data_keys={"image", "text"}, inference=True)
        outputs = compiled.evaluate(compiled.randomize_params(seed=0), data)
        results.append(compiled.backend.to_numpy(outputs["logits_per_image"]))
        np.testing.assert_allclose(results[-1], results[0], rtol=1e-3, atol=1e-4)
    assert results[0].shape == (1, 2)


def check_says_what_a_backend_has():
    for name in available():
        assert ml.check(classifier(), backend(name), shapes={"input": [2, 5]}).ok


def memory_is_known():
    for name in available():
        info = backend(name).get_memory_info()
        assert {"used", "peak", "limit", "used_bytes"} <= info.keys()
        assert info["peak_bytes"] >= 0
        assert info["used"] == pytest.approx(info["used_bytes"] / 1e6)


def capabilities():
    for name in available():
        capabilities_of_backend = backend(name).capabilities()
        assert "float32" in capabilities_of_backend["dtypes"]
        assert capabilities_of_backend["device"] in [*capabilities_of_backend["devices"], "cpu"]


_data, _layers = several_devices("data_parallel"), several_devices("model_parallel")
_page = functools.partial(Page, "multi-backend.md")

ITEMS = {
    "A1": ("logical models: no object of a framework, saved as data", models_are_data),
    "A2": ("physical models: source can be read", sources_can_be_read),
    "A3": ("backends run them", all_are_backends),
    "A4": ("one definition, many compilations", models_are_not_used_up),
    "A5": ("PyTorch on its devices", _page("| `TorchBackend` | PyTorch")),
    "A6": ("JAX: CPU, GPU, TPU", _page("| `JaxBackend` | JAX and XLA: CPU, GPU, TPU |")),
    "A7": ("NumPy on the CPU", _page("| `NumpyBackend` | NumPy, on the CPU |")),
    "A8": ("MLX", _page("| `MlxBackend` | MLX: Apple silicon")),
    "A9": ("C and GGML", Proven("test_ggml.py", "test_models")),
    "A10": ("import mithril as ml", imports_no_framework),
    "A11": ("from mithril.models import resnet18", resnet18),
    "A12": ("resnet18(num_classes=1000)", resnet18),
    "A13": ('ml.TorchBackend(device="cuda")', torch_on_cuda),
    "A14": ("ml.compile(model, backend=, shapes=, data_keys=)", forms_of_compile),
    "A15": ('shapes={"input": [1, 3, 224, 224]}', forms_of_compile),
    "A16": ('data_keys={"input"}', forms_of_compile),
    "A17": ("ml.JaxBackend()", backends_need_no_options),
    "A18": ("ml.MlxBackend()", backends_need_no_options),
    "A19": ("the definition stays, only the backend changes", the_same_names_and_numbers),
    "A20": ("benchmark_model(model_name, input_shape, backends, num_runs=100)", benchmark),
    "A21": ("from examples.gpt.model import create_gpt", gpt),
    "A22": ("create_gpt(bias=True, block_size=128, dims=768, ...)", gpt),
    "A23": ("create_gpt(..., num_heads=12, num_layers=12, vocab_size=50304)", gpt),
    "A24": ("backend_class()", backends_need_no_options),
    "A25": ('shapes={"input": input_shape}', forms_of_compile),
    "A26": ("jit=True", jit_everywhere),
    "A27": ("backend.array(numpy_input)", arrays_of_numpy),
    "A28": ('compiled_model.evaluate({}, {"input": backend_input})', empty_parameters),
    "A29": ("evaluate again and again", empty_parameters),
    "A30": ('{"torch": ml.TorchBackend}', backends_need_no_options),
    "A31": ('{"numpy": ml.NumpyBackend} runs resnet18', resnet18_runs_on_numpy),
    "A32": (
        "benchmark_model returns seconds by name",
        _page('results = benchmark_model("resnet18", [1, 3, 224, 224], backends)'),
    ),
    "A33": ("weights move between backends", weights_move),
    "A34": ('data_keys={"input", "target"} of a model without target', unknown_data_keys),
    "A35": ("train_model(torch_model, torch_backend, training_data)", training),
    "A36": ("v.cpu().numpy() for v in torch_params.values()", torch_parameters_are_plain),
    "A37": ('ml.compile(model, backend=jax_backend, data_keys={"input"})', weights_move),
    "A38": ("jax_backend.array(v) for v in numpy_params.values()", weights_move),
    "A39": ('jax_model.evaluate(jax_params, {"input": jax_input})', weights_move),
    "A40": ("trained weights on C and GGML", Proven("test_ggml.py", "test_a_network_of_torch")),
    "A41": ("jit=True on JAX", jit_everywhere),
    "A42": ("auto_scalar_promotion=True", jit_everywhere),
    "A43": ("jit=True on PyTorch", jit_everywhere),
    "A44": ("jit=True on MLX", jit_everywhere),
    "A45": ("each framework's own compiler", _page("`jit=True` hands the generated code on")),
    "A46": ('ml.TorchBackend(parallel_strategy="data_parallel", ...)', _data),
    "A47": ('devices=["cuda:0", "cuda:1"]', _data),
    "A48": ("ml.compile(backend=multi_gpu_backend)", _data),
    "A49": ('ml.TorchBackend(parallel_strategy="model_parallel", ...)', _layers),
    "A50": ("from examples.clip.model import clip", clip),
    **{
        f"A{n}": (f"clip({argument}=)", clip)
        for n, argument in enumerate(
            (
                "...",
                "embed_dim",
                "image_resolution",
                "vision_layers",
                "vision_width",
                "vision_patch_size",
                "context_length",
                "vocab_size",
                "transformer_width",
                "transformer_heads",
                "transformer_layers",
            ),
            51,
        )
    },
    "A62": ('shapes = {"image": [1, 3, 224, 224], "text": [1, 77]}', clip),
    "A63": ('ml.TorchBackend(device="cuda" if torch.cuda.is_available() else "cpu")', device_of_a_condition),
    "A64": ("ml.compile(clip_model, torch_backend, shapes=shapes, ...)", clip),
    "A65": ("ml.compile(clip_model, jax_backend, shapes=shapes, ...)", clip),
    "A66": ("ml.compile(clip_model, mlx_backend, shapes=shapes, ...)", clip),
    "A67": ("from examples.t5 import t5_encode, t5_decode", t5),
    "A68": ("t5_encode(config)", t5),
    "A69": ("t5_decode(config)", t5),
    "A70": ('ml.compile(encoder_lm, ml.JaxBackend(), data_keys={"input"})', t5),
    "A71": ("arrays of one backend are inputs of another", arrays_of_other_frameworks),
    "A72": ("create_gpt(bias=True, block_size=100, dims=768, num_heads=12, ...)", gpt),
    "A73": ('ml.compile(gpt, ml.MlxBackend(), data_keys={"input"})', gpt_on_mlx),
    "A74": ("models without backends: ml.check", check_says_what_a_backend_has),
    "A75": ("tests on all backends: ml.compare", models_are_compared),
    "A76": ("measuring: ml.benchmark", benchmark),
    "A77": ("precision: tolerances", Page("tolerances.md", "Tolerances")),
    "A78": ("jit where possible", jit_everywhere),
    "A79": ("memory in use", memory_is_known),
    "A80": ("limits of devices: capabilities", capabilities),
    "A81": ("other hardware, the same model", Proven("test_docs.py", "test_page_runs")),
}
