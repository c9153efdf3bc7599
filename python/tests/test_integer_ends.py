"""Ops that bring elements together, order or move them, with integers at the ends of their range; against NumPy."""

import functools
from typing import Any

import numpy as np
import pytest
from backends import BACKENDS, backend
from mithril.backends.with_manualgrad.interpreter_backend import InterpreterBackend

DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
COLUMNS = np.array([1, 1])
PLACES = np.array([[0, 3, 3, 1, 0, 0], [2, 2, 2, 2, 2, 2]])


def ends(dtype: str) -> np.ndarray[Any, Any]:
    """The ends of the range, what lies beside them, zero, one and what is halfway, several times each."""
    info = np.iinfo(dtype)
    values = [info.min, info.max, info.min + 1, info.max - 1, 0, 1, info.max // 2, info.min // 2]
    return np.random.default_rng(0).choice(np.array(values, dtype), (4, 6))


def scattered(function):
    def oracle(x):
        expected = x.copy()
        for i, j in np.ndindex(PLACES.shape):
            at = PLACES[i, j], j
            expected[at] = function(expected[at], x[2 + i, j])
        return expected

    return oracle


def index_added(x):
    expected = x.copy()
    np.add.at(expected, COLUMNS, x[2:])
    return expected


def pooled(x):
    return x.reshape(2, 2, 3, 2).max((1, 3))[None, None]


def dilated(x):
    """Windows of two by two, whose elements are two apart."""
    return np.maximum.reduce([x[:-2, :-2], x[2:, :-2], x[:-2, 2:], x[2:, 2:]])[None, None]


def padded(x):
    """Windows of two by two, two apart, over a margin of one, in which nothing is larger."""
    margin = np.pad(x, 1, constant_values=np.iinfo(x.dtype).min)
    return margin.reshape(3, 2, 4, 2).max((1, 3))[None, None]


#: Name of the test -> op, arguments made of the elements, and what NumPy makes of them. Sums and products are int64, of
#: uint64 in itself.
CASES = {
    "index_add": ("index_add", lambda x: (x, COLUMNS, x[2:], 0), index_added),
    "matmul": ("matmul", lambda x: (x, x.T.copy()), lambda x: x @ x.T),
    "max_pool2d": ("max_pool2d", lambda x: (x[None, None], 2), pooled),
    "max_pool2d padded": ("max_pool2d", lambda x: (x[None, None], 2, 2, 1), padded),
    "max_pool2d dilated": ("max_pool2d", lambda x: (x[None, None], 2, 1, 0, 2), dilated),
    "adaptive_max_pool2d": ("adaptive_max_pool2d", lambda x: (x[None, None], (2, 3)), pooled),
}
for _name, _function in {"add": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}.items():
    CASES[f"scatter_{_name}"] = (f"scatter_{_name}", lambda x: (x, PLACES, x[2:], 0), scattered(_function))


def along(axis):
    """Cases along an axis."""

    def plain(name, **options):
        return lambda x: (x, axis, False), lambda x: getattr(np, name)(x, axis=axis, **options)

    by_op = {name: plain(name) for name in ("max", "min", "argmax", "argmin")}

    def total(name):
        kind = {np.dtype(np.uint64): np.uint64}
        oracle = functools.partial(getattr(np, name), axis=axis)
        return lambda x: (x, axis, False), lambda x: oracle(x, dtype=kind.get(x.dtype, np.int64))

    by_op |= {name: total(name) for name in ("sum", "prod", "cumsum", "cumprod")}
    by_op["cummax"] = (lambda x: (x, axis), lambda x: np.maximum.accumulate(x, axis=axis))
    by_op["cummin"] = (lambda x: (x, axis), lambda x: np.minimum.accumulate(x, axis=axis))
    by_op["sort"] = (lambda x: (x, axis, True), lambda x: np.flip(np.sort(x, axis=axis), axis))
    by_op["argsort"] = (lambda x: (x, axis), lambda x: np.argsort(x, axis=axis, kind="stable"))
    by_op["topk"] = (lambda x: (x, 3, axis), lambda x: np.take(by_op["sort"][1](x), range(3), axis))
    return {f"{name} along {axis}": (name, *pair) for name, pair in by_op.items()}


CASES |= along(0) | along(1)


@pytest.mark.parametrize("name", [*BACKENDS, "interpreter"])
@pytest.mark.parametrize("case", CASES)
def test_ends_of_ranges(case, name):
    op, arguments, oracle = CASES[case]
    chosen = InterpreterBackend() if name == "interpreter" else backend(name, "float32")
    for dtype in DTYPES:
        x = ends(dtype)
        args = [chosen.tensor(a, a.dtype.name) if isinstance(a, np.ndarray) else a for a in arguments(x)]
        actual = chosen._op(op, args)
        actual = np.asarray(chosen.to_numpy(actual[0] if isinstance(actual, tuple) else actual))
        with np.errstate(over="ignore"):
            expected = oracle(x)
        assert actual.dtype == expected.dtype, dtype
        np.testing.assert_array_equal(actual, expected, dtype)
