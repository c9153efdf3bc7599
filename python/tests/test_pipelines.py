"""Pipelines: layers on devices and micro-batches give what one device gives; schedules; mistakes."""

import itertools
import os
import signal

import mithril as ml
import numpy as np
import pytest
from mithril import errors
from mithril.parallel import workers
from mithril.parallel.pipeline import Step, balanced, orders, sequence
from pipeline_models import LAYOUTS, MIXED, TARGET, X, compare, layers, text

RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module", autouse=True)
def no_workers_are_left():
    yield
    for pool in list(workers._all.values()):
        pool.close()


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_pipeline_computes_what_one_device_does(name):
    pytest.importorskip(name)
    compare(name, ["cpu"] * 2, LAYOUTS)


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_stages_on_several_devices_compute_what_one_device_does(name):
    pytest.importorskip(name)
    compare(name, ["cpu"] * 4, MIXED)


def test_a_mixture_of_strategies_trains_a_gpt():
    """Tensor parallelism within stages, a tied embedding in both, and batches that are padded for either."""
    single = ml.compile(text(), ml.NumpyBackend(), shapes={"input": [5, 8]})
    params = dict(single.randomize_params(seed=0).items())
    data = {"input": RANDOM.integers(0, 64, (5, 8))}
    expected = single.evaluate(params, data, output_gradients=True)
    mesh = ml.Mesh(pipe=2, model=2)
    strategies = (
        {"pipe": "pipeline_parallel", "model": "tensor_parallel"},
        {"pipe": "pipeline_parallel", "model": "data_parallel"},
    )
    for strategy in strategies:
        backend = ml.NumpyBackend(devices=["cpu"] * 4)
        # With data parallelism, sizes become known at the call, and 5 examples do not divide.
        shapes = {"input": [5, 8]} if "tensor_parallel" in strategy.values() else None
        compiled = ml.compile(text(), backend, layout=mesh, strategy=strategy, shapes=shapes)
        actual = compiled.evaluate(params, data, output_gradients=True)
        for ours, theirs in zip(actual, expected, strict=True):
            for name, value in theirs.items():
                np.testing.assert_allclose(ours[name], value, rtol=1e-4, atol=1e-4 * np.abs(value).max(), err_msg=name)


def test_sums_are_sent_once():
    """Gradients, over the devices of a stage and of a tied embedding between stages, whatever the micro-batches."""
    plans = [
        ml.plan(
            text(),
            ml.Pipeline(2, micro_batches=count, layout=ml.Mesh(data=2)),
            shapes={"input": [16, 8]},
            gradients=True,
        )
        for count in (2, 4)
    ]
    for stage in range(2):
        once, twice = (plan.stages[stage] for plan in plans)
        assert once.exchanged == twice.exchanged > 0
    # An all-reduce of two devices sends as many bytes as the tensor has.
    assert sum(stage.exchanged for stage in plans[0].stages) == sum(s.memory["gradients"] for s in plans[0].stages)
    # The gradients of activations of 8 examples, and that of the embedding.
    assert [plan.stages[1].sent for plan in plans] == [8 * 8 * 16 * 4 + 64 * 16 * 4] * 2


def test_a_step_goes_on_from_its_checkpoint_elsewhere(tmp_path):
    """Bit for bit on the same devices, up to the order of sums on others; also a pipeline with several in a stage."""

    def losses(devices, layout, *, steps, load=None):
        model = ml.compile(layers(), ml.NumpyBackend(devices=devices, seed=1), shapes={"input": [8, 6]}, layout=layout)
        step = ml.train.TrainingStep(model, ml.optim.AdamW(0.01, clip_norm=0.5), loss="mse")
        if load is not None:
            step.load(load)
        computed = [float(model.backend.to_numpy(step({"input": X, "target": TARGET})[step.loss])) for _ in range(2)]
        assert step.steps == steps
        path = step.save(tmp_path / f"{len(devices)}") if load is None else None
        return computed, path

    places = [
        (["cpu"], None),
        (["cpu"] * 2, ml.Layout(ml.Mesh(data=2), batch="data", parameters="data")),
        (["cpu"] * 4, MIXED[0]["layout"]),
    ]
    saved = [losses(*place, steps=2)[1] for place in places]
    whole = losses(*places[0], steps=4, load=saved[0])[0]
    for i, path in enumerate(saved):
        again = [losses(*place, steps=4, load=path)[0] for place in places]
        assert again[i] == losses(*places[i], steps=4, load=str(tmp_path / str(len(places[i][0]))))[0]
        for computed in again:
            np.testing.assert_allclose(computed, whole, rtol=1e-4)
    other = ml.train.TrainingStep(ml.compile(mixes_examples(), ml.NumpyBackend(), shapes={"input": [8, 6]}), loss="mse")
    with pytest.raises(errors.ParameterError, match="belongs to another model: it holds"):
        other.load(saved[0])
    with pytest.raises(errors.ModelFileError, match="holds no checkpoint"):
        other.load(tmp_path / "nothing")
    with pytest.raises(errors.InvalidValueError, match="keep is 0"):
        other.save(tmp_path, keep=0)


