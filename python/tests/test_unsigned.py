"""Unsigned integers of 16, 32 and 64 bits on every backend: arithmetic that wraps around, conversions, models."""

import functools
from typing import Any

import mithril as ml
import numpy as np
import pytest
from backends import BACKENDS, backend
from mithril.backends.with_manualgrad.interpreter_backend import InterpreterBackend
from mithril.testing import Case
from mithril.testing.compiled import run_compiled

DTYPES = ("uint16", "uint32", "uint64")
ALL = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
#: Backends whose ops at once are those of another framework, so that ops run as compiled models.
COMPILED = {"c": "CBackend", "ggml": "GGMLBackend"}
NAMES = [*BACKENDS, "interpreter", *COMPILED]


@functools.cache
def chosen(name: str) -> Any:
    if name in COMPILED:
        return getattr(ml, COMPILED[name])(dtype="float32")
    return InterpreterBackend() if name == "interpreter" else backend(name, "float32")


def pairs(dtype: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Every pair of numbers at the ends of the range, around the sign bit of the same width, and small ones."""
    most = np.iinfo(dtype).max
    half = most // 2
    small, large = [0, 1, 2, 3, 7, 15, 16, 31, 32, 63, 64], [half - 1, half, half + 1, half + 2, most - 1, most]
    values = np.array(small + large, dtype)
    left, right = np.meshgrid(values, values, indexing="ij")
    return left.copy(), right.copy()


def shifted(function):
    def oracle(x, y):
        width = 8 * x.dtype.itemsize
        return np.where(y < width, function(x, np.minimum(y, width - 1)), 0).astype(x.dtype)

    return oracle


def divided(function):
    return lambda x, y: np.where(y == 0, 0, function(x, np.where(y == 0, 1, y))).astype(x.dtype)


BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "floor_divide": divided(np.floor_divide),
    "remainder": divided(np.remainder),
    "power": np.power,
    "left_shift": shifted(np.left_shift),
    "right_shift": shifted(np.right_shift),
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "divide": lambda x, y: x.astype(np.float32) / y.astype(np.float32),
}
UNARY = {
    "negative": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "square": np.square,
    "bitwise_not": np.invert,
    "relu": lambda x: x,
    "logical_not": np.logical_not,
}


def run(name, op, args):
    one = chosen(name)
    if name in COMPILED:
        outputs = run_compiled(one, Case(op, "", tuple(args)))
        return np.asarray(outputs[0] if isinstance(outputs, tuple) else outputs)
    arrays = [one.tensor(a, a.dtype.name) if isinstance(a, np.ndarray) else a for a in args]
    outputs = one._op(op, arrays)
    return np.asarray(one.to_numpy(outputs[0] if isinstance(outputs, tuple) else outputs))


def check(actual, expected):
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_arithmetic_wraps_around(dtype, name):
    x, y = pairs(dtype)
    with np.errstate(all="ignore"):
        for op, oracle in BINARY.items():
            check(run(name, op, (x, y)), oracle(x, y))
        for op, oracle in UNARY.items():
            check(run(name, op, (x,)), oracle(x))
        check(run(name, "add", (x, 3)), x + np.array(3, dtype))
        check(run(name, "multiply", (x, np.iinfo(dtype).max)), x * np.array(np.iinfo(dtype).max, dtype))
        # No number of the dtype: the answer is that for the number as it is.
        check(run(name, "greater", (x, -1)), np.ones(x.shape, bool))
        check(run(name, "less_equal", (x, -1)), np.zeros(x.shape, bool))
        check(run(name, "not_equal", (-5, x)), np.ones(x.shape, bool))
        top = np.iinfo(dtype).max - 1
        check(run(name, "clip", (x, 3, top)), np.clip(x, np.array(3, dtype), np.array(top, dtype)))
        check(run(name, "maximum", (x, 40)), np.maximum(x, np.array(40, dtype)))
        check(run(name, "less", (40, x)), np.array(40, dtype) < x)
        check(run(name, "right_shift", (x, 1)), x >> np.array(1, dtype))
        check(run(name, "floor_divide", (x, 7)), x // np.array(7, dtype))
        check(run(name, "where", (x > y, x, y)), np.where(x > y, x, y))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_conversions(dtype, name):
    x = pairs(dtype)[0][:, 0].copy()
    for other in ALL:
        check(run(name, "cast", (x, ml.DType(other))), x.astype(other))
        limits = (0, 1) if other == "bool" else (np.iinfo(other).min, np.iinfo(other).max)
        source = np.array([limits[0], limits[1], 0, 1, limits[1] // 2], other)
        check(run(name, "cast", (source, ml.DType(dtype))), source.astype(dtype))
    for other in ("float16", "float32", "float64"):
        with np.errstate(over="ignore"):
            check(run(name, "cast", (x, ml.DType(other))), x.astype(np.float64).astype(other))
        floats = np.array([0.0, -0.7, -5.0, 1.9, 65504.0, 40000.0, np.inf, -np.inf, np.nan], other)
        if other != "float16":
            more = [65535.5, 65536, 2**31, 2**31 + 512, 2**32, 2**63, 2**63 + 2**40, 2**64 - 2**40, 2**64, 1e30, -1e30]
            floats = np.concatenate([floats, np.array(more, other)])
        most = np.iinfo(dtype).max
        expected = [0 if x != x else most if x >= most else 0 if x < 0 else int(x) for x in floats.astype(np.float64)]
        check(run(name, "cast", (floats, ml.DType(dtype))), np.array(expected, dtype))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_indices(dtype, name):
    x, at = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([3, 0, 2], dtype)
    check(run(name, "take", (x, at, 0)), x[at])
    check(run(name, "take_along_axis", (x, at[None], 0)), np.take_along_axis(x, at[None].astype(np.int64), 0))
    check(run(name, "one_hot", (at, 4, ml.DType(dtype))), np.eye(4, dtype=dtype)[at])
    wide = np.arange(70000, dtype=dtype)
    far = np.array([65535, 40000, 32768], dtype)
    check(run(name, "take", (wide, far, 0)), wide[far])
    added = x.copy()
    np.add.at(added, at, x[:3])
    check(run(name, "index_add", (x, at, x[:3].copy(), 0)), added)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_movement_and_creation(dtype, name):
    x = pairs(dtype)[0][:6, :4].copy()
    check(run(name, "transpose", (x,)), x.T)
    check(run(name, "flip", (x, 0)), x[::-1])
    check(run(name, "pad", (x, ((1, 1), (0, 2)), "constant", 7)), np.pad(x, ((1, 1), (0, 2)), constant_values=7))
    check(
        run(name, "full", ((2, 3), np.iinfo(dtype).max, ml.DType(dtype))), np.full((2, 3), np.iinfo(dtype).max, dtype)
    )
    check(run(name, "arange", (0, 70000, 7, ml.DType(dtype))), np.arange(0, 70000, 7).astype(dtype))
    check(run(name, "tril", (x,)), np.tril(x))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["uint8", *DTYPES])
def test_windows_are_padded_with_numbers_that_wrap_around(dtype, name):
    x = np.ones((1, 1, 2, 2), dtype)
    padding = np.array(-1).astype(dtype)
    actual = run(name, "windows", (x, 2, 1, ((1, 0), (1, 0)), 1, -1.5))
    check(actual[0, 0, 0, 0], np.array([[padding, padding], [padding, 1]], dtype))


PROMOTED = {
    ("uint16", "uint8"): "uint16",
    ("uint16", "uint32"): "uint32",
    ("uint16", "int8"): "int32",
    ("uint16", "int16"): "int32",
    ("uint16", "int32"): "int32",
    ("uint16", "int64"): "int64",
    ("uint32", "int8"): "int64",
    ("uint32", "int32"): "int64",
    ("uint32", "int64"): "int64",
    ("uint32", "bool"): "uint32",
    ("uint64", "bool"): "uint64",
    ("uint64", "uint8"): "uint64",
    ("uint64", "uint32"): "uint64",
    ("uint64", "float32"): "float32",
    ("uint16", "float16"): "float16",
    ("uint32", "float32"): "float32",
}


@pytest.mark.parametrize("name", NAMES)
def test_promotion(name):
    for (left, right), expected in PROMOTED.items():
        x, y = pairs(left)[0][:, 0].copy(), np.ones((), right)
        with np.errstate(over="ignore"):
            check(run(name, "add", (x, y)), (x.astype(expected) + y.astype(expected)))
            check(run(name, "add", (y, x)), (x.astype(expected) + y.astype(expected)))


@pytest.mark.parametrize("signed", ["int8", "int32", "int64"])
def test_uint64_does_not_promote_with_signed_integers(signed):
    """No integer dtype holds the numbers of both, and a float would round them."""
    one = chosen("numpy")
    x, y = one.tensor([1, 2], "uint64"), one.tensor([1, 2], signed)
    for op in ("add", "maximum", "less", "floor_divide", "bitwise_and"):
        for pair in ((x, y), (y, x)):
            with pytest.raises(ml.MithrilError, match=f"uint64 and {signed}|{signed} and uint64"):
                one._op(op, pair)
    with pytest.raises(ml.MithrilError, match="no dtype holds both"):
        one.where(one.tensor([True, False]), x, y)
    check(np.asarray(one.divide(x, y)), np.array([1, 1], np.float32))


#: Name -> op, arguments made of the elements, and what NumPy makes of them.
ALONG = {
    **{op: ((1,), lambda x, op=op: getattr(np, op)(x, axis=1)) for op in ("max", "min", "argmax", "argmin")},
    **{op: ((1,), lambda x, op=op: getattr(np, op)(x, axis=1)) for op in ("sum", "prod", "cumsum", "cumprod")},
    "sort": ((1,), lambda x: np.sort(x, axis=1)),
    "argsort": ((1,), lambda x: np.argsort(x, axis=1, kind="stable")),
    "topk": ((3, 1), lambda x: np.flip(np.sort(x, axis=1), 1)[:, :3]),
    "cummax": ((1,), lambda x: np.maximum.accumulate(x, axis=1)),
    "any": ((1,), lambda x: x.any(1)),
    "count_nonzero": ((1,), lambda x: np.count_nonzero(x, axis=1)),
    "diff": ((), lambda x: np.diff(x, axis=-1)),
    "relu6": ((), lambda x: np.minimum(x, np.array(6, x.dtype))),
    "unique": ((12,), lambda x: np.unique(x)[:12]),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("op", ALONG)
def test_along_an_axis_beyond_int64(op, name):
    x = np.random.default_rng(1).choice(pairs("uint64")[0][:, 0], (4, 6))
    arguments, oracle = ALONG[op]
    check(run(name, op, (x, *arguments)), oracle(x))


@pytest.mark.parametrize("name", NAMES)
def test_numbers_beyond_int64(name):
    """A Python number that int64 does not hold is one of uint64."""
    x, big = pairs("uint64")[0][:, 0].copy(), 2**63 + 5
    check(run(name, "less", (x, big)), x < np.uint64(big))
    with np.errstate(over="ignore"):
        check(run(name, "add", (x, big)), x + np.uint64(big))
    check(run(name, "clip", (x, 3, big)), np.clip(x, np.uint64(3), np.uint64(big)))
    check(run(name, "full", ((2,), 2**64 - 1, ml.uint64)), np.full(2, 2**64 - 1, np.uint64))
    padded = run(name, "pad", (x[:2].copy(), 1, "constant", 2**64 - 1))
    check(padded, np.pad(x[:2], 1, constant_values=2**64 - 1))


@pytest.mark.parametrize("name", [*BACKENDS, "interpreter", "c"])
def test_indices_beyond_int64_are_errors(name):
    """Not the last element, which -1 stands for."""
    x, at = np.arange(4, dtype=np.float32), np.array([2**64 - 1], np.uint64)
    with pytest.raises((ml.MithrilError, IndexError)):
        run(name, "take", (x, at, 0)) if name in ("numpy", "torch", "interpreter", "c") else compiled_take(name, x, at)


def compiled_take(name, x, at):
    model = ml.Model.create(output=ml.IOKey("x", shape=[4]).take(ml.IOKey("at", type=ml.uint64, shape=[1])))
    one = chosen(name)
    return ml.compile(model, one, data_keys=["x", "at"]).evaluate({}, {"x": one.array(x), "at": one.array(at)})


@pytest.mark.parametrize("name", [*BACKENDS, *COMPILED])
@pytest.mark.parametrize("dtype", DTYPES)
def test_models_take_and_give_them(dtype, name, tmp_path):
    """Token ids and counters: data, constants, states of a compiled model, in every dtype; and saved."""
    model = ml.Model()
    ids = ml.IOKey("ids", type=ml.DType(dtype), shape=[4])
    model |= ml.Embedding(num_embeddings=9, dim=3)(input=ids, output=ml.IOKey("rows"))
    model |= ml.Add()(left="ids", right=ml.IOKey(value=np.array([1, 2, 3, 4], dtype)), output=ml.IOKey("next"))
    ml.save(model, tmp_path / "model.json")
    one = chosen(name)
    for each in (model, ml.load(tmp_path / "model.json")):
        compiled = ml.compile(each, one)
        params = compiled.randomize_params(seed=0)
        numbers = np.array([8, 0, 1, 5], dtype)
        outputs = compiled.evaluate(params, {"ids": one.array(numbers)})
        check(np.asarray(one.to_numpy(outputs["next"])), numbers + np.array([1, 2, 3, 4], dtype))
        assert tuple(outputs["rows"].shape) == (4, 3)


@pytest.mark.parametrize("name", [*BACKENDS, "c"])
def test_numbers_out_of_range_are_errors(name):
    one = chosen(name)
    for dtype in DTYPES:
        for number in (-1, np.iinfo(dtype).max + 1):
            with pytest.raises(ml.MithrilError, match=dtype):
                one.tensor([number], dtype=dtype)
            model = ml.Model()
            with pytest.raises(ml.MithrilError, match=dtype):
                model |= ml.Add()(left=ml.IOKey("x", dtype=dtype, shape=[2]), right=number, output=ml.IOKey("y"))


@pytest.mark.parametrize("name", BACKENDS)
def test_files_hold_them(name, tmp_path):
    """Parameters of a model in unsigned dtypes, saved and loaded as they are."""
    one = chosen(name)
    for dtype in DTYPES:
        x = pairs(dtype)[0]
        ml.save({"x": one.tensor(x, dtype)}, tmp_path / "x.safetensors")
        loaded = ml.load(tmp_path / "x.safetensors")["x"]
        check(np.asarray(one.to_numpy(one.tensor(loaded, dtype))), x)
        check(np.asarray(one.to_numpy(one.array(loaded))), x)


def test_exported_c_names_the_types(tmp_path):
    model = ml.Model()
    model |= ml.Add()(left=ml.IOKey("a", dtype="uint16", shape=[2]), right=1, output=ml.IOKey("b"))
    model |= ml.Multiply()(left=ml.IOKey("c", dtype="uint32", shape=[2]), right=4294967295, output=ml.IOKey("d"))
    model |= ml.FloorDivide()(left=ml.IOKey("e", dtype="uint64", shape=[2]), right=3, output=ml.IOKey("f"))
    compiled = ml.compile(model, ml.CBackend(), inference=True, data_keys=["a", "c", "e"])
    source = compiled.source
    assert "uint16_t" in source
    assert "uint32_t" in source
    assert "uint64_t" in source
    data = {"a": np.array([65535, 1], np.uint16), "c": np.array([2, 3], np.uint32)}
    outputs = compiled.evaluate({}, data | {"e": np.array([2**64 - 1, 9], np.uint64)})
    check(outputs["f"], np.array([(2**64 - 1) // 3, 3], np.uint64))
    check(outputs["b"], np.array([0, 2], np.uint16))
    check(outputs["d"], np.array([2**32 - 2, 2**32 - 3], np.uint32))


@pytest.mark.parametrize("options", [{"jit": True}, {"autodiff": "graph"}])
@pytest.mark.parametrize("name", ["torch", "jax", "mlx"])
def test_beside_what_is_differentiated(name, options):
    """Embeddings by unsigned ids, counted on the way: the gradient is that by int64."""
    one = chosen(name)
    model = ml.Model()
    model |= ml.Embedding(num_embeddings=9, dim=3)(input=ml.IOKey("ids"), output="rows")
    model |= ml.Add()(left="ids", right=1, output="next")
    model |= ml.Cast(dtype="float32")(input="next", output="weights")
    model |= ml.Reshape(shape=(4, 1))(input="weights", output="column")
    model |= ml.Multiply()(left="rows", right="column", output="scaled")
    model |= ml.Sum()(input="scaled", output=ml.IOKey("loss"))
    gradients_by_mode = []
    for dtype in ("int64", *DTYPES):
        compiled = ml.compile(model, one, data_keys=["ids"], shapes={"ids": [4]}, dtypes={"ids": dtype}, **options)
        params = {key: one.array(np.ones((9, 3), np.float32)) for key in compiled.randomize_params(seed=0)}
        gradients = compiled.evaluate_gradients(params, {"ids": one.tensor([8, 0, 1, 8], dtype)})
        gradients_by_mode.append(np.asarray(one.to_numpy(next(iter(gradients.values())))))
    for each in gradients_by_mode[1:]:
        check(each, gradients_by_mode[0])
    assert gradients_by_mode[0][8, 0] == 18


def test_methods_of_a_torch_subclass_compute_in_what_torch_has():
    import torch

    seen = []

    class Mine(ml.TorchBackend):
        def add(self, left, right):
            seen.append((left.dtype, right.dtype))
            return left + right

    one = Mine()
    model = ml.Model()
    model |= ml.Add()(left=ml.IOKey("x", dtype="uint16"), right=ml.IOKey("z", dtype="uint16"), output=ml.IOKey("y"))
    compiled = ml.compile(model, one, data_keys=["x", "z"], shapes={"x": [2], "z": [2]})
    x = np.array([1, 65535], np.uint16)
    check(np.asarray(one.to_numpy(compiled.evaluate({}, {"x": x, "z": x})["y"])), x + x)
    assert seen == [(torch.int64, torch.int64)]
