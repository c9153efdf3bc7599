"""Mistakes that users make: each is an error that says what, where and what to do, and leaves nothing broken."""

import mithril as ml
import numpy as np
import pytest
from mithril import errors


def simple():
    model = ml.Model()
    model |= ml.Linear(4)(input="input", output="output")
    return model


def compiled():
    return ml.compile(simple(), ml.NumpyBackend(), shapes={"input": ["batch", 3]})


def test_wrong_shape_is_an_error_at_its_line():
    model = simple()
    model.set_shapes(input=["batch", 3])
    with pytest.raises(errors.ShapeError) as found:
        model |= ml.Add()(left="output", right=ml.IOKey("skip", shape=["batch", 5]), output="sum")
    assert found.value.code == "M0301"
    assert "test_errors.py" in str(found.value)
    assert found.value.hint
    model |= ml.Relu()(input="output", output="after")
    assert model.output_keys == ["after"]


@pytest.mark.parametrize(
    ("make", "kind", "word"),
    [
        (lambda m: m.__ior__(ml.Relu()(inptu="output")), errors.KeyNotFoundError, "input"),
        (lambda m: m.__ior__(ml.Linear(3)(input="input", output="output")), errors.WiringError, "output"),
        (lambda m: m.__ior__(ml.Relu()(input="x", output="x")), errors.WiringError, "x"),
        (lambda m: m.__ior__(5), errors.WiringError, "int"),
        (lambda m: m.__ior__(m), errors.WiringError, ""),
        (lambda m: ml.Linear(-3), errors.MithrilError, "dimension"),
        (lambda m: ml.Linear(), errors.MithrilError, "dimension"),
        (lambda m: ml.Linear(4, bais=True), errors.MithrilError, "bias"),
        (lambda m: ml.Softmax(axis="x"), errors.MithrilError, "axis"),
        (lambda m: ml.Linear(4)(np.ones(3)), errors.MithrilError, "compile"),
        (lambda m: m.set_shapes(nothing=[1]), errors.KeyNotFoundError, "nothing"),
        (lambda m: m.set_shapes(input=[-1]), errors.ShapeError, "-1"),
        (lambda m: m.set_shapes(input="abc"), errors.MithrilError, "shape"),
        (lambda m: m.set_types(input="flaot32"), errors.TypeInferenceError, "float32"),
        (lambda m: ml.Model.from_json("{"), errors.ModelFileError, ""),
        (lambda m: ml.Model.from_json("[" * 100000), errors.ModelFileError, ""),
        (lambda m: ml.Model.from_json('{"version": 99}'), errors.ModelFileError, ""),
        (lambda m: ml.compile(ml.Model(), ml.NumpyBackend()), errors.WiringError, ""),
        (lambda m: ml.compile(m, ml.NumpyBackend), errors.InvalidValueError, "NumpyBackend()"),
        (
            lambda m: ml.compile(m, ml.NumpyBackend(), shapes={"inptu": [1, 2]}),
            errors.KeyNotFoundError,
            "input",
        ),
        (lambda m: ml.compile(m, ml.NumpyBackend(), shapes={"input": [2**62, 2**62]}), errors.ShapeError, ""),
        (
            lambda m: ml.compile(m, ml.NumpyBackend(), static_shapes=True),
            errors.UnresolvedShapeError,
            "shapes",
        ),
        (lambda m: ml.NumpyBackend(device="cuda"), errors.BackendUnavailableError, "cpu"),
        (lambda m: ml.NumpyBackend(dtype="int32"), errors.InvalidValueError, "float"),
        (
            lambda m: ml.NumpyBackend(dtype="float32", default_dtype="float64"),
            errors.ConflictingOptionError,
            "dtype",
        ),
        (lambda m: ml.get_backend("numpie"), errors.KeyNotFoundError, "numpy"),
    ],
)
def test_defining_and_compiling(make, kind, word):
    with pytest.raises(kind) as found:
        make(simple())
    assert word in str(found.value) + str(found.value.hint)
    assert not isinstance(found.value, errors.InternalError)


