"""Ops on every backend against the reference interpreter, where frameworks differ: special values, the ends of the
ranges of integers, unusual arguments."""

import numpy as np
import pytest
from backends import BACKENDS, FLOATS, backend
from mithril import _core
from mithril.backends.with_manualgrad.interpreter_backend import InterpreterBackend
from mithril.testing import cases
from mithril.testing.backend_tests import EPSILON, UNITS, agree
from op_cases import MORE

ROWS = {row["name"]: row for row in _core.op_definitions()}
REFERENCE = {dtype: InterpreterBackend(dtype=dtype) for dtype in FLOATS}
SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, -3.0, 6.0, 20.0, -20.0, 30.0, -30.0, 1e-7, 80.0]
)
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
ELEMENTWISE = [
    name
    for name, row in ROWS.items()
    if row["family"] in ("elementwise", "function", "compare", "arithmetic", "activation")
]


def run(chosen, name, args):
    """Results as NumPy arrays."""
    outputs = chosen._op(name, [chosen.tensor(a, a.dtype.name) if isinstance(a, np.ndarray) else a for a in args])
    return [np.asarray(chosen.to_numpy(part)) for part in (outputs if isinstance(outputs, tuple) else (outputs,))]


@pytest.mark.parametrize("op", MORE)
@pytest.mark.parametrize("name", BACKENDS)
def test_unusual_arguments(name, op):
    row = ROWS[op]
    units = UNITS[row["tolerance"]] + (0 if row["primitive"] else 4)
    for case in cases({**row, "cases": MORE[op]}):
        pairs = zip(run(backend(name, "float64"), op, case.args), run(REFERENCE["float64"], op, case.args), strict=True)
        for actual, expected in pairs:
            assert agree(actual, expected, units) is None, str(case)


def tensor_ports(row):
    return [p for p in row["ports"] if p["kind"] == "tensor" and p["required"]]


def uses(row, values):
    """One use of an op: all values, or all pairs of them."""
    ports = tensor_ports(row)
    count = len(values)
    grids = np.meshgrid(*[np.arange(count)] * len(ports), indexing="ij")
    arrays = iter([values[grid.reshape(-1)] for grid in grids])
    return [next(arrays) if p in ports else p.get("default") for p in row["ports"]]


