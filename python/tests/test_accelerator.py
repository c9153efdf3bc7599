"""What an accelerator does differently: where arrays lie, in how many bits it multiplies, when it is done.

The other tests compute there too with ``pytest --device cuda``.
"""

import os
import subprocess
import sys
import textwrap

import decoders
import mithril as ml
import numpy as np
import pytest
from mithril.generation import compile_decoder, generate_tokens

torch = pytest.importorskip("torch")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
pytestmark = needs_cuda
if torch.cuda.is_available():
    # JAX would take most of the memory before PyTorch asks for some.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def network():
    model = ml.Model()
    model |= ml.Conv2d(8, kernel_size=3)(input="input", output="hidden")
    model += ml.BatchNorm2d()()
    model += ml.Relu()()
    model += ml.Flatten(start_dim=1)()
    model += ml.Linear(5)(output="output")
    return model


def data(rng, batch=16):
    return {
        "input": rng.standard_normal((batch, 3, 8, 8)).astype(np.float32),
        "target": rng.integers(0, 5, batch).astype(np.int64),
    }


def params_on(backend, params):
    return {name: backend.array(value) for name, value in params.items()}


def trained(backend, epochs=2, **options):
    compiled = ml.compile(network(), backend, shapes={"input": ["batch", 3, 8, 8]})
    samples = data(np.random.default_rng(0), 64)
    history = ml.train.fit(
        compiled, samples, loss="cross_entropy", epochs=epochs, batch_size=16, progress=False, **options
    )
    return [row["loss"] for row in history.epochs], compiled


def test_the_device_is_the_one_that_arrays_name():
    backend = ml.TorchBackend(device="cuda")
    assert backend.engine.is_here(backend.ones(2))
    assert str(backend.ones(2).device) == backend.device
    assert backend.device in backend.devices
    assert ml.TorchBackend(device="gpu").device == backend.device


@pytest.mark.parametrize("jit", [False, True])
def test_arrays_of_the_processor_are_moved_to_the_device(jit):
    backend = ml.TorchBackend(device="cuda")
    compiled = ml.compile(network(), backend, shapes={"input": [4, 3, 8, 8]}, inference=True, jit=jit)
    there = compiled.randomize_params(seed=1)
    assert {value.device.type for value in there.values()} == {"cuda"}
    here = {name: value.cpu() for name, value in there.items()}
    image = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
    expected = ml.compile(network(), ml.NumpyBackend(), shapes={"input": [4, 3, 8, 8]}, inference=True)
    expected = expected.evaluate({n: v.numpy() for n, v in here.items()}, {"input": image})["output"]
    with pytest.raises(ml.errors.ParameterError, match="is on cpu, but the model runs on cuda:0"):
        compiled.evaluate(here, {"input": image})
    for params in (there, params_on(backend, here)):
        for given in (image, torch.from_numpy(image), torch.from_numpy(image).cuda()):
            output = compiled.evaluate(params, {"input": given})["output"]
            assert output.device.type == "cuda"
            # Convolutions of cuDNN multiply in fewer bits by default.
            np.testing.assert_allclose(backend.to_numpy(output), expected, atol=5e-3)


def test_float32_by_name_is_float32():
    rng = np.random.default_rng(0)
    image = rng.standard_normal((2, 64, 16, 16)).astype(np.float32)
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    model = ml.Model()
    model |= ml.Conv2d(64, kernel_size=3, use_bias=False)(input="input", output="hidden")
    model |= ml.Linear(256, use_bias=False)(input="hidden", output="output")
    try:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
        results = {}
        for precision in (None, "float32"):
            backend = ml.TorchBackend(device="cuda", precision=precision)
            compiled = ml.compile(model, backend, shapes={"input": list(image.shape)})
            params = {
                n: np.random.default_rng(len(n)).standard_normal(tuple(v.shape)).astype(np.float32) / 8
                for n, v in compiled.randomize_params().items()
            }
            output = compiled.evaluate(params_on(backend, params), {"input": image})["output"]
            wide = ml.compile(model, ml.NumpyBackend(dtype="float64"), shapes={"input": list(image.shape)})
            exact = wide.evaluate(
                {n: v.astype(np.float64) for n, v in params.items()}, {"input": image.astype(np.float64)}
            )["output"]
            results[precision] = float(np.abs(backend.to_numpy(output) - exact).max() / np.abs(exact).max())
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
    assert results["float32"] < 2e-6 < results[None]


