"""`strategy="auto"` among pipelines: chosen where a step is the shortest or nothing else fits, and run as by hand."""

import dataclasses

import mithril as ml
import numpy as np
import pytest
from mithril import errors
from mithril.parallel import workers

#: Devices that are slow beside their links, whose messages arrive late.
LATE = ml.Hardware(flops=1e9, memory=10**9, bandwidth=1e12, link_bandwidth=1e8, latency=1e-3)
ADAM = ml.optim.AdamW(0.01)


@pytest.fixture(scope="module", autouse=True)
def no_workers_are_left():
    yield
    for pool in list(workers._all.values()):
        pool.close()


def deep(layers=8, width=256):
    model = ml.Model()
    model |= ml.Linear(width, name="l0")(input="input")
    for i in range(1, layers):
        model += ml.Relu()
        model += ml.Linear(width, name=f"l{i}")
    model += ml.Tanh()(output="output")
    return model


def gpt():
    return ml.models.create_gpt(vocab_size=512, num_layers=4, num_heads=4, dims=128, block_size=16)


def auto(model, mesh, shape, hardware=LATE, **options):
    arguments = {"shapes": {"input": shape}, "gradients": True, "hardware": hardware, "optimizer": ADAM, **options}
    return ml.plan(model, mesh, strategy="auto", **arguments), arguments


def check_as_by_hand(model, plan, arguments):
    """The plan is that of the pipeline written by hand, and costs what the search has said."""
    pasted = eval(repr(plan.layout), {"Pipeline": ml.Pipeline, "Layout": ml.Layout, "Mesh": ml.Mesh})
    by_hand = ml.plan(model, pasted, **arguments)
    assert by_hand.stages == plan.stages
    assert by_hand.spans == plan.spans
    assert by_hand.seconds == plan.seconds == plan.search.chosen.seconds
    assert plan.search.chosen.memory == max(stage.bytes_held for stage in plan.stages)
    assert f"chosen of {plan.search.evaluated} layouts: {plan.layout!r}" in str(plan)
    assert plan.search.chosen.seconds <= min(c.seconds for c in plan.search.candidates if c.fits)
    assert "Chosen of" in plan.picture()


@pytest.mark.parametrize(("build", "shape"), [(deep, [16, 256]), (gpt, [8, 16])])
def test_a_batch_much_smaller_than_the_weights_goes_through_stages(build, shape):
    hardware = LATE if build is deep else dataclasses.replace(LATE, flops=1e10)
    plan, arguments = auto(build(), ml.Mesh(pipe=4), shape, hardware)
    assert isinstance(plan.layout, ml.Pipeline)
    assert plan.layout.stage_count == 4
    assert plan.micro_batches > 1
    check_as_by_hand(build(), plan, arguments)
    # Nothing that is written by hand is faster.
    for count in (2, 4, 8):
        for schedule in ("gpipe", "1f1b", "interleaved"):
            other = ml.plan(build(), ml.Pipeline(4, micro_batches=count, schedule=schedule), **arguments)
            assert plan.seconds <= other.seconds * 1.005, (count, schedule)
    for strategy in ("data_parallel", "fully_sharded", "tensor_parallel", "sequence_parallel"):
        other = ml.plan(build(), ml.Mesh(pipe=4), strategy=strategy, **arguments)
        assert plan.seconds < other.estimate.seconds, strategy


def test_stages_are_along_the_axis_with_slow_links_and_divided_along_the_other():
    for mesh in (ml.Mesh(near=2, far=2), ml.Mesh(far=2, near=2)):
        hardware = dataclasses.replace(LATE, link_bandwidth={"near": 1e9, "far": 1e7})
        plan, arguments = auto(deep(), mesh, [16, 256], hardware)
        assert plan.layout.axis == "far"
        assert plan.layout.layout.batch == "near"
        assert plan.layout.ranks(0) == ([0, 1] if next(iter(mesh.axes)) == "far" else [0, 2])
        check_as_by_hand(deep(), plan, arguments)
        assert plan.layout.stages == 2