EXP = "on the CPU, exp of MLX in float32 is up to 32 epsilon off far from 0"
#: Values that a framework maps elsewhere: framework and op -> which inputs, and the reason.
OTHER = {
    ("torch", "gelu"): (lambda x: x > 1.6e38, "F.gelu doubles the input first, and makes NaN of infinity"),
    ("torch", "hard_swish"): (lambda x: x > 5e37, "F.hardswish multiplies by 6 before it divides by 6"),
    ("torch", "sinh"): (lambda x: np.abs(x) > 88.7, "computed from exp, which is infinite before sinh is"),
    ("torch", "cosh"): (lambda x: np.abs(x) > 88.7, "computed from exp, which is infinite before cosh is"),
    ("mlx", "exp"): (lambda x: np.abs(x) > 10, f"{EXP} and is infinite from 88.38 on"),
    ("mlx", "sigmoid"): (lambda x: x < -10, EXP),
    ("mlx", "log_sigmoid"): (lambda x: x > 10, EXP),
    ("mlx", "softplus"): (lambda x: x < -10, EXP),
    # What counts is the distance of both inputs.
    ("mlx", "logaddexp"): (lambda x: ~np.isnan(x), EXP),
}
#: XLA on the CPU reads subnormal numbers of 32 bits as 0 and writes 0 for them; bfloat16 is computed in 32 bits.
FLUSHED = {("jax", "float32"), ("jax", "bfloat16")}
LEAST = 2.0**-126
#: Casts that are rounded twice: backend, from and to.
TWICE = {("jax", "float64", "bfloat16"): "XLA rounds to float32 on the way"}
#: Results that are nearly 0 far out, where no formula gives them exactly: there the input is the scale.
TAILS = {"gelu", "silu", "mish", "erfc", "elu", "selu", "celu"}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", [n for n in ELEMENTWISE if n not in ("cast", "prelu")])
@pytest.mark.parametrize("name", BACKENDS)
def test_special_values(name, op, dtype):
    row = ROWS[op]
    if "float" not in tensor_ports(row)[0]["kinds"] or len(tensor_ports(row)) > 2:
        pytest.skip("no floats to try")
    chosen, reference = backend(name, dtype), REFERENCE[dtype]
    special = np.asarray(reference.to_numpy(reference.tensor(SPECIAL, dtype)))
    args = uses(row, special)
    with np.errstate(all="ignore"):
        [actual], [expected] = run(chosen, op, args), run(reference, op, args)
    assert actual.dtype == expected.dtype
    if expected.dtype.name not in EPSILON:
        np.testing.assert_array_equal(actual, expected)
        return
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    exact_inputs = [x.astype(np.float64) for x in args if isinstance(x, np.ndarray)]
    finite = np.isfinite(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    scale = np.maximum(np.abs(b), np.abs(exact_inputs[0]) if op in TAILS else 0)
    tiny = float(np.finfo("float32" if dtype in ("bfloat16", "float32") else dtype).tiny)
    with np.errstate(all="ignore"):
        close = finite & (np.abs(a - b) <= 4 * EPSILON[dtype] * np.maximum(scale, tiny))
    wrong = ~(same | close)
    if (name, op) in OTHER:
        wrong &= ~OTHER[name, op][0](exact_inputs[0])
    if (name, dtype) in FLUSHED:
        wrong &= ~((a == 0) & (np.abs(b) < LEAST))
    assert not wrong.any(), [(*(x[i] for x in exact_inputs), a[i], b[i]) for i in np.flatnonzero(wrong)][:5]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", [n for n in ELEMENTWISE if n not in ("cast", "prelu")])
@pytest.mark.parametrize("name", BACKENDS)
def test_ends_of_integers(name, op, dtype):
    row = ROWS[op]
    if "integer" not in tensor_ports(row)[0]["kinds"] or len(tensor_ports(row)) > 2:
        pytest.skip("no integers")
    limits = np.iinfo(dtype)
    small = [0, 1, 2, 3, 7, 8, 31, 63, 64, 100]
    numbers = sorted({limits.min, limits.min + 1, *(-n for n in small if limits.min < 0), *small, limits.max})
    args = uses(row, np.array(numbers, dtype))
    chosen = backend(name, "float64")
    [actual], [expected] = run(chosen, op, args), run(REFERENCE["float64"], op, args)
    if expected.dtype == np.float64:
        assert actual.dtype == expected.dtype
        scale = np.maximum(np.abs(expected), np.abs(args[0].astype(np.float64)) if op in TAILS else 0)
        with np.errstate(all="ignore"):
            close = np.abs(actual - expected) <= 4 * EPSILON["float64"] * scale
        assert (close | (actual == expected) | (np.isnan(actual) & np.isnan(expected))).all()
        return
    np.testing.assert_array_equal(actual, expected, strict=True)


@pytest.mark.parametrize("to", [*INTEGERS, "bool", *FLOATS])
@pytest.mark.parametrize("dtype", [*INTEGERS, "bool", *FLOATS])
@pytest.mark.parametrize("name", BACKENDS)
def test_casts(name, dtype, to):
    reference = REFERENCE["float64"]
    if dtype == "bool":
        values = np.array([True, False])
    elif dtype in INTEGERS:
        limits = np.iinfo(dtype)
        ends = [limits.min, limits.min + 1, limits.max - 1, limits.max, limits.max // 2 + 1]
        values = np.array([*ends, 0, 1, 16777217, 257] if limits.max > 2**30 else [*ends, 0, 1], dtype)
    else:
        ends = [2.0**k + d for k in (7, 8, 15, 16, 24, 31, 53, 63) for d in (-1.0, -0.5, 0.0, 0.5, 1.0)]
        ends += [1 + 2.0**-8, 1 + 2.0**-8 + 2.0**-30, 1e-45, 65519.0, 65520.0, 1e300]
        with np.errstate(over="ignore"):
            exact = np.array([*SPECIAL, *ends, *(-x for x in ends)])
            values = np.asarray(reference.to_numpy(reference.cast(exact, dtype)))
    with np.errstate(all="ignore"):
        [actual], [expected] = run(backend(name, "float64"), "cast", [values, to]), run(reference, "cast", [values, to])
    wrong = (actual != expected) & ~((actual != actual) & (expected != expected))
    assert actual.dtype == expected.dtype
    if (name, dtype) in FLUSHED or (name, to) in FLUSHED:
        wrong &= np.abs(values.astype(np.float64)) >= LEAST
    if (name, dtype, to) in TWICE:
        with np.errstate(over="ignore"):
            wrong &= actual != values.astype(np.float32).astype(expected.dtype)
    assert not wrong.any(), list(zip(values[wrong], actual[wrong], expected[wrong], strict=True))[:5]


LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}
#: Smallest normal numbers.
NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126}
UNARY = [n for n in ELEMENTWISE if len(tensor_ports(ROWS[n])) == 1 and n not in ("cast", "bitwise_not")]


@pytest.mark.parametrize("dtype", NORMAL)
@pytest.mark.parametrize("op", UNARY)
@pytest.mark.parametrize("name", [n for n in BACKENDS if n != "numpy"])
def test_every_half(name, op, dtype):
    """All 65536 numbers of 16 bits, to 4 epsilon of each result (what is subnormal: of the least normal number)."""
    chosen, reference, row = backend(name, dtype), REFERENCE[dtype], ROWS[op]
    x = np.arange(2**16, dtype=np.uint16).view(np.asarray(reference.tensor(0.0, dtype)).dtype)
    args = [x if p in tensor_ports(row) else p.get("default") for p in row["ports"]]
    with np.errstate(all="ignore"):
        [actual], [expected] = run(chosen, op, args), run(reference, op, args)
        if expected.dtype.name not in EPSILON:
            exact = np.ones(x.shape, bool)
            if (name, dtype) in FLUSHED:
                exact = ~(np.abs(x.astype(np.float64)) < LEAST) | (x == 0)
            np.testing.assert_array_equal(actual[exact], expected[exact])
            return
        a, b, argument = (part.astype(np.float64) for part in (actual, expected, x))
        scale = np.maximum(np.maximum(np.abs(b), np.abs(argument) if op in TAILS else 0), NORMAL[dtype])
        close = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= 4 * EPSILON[dtype] * scale)
        # Subnormal numbers may be flushed to 0.
        close |= (a == 0) & (np.abs(b) <= NORMAL[dtype])
        # What rounds to infinity may as well be the largest number, and the other way round.
        edge = LARGEST[dtype] * (1 - 4 * EPSILON[dtype])
        close |= (np.sign(a) == np.sign(b)) & (np.abs(a) >= edge) & (np.abs(b) >= edge)
    if (name, op) in OTHER:
        close |= OTHER[name, op][0](argument)
    if (name, dtype) in FLUSHED:
        # A number that is barely normal becomes subnormal on the way.
        close |= np.abs(argument) < 4 * LEAST
    wrong = np.flatnonzero(~close)
    assert not wrong.size, [(argument[i], a[i], b[i]) for i in wrong[:5]]