def test_jax_multiplies_in_float32_where_it_is_asked_to():
    jax = pytest.importorskip("jax")
    if jax.default_backend() == "cpu":
        pytest.skip("JAX finds no accelerator")
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
    backend = ml.JaxBackend(precision="float32")
    model = ml.Model()
    model |= ml.Matmul()(left="left", right="right", output="output")
    with jax.default_matmul_precision("default"):
        output = ml.compile(model, backend).evaluate({}, {"left": left, "right": right})["output"]
    exact = left.astype(np.float64) @ right
    assert np.abs(backend.to_numpy(output) - exact).max() / np.abs(exact).max() < 2e-6


def test_training_is_the_same_again_and_after_a_stop(tmp_path):
    backend = ml.TorchBackend(device="cuda", seed=3)
    backend.enable_deterministic()
    expected, _ = trained(backend, epochs=4)
    assert trained(ml.TorchBackend(device="cuda", seed=3), epochs=4)[0] == expected
    trained(ml.TorchBackend(device="cuda", seed=3), epochs=2, checkpoint=tmp_path / "c")
    resumed, _ = trained(ml.TorchBackend(device="cuda", seed=3), epochs=4, checkpoint=tmp_path / "c", resume=True)
    assert resumed[-2:] == expected[-2:]


def test_training_as_on_the_processor():
    torch.backends.cudnn.allow_tf32, before = False, torch.backends.cudnn.allow_tf32
    try:
        losses = [trained(ml.TorchBackend(device=device, seed=3))[0] for device in ("cpu", "cuda")]
    finally:
        torch.backends.cudnn.allow_tf32 = before
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


@pytest.mark.parametrize("options", [{"enable_amp": True}, {"precision": "float16"}, {"cudnn_benchmark": True}])
def test_options_of_gpus(options):
    losses, compiled = trained(ml.TorchBackend(device="cuda", seed=3, **options), epochs=3)
    reference, _ = trained(ml.TorchBackend(device="cpu", seed=3), epochs=3)
    np.testing.assert_allclose(losses, reference, rtol=0.05)
    assert losses[-1] < losses[0]
    if "enable_amp" in options:
        assert compiled.backend.precision == "bfloat16"


def test_cudnn_stays_on():
    backend = ml.TorchBackend(device="cuda", cudnn_benchmark=True, precision="float32")
    cudnn = torch.backends.cudnn
    before = cudnn.enabled, cudnn.benchmark, cudnn.allow_tf32
    seen = []
    call = backend.engine._with_settings(lambda: seen.append((cudnn.enabled, cudnn.benchmark, cudnn.allow_tf32)))
    call()
    assert seen == [(True, True, False)]
    assert (cudnn.enabled, cudnn.benchmark, cudnn.allow_tf32) == before


def test_an_index_out_of_range_is_an_error_and_the_next_call_works():
    backend = ml.TorchBackend(device="cuda")
    model = ml.Model()
    model |= ml.Embedding(5, 3, name="words")(input="input", output="output")
    compiled = ml.compile(model, backend, shapes={"input": ["n"]})
    params = compiled.randomize_params()
    with pytest.raises(ml.errors.InvalidValueError, match="given index 7"):
        compiled.evaluate(params, {"input": np.array([0, 7])})
    output = compiled.evaluate(params, {"input": np.array([4, 0])})["output"]
    np.testing.assert_array_equal(backend.to_numpy(output), backend.to_numpy(params["words.weight"])[[4, 0]])


LATE = """
import mithril as ml, numpy as np
model = ml.Model()
model |= ml.Linear(5, name="fc")(input="input", output="scores")
model |= ml.ArgMax(axis=-1)(input="scores", output="best")
model |= ml.Embedding(2, 2, name="words")(input="best", output="output")
compiled = ml.compile(model, ml.TorchBackend(device="cuda"), shapes={"input": [2, 5]}, inference=True)
params = compiled.randomize_params()
params["fc.weight"], params["fc.bias"] = params["fc.weight"] * 0, params["fc.bias"] * 0
params["fc.bias"][4] = 1
try:
    for _ in range(100):
        compiled.evaluate(params, {"input": np.eye(5, dtype=np.float32)[2:4]})
except ml.errors.InvalidValueError as error:
    print(error)
"""


