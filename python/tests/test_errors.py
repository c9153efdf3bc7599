"""Mistakes that users make: each is an error that says what, where and what to do, and leaves nothing broken."""

import copy
import json
import pickle
import random

import mithril as ml
import numpy as np
import pytest
from mithril import errors
from threads import in_threads


def simple():
    model = ml.Model()
    model |= ml.Linear(4)(input="input", output="output")
    return model


def compiled():
    return ml.compile(simple(), ml.NumpyBackend(), shapes={"input": ["batch", 3]})


def test_wrong_shape_is_an_error_at_its_line():
    model = simple()
    model.set_shapes(input=["batch", 3])
    with pytest.raises(errors.ShapeError) as caught:
        model |= ml.Add()(left="output", right=ml.IOKey("skip", shape=["batch", 5]), output="sum")
    assert caught.value.code == "M0301"
    assert "test_errors.py" in str(caught.value)
    assert caught.value.hint
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
    with pytest.raises(kind) as caught:
        make(simple())
    assert word in str(caught.value) + str(caught.value.hint)
    assert not isinstance(caught.value, errors.InternalError)


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
    with pytest.raises(errors.ParameterError) as caught:
        compiled().evaluate(params, data)
    assert word in str(caught.value) + str(caught.value.hint)


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


X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (X.astype(complex), "complex"),
        (X.astype(object), "object"),
        ([[1, 2, 3], [4, 5]], "inhomogeneous"),
        ([[1, 2, 10**400], [4, 5, 6]], "integers that no dtype holds"),
        (np.ma.masked_array(X, mask=X > 0), "masked"),
        ({"input": X}, "input"),
        (np.array([["2020-01-01"] * 3], dtype="datetime64[D]"), "datetime64"),
        ((row for row in X), "object"),
        (np.float32(3), "dimensions"),
    ],
)
@pytest.mark.parametrize("shapes", [None, {"input": ["batch", 3]}])
def test_data_that_is_no_tensor(value, word, shapes):
    model = ml.compile(simple(), ml.NumpyBackend(), shapes=shapes)
    with pytest.raises((errors.ParameterError, errors.ShapeError), match=word):
        model(value)
    assert model(X).shape == (2, 4)


@pytest.mark.parametrize(
    "change",
    [
        np.asfortranarray,
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: x[:, ::-1].copy()[:, ::-1],
        lambda x: x.astype(">f4"),
        lambda x: x.astype("<f8"),
        lambda x: x.astype(np.longdouble),
        lambda x: x.astype(np.uint64),
        lambda x: x.astype(np.uint16),
        lambda x: x.astype(">i2"),
        lambda x: x.tolist(),
    ],
)
def test_data_of_any_layout(change):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    changed = change(x)
    if isinstance(changed, np.ndarray):
        changed.flags.writeable = False
    params = compiled().randomize_params(seed=1)
    expected = x @ params["linear.weight"].T + params["linear.bias"]
    for shapes in (None, {"input": ["batch", 3]}):
        actual = ml.compile(simple(), ml.NumpyBackend(), shapes=shapes).evaluate(params, {"input": changed})["output"]
        assert type(actual) is np.ndarray
        assert actual.dtype == np.float32
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
    np.testing.assert_array_equal(ml.NumpyBackend().add(changed, 1), x + 1)


