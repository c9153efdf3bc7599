"""Models as files of ONNX: `onnx.checker` accepts them, and ONNX Runtime gives our numbers."""

import os
import warnings

import mithril as ml
import numpy as np
import onnx
import onnxruntime
import pytest
from mithril import _core
from mithril.__main__ import main
from mithril.errors import UnsupportedOpError
from mithril.testing import cases
from onnx.reference import ReferenceEvaluator
from op_cases import Single, every_case
from test_zoo_c import MODELS

ALL = "MITHRIL_TEST_ALL" in os.environ
ROWS = {row["name"]: row for row in _core.op_definitions()}
RANDOM = np.random.default_rng(3)

#: Rows that ONNX cannot say, or whose expansions need one of these.
DECOMPOSITIONS = {
    "cond", "eigh", "eigvalsh", "lstsq", "matrix_norm", "matrix_rank", "pinv", "qr", "svd", "svdvals", "thin_svd",
}  # fmt: skip
UNSAID = DECOMPOSITIONS | {"erfinv"}


def session(contents):
    """A session of ONNX Runtime on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return onnxruntime.InferenceSession(contents, options, providers=["CPUExecutionProvider"])


def run(contents, data):
    """Outputs by name; the reference evaluator runs what ONNX Runtime has no kernel for."""
    try:
        runs = session(contents)
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            evaluator = ReferenceEvaluator(onnx.load_from_string(contents))
            return dict(zip(evaluator.output_names, evaluator.run(None, data), strict=True))
    inputs = {i.name for i in runs.get_inputs()}
    outputs = runs.run(None, {name: value for name, value in data.items() if name in inputs})
    return dict(zip([o.name for o in runs.get_outputs()], outputs, strict=True))


def checked(contents):
    model = onnx.load_from_string(contents)
    onnx.checker.check_model(model, full_check=True)
    return model


def assert_same(actual, expected, label, tolerance=2e-5):
    assert set(actual) == set(expected), label
    for name, value in expected.items():
        a, b = np.asarray(actual[name]), np.asarray(value)
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{label}: {name}"
        if b.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b, err_msg=label)
            continue
        a, b, finite = a.astype(float), b.astype(float), np.isfinite(b.astype(float))
        np.testing.assert_array_equal(a[~finite], b[~finite], err_msg=label)
        scale = max(np.abs(b[finite]).max(initial=0), 1e-3)
        assert np.abs(a[finite] - b[finite]).max(initial=0) <= tolerance * scale, f"{label}: {name}"


# --- every row ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", sorted({row["family"] for row in ROWS.values()}))
def test_ops(family):
    backend, refused = ml.NumpyBackend(), set()
    rows = {name: row for name, row in ROWS.items() if row["family"] == family}
    for name, row in rows.items():
        uses = list(every_case(row)) if ALL else list(cases(row))[:2]
        for case in uses:
            single = Single(case, backend)
            params = {n: single.arrays[n].astype("float32") for n in single.trainable}
            data = {n: a for n, a in single.arrays.items() if n not in params}
            options = {"params": params, "inference": False}
            try:
                contents = ml.to_onnx(single.compiled, **options)
            except UnsupportedOpError as error:
                assert "ONNX has no such op" in str(error)
                refused.add(name)
                continue
            checked(contents)
            expected = single.compiled.evaluate(params, data)
            assert_same(run(contents, data), expected, str(case))
            if not ALL:
                continue
            floats = {n: v for n, v in expected.items() if v.dtype.kind == "f"}
            seeds = {n: RANDOM.uniform(-1, 1, v.shape).astype(v.dtype) for n, v in floats.items()}
            if params and seeds and name not in DECOMPOSITIONS:
                _, gradients = single.compiled.evaluate(params, data, seeds)
                contents = ml.to_onnx(single.compiled, gradients=True, **options)
                checked(contents)
                actual = run(contents, {**data, **{f"cotangent:{n}": v for n, v in seeds.items()}})
                expected = {**expected, **{f"gradient:{n}": v for n, v in gradients.items()}}
                assert_same(actual, expected, f"gradient of {case}", 3e-4)
    assert refused == UNSAID & set(rows)


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3e9, -3e9, 1e30, 300.0, 1e-8], np.float32)
ENDS = {
    "int8": [-128, 127, -1, 0, 1, 2, 7],
    "uint8": [255, 0, 1, 2, 7],
    "int16": [-(2**15), 2**15 - 1, -1, 0, 1, 3],
    "int32": [-(2**31), 2**31 - 1, -1, 0, 1, 3],
    "uint32": [2**32 - 1, 0, 1, 5],
    "int64": [-(2**63), 2**63 - 1, -1, 0, 1, 3, 40],
    "uint64": [2**63 - 1, 2**63, 2**64 - 1, 0, 1, 3, 40],
}
TWO = ["add", "subtract", "multiply", "floor_divide", "remainder", "maximum", "minimum", "bitwise_and", "bitwise_or",
       "bitwise_xor", "left_shift", "right_shift", "equal", "less", "greater_equal"]  # fmt: skip
UNORDERED = ["add", "subtract", "multiply", "bitwise_and", "bitwise_or", "bitwise_xor", "equal"]
ONE = ["negative", "abs", "sign", "square", "bitwise_not", "isnan", "isfinite", "floor", "sum", "relu", "logical_not"]


def through(build, data):
    """Outputs of expressions of inputs on NumPy and by ONNX; many in one file."""
    inputs = {name: ml.IOKey(name) for name in data}
    model = ml.Model.create(**build(inputs))
    shapes, kinds = {n: list(a.shape) for n, a in data.items()}, {n: str(a.dtype) for n, a in data.items()}
    compiled = ml.compile(model, ml.NumpyBackend(), shapes=shapes, dtypes=kinds, inference=True)
    contents = ml.to_onnx(compiled)
    checked(contents)
    assert_same(run(contents, data), compiled.evaluate({}, data), ", ".join(data))


def use(op, *args):
    return _core.apply_op(op, list(args))


@pytest.mark.parametrize("dtype", ENDS)
def test_ends_of_integers(dtype):
    values = np.array(ENDS[dtype], dtype)
    left, right = (grid.reshape(-1) for grid in np.meshgrid(values, values))

    def build(x):
        # ONNX Runtime orders and divides integers of 64 bits with a sign alone.
        ops = [op for op in TWO if dtype != "uint64" or op in UNORDERED]
        two = {op: use(op, x["left"], x["right"]) for op in ops}
        if dtype == "uint64":
            return two
        # ONNX Runtime does not add up integers of 64 bits that wrap around.
        one = {op: use(op, x["left"], *([None, False] if op == "sum" else [])) for op in ONE}
        if dtype == "int64":
            del one["sum"]
        casts = {f"to_{kind}": use("cast", x["left"], kind) for kind in (*ENDS, "bool", "float32")}
        by_three = {f"{op}_3": use(op, x["left"], 3) for op in ("floor_divide", "remainder", "power")}
        return {**two, **one, **casts, **by_three}

    through(build, {"left": left, "right": right})


def test_special_floats():
    def build(x):
        two = {op: use(op, x["left"], x["right"]) for op in ("atan2", "maximum", "minimum", "equal", "less", "divide")}
        names = ("expm1", "log1p", "sign", "trunc", "round", "isnan", "isinf", "isfinite", "relu", "relu6", "softsign")
        one = {op: use(op, x["left"]) for op in names}
        casts = {f"to_{kind}": use("cast", x["left"], kind) for kind in (*ENDS, "bool", "float16")}
        return {**two, **one, **casts}

    left, right = (grid.reshape(-1) for grid in np.meshgrid(SPECIAL, SPECIAL))
    through(build, {"left": left, "right": right})


# --- models -------------------------------------------------------------------------------------------------------


def open_sizes(data):
    """Shapes whose first size is a symbol; of tokens the second one, too."""
    return {
        name: ["batch", "length"] if value.ndim == 2 else ["batch", *value.shape[1:]] for name, value in data.items()
    }


QUICK = ["resnet18", "vit", "gpt", "llama", "bert", "t5_decode", "clip"]


@pytest.mark.parametrize("name", MODELS if ALL else QUICK)
def test_zoo(name):
    build, data = MODELS[name]
    compiled = ml.compile(build(), ml.NumpyBackend(), shapes=open_sizes(data), inference=True)
    params = compiled.randomize_params(seed=1)
    contents = ml.to_onnx(compiled, params=params)
    graph = checked(contents).graph
    assert {i.name for i in graph.input} == set(data)
    assert set(params) <= {i.name for i in graph.initializer}
    runs = session(contents)
    for rows in (1, 2, 3):
        part = {key: np.resize(value, (rows, *value.shape[1:])) for key, value in data.items()}
        actual = dict(zip([o.name for o in runs.get_outputs()], runs.run(None, part), strict=True))
        assert_same(actual, compiled.evaluate(params, part), name, 1e-5)
    again, weights = ml.from_onnx(contents)
    back = ml.compile(again, ml.NumpyBackend(), inference=True)
    assert_same(back.evaluate(weights, data), compiled.evaluate(params, data), f"{name} read again", 1e-5)


def classifier():
    model = ml.Model()
    model |= ml.Conv2d(4, 3, padding=1)(input="input", output="c")
    model |= ml.BatchNorm2d()(input="c", output="b")
    model |= ml.Relu()(input="b", output="r")
    model |= ml.Flatten(start_axis=1)(input="r", output="f")
    model |= ml.Dropout(0.5)(input="f", output="d")
    model |= ml.Linear(3)(input="d", output="logits")
    model |= ml.CrossEntropy()(input="logits", target="target", output="loss")
    return model


IMAGES = {
    "input": RANDOM.standard_normal((4, 2, 6, 6)).astype(np.float32),
    "target": RANDOM.integers(0, 3, 4),
}


def test_states_are_inputs_and_outputs():
    """Statistics of a batch norm and the counter of dropout go from call to call."""
    shapes = {"input": ["batch", 2, 6, 6], "target": ["batch"]}
    compiled = ml.compile(classifier(), ml.NumpyBackend(), shapes=shapes, dtypes={"target": "int64"})
    params = compiled.randomize_params(seed=0)
    contents = ml.to_onnx(compiled, params=params, inference=False)
    model, runs = checked(contents), session(contents)
    kept = [o.name for o in model.graph.output if o.name.endswith(".new")]
    assert len(kept) >= 2
    assert {name.removesuffix(".new") for name in kept} <= {i.name for i in model.graph.input}
    state = {}
    for _ in range(3):
        actual = dict(zip([o.name for o in runs.get_outputs()], runs.run(None, {**IMAGES, **state}), strict=True))
        expected = compiled.evaluate(params, IMAGES)
        assert_same({name: actual[name] for name in expected}, expected, "a call")
        state = {name.removesuffix(".new"): actual[name] for name in kept}
    # At rest there is no state.
    assert {i.name for i in checked(ml.to_onnx(compiled, params=params, inference=True)).graph.input} == set(IMAGES)


def test_gradients_and_training_steps():
    shapes = {name: list(value.shape) for name, value in IMAGES.items()}
    model = classifier()
    compiled = ml.compile(model, ml.NumpyBackend(), shapes=shapes, dtypes={"target": "int64"})
    params = compiled.randomize_params(seed=0)
    contents = ml.to_onnx(compiled, params=params, gradients=True, loss="loss")
    names = {o.name for o in checked(contents).graph.output}
    actual = run(contents, IMAGES)
    fresh = ml.compile(model, ml.NumpyBackend(), shapes=shapes, dtypes={"target": "int64"})
    outputs, expected_gradients = fresh.evaluate(params, IMAGES, {"loss": np.ones((), np.float32)})
    expected = {"loss": outputs["loss"], **{f"gradient:{name}": value for name, value in expected_gradients.items()}}
    assert set(expected) <= names
    assert_same({name: actual[name] for name in expected}, expected, "gradients", 1e-4)

    optimizer = ml.optim.AdamW(0.01)
    contents = ml.to_onnx(compiled, params=params, optimizer=optimizer, loss="loss")
    checked(contents)
    runs, state, trained, own = session(contents), {}, dict(params), ml.optim.AdamW(0.01)
    fresh = ml.compile(model, ml.NumpyBackend(), shapes=shapes, dtypes={"target": "int64"})
    for _ in range(3):
        data = {**IMAGES, **state, "learning_rate": np.array(0.01, np.float32)}
        actual = dict(zip([o.name for o in runs.get_outputs()], runs.run(None, data), strict=True))
        state = {name.removesuffix(".new"): value for name, value in actual.items() if name.endswith(".new")}
        outputs, gradients = fresh.evaluate(trained, IMAGES, {"loss": np.ones((), np.float32)})
        assert_same({"loss": actual["loss"]}, {"loss": outputs["loss"]}, "the loss of a step", 1e-4)
        trained = {**trained, **own.update(trained, gradients)}
    weights = {name: value for name, value in trained.items() if "weight" in name}
    assert_same({name: state[name] for name in weights}, weights, "trained parameters", 1e-3)


# --- names, opsets, dtypes, files -----------------------------------------------------------------------------------


def layers(activation=None, **options):
    model = ml.Model()
    model |= ml.Linear(4)(input="input", output="hidden")
    model |= (activation or ml.Gelu())(input="hidden", output="active")
    model |= ml.LayerNorm()(input="active", output="normal")
    model |= ml.Linear(2)(input="normal", output="output")
    compiled = ml.compile(model, ml.NumpyBackend(**options), shapes={"input": ["batch", 3]}, inference=True)
    return compiled, compiled.randomize_params(seed=0)


X = {"input": RANDOM.standard_normal((5, 3)).astype(np.float32)}


@pytest.mark.parametrize("layer", [ml.LSTM, ml.GRU])
def test_recurrent_layers(layer):
    model = ml.Model()
    model |= layer(hidden_size=8, length=6)(input="input", output="output")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [6, "batch", 5]}, inference=True)
    params, data = compiled.randomize_params(seed=0), {"input": RANDOM.standard_normal((6, 3, 5)).astype(np.float32)}
    checked(contents := ml.to_onnx(compiled, params=params))
    assert_same(run(contents, data), compiled.evaluate(params, data), layer.__name__, 1e-5)


def test_gradients_of_any_batch():
    model = ml.Model()
    model |= ml.Conv2d(4, 3, padding=1, stride=2)(input="input", output="c")
    model |= ml.MaxPool2d(2)(input="c", output="p")
    model |= ml.Flatten(start_axis=1)(input="p", output="f")
    model |= ml.Linear(3)(input="f", output="logits")
    model |= ml.CrossEntropy()(input="logits", target="target", output="loss")
    shapes = {"input": ["batch", 2, 12, 12], "target": ["batch"]}
    compiled = ml.compile(model, ml.NumpyBackend(), shapes=shapes, dtypes={"target": "int64"})
    params = compiled.randomize_params(seed=0)
    checked(contents := ml.to_onnx(compiled, params=params, gradients=True, loss="loss"))
    for rows in (1, 4):
        data = {
            "input": RANDOM.standard_normal((rows, 2, 12, 12)).astype(np.float32),
            "target": RANDOM.integers(0, 3, rows),
        }
        actual = run(contents, data)
        _, expected = compiled.evaluate(params, data, {"loss": np.ones((), np.float32)})
        assert_same({n: actual[f"gradient:{n}"] for n in expected}, expected, f"{rows} rows", 1e-4)


def test_names_that_our_own_layers_have_are_read_again():
    model = ml.Model()
    for i in range(2):
        model |= ml.Conv2d(2, 3, padding=1)(input="input" if i == 0 else f"x{i}", output=f"c{i}")
        model |= ml.BatchNorm2d()(input=f"c{i}", output=f"x{i + 1}")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": ["n", 2, 5, 5]}, inference=True)
    params = compiled.randomize_params(seed=0)
    again, weights = ml.from_onnx(ml.to_onnx(compiled, params=params))
    assert set(weights) == set(params)
    data = {"input": IMAGES["input"][:, :, :5, :5]}
    outputs = ml.compile(again, ml.NumpyBackend(), inference=True).evaluate(weights, data)
    assert_same(outputs, compiled.evaluate(params, data), "read again", 1e-5)


@pytest.mark.parametrize("opset", [17, 18, 21, 23, 24])
def test_opsets(opset):
    compiled, params = layers()
    model = checked(contents := ml.to_onnx(compiled, params=params, opset=opset))
    assert [(o.domain, o.version) for o in model.opset_import] == [("", opset)]
    assert ("Gelu" in {node.op_type for node in model.graph.node}) == (opset >= 20)
    assert_same(run(contents, X), compiled.evaluate(params, X), str(opset))
    assert [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == ["batch", 3]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float16", 5e-3), ("bfloat16", 4e-2)])
def test_dtypes(dtype, tolerance):
    # The reference evaluator computes erf in single precision.
    compiled, params = layers(ml.Selu(), dtype=dtype)
    model = checked(contents := ml.to_onnx(compiled, params=params))
    kinds = {i.data_type for i in model.graph.initializer if i.name in params}
    assert kinds == {{"float64": 11, "float16": 10, "bfloat16": 16}[dtype]}
    data = {"input": X["input"].astype(compiled.evaluate(params, X)["output"].dtype)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluator = ReferenceEvaluator(onnx.load_from_string(contents))
        actual = dict(zip(evaluator.output_names, evaluator.run(None, data), strict=True))
    expected = compiled.evaluate(params, data)
    assert_same(
        {"output": np.asarray(actual["output"], float)}, {"output": expected["output"].astype(float)}, dtype, tolerance
    )


def test_files(tmp_path):
    compiled, params = layers()
    path = tmp_path / "net.onnx"
    assert ml.to_onnx(compiled, path, params=params) == path
    assert path.read_bytes() == ml.to_onnx(compiled, params=params)
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]
    ml.to_onnx(compiled, path, params=params, external_data=True)
    assert {file.name for file in tmp_path.iterdir()} == {"net.onnx", "net.onnx.data"}
    onnx.checker.check_model(path, full_check=True)
    actual = session(str(path)).run(None, X)[0]
    np.testing.assert_allclose(actual, compiled.evaluate(params, X)["output"], rtol=1e-5, atol=1e-6)
    _, weights = ml.from_onnx(path)
    assert {name: value.tolist() for name, value in weights.items()} == {n: v.tolist() for n, v in params.items()}
    # A model that is not compiled takes the options of ml.compile.
    model = ml.Model()
    model |= ml.Linear(2)(input="input", output="output")
    values = {"linear.weight": np.ones((2, 3)), "linear.bias": np.zeros(2)}
    contents = ml.to_onnx(model, params=values, shapes={"input": [None, 3]}, dtype="float64")
    assert run(contents, {"input": np.ones((7, 3))})["output"].tolist() == [[3.0, 3.0]] * 7


def test_command(tmp_path, capsys):
    model = ml.Model()
    model |= ml.Linear(2)(input="input", output="output")
    ml.save(model, tmp_path / "net.json")
    words = ["export", str(tmp_path / "net.json"), str(tmp_path / "net.onnx"), "--shape", "input=n,3"]
    assert main([*words]) == 1
    assert "--random-weights" in capsys.readouterr().err
    assert main([*words, "--random-weights", "--opset", "18"]) == 0
    printed = capsys.readouterr().out
    assert "net.onnx" in printed
    assert "random numbers" in printed
    graph = checked((tmp_path / "net.onnx").read_bytes())
    assert graph.opset_import[0].version == 18
    assert "weights are random numbers" in graph.doc_string
    options = ["--weights", str(tmp_path / "net.safetensors")]
    ml.save({"linear.weight": np.ones((2, 3), np.float32), "linear.bias": np.ones(2, np.float32)}, options[1])
    assert main([*words[:2], str(tmp_path / "given.onnx"), *words[3:], *options]) == 0
    assert "random" not in checked((tmp_path / "given.onnx").read_bytes()).doc_string
    # What is read is written with its own weights.
    again = [str(tmp_path / "net.onnx"), str(tmp_path / "other"), "--format", "onnx", "--external-data"]
    assert main(["export", *again]) == 0
    data = {"input": X["input"]}
    first = run((tmp_path / "net.onnx").read_bytes(), data)["output"]
    np.testing.assert_allclose(session(str(tmp_path / "other")).run(None, data)[0], first, rtol=1e-6)
    for wrong in (["--batch", "n"], ["--lanes", "4"], ["--opset", "3"]):
        assert main([*words, "--random-weights", *wrong]) == 1
    assert main([*words[:2], str(tmp_path / "c"), *words[3:], "--random-weights", "--opset", "18"]) == 1
    assert "for files of ONNX" in capsys.readouterr().err


def test_more_than_protobuf_holds(tmp_path):
    model = ml.Model()
    model |= ml.Linear(30_000, bias=False)(input="input", output="output")
    # A single number in memory.
    options = {"params": {"linear.weight": np.broadcast_to(np.float32(1), (30_000, 30_000))}}
    options["shapes"] = {"input": ["batch", 30_000]}
    with pytest.raises(ml.errors.InvalidValueError, match=r"(?s)holds 2 GB.*give a path"):
        ml.to_onnx(model, **options)
    with pytest.raises(ml.errors.InvalidValueError, match=r"(?s)holds 2 GB.*leave out external_data"):
        ml.to_onnx(model, tmp_path / "large.onnx", external_data=False, **options)
    assert not list(tmp_path.iterdir())


def test_what_is_handed_on_and_what_is_constant():
    x = ml.IOKey("x")
    model = ml.Model.create(same=use("reshape", x, (2, 3)), twice=use("add", x, x), again=use("add", x, x))
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"x": [2, 3]}, inference=True)
    data = {"x": RANDOM.standard_normal((2, 3)).astype(np.float32)}
    checked(contents := ml.to_onnx(compiled))
    assert_same(run(contents, data), compiled.evaluate({}, data), "outputs of one value")


@pytest.mark.skipif(not ALL, reason="MITHRIL_TEST_ALL is not set: importing torch.export takes 9 seconds")
def test_torch_to_onnx_runtime():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3, stride=2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16, 5), torch.nn.GELU()
    ).eval()
    images = torch.from_numpy(IMAGES["input"])
    model, params = ml.from_torch(module, (images,))
    contents = ml.to_onnx(model, params=params)
    checked(contents)
    actual = next(iter(run(contents, {session(contents).get_inputs()[0].name: IMAGES["input"]}).values()))
    np.testing.assert_allclose(actual, module(images).detach().numpy(), rtol=1e-4, atol=1e-5)


# --- mistakes -------------------------------------------------------------------------------------------------------


def unsaid():
    x = ml.IOKey("x")
    model = ml.Model.create(a=use("erfinv", use("erfinv", x)), b=use("qr", x, "reduced")[0])
    return ml.compile(model, ml.NumpyBackend(), shapes={"x": [3, 3]}, inference=True)


MISTAKES = {
    "no parameters": (lambda c, p: ml.to_onnx(c), ml.errors.ParameterError, "no values for them.*randomize_params"),
    "one is missing": (
        lambda c, p: ml.to_onnx(c, params={"linear.weight": p["linear.weight"]}),
        ml.errors.ParameterError,
        "linear.bias",
    ),
    "another shape": (
        lambda c, p: ml.to_onnx(c, params={**p, "linear.bias": np.zeros(7)}),
        ml.errors.ParameterError,
        r"has shape \[7\], but must be \[4\]",
    ),
    "an unknown name": (
        lambda c, p: ml.to_onnx(c, params={**p, "linear.bais": np.zeros(4)}),
        ml.errors.KeyNotFoundError,
        "linear.bias",
    ),
    "an old opset": (lambda c, p: ml.to_onnx(c, params=p, opset=9), ml.errors.InvalidValueError, "from 17 to 24"),
    "no opset": (lambda c, p: ml.to_onnx(c, params=p, opset="20"), ml.errors.InvalidValueError, "give a number"),
    "no path": (lambda c, p: ml.to_onnx(c, 3, params=p), ml.errors.InvalidValueError, "pass a path"),
    "no folder": (lambda c, p: ml.to_onnx(c, "no/such/x.onnx", params=p), ml.errors.ModelFileError, "x.onnx"),
    "no model": (lambda c, p: ml.to_onnx("net", params=p), ml.errors.InvalidValueError, "pass an ml.Model"),
    "options of compiling": (
        lambda c, p: ml.to_onnx(c, params=p, shapes={"input": [1, 3]}),
        ml.errors.ConflictingOptionError,
        "give it to ml.compile",
    ),
    "a loss alone": (
        lambda c, p: ml.to_onnx(c, params=p, loss="output"),
        ml.errors.ConflictingOptionError,
        "gradients=True",
    ),
    "an unknown loss": (
        lambda c, p: ml.to_onnx(c, params=p, loss="los", gradients=True),
        ml.errors.KeyNotFoundError,
        "available: output",
    ),
    "a class for an optimizer": (
        lambda c, p: ml.to_onnx(c, params=p, optimizer=ml.optim.Adam),
        ml.errors.InvalidValueError,
        "give one",
    ),
    "two files as bytes": (
        lambda c, p: ml.to_onnx(c, params=p, external_data=True),
        ml.errors.ConflictingOptionError,
        "give a path",
    ),
    "no shapes": (
        lambda c, p: ml.to_onnx(_pooled(), params={}),
        ml.errors.UnresolvedShapeError,
        "shape",
    ),
    "a folder of C": (
        lambda c, p: c.export("x.onnx", target="onnx"),
        ml.errors.InvalidValueError,
        "ml.to_onnx",
    ),
    "quantized weights": (
        lambda c, p: ml.to_onnx(_quantized(), params=p),
        UnsupportedOpError,
        "compile it without quantize",
    ),
}


def _pooled():
    model = ml.Model()
    model |= ml.Flatten(start_axis=1)(input="input", output="output")
    return model


def _quantized():
    model = ml.Model()
    model |= ml.Linear(64)(input="input", output="output")
    return ml.compile(model, ml.CBackend(quantize="int8"), shapes={"input": [1, 64]}, inference=True)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name):
    call, kind, text = MISTAKES[name]
    compiled, params = layers()
    with pytest.raises(kind, match=f"(?s){text}"):
        call(compiled, params)


def test_one_error_lists_all_ops_that_are_not_said():
    with pytest.raises(UnsupportedOpError) as caught:
        ml.to_onnx(unsaid())
    text = str(caught.value)
    assert "cannot say some ops" in text
    assert "`erfinv`, 2 times, first" in text
    assert "`qr`" in text
    assert "help:" in text
    x = ml.IOKey("x")
    model = ml.Model.create(y=use("bitwise_and", x, 3))
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"x": [3]}, dtypes={"x": "int64"}, inference=True)
    with pytest.raises(UnsupportedOpError, match=r"(?s)needs opset 18.*choose a newer opset"):
        ml.to_onnx(compiled, opset=17)
