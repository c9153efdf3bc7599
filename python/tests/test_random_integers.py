"""Random programs of integers of every width, at the ends of their ranges: every backend against the interpreter."""

import functools
from typing import Any

import mithril as ml
import numpy as np
import pytest
from backends import BACKENDS, backend
from mithril import _core

#: Seeds that are always tried, and so many fresh ones, which a failure names.
SEEDS, FRESH = range(20), 10
DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "bool")
ARITHMETIC = ("add", "subtract", "multiply", "floor_divide", "remainder", "maximum", "minimum", "power")
BITS = ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")
COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
UNARY = ("negative", "abs", "sign", "square", "bitwise_not", "logical_not", "relu")
REDUCTIONS = ("sum", "prod", "max", "min", "argmax", "argmin", "cumsum", "cumprod", "sort", "argsort", "count_nonzero")
NUMBERS = ("add", "subtract", "multiply", "maximum", "floor_divide", "remainder")


@functools.cache
def backend_named(name: str) -> Any:
    kinds = {"c": ml.CBackend, "ggml": ml.GGMLBackend, "interpreter": ml.InterpreterBackend}
    return kinds[name](dtype="float32") if name in kinds else backend(name, "float32")


def values(random: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if dtype == "bool":
        return random.random(shape) < 0.5
    info = np.iinfo(dtype)
    near = [info.min, info.min + 1, info.max - 1, info.max, info.max // 2, info.max // 2 + 1, 0, 1, 2, 3, 5, 31]
    return random.choice(np.array(near, dtype), shape)


def program(seed: int) -> tuple[ml.Model, dict[str, np.ndarray[Any, Any]]]:
    """A model of a dozen ops, whose outputs are all of their results, and its data."""
    random = np.random.default_rng(seed)
    data: dict[str, np.ndarray[Any, Any]] = {}
    pool: list[tuple[Any, str]] = []
    for i, dtype in enumerate(random.choice(DTYPES, 4)):
        data[f"x{i}"] = values(random, str(dtype), (3, 4))
        pool.append((_core.Connection.input(f"x{i}", [3, 4], str(dtype)), str(dtype)))

    def pick(numbers: bool = False) -> tuple[Any, str]:
        candidates = [pair for pair in pool if not numbers or pair[1] != "bool"]
        return candidates[random.integers(len(candidates))] if candidates else cast(*pool[0])

    def cast(x: Any, _: str) -> tuple[Any, str]:
        to = str(random.choice(DTYPES[:-1]))
        return _core.apply_op("cast", [x, ml.DType(to)]), to

    # All of the data is used.
    outputs = {f"z{i}": _core.apply_op("equal", [x, x]) for i, (x, _) in enumerate(pool)}
    for i in range(12):
        kind = random.choice(["arithmetic", "bits", "compare", "unary", "along", "number", "cast", "where", "take"])
        (x, left), (y, right) = pick(numbers=kind != "cast"), pick(numbers=True)
        common = joined(left, right)
        if common == "float64" and kind in ("arithmetic", "bits", "compare", "where"):
            # No integer dtype holds uint64 and signed integers.
            y, common = _core.apply_op("cast", [y, ml.DType(left)]), left
        if kind == "arithmetic":
            connection = _core.apply_op(str(random.choice(ARITHMETIC)), [x, y]), common
        elif kind == "bits":
            connection = _core.apply_op(str(random.choice(BITS)), [x, y]), common
        elif kind == "compare":
            connection = _core.apply_op(str(random.choice(COMPARISONS)), [x, y]), "bool"
        elif kind == "unary":
            op = str(random.choice(UNARY))
            connection = _core.apply_op(op, [x]), "bool" if op == "logical_not" else left
        elif kind == "number":
            number = int(random.choice([0, 1, 3, 100, 127]))
            connection = _core.apply_op(str(random.choice(NUMBERS)), [x, number]), left
        elif kind == "where":
            connection = _core.apply_op("where", [_core.apply_op("less", [x, y]), x, y]), common
        elif kind == "take":
            at = _core.apply_op("remainder", [y, 3])
            connection = _core.apply_op("take_along_axis", [x, at, 0]), left
        elif kind == "along":
            op = str(random.choice(REDUCTIONS))
            result = _core.apply_op(op, [x, 1] if op in ("cumsum", "cumprod", "sort", "argsort") else [x, 1, True])
            kept = op in ("max", "min", "sort") or (left == "uint64" and op in ("sum", "prod", "cumsum", "cumprod"))
            dtype = left if kept else "int64"
            zeros = _core.apply_op("cast", [_core.apply_op("multiply", [x, 0]), ml.DType(dtype)])
            connection = _core.apply_op("add", [result, zeros]), dtype
        else:
            connection = cast(x, left)
        pool.append(connection)
        outputs[f"y{i}"] = connection[0]
    return ml.Model.create(**outputs), data


def joined(left: str, right: str) -> str:
    return str(np.promote_types(left, right))


def check(name: str, seed: int) -> None:
    model, data = program(seed)
    expected = ml.compile(model, backend_named("interpreter"), inference=True, data_keys=list(data)).evaluate({}, data)
    one = backend_named(name)
    arrays = {key: one.tensor(value, value.dtype.name) for key, value in data.items()}
    model, _ = program(seed)
    actual = ml.compile(model, one, inference=True, data_keys=list(data)).evaluate({}, arrays)
    for key, value in expected.items():
        mine, its = np.asarray(one.to_numpy(actual[key])), np.asarray(backend_named("interpreter").to_numpy(value))
        assert mine.dtype == its.dtype, (seed, key)
        np.testing.assert_array_equal(mine, its, f"seed {seed}, {key}")


@pytest.mark.parametrize("name", [*BACKENDS, "c", "ggml"])
def test_programs_of_integers(name):
    fresh = np.random.SeedSequence().generate_state(FRESH)
    for seed in [*SEEDS, *(int(seed) for seed in fresh)]:
        check(name, seed)
