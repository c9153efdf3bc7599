"""Methods that pass on what they are given: any op can be overridden by `super().op(*args, **kwargs)` and the like."""

import collections
import os

import mithril as ml
import numpy as np
import pytest
from mithril import _core
from mithril.errors import BackendWarning
from mithril.spellings import ORDERED
from mithril.testing.backend_tests import run_backend_tests
from mithril.testing.cases import cases

ROWS = {row["name"]: row for row in _core.op_definitions()}
#: Ops whose methods have another signature than the op: they draw with a key, or make arrays of sizes.
OTHERWISE = {name for name in ROWS if name.startswith("random_")} | {"zeros", "ones"}
STYLES = {
    "*args, **kwargs": lambda call: lambda self, *args, **kwargs: call(self, *args, **kwargs),
    "first, **kwargs": lambda call: lambda self, first, **kwargs: call(self, first, **kwargs),
    "first, *args, **kwargs": lambda call: lambda self, first, *args, **kwargs: call(self, first, *args, **kwargs),
    "*args": lambda call: lambda self, *args: call(self, *args),
}


def wrapped(base, names, style):
    """A backend whose methods for these ops count their calls and pass on their arguments, and the counts."""
    calls = collections.Counter()

    def method(name):
        own = getattr(base, name)

        def call(self, *args, **kwargs):
            calls[name] += 1
            return own(self, *args, **kwargs)

        return STYLES[style](call)

    return type("Wrapped", (base,), {name: method(name) for name in names if hasattr(base, name)})(), calls


@pytest.mark.parametrize("style", STYLES)
def test_a_method_of_every_op_may_pass_on_its_arguments(style):
    # The operands of an equation cannot be given by name, and what may be in PyTorch's order only by name.
    refused = {"first, **kwargs": {"einsum"}, "*args": {n for n, r in ROWS.items() if ORDERED & {n, *r["aliases"]}}}
    names = sorted(set(ROWS) - OTHERWISE)
    if "MITHRIL_TEST_ALL" not in os.environ:  # each op in one of the styles
        names = names[list(STYLES).index(style) :: len(STYLES)]
    names = sorted(set(names) - refused.get(style, set()))
    backend, calls = wrapped(ml.NumpyBackend, names, style)
    plain = ml.NumpyBackend()
    for name in names:
        if not hasattr(plain, name):
            continue
        # From the last one on: the first ones have the defaults. What changes nothing is left out, and calls nothing.
        for case in reversed(list(cases(ROWS[name]))):
            args = [np.asarray(a, np.float32) if getattr(a, "dtype", None) == np.float64 else a for a in case.args]
            actual, expected = (own.engine.apply_op(name, args) for own in (backend, plain))
            for one, other in zip(*(v if isinstance(v, tuple) else (v,) for v in (actual, expected)), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=str(case))
            if calls[name]:
                break
        else:
            pytest.fail(f"no case of {name} calls the method")


@pytest.mark.parametrize("style", ["*args, **kwargs", "first, **kwargs"])
@pytest.mark.parametrize("name", ["TorchBackend", "JaxBackend", "MlxBackend"])
def test_frameworks_too(name, style):
    pytest.importorskip(name.removesuffix("Backend").lower())
    names = ["softmax", "conv2d", "concat", "getitem", "batch_norm"]
    backend, calls = wrapped(getattr(ml, name), names, style)
    assert run_backend_tests(backend, names).failures == []
    assert set(calls) == set(names)


@pytest.mark.parametrize("style", list(STYLES)[:3])
def test_models_call_them(style):
    """With a bias and without, with the defaults and with others; eagerly, and as a part of a model."""
    names = ["conv2d", "max_pool2d", "softmax", "concat"]
    backend, calls = wrapped(ml.NumpyBackend, names, style)
    image = ml.IOKey("input")
    sides = [ml.Conv2d(4, 3, padding=1, stride=2, bias=bias)(image) for bias in (True, False)]
    model = ml.Model.create(output=ml.Softmax(1)(ml.MaxPool2d(2, 1)(ml.NumpyBackend().concat(*sides, axis=1))))
    x = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)
    overridden, reference = (ml.compile(model, own, shapes={"input": x.shape}) for own in (backend, ml.NumpyBackend()))
    params = reference.randomize_params(seed=0)
    np.testing.assert_array_equal(
        overridden.evaluate(params, {"input": x})["output"], reference.evaluate(params, {"input": x})["output"]
    )
    assert calls == {"conv2d": 2, "max_pool2d": 1, "softmax": 1, "concat": 1}
    connection = ml.IOKey("x")
    part = ml.Model.create(output=backend.softmax(backend.concat([connection, connection], axis=1), axis=1))
    compiled = ml.compile(part, backend, shapes={"x": [2, 3]})
    actual = compiled.evaluate({}, {"x": x[0, 0, :2, :3]})["output"]
    np.testing.assert_allclose(actual.sum(1), 1, rtol=1e-6)


def test_parameters_in_front_of_stars_and_lists():
    seen = []

    class Own(ml.NumpyBackend):
        def concat(self, inputs, axis=0):
            seen.append(type(inputs))
            return super().concat(inputs, axis=axis)

        def stack(self, first, *others, axis=0):
            seen.append(len(others))
            return super().stack(first, *others, axis=axis)

        def where(self, condition, *branches):
            seen.append(len(branches))
            return super().where(condition, *branches)

        def getitem(self, input, key):
            seen.append(key)
            return super().getitem(input, key)

    plain, x, y = ml.NumpyBackend(), ml.IOKey("x"), ml.IOKey("y")
    model = ml.Model.create(
        joined=plain.concat(x, y, axis=1),
        stacked=plain.stack(x, y, axis=1),
        chosen=plain.where(x > 0, x, y),
        part=x[0, 1:],
    )
    x = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
    compiled = ml.compile(model, Own(), shapes={"x": [2, 3], "y": [2, 3]}, data_keys={"x", "y"})
    outputs = compiled.evaluate({}, {"x": x, "y": x + 1})
    np.testing.assert_array_equal(outputs["joined"], np.concatenate([x, x + 1], 1))
    np.testing.assert_array_equal(outputs["stacked"], np.stack([x, x + 1], 1))
    np.testing.assert_array_equal(outputs["chosen"], np.where(x > 0, x, x + 1))
    np.testing.assert_array_equal(outputs["part"], x[0, 1:])
    assert list in seen
    assert seen.count(1) == 1
    assert 2 in seen


def test_what_cannot_be_passed_on_is_said():
    with pytest.warns(BackendWarning, match="add `\\*\\*kwargs` behind `\\*args`"):
        wrapped(ml.NumpyBackend, ["pad"], "*args")
    with pytest.warns(BackendWarning, match="it takes no `operands`"):
        wrapped(ml.NumpyBackend, ["einsum"], "first, **kwargs")
    with pytest.warns(BackendWarning, match="`axs` in front of `\\*args`"):
        type("Own", (ml.NumpyBackend,), {"softmax": lambda self, input, axs=1, *args: None})
    backend, _ = wrapped(ml.NumpyBackend, ["softmax"], "*args, **kwargs")
    x = ml.IOKey("x")
    for call, match in (
        (lambda: backend.softmax(x, 1, 2), "softmax takes 2 arguments: input, axis"),
        (lambda: backend.softmax(x, axs=1), "softmax has no argument 'axs'"),
    ):
        with pytest.raises(ml.MithrilError, match=match):
            call()
