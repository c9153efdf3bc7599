"""Pipelines: layers on devices and micro-batches give what one device gives; schedules; mistakes."""

import itertools
import os
import signal

import mithril as ml
import numpy as np
import pytest
from mithril import errors
from mithril.parallel import workers
from mithril.parallel.pipeline import Step, balanced, orders
from pipeline_models import LAYOUTS, compare, layers, text

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
        devices = int(random.integers(1, 5))
        placement = balanced([(f"h.{i}.weight", size) for i, size in enumerate(sizes)], devices)
        loads = [sum(s for i, s in enumerate(sizes) if placement[f"h.{i}"] == d) for d in range(devices)]
        cuts = itertools.combinations_with_replacement(range(len(sizes) + 1), devices - 1)
        ends = ([0, *cut, len(sizes)] for cut in cuts)
        best = min(max(sum(sizes[a:b]) for a, b in itertools.pairwise(end)) for end in ends)
        assert max(loads) == best
        assert list(placement.values()) == sorted(placement.values())


def chain(devices):
    """Forward and backward steps of a chain of layers; then gradients are summed."""
    forward = [Step(d, d, f"f{d}", [f"a{d}"], [f"a{d + 1}"], None) for d in range(devices)]
    last = 2 * devices - 1
    backward = [
        Step(d, last - d, f"b{d}", [f"a{d + 1}", f"g{d + 1}"], [f"g{d}", f"w{d}"], None) for d in range(devices)
    ]
    sums = [Step(d, 2 * devices + d, "all_reduce", [f"w{d}"], [f"s{d}"], (0, "SUM")) for d in range(devices)]
    return sorted([*forward, *backward, *sums], key=lambda step: step.level)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_schedules_do_everything_once_and_never_wait_in_a_circle(schedule):
    devices, count = 3, 6
    steps = chain(devices)
    order = orders(steps, count, schedule, devices)
    makers = {name: i for i, step in enumerate(steps) for name in step.makes}
    done, left, most = set(), [list(own) for own in order], [0] * devices
    while any(left):
        able = [
            device
            for device, own in enumerate(left)
            if own
            and all(
                (makers[name], m) in done
                for name in steps[own[0][0]].reads
                if name in makers
                for m in (range(count) if own[0][1] < 0 else [own[0][1]])
            )
        ]
        assert able
        for device in able:
            done.add(left[device].pop(0))
        for device in range(devices):
            ahead = [sum((i, m) in done for m in range(count)) for i, s in enumerate(steps) if s.name == f"f{device}"]
            behind = [sum((i, m) in done for m in range(count)) for i, s in enumerate(steps) if s.name == f"b{device}"]
            most[device] = max(most[device], ahead[0] - behind[0])
    assert len(done) == sum(map(len, order)) == 2 * devices * count + devices
    # Micro-batches whose intermediate results are kept at a time.
    assert most == ([count] * devices if schedule == "gpipe" else [3, 2, 1])


class Own(ml.NumpyBackend):
    """A backend with an op of its own, which workers would not know."""

    def relu(self, x):
        return np.maximum(x, 0)


def placed_and_divided():
    model, backend = layers(), ml.NumpyBackend(devices=["cpu"] * 2)
    backend.place_model(model, {"layer1": 0, "layer2": 1})
    return ml.compile(model, backend, layout=ml.Mesh(data=2))


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: ml.Pipeline({}), errors.InvalidValueError, "the stages are {}"),
        (lambda: ml.Pipeline({"a": -1}), errors.InvalidValueError, "the stages are"),
        (lambda: ml.Pipeline(2, micro_batches=0), errors.InvalidValueError, "micro_batches is 0"),
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
        (lambda: ml.plan(layers(), ml.Pipeline(2), shapes={"input": [8, 6]}), errors.InvalidValueError, "no plans of"),
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