@pytest.mark.parametrize(
    ("use", "kind", "word"),
    [
        (lambda b: b.zeros(-1), errors.ShapeError, "-1"),
        (lambda b: b.zeros("a"), errors.InvalidValueError, "'a'"),
        (lambda b: b.ones(2.5), errors.InvalidValueError, "2.5"),
        (lambda b: b.zeros(*[1] * 70), errors.ShapeError, "70"),
        (lambda b: b.zeros(2**62, 2**62), errors.ShapeError, "too large"),
        (lambda b: b.randn(2.7), errors.InvalidValueError, "2.7"),
        (lambda b: b.eye(-2), errors.ShapeError, "-2"),
        (lambda b: b.tensor([300], dtype="uint8"), errors.InvalidValueError, "uint8"),
        (lambda b: b.tensor([2**64]), errors.InvalidValueError, "uint64 from 0 to"),
        (lambda b: b.tensor([1 + 2j]), errors.InvalidValueError, "complex"),
        (lambda b: b.tensor({1: 2}), errors.InvalidValueError, "numbers"),
        (lambda b: b.add(X.astype(complex), 1), errors.InvalidValueError, "complex"),
        (lambda b: b.sum(X, axis="a"), errors.InvalidValueError, "an integer, a tuple of integers, or none"),
        (lambda b: b.sum(X, axis=5), errors.InvalidValueError, "axis 5"),
        (lambda b: b.reshape(X, (n for n in (3, 2))), errors.InvalidValueError, "tuple"),
        (lambda b: b.reshape(X, (2, -1, -1)), errors.InvalidValueError, "-1"),
        (lambda b: b.take(X, [5], axis=0), errors.InvalidValueError, "out of bounds"),
        (lambda b: b.inverse(np.zeros((2, 2))), errors.NumericsError, "ingular"),
        (lambda b: b.tile(X, (2**40, 2**30)), errors.ShapeError, "too large"),
        (lambda b: b.max(np.zeros((0, 3)), axis=0), errors.ShapeError, "no elements"),
        (lambda b: b.grad(b.reduce_sum)(np.array([1, 2])), errors.TypeInferenceError, "floats"),
        (lambda b: b.grad(b.reduce_sum, argnums=3)(X), errors.InvalidValueError, "argnums"),
        (lambda b: b.grad(lambda x: 5)(X), errors.InvalidValueError, "returns"),
        (lambda b: b.grad(b.exp)(X), errors.InvalidValueError, "shape"),
        (lambda b: b.set_seed("a"), errors.InvalidValueError, "integer"),
        (lambda b: ml.Lambda(5), errors.InvalidValueError, "function"),
        (lambda b: ml.Lambda(lambda *x: x[0]), errors.InvalidValueError, "parameter"),
        (lambda b: ml.Lambda(np.tanh, opaque=False), errors.InvalidValueError, "NumPy"),
    ],
)
def test_backend_ops(use, kind, word):
    with pytest.raises(kind) as caught:
        use(ml.NumpyBackend())
    assert word in str(caught.value) + str(caught.value.hint)


def test_arguments_may_be_numbers_of_numpy():
    backend = ml.NumpyBackend()
    assert backend.zeros(np.array([2, 3])).shape == backend.zeros(n for n in (2, 3)).shape == (2, 3)
    assert backend.zeros(3, "float64").dtype == backend.zeros(3, np.float64).dtype == np.float64
    assert backend.sum(X, axis=np.int64(1)).shape == (2,)
    assert backend.reshape(X, np.array([3, 2])).shape == backend.reshape(X, [np.int64(3), -1]).shape == (3, 2)
    assert backend.tensor(np.array([1, 2], np.uint64)).dtype == np.uint64
    assert backend.grad(lambda x: x)(np.float32(3.0)) == 1.0


@pytest.mark.parametrize("dtype", ["int32", np.int32, np.dtype("int32"), ml.int32])
def test_dtypes_in_any_spelling(dtype):
    backend = ml.NumpyBackend()
    assert backend.cast(X, dtype).dtype == backend.zeros_like(X, dtype=dtype).dtype == np.int32
    for model in (ml.Cast(dtype), ml.Model.create(output=ml.IOKey("input").cast(dtype))):
        assert ml.compile(model, backend)(X).dtype == np.int32
    with pytest.raises(errors.TypeInferenceError, match="float32"):
        ml.Cast("flaot32")