@pytest.mark.parametrize(
    ("params", "data", "word"),
    [
        ({}, {}, "input"),
        ({}, {"inptu": np.ones((2, 3))}, "inptu"),
        ({}, {"input": np.ones((2, 4))}, "[batch, 3]"),
        ({}, {"input": np.ones(3)}, "[batch, 3]"),
        ({}, {"input": np.ones((2, 3)), "extra": 1}, "extra"),
        ({}, {"input": "text"}, "input"),
        ({}, {"input": [[1, 2], [3]]}, "input"),
        ({"linear.weight": np.ones((4, 3), np.float32)}, {"input": np.ones((2, 3))}, "linear.bias"),
        (
            {"linear.weight": np.ones((4, 3)), "linear.bias": np.ones(4)},
            {"input": np.ones((2, 3))},
            "float64",
        ),
        (
            {"linear.weight": np.ones((3, 4), np.float32), "linear.bias": np.ones(4, np.float32)},
            {"input": np.ones((2, 3))},
            "[4, 3]",
        ),
        ([1, 2], {"input": np.ones((2, 3))}, "dict"),
    ],
)
def test_evaluating(params, data, word):
    with pytest.raises(errors.ParameterError) as found:
        compiled().evaluate(params, data)
    assert word in str(found.value) + str(found.value.hint)


def test_parameters_are_checked_again_after_a_change():
    model = compiled()
    params, data = model.randomize_params(), {"input": np.ones((2, 3))}
    model.evaluate(params, data)
    params["linear.bias"] = np.ones(5, np.float32)
    with pytest.raises(errors.ParameterError, match=r"linear\.bias"):
        model.evaluate(params, data)
    params |= {"linear.bias": np.ones(4)}
    with pytest.raises(errors.ParameterError, match="float64"):
        model.evaluate(params, data)


def test_gradients():
    model = compiled()
    params, data = model.randomize_params(), {"input": np.ones((2, 3))}
    with pytest.raises(errors.ParameterError, match="shape"):
        model.evaluate(params, data, {"output": np.ones((3, 3))})
    with pytest.raises(errors.KeyNotFoundError, match="outptu"):
        model.evaluate(params, data, {"outptu": np.ones((2, 4))})
    frozen = ml.compile(simple(), ml.NumpyBackend(), shapes={"input": ["batch", 3]}, inference=True)
    with pytest.raises(errors.UnsupportedOpError, match="inference"):
        frozen.evaluate(params, data, True)


def test_unknown_data_key_warns_or_raises():
    with pytest.warns(errors.UnusedKeyWarning, match="target"):
        model = ml.compile(simple(), ml.NumpyBackend(), shapes={"input": [2, 3]}, data_keys={"input", "target"})
    model.evaluate({}, {"input": np.ones((2, 3)), "target": np.ones(2)})
    with pytest.raises(errors.KeyNotFoundError):
        ml.compile(simple(), ml.NumpyBackend(), data_keys={"input", "target"}, strict=True)


def test_unknown_options_are_refused():
    with pytest.raises(TypeError, match="shapes"):
        ml.compile(simple(), ml.NumpyBackend(), shaeps={})
    with pytest.raises(TypeError, match="dtype"):
        ml.NumpyBackend(dtpye="float32")


def test_index_out_of_range_names_the_layer():
    model = ml.Model()
    model |= ml.Embedding(5, 3, name="words")(input="input", output="output")
    for backend in (ml.NumpyBackend(), ml.InterpreterBackend()):
        run = ml.compile(model, backend, shapes={"input": ["n"]})
        with pytest.raises(errors.MithrilError, match="words"):
            run.evaluate(run.randomize_params(), {"input": np.array([7])})


@pytest.mark.parametrize(
    "name",
    [
        'x"]; import os #',
        "class",
        "np",
        "params",
        "a\nb",
        "\u2028",
        "é",
        "x" * 900,
        "..",
        "/etc/passwd",
        "'",
        "\\",
        "I",
        "{0}",
    ],
)
def test_names_cannot_break_out(name):
    model = ml.Model()
    try:
        model |= ml.Relu()(input=name, output="output")
    except errors.MithrilError as error:
        assert error.code == "M0101"
        return
    run = ml.compile(model, ml.NumpyBackend(), shapes={name: [2]})
    np.testing.assert_array_equal(run.evaluate({}, {name: np.array([-1.0, 2.0])})["output"], [0, 2])
    assert "import os" not in "".join(line for line in run.source.splitlines() if line.startswith("import"))


def test_zero_sizes_and_nan():
    run = compiled()
    params = run.randomize_params()
    assert run.evaluate(params, {"input": np.zeros((0, 3))})["output"].shape == (0, 4)
    assert np.isnan(run.evaluate(params, {"input": np.full((1, 3), np.nan)})["output"]).all()


def test_connections_are_not_values():
    x = ml.IOKey("x")
    with pytest.raises(TypeError, match="where"):
        bool(x + 1)
    with pytest.raises(TypeError):
        np.exp(x + 1)