def test_an_index_that_is_computed_says_what_to_do():
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=False, timeout=120)
    assert "run the model on the CPU" in done.stdout, done.stderr


def test_memory_of_the_device():
    backend = ml.TorchBackend(device="cuda")
    before = backend.get_memory_info()["used_bytes"]
    held = backend.zeros(1 << 20, 16)
    info = backend.get_memory_info()
    assert info["used_bytes"] - before == held.nbytes
    assert info["used_bytes"] <= info["peak_bytes"] <= info["limit_bytes"]


def test_arrays_of_one_backend_on_another():
    cuda, host = ml.TorchBackend(device="cuda"), ml.TorchBackend()
    compiled = ml.compile(network(), host, shapes={"input": [2, 3, 8, 8]}, inference=True)
    params = ml.compile(network(), cuda, shapes={"input": [2, 3, 8, 8]}, inference=True).randomize_params()
    output = compiled.evaluate(params_on(host, params), {"input": cuda.ones(2, 3, 8, 8)})["output"]
    assert output.device.type == "cpu"
    pytest.importorskip("jax")
    jax = ml.JaxBackend()
    output = ml.compile(network(), jax, shapes={"input": [2, 3, 8, 8]}, inference=True).evaluate(
        params_on(jax, params), {"input": cuda.ones(2, 3, 8, 8)}
    )["output"]
    assert jax.to_numpy(output).shape == (2, 5)


def test_a_module_on_the_device_is_read():
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.GroupNorm(2, 4), torch.nn.GELU()).cuda().eval()
    image = torch.randn(2, 3, 8, 8, device="cuda")
    model, params = ml.from_torch(module, (image,))
    with torch.no_grad():
        expected = module(image).cpu().numpy()
    for backend in (ml.NumpyBackend(), ml.TorchBackend(device="cuda")):
        [output] = ml.compile(model, backend).evaluate(params_on(backend, params), {"input": image}).values()
        np.testing.assert_allclose(backend.to_numpy(output), expected, atol=5e-3)


def test_generation_with_caches():
    weights, texts = None, {}
    for name, backend in (("cpu", ml.NumpyBackend()), ("cuda", ml.TorchBackend(device="cuda"))):
        compiled = compile_decoder(decoders.tiny_decoder(cache=True), backend)
        weights = weights or {n: np.asarray(value) for n, value in compiled.randomize_params(seed=0).items()}
        compiled.load_params(params_on(backend, weights))
        texts[name] = list(generate_tokens(compiled, [[1, 2, 3], [4, 5]], 12))
    assert texts["cpu"] == texts["cuda"]


ONE_PROCESS = """
import mithril as ml, numpy as np
backend = ml.TorchBackend(device="cuda", seed=3)
model = ml.Model()
model |= ml.Linear(8)(input="input", output="hidden")
model |= ml.Linear(3)(input="hidden", output="output")
compiled = ml.compile(model, backend, layout=ml.Mesh(data=1), shapes={"input": [4, 6]})
params = compiled.randomize_params()
output = compiled.evaluate(params, {"input": np.ones((4, 6), np.float32)})["output"]
print(output.device, tuple(output.shape))
"""


def test_two_workers_on_one_gpu_are_refused():
    with pytest.raises(ml.errors.InvalidValueError, match="names a GPU twice"):
        ml.TorchBackend(devices=["cuda:0", "cuda:0"])


def test_a_mesh_of_more_gpus_than_there_are():
    count = torch.cuda.device_count() + 1
    with pytest.raises(ml.errors.BackendUnavailableError, match=rf"this machine has {count - 1} of them"):
        ml.TorchBackend(device="cuda", device_mesh=(count,))


def test_a_launched_process_computes_there(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(ONE_PROCESS))
    command = [sys.executable, "-m", "mithril", "launch", "-n", "1", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "cuda:0 (4, 3)" in done.stdout