def test_layers_are_distributed_by_their_time():
    """A lookup in a large table takes less time than products of smaller weights."""
    model = ml.Model()
    model |= ml.Embedding(5000, 64, name="table")(input="input")
    for i in range(3):
        model += ml.Linear(64, name=f"layer{i}")
        model += ml.Relu()
    plan = ml.plan(model, ml.Pipeline(2, micro_batches=2), shapes={"input": [512]}, gradients=False)
    assert plan.stages[0].layers[:2] == ("table", "layer0")
    assert "distributed by their estimated times" in str(plan)


def test_layers_are_distributed_by_their_size():
    data = {"input": RANDOM.integers(0, 64, (6, 8))}
    single = ml.compile(text(), ml.NumpyBackend(), shapes={"input": [6, 8]})
    params = dict(single.randomize_params(seed=0).items())
    expected = single.evaluate(params, data, output_gradients=True)
    backend = ml.NumpyBackend(devices=["cpu"] * 3, parallel_strategy="pipeline_parallel")
    # Sizes that are left open become known at a call; the last batch has another one.
    compiled = ml.compile(text(), backend)
    actual = compiled.evaluate(params, data, output_gradients=True)
    for ours, theirs in zip(actual, expected, strict=True):
        for name, value in theirs.items():
            np.testing.assert_allclose(ours[name], value, rtol=1e-4, atol=1e-4 * np.abs(value).max(), err_msg=name)
    # Two parts of the layers on each device.
    interleaved = ml.compile(
        text(), ml.NumpyBackend(devices=["cpu"] * 2), layout=ml.Pipeline(2, schedule="interleaved", micro_batches=3)
    )
    for ours, theirs in zip(interleaved.evaluate(params, data, output_gradients=True), actual, strict=True):
        for name, value in theirs.items():
            np.testing.assert_allclose(ours[name], value, rtol=1e-4, atol=1e-4 * np.abs(value).max(), err_msg=name)
    whole = compiled.evaluate(params, {"input": data["input"][:5]})
    for name, value in ml.compile(text(), ml.NumpyBackend()).evaluate(params, {"input": data["input"][:5]}).items():
        np.testing.assert_allclose(whole[name], value, rtol=1e-4, atol=1e-5)
    pids = [process.pid for process in workers.workers_on("numpy", ["cpu"] * 3, "steps")._processes]
    os.kill(pids[2], signal.SIGKILL)
    with pytest.raises(errors.BackendUnavailableError, match="the worker of device 2"):
        compiled.evaluate(params, data)
    assert np.isfinite(next(iter(compiled.evaluate(params, data).values()))).all()


def test_the_largest_device_is_small():
    random = np.random.default_rng(0)
    for _ in range(50):
        sizes = [int(n) for n in random.integers(1, 20, random.integers(1, 8))]
        devices = int(random.integers(1, min(len(sizes), 4) + 1))
        placement = balanced([(f"h.{i}.weight", size) for i, size in enumerate(sizes)], devices)
        loads = [sum(s for i, s in enumerate(sizes) if placement[f"h.{i}"] == d) for d in range(devices)]
        cuts = itertools.combinations_with_replacement(range(len(sizes) + 1), devices - 1)
        ends = ([0, *cut, len(sizes)] for cut in cuts)
        best = min(max(sum(sizes[a:b]) for a, b in itertools.pairwise(end)) for end in ends)
        assert max(loads) == best
        assert list(placement.values()) == sorted(placement.values())
        assert set(placement.values()) == set(range(devices))


def chain(devices, chunks=1):
    """Forward and backward steps of a chain of layers, one where they meet; then gradients are summed."""
    count = devices * chunks
    steps = [Step(s % devices, s, f"f{s}", [f"a{s}"], [f"a{s + 1}"], None) for s in range(count - 1)]
    meet = ["cotangent:y", f"a{count - 1}"]
    steps.append(Step(devices - 1, count - 1, "meet", meet, [f"g{count - 1}", f"w{count - 1}"], None))
    for s in range(count - 2, -1, -1):
        level = 2 * count - 2 - s
        steps.append(Step(s % devices, level, f"b{s}", [f"a{s + 1}", f"g{s + 1}"], [f"g{s}", f"w{s}"], None))
    sums = [Step(s % devices, 2 * count, "all_reduce", [f"w{s}"], [f"s{s}"], (0, 0, "SUM")) for s in range(count)]
    return [*steps, *sums]


