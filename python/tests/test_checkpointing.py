"""Gradient checkpointing: the same gradients with much less memory, measured, on every backend that is installed."""

import tracemalloc

import mithril as ml
import numpy as np
import pytest

WIDTH, DEPTH, BATCH = 32, 64, 1024
#: Bytes of one intermediate result.
ONE = BATCH * WIDTH * 4


def deep(activation=ml.Gelu, depth=DEPTH):
    model = ml.Model()
    model |= ml.Linear(WIDTH, name="first")(input="input", output="hidden")
    for i in range(depth):
        model += activation(name=f"active{i}")
        model += ml.Linear(WIDTH, name=f"linear{i}")
    model += ml.Mean()(output="output")
    return model


def compiled(backend, checkpointing, model=None, **options):
    shapes = {"input": ["batch", WIDTH]}
    return ml.compile(model or deep(), backend, shapes=shapes, gradient_checkpointing=checkpointing, **options)


def inputs(batch=BATCH):
    return np.random.default_rng(0).normal(size=(batch, WIDTH)).astype("float32")


def gradients(model, batch=16, seed=0):
    params = model.randomize_params(seed)
    outputs, gradients = model.evaluate(params, {"input": inputs(batch)}, True)
    to_numpy = model.backend.to_numpy
    return {name: to_numpy(value) for group in (outputs, gradients) for name, value in group.items()}


#: Backends and options under which gradients are computed.
WAYS = {
    "numpy": (ml.NumpyBackend, {}),
    "interpreter": (ml.InterpreterBackend, {}),
    "torch": (ml.TorchBackend, {"autodiff": "native"}),
    "torch-graph": (ml.TorchBackend, {"autodiff": "graph"}),
    "torch-jit": (ml.TorchBackend, {"jit": True, "jit_options": {"backend": "aot_eager"}}),
    "jax": (ml.JaxBackend, {"autodiff": "native"}),
    "jax-graph": (ml.JaxBackend, {"autodiff": "graph"}),
    "jax-jit": (ml.JaxBackend, {"jit": True}),
    "mlx": (ml.MlxBackend, {"autodiff": "native"}),
    "mlx-graph": (ml.MlxBackend, {"autodiff": "graph"}),
    "mlx-jit": (ml.MlxBackend, {"jit": True}),
}


def construct(backend):
    try:
        return backend()
    except ml.errors.BackendUnavailableError as error:
        pytest.skip(str(error))


def noisy():
    """Dropout and batch statistics, a label and a size that is open: all that is not a plain layer."""
    model = ml.Model()
    model |= ml.Linear(WIDTH, name="first")(input="input", output="hidden")
    for i in range(6):
        model += ml.Gelu(name=f"active{i}")
        model += ml.Dropout(0.3, name=f"drop{i}")
        model += ml.Linear(WIDTH, name=f"linear{i}")
        model += ml.BatchNorm1d(name=f"norm{i}")
    model += ml.Linear(4, name="last")(output="logits")
    model |= ml.CrossEntropy()(input="logits", target="target", output="output")
    return model