@pytest.mark.parametrize(
    ("options", "kind", "word"),
    [
        ({"data_keys": 5}, errors.InvalidValueError, "set"),
        ({"data_keys": "input"}, errors.InvalidValueError, "string"),
        ({"trainable_keys": {"input"}, "data_keys": {"input"}}, errors.ConflictingOptionError, "input"),
        ({"trainable_keys": {"input"}, "constant_keys": {"input": X}}, errors.ConflictingOptionError, "input"),
        ({"constant_keys": {"input": "abc"}}, errors.InvalidValueError, "input"),
        ({"constant_keys": {"input": [[1, 2], [3]]}}, errors.InvalidValueError, "input"),
        ({"constant_keys": {"input": np.ones((2, 4))}}, errors.ShapeError, "3"),
        ({"inference": "yes"}, errors.InvalidValueError, "inference"),
        ({"jit": "yes"}, errors.InvalidValueError, "jit"),
        ({"jit_options": 5}, errors.InvalidValueError, "jit_options"),
        ({"dtypes": {"input": "float99"}}, errors.TypeInferenceError, "float16"),
        ({"discard_keys": {"output"}}, errors.WiringError, "output"),
        ({"file_path": "/nonexistent/x.py"}, errors.ModelFileError, "/nonexistent"),
        ({"file_path": 5}, errors.InvalidValueError, "path"),
        ({"shapes": {"input": [1] * 70}}, errors.ShapeError, "70"),
        ({"shapes": {"input": 3}}, errors.InvalidValueError, "shape"),
        ({"shapes": {"input": [True, 3]}}, errors.InvalidValueError, "bool"),
        ({"shapes": {"input": ['x"]; import os #', 3]}}, errors.ShapeError, "symbol"),
        ({"shapes": [("input", [2, 3])]}, errors.InvalidValueError, "list"),
    ],
)
def test_options_of_compile(options, kind, word):
    with pytest.raises(kind) as caught:
        ml.compile(simple(), ml.NumpyBackend(), **{"shapes": {"input": ["batch", 3]}, **options})
    assert word in str(caught.value) + str(caught.value.hint)


def test_other_spellings_of_arguments():
    layer = ml.Conv2d(out_channels=4, kernel_size=3, strides=2)
    assert ml.compile(layer, ml.NumpyBackend())(np.ones((1, 3, 7, 7))).shape == (1, 4, 3, 3)
    with pytest.raises(errors.ConflictingOptionError, match="stride"):
        ml.Conv2d(4, 3, stride=3, strides=2)


def test_shapes_may_be_any_iterable_of_sizes():
    for shape in ((n for n in (2, 3)), range(2, 4), np.array([2, 3]), [np.int64(2), 3], (2, None)):
        assert ml.compile(simple(), ml.NumpyBackend(), shapes={"input": shape})(X).shape == (2, 4)


def test_parameters_before_shapes_are_known():
    model = ml.compile(simple(), ml.NumpyBackend())
    params = model.get_parameters()
    uses = [dict, lambda p: {**p}, lambda p: p | {}, lambda p: p.get("linear.weight"), lambda p: p.copy()]
    uses += [lambda p: p.pop("linear.weight"), lambda p: list(p.values()), copy.copy, lambda p: model.source]
    for use in uses:
        with pytest.raises(errors.UnresolvedShapeError, match="shapes"):
            use(params)
    assert params != {}
    assert list(params.keys()) == ["linear.weight", "linear.bias"]
    with pytest.raises(errors.ParameterError, match="data lacks 'input'"):
        model.evaluate(params, {})
    with pytest.raises(errors.ParameterError, match="inptu"):
        model.evaluate(params, {"inptu": X})
    with pytest.raises(errors.ParameterError, match="dict"):
        model.evaluate(5, {"input": X})
    model.evaluate(params, {"input": X})
    assert set(dict(params)) == {"linear.weight", "linear.bias"}


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies(copied):
    original = compiled()
    expected = original(X)
    np.testing.assert_array_equal(copied(original)(X), expected)
    np.testing.assert_array_equal(ml.compile(copied(simple()), ml.NumpyBackend())(X), expected)
    with pytest.raises(errors.InvalidValueError) as actual:
        ml.Linear(-3)
    again = copied(actual.value)
    assert (str(again), again.code, again.hint) == (str(actual.value), actual.value.code, actual.value.hint)


def test_files_that_cannot_be_read_or_written(tmp_path):
    for path in ("/nonexistent/a.json", str(tmp_path), "/proc/a.json"):
        with pytest.raises(errors.ModelFileError) as caught:
            ml.save(simple(), path)
        assert caught.value.code == "M0802"
    for path in ("/nonexistent", tmp_path, "/dev/null"):
        with pytest.raises(errors.ModelFileError):
            ml.load(path)
    for path in (5, "a\0b"):
        with pytest.raises(errors.InvalidValueError, match="path"):
            ml.load(path)
    assert list(tmp_path.iterdir()) == []