def test_all_devices_of_a_grid_may_be_stages():
    plan, arguments = auto(deep(), ml.Mesh(a=2, b=2), [16, 256], optimizer=None)
    assert repr(plan.layout).startswith("Pipeline(4, ")
    check_as_by_hand(deep(), plan, arguments)


def test_a_large_batch_is_divided_as_before():
    fast = dataclasses.replace(LATE, link_bandwidth=1e10, latency=1e-6)
    plan, _ = auto(deep(), ml.Mesh(data=4), [1024, 256], fast)
    assert not isinstance(plan.layout, ml.Pipeline)
    assert plan.layout.batch == "data"
    # No pipeline can be as fast, so none is partitioned.
    assert not any("pipeline" in candidate.name for candidate in plan.search.candidates)


def test_a_pipeline_is_taken_where_nothing_else_fits():
    """Neither the batch nor the widths divide, so that every device would hold the whole model."""
    fast = dataclasses.replace(LATE, flops=1e15, latency=0.1)
    whole, _ = auto(deep(8, 251), ml.Mesh(pipe=2), [3, 251], fast)
    assert not isinstance(whole.layout, ml.Pipeline)
    small = dataclasses.replace(fast, memory=whole.bytes_held * 8 // 10)
    plan, arguments = auto(deep(8, 251), ml.Mesh(pipe=2), [3, 251], small)
    assert plan.fits
    assert plan.seconds > whole.estimate.seconds
    assert plan.layout.stages == 2
    pasted = ml.Pipeline(2, micro_batches=plan.layout.micro_batches, schedule=plan.layout.schedule)
    assert ml.plan(deep(8, 251), pasted, **arguments).stages == plan.stages
    tiny = dataclasses.replace(fast, memory=plan.search.chosen.memory // 2)
    with pytest.raises(errors.InvalidValueError, match=r"no layout over the mesh \(pipe=2\) fits in .* bytes"):
        auto(deep(8, 251), ml.Mesh(pipe=2), [3, 251], tiny)


#: Nothing but the layers divides, and computing takes longer than to hand the parameters over.
PRIME, MESH = [15, 31], ml.Mesh(pipe=2)
NEAR = dataclasses.replace(LATE, link_bandwidth=1e10, latency=1e-6)


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_what_is_chosen_runs_as_by_hand(name):
    pytest.importorskip(name)
    if name == "jax":
        import jax

        if len(jax.devices()) < 2:
            pytest.skip("JAX needs two devices: XLA_FLAGS=--xla_force_host_platform_device_count=2")
    options = {"shapes": {"input": PRIME}}
    backend = ml.get_backend(name, **({} if name == "jax" else {"devices": ["cpu"] * 2}))
    chosen = ml.compile(deep(4, 31), backend, layout=MESH, strategy="auto", hardware=NEAR, **options)
    pipeline = chosen.parallel_plan.layout
    assert isinstance(pipeline, ml.Pipeline)
    by_hand = ml.compile(deep(4, 31), backend, layout=pipeline, **options)
    assert by_hand.parallel_plan.stages == chosen.parallel_plan.stages
    single = ml.compile(deep(4, 31), ml.NumpyBackend(), **options)
    params = dict(single.randomize_params(seed=0).items())
    data = {"input": np.random.default_rng(0).standard_normal(PRIME).astype(np.float32)}
    expected = single.evaluate(params, data, output_gradients=True)
    arrays = {key: backend.array(value) for key, value in params.items()}
    results = [compiled.evaluate(arrays, data, output_gradients=True) for compiled in (chosen, by_hand)]
    for own, other, theirs in zip(*results, expected, strict=True):
        for key, value in theirs.items():
            np.testing.assert_array_equal(backend.to_numpy(own[key]), backend.to_numpy(other[key]))
            np.testing.assert_allclose(backend.to_numpy(own[key]), value, rtol=1e-4, atol=1e-5, err_msg=key)


def test_the_option_of_a_backend_and_a_training():
    data = {"input": np.random.default_rng(0).standard_normal((15, 31)).astype(np.float32)}
    data["target"] = np.random.default_rng(1).standard_normal((15, 31)).astype(np.float32)
    losses = []
    for options in ({}, {"devices": ["cpu"] * 2}):
        backend = ml.NumpyBackend(seed=1, **options)
        layout = {"layout": MESH, "strategy": "auto", "hardware": NEAR} if options else {}
        compiled = ml.compile(deep(4, 31), backend, shapes={"input": PRIME}, **layout)
        step = ml.train.TrainingStep(compiled, ml.optim.AdamW(0.01, clip_norm=0.5), loss="mse")
        losses.append([float(step(data)[step.loss]) for _ in range(3)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


def test_parameters_that_are_handed_over_count_without_a_training():
    """In a training the stages keep them, so that a backend chooses as a plan without one does."""
    slow = dataclasses.replace(NEAR, link_bandwidth=1e7)
    plan, _ = auto(deep(4, 31), MESH, PRIME, slow)
    assert isinstance(plan.layout, ml.Pipeline)
    # The data, the output, and the gradient by it.
    assert sum(stage.loaded + stage.returned for stage in plan.stages) == 3 * 15 * 31 * 4
    assert plan.handover == pytest.approx(3 * 15 * 31 * 4 / 1e7)
    assert "stay on their stages" in str(plan)
    backend = ml.NumpyBackend(devices=["cpu"] * 2)
    options = {"layout": MESH, "strategy": "auto", "shapes": {"input": PRIME}}
    for hardware in (slow, dataclasses.replace(slow, memory=plan.search.chosen.memory * 11 // 10)):
        compiled = ml.compile(deep(4, 31), backend, hardware=hardware, **options)
        assert compiled.parallel_plan.layout.stages == 2
    inference = {**options, "inference": True}
    near = dataclasses.replace(NEAR, link_bandwidth=1e8)
    compiled = ml.compile(deep(4, 31), backend, hardware=near, **inference)
    assert not isinstance(compiled.parallel_plan.layout, ml.Pipeline)
    free, _ = auto(deep(4, 31), MESH, PRIME, near, gradients=False, optimizer=None)
    assert isinstance(free.layout, ml.Pipeline)
    # The first device has room for its stage, and not for all parameters, which the script keeps there.
    small = dataclasses.replace(NEAR, memory=free.search.chosen.memory * 11 // 10)
    with pytest.raises(errors.InvalidValueError, match="no layout over the mesh"):
        ml.compile(deep(4, 31), backend, hardware=small, **inference)


def test_backends_without_pipelines_get_none():
    options = {"layout": MESH, "strategy": "auto", "shapes": {"input": PRIME}, "hardware": NEAR}
    compiled = ml.compile(deep(4, 31), ml.InterpreterBackend(), **options)
    assert not isinstance(compiled.parallel_plan.layout, ml.Pipeline)
    arguments = {"shapes": {"input": PRIME}, "gradients": True, "hardware": NEAR}
    for backend, runs in ((ml.InterpreterBackend(), False), (ml.NumpyBackend(), True)):
        single = ml.compile(deep(4, 31), backend, shapes={"input": PRIME})
        plan = ml.plan(single, MESH, strategy="auto", **arguments)
        assert isinstance(plan.layout, ml.Pipeline) == runs


def test_c_is_exported_without_stages(tmp_path):
    compiled = ml.compile(deep(4, 31), ml.NumpyBackend(), shapes={"input": PRIME}, inference=True)
    compiled.export(tmp_path / "c", target="c", layout=MESH, strategy="auto")
    assert list((tmp_path / "c").iterdir())