@pytest.mark.parametrize("way", WAYS)
def test_gradients_stay_the_same(way):
    backend, options = WAYS[way]
    model = deep(depth=12)
    expected = gradients(compiled(construct(backend), False, model, **options))
    actual = gradients(compiled(construct(backend), True, model, **options))
    assert list(actual) == list(expected)
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("way", WAYS)
def test_random_numbers_and_states_stay_the_same(way):
    backend, options = WAYS[way]
    shapes = {"input": ["batch", WIDTH], "target": ["batch"]}
    data = {"input": inputs(8), "target": np.arange(8) % 4}
    results = []
    for checkpointing in (False, True):
        options = {**options, "gradient_checkpointing": checkpointing, "dtypes": {"target": "int64"}}
        model = ml.compile(noisy(), construct(backend), shapes=shapes, **options)
        params = model.randomize_params(0)
        for _ in range(2):
            outputs, actual = model.evaluate(params, data, {"output": np.float32(1)})
        everything = {**outputs, **actual, **{n: v for n, v in model.state.items() if n != "key"}}
        results.append({name: model.backend.to_numpy(value) for name, value in everything.items()})
    assert any("mean" in name for name in results[0])
    for name, expected in results[0].items():
        np.testing.assert_allclose(results[1][name], expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_mixed_precision_is_kept():
    results = [gradients(compiled(ml.NumpyBackend(), on, deep(depth=12), precision="bfloat16")) for on in (False, True)]
    for name, expected in results[0].items():
        np.testing.assert_array_equal(results[1][name], expected)


def numpy_peak(model, params, x):
    tracemalloc.start()
    model.evaluate(params, {"input": x}, True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def torch_peak(model, params, x):
    import torch

    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        model.evaluate(params, {"input": x}, True)
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    return int(np.cumsum(sizes).max())


def mlx_peak(model, params, x):
    import mlx.core as mx

    mx.eval(params["first.weight"], x)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(model.evaluate(params, {"input": x}, True))
    return mx.get_peak_memory() - before


MEASURED = {
    "numpy": numpy_peak,
    "torch": torch_peak,
    "torch-graph": torch_peak,
    "torch-jit": torch_peak,
    "mlx": mlx_peak,
    "mlx-graph": mlx_peak,
    "mlx-jit": mlx_peak,
}


@pytest.mark.parametrize("way", MEASURED)
def test_peak_memory_is_much_lower(way):
    backend, options = WAYS[way]
    backend = construct(backend)
    # The Gelu of NumPy computes in double precision, whose own arrays would hide the difference.
    model = deep(ml.Tanh if way == "numpy" else ml.Gelu)
    peaks = []
    for checkpointing in (False, True):
        program = compiled(backend, checkpointing, model, **options)
        params = program.randomize_params(0)
        program.evaluate(params, {"input": backend.array(inputs(2))}, True)
        peaks.append(MEASURED[way](program, params, backend.array(inputs())))
    kept, checkpointed = peaks
    # Every layer keeps at least one result.
    assert kept > DEPTH * ONE
    assert checkpointed < 0.5 * kept


@pytest.mark.parametrize("autodiff", ["native", "graph"])
def test_peak_memory_of_compiled_jax_is_much_lower(autodiff, monkeypatch):
    jax = pytest.importorskip("jax")
    sizes = []
    jit = jax.jit

    def measured(function, **options):
        compiled = jit(function, **options)

        def call(*args):
            sizes.append(compiled.lower(*args).compile().memory_analysis().temp_size_in_bytes)
            return compiled(*args)

        return call

    monkeypatch.setattr(jax, "jit", measured)
    for checkpointing in (False, True):
        program = compiled(ml.JaxBackend(), checkpointing, autodiff=autodiff, jit=True)
        program.evaluate(program.randomize_params(0), {"input": inputs()}, True)
    kept, checkpointed = sizes
    assert kept > DEPTH * ONE
    assert checkpointed < 0.5 * kept


def test_what_undoes_checkpoints_is_refused():
    pytest.importorskip("torch")
    with pytest.raises(ml.errors.ConflictingOptionError, match="merges what is computed again"):
        compiled(ml.TorchBackend(), True, jit=True, autodiff="graph")


def test_the_source_shows_the_segments():
    pytest.importorskip("torch")
    program = compiled(ml.TorchBackend(), True, deep(depth=12))
    source = program.gradient_source
    assert "def segment_1(" in source
    assert "torch.utils.checkpoint.checkpoint(" in source
    # Evaluation alone keeps nothing anyway.
    assert "segment" not in program.source


def test_small_models_have_nothing_to_save():
    model = ml.Model()
    model |= ml.Linear(WIDTH)(input="input", output="output")
    with_, without = (compiled(ml.NumpyBackend(), is_enabled, model).gradient_source for is_enabled in (True, False))
    assert with_ == without


def test_the_other_spelling_and_bad_values():
    program = ml.compile(deep(depth=12), ml.NumpyBackend(), shapes={"input": [4, WIDTH]}, checkpoint=True)
    assert program.gradient_source == compiled_at(4, True).gradient_source
    with pytest.raises(ml.errors.InvalidValueError, match="gradient_checkpointing"):
        compiled(ml.NumpyBackend(), "yes")


def compiled_at(batch, checkpointing):
    shapes = {"input": [batch, WIDTH]}
    options = {"shapes": shapes, "gradient_checkpointing": checkpointing}
    return ml.compile(deep(depth=12), ml.NumpyBackend(), **options)