#: For each schedule how many results of layers forward a device keeps at a time, on three devices.
KEPT = {"gpipe": [6, 6, 0], "1f1b": [3, 2, 0], "interleaved": [8, 6, 4]}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_schedules_do_everything_once_and_wait_as_little_as_they_can(schedule):
    devices, count, chunks = 3, 6, 2 if schedule == "interleaved" else 1
    steps = chain(devices, chunks)
    order = orders(steps, count, schedule, devices)
    makers = {name: i for i, step in enumerate(steps) for name in step.makes}
    takes = {"f": 1, "b": 2, "m": 3, "a": 0}
    end, free, left, kept, most = {}, [0] * devices, [list(own) for own in order], [0] * devices, [0] * devices
    while any(left):
        able = []
        for device, own in enumerate(left):
            for i, m in own[:1]:
                needs = [
                    (makers[name], n)
                    for name in steps[i].reads
                    if name in makers
                    for n in (range(count) if m < 0 else [m])
                ]
                if all(need in end for need in needs):
                    able.append((device, max([free[device], *(end[need] for need in needs)])))
        assert able
        for device, start in able:
            i, m = left[device].pop(0)
            kind = steps[i].name[0]
            end[i, m] = free[device] = start + takes[kind]
            kept[device] += {"f": 1, "b": -1}.get(kind, 0)
            most[device] = max(most[device], kept[device])
    assert len(end) == sum(map(len, order)) == (2 * devices * chunks - 1) * count + devices * chunks
    assert most == KEPT[schedule]
    # Each waits while the first and the last micro-batches go through the others, in parts as large as a chunk.
    assert max(free) == 3 * chunks * count + 3 * (devices - 1)


def test_orders_that_would_wait_in_a_circle_are_those_of_gpipe():
    random = np.random.default_rng(0)
    for _ in range(200):
        devices, count = int(random.integers(1, 4)), int(random.integers(1, 6))
        steps = chain(devices, int(random.integers(1, 4)))
        places = random.permutation(devices)
        steps = [step._replace(device=int(places[random.integers(0, devices)])) for step in steps]
        for schedule in ("gpipe", "1f1b", "interleaved"):
            order = orders(steps, count, schedule, devices)
            done = [task for _, task in sequence(steps, order, count)]
            assert len(done) == len(set(done)) == sum(1 if step.is_joint else count for step in steps)


class Own(ml.NumpyBackend):
    """A backend with an op of its own, which workers would not know."""

    def relu(self, x):
        return np.maximum(x, 0)


def placed_and_divided():
    model, backend = layers(), ml.NumpyBackend(devices=["cpu"] * 2)
    backend.place_model(model, {"layer1": 0, "layer2": 1})
    return ml.compile(model, backend, layout=ml.Mesh(data=2))


def mixed(devices, layout):
    backend = ml.NumpyBackend(devices=["cpu"] * devices)
    return ml.compile(layers(), backend, shapes={"input": [8, 6]}, layout=ml.Pipeline(2, layout=layout))


def strategies(strategy):
    return ml.plan(layers(), ml.Mesh(pipe=2, data=2), strategy=strategy, shapes={"input": [8, 6]})


