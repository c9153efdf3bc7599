"""Models as files of ONNX: `onnx.checker` accepts them, and ONNX Runtime gives our numbers."""

import os
import warnings

import mithril as ml
import numpy as np
import onnx
import onnxruntime
import pytest
from mithril import _core
from mithril.errors import UnsupportedOpError
from mithril.testing import cases
from onnx.reference import ReferenceEvaluator
from op_cases import Single, every_case
from test_zoo_c import MODELS

ALL = "MITHRIL_TEST_ALL" in os.environ
ROWS = {row["name"]: row for row in _core.op_rows()}
RANDOM = np.random.default_rng(3)

#: Rows that ONNX cannot say, or whose expansions need one of these.
DECOMPOSITIONS = {
    "cholesky", "cholesky_inverse", "cholesky_solve", "cond", "eigh", "eigvalsh", "inv", "lstsq", "matrix_norm",
    "matrix_power", "matrix_rank", "pinv", "qr", "slogdet", "solve", "solve_triangular", "svd", "svdvals", "thin_svd",
    "triangular_solve",
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
    found = runs.run(None, {name: value for name, value in data.items() if name in inputs})
    return dict(zip([o.name for o in runs.get_outputs()], found, strict=True))


def checked(contents):
    model = onnx.load_from_string(contents)
    onnx.checker.check_model(model, full_check=True)
    return model


def assert_same(found, wanted, label, tolerance=2e-5):
    assert set(found) == set(wanted), label
    for name, value in wanted.items():
        a, b = np.asarray(found[name]), np.asarray(value)
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
    backend = ml.NumpyBackend()
    for name, row in ROWS.items():
        if row["family"] != family:
            continue
        uses = list(every_case(row)) if ALL else list(cases(row))[:2]
        for case in uses:
            single = Single(case, backend)
            params = {n: single.arrays[n].astype("float32") for n in single.trainable}
            data = {n: a for n, a in single.arrays.items() if n not in params}
            options = {"params": params, "inference": False}
            if name in UNSAID and not (name == "matrix_power" and case.args[1] >= 0):
                wanted = single.compiled.evaluate(params, data)
                if any(v.size for v in wanted.values()) and name != "matrix_norm":
                    with pytest.raises(UnsupportedOpError, match="ONNX has no such op"):
                        ml.to_onnx(single.compiled, **options)
                continue
            contents = ml.to_onnx(single.compiled, **options)
            checked(contents)
            wanted = single.compiled.evaluate(params, data)
            assert_same(run(contents, data), wanted, str(case))
            if not ALL:
                continue
            floats = {n: v for n, v in wanted.items() if v.dtype.kind == "f"}
            seeds = {n: RANDOM.uniform(-1, 1, v.shape).astype(v.dtype) for n, v in floats.items()}
            if params and seeds and not DECOMPOSITIONS & {name, "det"}:
                _, gradients = single.compiled.evaluate(params, data, seeds)
                contents = ml.to_onnx(single.compiled, gradients=True, **options)
                checked(contents)
                found = run(contents, {**data, **{f"cotangent:{n}": v for n, v in seeds.items()}})
                wanted = {**wanted, **{f"gradient:{n}": v for n, v in gradients.items()}}
                assert_same(found, wanted, f"gradient of {case}", 3e-4)


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3e9, -3e9, 1e30, 300.0, 1e-8], np.float32)
ENDS = {
    "int8": [-128, 127, -1, 0, 1, 2, 7],
    "uint8": [255, 0, 1, 2, 7],
    "int16": [-(2**15), 2**15 - 1, -1, 0, 1, 3],
    "int32": [-(2**31), 2**31 - 1, -1, 0, 1, 3],
    "uint32": [2**32 - 1, 0, 1, 5],
    "int64": [-(2**63), 2**63 - 1, -1, 0, 1, 3, 40],
}
TWO = ["add", "subtract", "multiply", "floor_divide", "remainder", "maximum", "minimum", "bitwise_and", "bitwise_or",
       "bitwise_xor", "left_shift", "right_shift", "equal", "less", "greater_equal"]  # fmt: skip
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
        two = {op: use(op, x["left"], x["right"]) for op in TWO}
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


QUICK = ["vit", "gpt", "llama", "bert", "t5_decode", "clip"]


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
        found = dict(zip([o.name for o in runs.get_outputs()], runs.run(None, part), strict=True))
        assert_same(found, compiled.evaluate(params, part), name, 1e-5)
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
        found = dict(zip([o.name for o in runs.get_outputs()], runs.run(None, {**IMAGES, **state}), strict=True))
        wanted = compiled.evaluate(params, IMAGES)
        assert_same({name: found[name] for name in wanted}, wanted, "a call")
        state = {name.removesuffix(".new"): found[name] for name in kept}
    # At rest there is no state.
    assert {i.name for i in checked(ml.to_onnx(compiled, params=params, inference=True)).graph.input} == set(IMAGES)


def test_gradients_and_training_steps():
    shapes = {name: list(value.shape) for name, value in IMAGES.items()}
    model = classifier()
    compiled = ml.compile(model, ml.NumpyBackend(), shapes=shapes, dtypes={"target": "int64"})
    params = compiled.randomize_params(seed=0)
    contents = ml.to_onnx(compiled, params=params, gradients=True, loss="loss")
    names = {o.name for o in checked(contents).graph.output}
    found = run(contents, IMAGES)
    fresh = ml.compile(model, ml.NumpyBackend(), shapes=shapes, dtypes={"target": "int64"})
    outputs, wanted = fresh.evaluate(params, IMAGES, {"loss": np.ones((), np.float32)})
    expected = {"loss": outputs["loss"], **{f"gradient:{name}": value for name, value in wanted.items()}}
    assert set(expected) <= names
    assert_same({name: found[name] for name in expected}, expected, "gradients", 1e-4)

    optimizer = ml.optim.AdamW(0.01)
    contents = ml.to_onnx(compiled, params=params, optimizer=optimizer, loss="loss")
    checked(contents)
    runs, state, trained, own = session(contents), {}, dict(params), ml.optim.AdamW(0.01)
    fresh = ml.compile(model, ml.NumpyBackend(), shapes=shapes, dtypes={"target": "int64"})
    for _ in range(3):
        data = {**IMAGES, **state, "learning_rate": np.array(0.01, np.float32)}
        found = dict(zip([o.name for o in runs.get_outputs()], runs.run(None, data), strict=True))
        state = {name.removesuffix(".new"): value for name, value in found.items() if name.endswith(".new")}
        outputs, gradients = fresh.evaluate(trained, IMAGES, {"loss": np.ones((), np.float32)})
        assert_same({"loss": found["loss"]}, {"loss": outputs["loss"]}, "the loss of a step", 1e-4)
        trained = {**trained, **own.update(trained, gradients)}
    weights = {name: value for name, value in trained.items() if "weight" in name}
    assert_same({name: state[name] for name in weights}, weights, "trained parameters", 1e-3)