def test_deleted_working_directory(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert compiled()(X).shape == (2, 4)
    with pytest.raises(errors.ModelFileError, match=r"x\.py"):
        ml.compile(simple(), ml.NumpyBackend(), shapes={"input": [2, 3]}, file_path="x.py")


def test_threads_define_compile_and_evaluate_at_once():
    results = []

    def work(_):
        for _ in range(3):
            model = compiled()
            results.append(model.evaluate(model.randomize_params(seed=0), {"input": X}, True)[0]["output"].tobytes())

    in_threads(work, 16)
    assert len(results) == 48
    assert len(set(results)) == 1


JUNK = [None, True, -1, 2**31, 2**63, 1e300, "", "input", "\u2028", "../x", [], {}, [[]], [None] * 3, {"a": 1}, 3.5]


def places(tree, path=()):
    if path:
        yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def damaged(text, generator):
    """Return a saved model with something deleted, doubled or replaced."""
    tree = json.loads(text)
    *path, last = generator.choice(list(places(tree)))
    parent = tree
    for key in path:
        parent = parent[key]
    kind = generator.randrange(4)
    if kind == 0:
        del parent[last]
    elif kind == 1 and isinstance(parent, list):
        parent.append(parent[last])
    else:
        parent[last] = generator.choice(JUNK)
    text = json.dumps(tree)
    if generator.random() < 0.25:
        at = generator.randrange(len(text))
        text = text[:at] + generator.choice(["", "{", "]", "9", '"']) + text[at + 1 :]
    return text


def test_damaged_models():
    model = ml.Model()
    model |= ml.Conv2d(4, 3, padding="same")(input="input", output="c")
    model += ml.BatchNorm2d()(output="b")
    model += ml.Flatten()(output="f")
    model += ml.MLP((3, 2))(output="output")
    texts = [model.to_json(), simple().to_json(), ml.Model.create(output=ml.IOKey("input")[:, :2] * 2.0).to_json()]
    generator, loaded = random.Random(0), 0
    for number in range(1000):
        text = damaged(texts[number % 3], generator)
        data = {"input": np.ones((2, 3, 4, 4) if number % 3 == 0 else (2, 3))}
        try:
            restored = ml.Model.from_json(text)
            loaded += 1
            ml.Model.from_json(restored.to_json())
            run = ml.compile(restored, ml.NumpyBackend())
            run.evaluate(run.get_parameters(), data)
        except errors.MithrilError as error:
            assert not isinstance(error, errors.InternalError), text
    assert loaded > 10


def test_arguments_of_layers():
    wrong = [
        "x",
        -1,
        0,
        1.5,
        None,
        [],
        {},
        object(),
        (-1, -1),
        2**70,
        float("nan"),
        b"x",
        X,
        print,
        2**40,
        [[1], [2, 3]],
    ]
    for row in ml._core.layer_definitions():
        required = {a["name"]: "ij,jk->ik" if a["kind"] == "str" else 2 for a in row["args"] if a["required"]}
        for argument in row["args"]:
            for value in wrong:
                try:
                    getattr(ml, row["name"])(**{**required, argument["name"]: value}).summary()
                except errors.MithrilError as error:
                    assert not isinstance(error, errors.InternalError)
                    assert error.hint, f"{row['name']}({argument['name']}={value!r}): {error}"


def test_numbers_in_the_places_of_tensors_can_be_refused():
    half = ml.Model.create(output=ml.IOKey("input") * 0.5)
    assert ml.compile(half, ml.NumpyBackend())(X).shape == X.shape
    with pytest.raises(errors.TypeInferenceError, match=r"0\.5 stands where multiply[\s\S]*auto_scalar_promotion"):
        ml.compile(half, ml.NumpyBackend(), shapes={"input": [2, 3]}, auto_scalar_promotion=False)
    tensors = ml.Model.create(output=ml.IOKey("input") * ml.IOKey("factor"))
    ml.compile(tensors, ml.NumpyBackend(), shapes={"input": [2, 3], "factor": []}, auto_scalar_promotion=False)