def mixes_examples():
    model = ml.Model()
    model |= ml.Linear(4, name="layer1")(input="input")
    model += ml.Softmax(axis=0)
    model += ml.Linear(4, name="layer2")(output="output")
    return model


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: ml.Pipeline({}), errors.InvalidValueError, "the stages are {}"),
        (lambda: ml.Pipeline({"a": -1}), errors.InvalidValueError, "the stages are"),
        (lambda: ml.Pipeline(2, micro_batches=0), errors.InvalidValueError, "micro_batches is 0"),
        (lambda: ml.Pipeline(2, chunks=2), errors.ConflictingOptionError, "schedule='interleaved'"),
        (lambda: ml.Pipeline(2, schedule="interleaved", chunks=0), errors.InvalidValueError, "chunks is 0"),
        (lambda: ml.Pipeline(2, schedule="1f1c"), errors.InvalidValueError, "did you mean '1f1b'"),
        (
            lambda: ml.compile(layers(), ml.NumpyBackend(), layout=ml.Pipeline({"layer1": 1})),
            errors.BackendUnavailableError,
            "NumpyBackend(devices=['cpu'] * 2)",
        ),
        (
            lambda: ml.compile(layers(), ml.JaxBackend(device="cpu"), layout=ml.Pipeline(500)),
            errors.BackendUnavailableError,
            "needs 500 devices; JAX finds",
        ),
        (
            lambda: ml.compile(layers(), ml.InterpreterBackend(), layout=ml.Pipeline({"layer1": 1})),
            errors.BackendUnavailableError,
            "InterpreterBackend runs no pipelines",
        ),
        (
            lambda: ml.NumpyBackend().place_model(layers(), {"layer1": 0, "layer2": 1}),
            errors.BackendUnavailableError,
            "layer 'layer2' is placed on device 1",
        ),
        (
            lambda: ml.NumpyBackend(devices=["cpu"] * 2).place_model(layers(), {"layer1": 2}),
            errors.BackendUnavailableError,
            "layer 'layer1' is placed on device 2",
        ),
        (
            lambda: Own(devices=["cpu"] * 2, parallel_strategy="pipeline_parallel"),
            errors.UnsupportedOpError,
            "defines ops",
        ),
        (placed_and_divided, errors.ConflictingOptionError, "place_model"),
        (
            lambda: ml.compile(
                layers(),
                ml.NumpyBackend(devices=["cpu"] * 2),
                shapes={"input": [8, 6]},
                layout=ml.Pipeline({"layer1": 0, "layr2": 1}),
            ),
            errors.KeyNotFoundError,
            "did you mean 'layer2'",
        ),
        (
            lambda: ml.plan(layers(), ml.Pipeline({"layr1": 1}), shapes={"input": [8, 6]}),
            errors.KeyNotFoundError,
            "did you mean 'layer1'",
        ),
        (
            lambda: ml.plan(mixes_examples(), ml.Pipeline(2, micro_batches=3), shapes={"input": [8, 6]}),
            errors.InvalidValueError,
            "does not divide into 3 parts",
        ),
        (
            lambda: mixed(3, ml.Mesh(data=2)),
            errors.BackendUnavailableError,
            "needs 4 devices, and NumpyBackend was given 3",
        ),
        (
            lambda: ml.plan(layers(), ml.Pipeline(9), shapes={"input": [8, 6]}),
            errors.InvalidValueError,
            "layers with parameters, too few for 9 stages",
        ),
        (lambda: mixed(4, ml.Mesh(stage=2)), errors.InvalidValueError, "the axis 'stage' of Mesh(stage=2)"),
        (lambda: mixed(4, ml.Pipeline(2)), errors.InvalidValueError, "divided by another pipeline"),
        (lambda: mixed(4, 2), errors.InvalidValueError, "2 is not a layout"),
        (
            lambda: mixed(4, ml.Layout(ml.Mesh(data=2), batch="data", batch_statistics="local")),
            errors.InvalidValueError,
            "pipelines take the statistics of the whole batch",
        ),
        (
            lambda: mixed(4, ml.Layout(ml.Mesh(model=2), {"layr1.weight": "model"})),
            errors.InvalidValueError,
            "did you mean `layer1.weight`",
        ),
        (
            lambda: mixed(6, ml.Layout(ml.Mesh(model=3), {"layer1.weight": "model"})),
            errors.InvalidValueError,
            "axis 0 of `layer1.weight`, f32[8, 6], does not divide into 3 parts (model)",
        ),
        (
            lambda: strategies({"pipe": "pipeline_parallel", "data": "pipeline_parallel"}),
            errors.InvalidValueError,
            "the layers are distributed along 'pipe' and 'data'",
        ),
        (
            lambda: strategies({"pipe": "pipeline_parallel", "dat": "data_parallel"}),
            errors.InvalidValueError,
            "did you mean 'data'",
        ),
        (lambda: strategies({"pipe": "pipeline_parallel"}), errors.InvalidValueError, "what is divided along 'data'"),
    ],
)
def test_mistakes(call, kind, text):
    with pytest.raises(kind) as caught:
        call()
    assert text in str(caught.value)
    assert caught.value.hint


def test_micro_batches_need_not_divide_the_batch():
    x = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    one = ml.compile(layers(), ml.NumpyBackend(), shapes={"input": [8, 6]}, inference=True)
    layout, backend = ml.Pipeline({"layer1": 0, "layer2": 1}, micro_batches=3), ml.NumpyBackend(devices=["cpu"] * 2)
    divided = ml.compile(layers(), backend, shapes={"input": [8, 6]}, layout=layout, inference=True)
    params = one.randomize_params(seed=0)
    actual, expected = (np.asarray(c.evaluate(params, {"input": x})["output"]) for c in (divided, one))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    plan = ml.plan(layers(), layout, shapes={"input": [8, 6]})
    assert plan.padded == (8, 9)
    assert "the batch of 8 is padded to 9" in str(plan)
