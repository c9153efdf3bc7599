"""Every op against torch: results in two dtypes, gradients, and the same with a symbol for the batch."""

import functools

import mithril as ml
import numpy as np
import pytest
import torch
import torch_ops
from mithril import _core
from mithril.testing import Case, cases
from op_cases import BENDS, MORE, TERMS, Single, every_case

ROWS = {row["name"]: row for row in _core.op_definitions()}
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
UNITS = {"Exact": 0, "Rounded": 1, "Elementwise": 4, "Contraction": 8, "Decomposition": 256, "Random": 4}
GRADIENT_UNITS = {"Decomposition": 256}
BACKEND = functools.cache(lambda dtype: ml.NumpyBackend(dtype=dtype))

#: Known defects, by test and op.
DEFECTS: dict[tuple[str, str], str] = {}


def rows(test):
    def row(name):
        reason = DEFECTS.get((test, name))
        return pytest.param(name, marks=[pytest.mark.xfail(reason=reason, strict=True)] if reason else [])

    return pytest.mark.parametrize("name", [row(name) for name in ROWS])


def to_torch(arg, gradient=False):
    if not isinstance(arg, np.ndarray):
        return arg
    return torch.tensor(arg, requires_grad=gradient and arg.dtype == np.float64)


def input_dtype(row, case):
    ports = [p["name"] for p in row["ports"]]
    value = case.args[ports.index("dtype")] if "dtype" in ports else None
    return None if value is None else str(value)


def assert_close(actual, expected, dtype, units, label, scale=None):
    """Compare with numbers in float64; the error is ``units`` epsilon of the largest, or of ``scale``."""
    assert actual.shape == tuple(expected.shape), f"{label}: shape {actual.shape}, torch {tuple(expected.shape)}"
    expected = expected.numpy(force=True)
    if expected.dtype.kind != "f":
        assert actual.dtype == expected.dtype, f"{label}: dtype {actual.dtype}, torch {expected.dtype}"
        np.testing.assert_array_equal(actual, expected, err_msg=label)
        return
    assert str(actual.dtype) == dtype, f"{label}: dtype {actual.dtype}, expected {dtype}"
    if units == 0:
        np.testing.assert_array_equal(actual, expected.astype(dtype), err_msg=label)
        return
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(actual[~finite], expected[~finite], err_msg=label)
    if finite.any():
        scale = np.abs(expected[finite]).max() if scale is None else scale
        error = np.abs(actual[finite] - expected[finite]) / np.maximum(scale, 1e-30) / EPSILON[dtype]
        assert error.max() <= units, f"{label}: {error.max():.1f} epsilon, allowed {units}"


def test_every_op_has_an_oracle():
    known = set(torch_ops.OPS) | set(torch_ops.EXCEPTIONS)
    assert set(ROWS) - known == set(), "add these to torch_ops.OPS, or to EXCEPTIONS with the reason"
    assert known - set(ROWS) == set(), "these are not ops"


def test_philox_gives_the_published_numbers():
    # Known answers of the Random123 library.
    assert torch_ops.philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 2**32 - 1
    assert torch_ops.philox([ones] * 4, [ones] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


pytestmark = pytest.mark.filterwarnings("ignore:reduction:UserWarning")  # of torch, about kl_div


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@rows("forward")
def test_forward(name, dtype):
    row = ROWS[name]
    for case in every_case(row):
        args = [a.astype(dtype) if isinstance(a, np.ndarray) and a.dtype == np.float64 else a for a in case.args]
        expected = torch_ops.run(name, [to_torch(a) for a in case.args], dtype)
        actual = BACKEND(dtype)._op(name, args)
        actual = actual if isinstance(actual, tuple) else (actual,)
        assert len(actual) == len(expected)
        for a, b in zip(actual, expected, strict=True):
            assert_close(np.asarray(a), b, input_dtype(row, case) or dtype, UNITS[row["tolerance"]], str(case))


#: Ops that are not functions of elements alone, or that torch refuses integers for.
FLOATS_ONLY = {"prelu": "torch wants floats", "cast": "its own cases do", "clip": "its own cases do"}
ELEMENTWISE = [
    name
    for name, row in ROWS.items()
    if row["family"] in ("elementwise", "function", "compare", "arithmetic", "activation")
    and [p["kind"] for p in row["ports"]].count("tensor") <= 2
]


def tensor_ports(row):
    return [p for p in row["ports"] if p["kind"] == "tensor" and p["required"]]


@pytest.mark.parametrize("name", [n for n in ELEMENTWISE if n not in FLOATS_ONLY])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integers(name, dtype):
    """Integers give integers, exactly, or the same as the float of the same value."""
    row = ROWS[name]
    ports = tensor_ports(row)
    if "integer" not in ports[0]["kinds"]:
        pytest.skip("no integers")
    random = np.random.default_rng(3)
    low, high = (1, 7) if len(ports) == 2 else (0, 50)
    arrays = [random.integers(low, high, 64).astype(dtype) for _ in ports]
    defaults = [p.get("default") for p in row["ports"] if p not in ports]
    actual = np.asarray(BACKEND("float64")._op(name, [*arrays, *defaults]))
    if actual.dtype.kind == "f":
        arrays = [a.astype(np.float64) for a in arrays]
    with np.errstate(all="ignore"):
        [expected] = torch_ops.run(name, [*map(torch.tensor, arrays), *defaults], "float64")
    assert_close(actual, expected, "float64", 4, f"{name} {dtype}")


#: Ops that no formula gives exactly far out, where they are nearly 0; there the input is the scale.
TAILS = {"gelu": "the tail of the normal distribution changes by x² epsilon when x / √2 is rounded"}
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, -3.0, 6.0, 30.0, -30.0, 1e-30, 80.0])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_special_values(name, dtype):
    """NaN, infinities, zeros of both signs, the places where functions bend."""
    row = ROWS[name]
    ports = tensor_ports(row)
    if "float" not in ports[0]["kinds"] or name in ("cast", "prelu"):
        pytest.skip("no floats to try")
    arrays = [SPECIAL] if len(ports) == 1 else [np.repeat(SPECIAL, len(SPECIAL)), np.tile(SPECIAL, len(SPECIAL))]
    defaults = [p.get("default") for p in row["ports"] if p not in ports]
    with np.errstate(all="ignore"):
        actual = np.asarray(BACKEND(dtype)._op(name, [*(a.astype(dtype) for a in arrays), *defaults]))
        exact = [torch.tensor(a.astype(dtype).astype(np.float64)) for a in arrays]
        [expected] = torch_ops.run(name, [*exact, *defaults], dtype)
        expected = expected.numpy()
        if expected.dtype.kind == "f":
            # What is too large for the dtype is infinite; what is too small, 0.
            expected = expected.astype(dtype).astype(np.float64)
            finite = np.isfinite(expected)
            np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected), err_msg=name)
            np.testing.assert_array_equal(actual[~finite], expected[~finite], err_msg=name)
            scale = np.abs(arrays[0] if name in TAILS else expected)[finite]
            scale = np.maximum(scale, np.finfo(dtype).tiny)
            error = np.abs(actual[finite].astype(np.float64) - expected[finite]) / scale / EPSILON[dtype]
            assert error.max() <= 4, (name, [a[finite][error.argmax()] for a in arrays], error.max())
        else:
            np.testing.assert_array_equal(actual, expected, err_msg=name)


UNARY = [n for n in ELEMENTWISE if len(tensor_ports(ROWS[n])) == 1 and n not in ("cast", "bitwise_not")]


LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}
#: Smallest normal numbers.
NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126}


@pytest.mark.parametrize("dtype", NORMAL)
@pytest.mark.parametrize("name", UNARY)
def test_every_half(name, dtype):
    """All 65536 numbers of 16 bits, to 4 epsilon of each result (what is subnormal: of the least normal number)."""
    row = ROWS[name]
    backend = BACKEND(dtype)
    x = np.arange(2**16, dtype=np.uint16).view(backend.tensor(0.0).dtype)
    defaults = [p.get("default") for p in row["ports"] if p not in tensor_ports(row)]
    with np.errstate(all="ignore"):
        actual = np.asarray(backend._op(name, [x, *defaults]))
        [expected] = torch_ops.run(name, [torch.tensor(x.astype(np.float64)), *defaults], dtype)
        expected = expected.numpy()
        if expected.dtype.kind != "f":
            np.testing.assert_array_equal(actual, expected, err_msg=name)
            return
        assert actual.dtype == x.dtype
        rounded = expected.astype(x.dtype).astype(np.float64)
        actual = actual.astype(np.float64)
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(rounded), err_msg=name)
        # Within the tolerance of the largest number, both it and infinity are right.
        edge = np.isfinite(expected) & (np.isfinite(actual) != np.isfinite(rounded))
        assert np.all(np.abs(expected[edge]) < LARGEST[dtype] * (1 + 4 * EPSILON[dtype])), name
        assert np.all(np.abs(expected[edge]) > LARGEST[dtype] * (1 - 4 * EPSILON[dtype])), name
        finite = np.isfinite(rounded) & ~edge
        infinite = ~finite & ~edge
        np.testing.assert_array_equal(actual[infinite], rounded[infinite], err_msg=name)
        error = np.abs(actual[finite] - expected[finite])
        error /= np.maximum(np.abs(expected[finite]), NORMAL[dtype]) * EPSILON[dtype]
        assert error.max() <= 4, (name, x[finite][error.argmax()], error.max())


def random_cotangents(tensors):
    random = np.random.default_rng(7)
    return {
        f"output{i}": random.uniform(-1, 1, tuple(t.shape)) for i, t in enumerate(tensors) if t.dtype == torch.float64
    }


def torch_gradients(case, inputs, outputs, cotangents):
    """Gradients from torch; zeros where it knows of no path."""
    expected = {f"x{i}": t for i, t in enumerate(inputs) if isinstance(t, torch.Tensor) and t.requires_grad}
    pairs = [(t, torch.tensor(cotangents[f"output{i}"])) for i, t in enumerate(outputs) if t.requires_grad]
    if not pairs or not expected:
        return {name: torch.zeros_like(t) for name, t in expected.items()}
    actual = torch.autograd.grad(
        [t for t, _ in pairs],
        list(expected.values()),
        [g for _, g in pairs],
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(expected, actual, strict=True))


def has_gradient(row, case):
    return any(isinstance(a, np.ndarray) and a.dtype == np.float64 for a in case.args)


@rows("gradients")
def test_gradients(name):
    row = ROWS[name]
    units = GRADIENT_UNITS.get(row["tolerance"], 64)
    for case in every_case(row):
        inputs = [to_torch(a, gradient=not name.startswith("arg")) for a in case.args]
        outputs = torch_ops.run(name, inputs, "float64")
        cotangents = random_cotangents(outputs)
        if not has_gradient(row, case) or not cotangents:
            continue
        _, actual = Single(case, BACKEND("float64")).run(cotangents)
        expected = torch_gradients(case, inputs, outputs, cotangents)
        assert set(actual) == set(expected)
        for key, gradient in expected.items():
            label = f"{case}: gradient of {key}"
            assert_close(actual[key], gradient, "float64", units, label, TERMS.get(label))


#: Ops whose second derivative torch lacks.
ONCE = {
    "binary_cross_entropy": "torch adds 1e-12 to the probabilities there",
}


@pytest.mark.parametrize("name", [n for n in ROWS if n not in ONCE])
def test_second_derivatives(name):
    """The gradient of a product with the gradient, for the first case."""
    row, backend = ROWS[name], BACKEND("float64")
    case = next(iter(cases(row)))
    places = [i for i, a in enumerate(case.args) if isinstance(a, np.ndarray) and a.dtype == np.float64]
    inputs = [to_torch(a, gradient=not name.startswith("arg")) for a in case.args]
    outputs = torch_ops.run(name, inputs, "float64")
    cotangents = random_cotangents(outputs)
    if not places or not cotangents or len(outputs) > 1:
        pytest.skip("one output of floats, made of floats")
    directions = {i: np.random.default_rng(i).uniform(-1, 1, case.args[i].shape) for i in places}

    def value(*floats):
        args = list(case.args)
        for i, x in zip(places, floats, strict=True):
            args[i] = x
        return backend.reduce_sum(backend.multiply(backend._op(name, args), cotangents["output0"]))

    def along(*floats):
        gradients = backend.grad(value, range(len(places)))(*floats)
        terms = [backend.reduce_sum(g * directions[i]) for i, g in zip(places, gradients, strict=True)]
        return functools.reduce(backend.add, terms)

    actual = backend.grad(along, range(len(places)))(*(case.args[i] for i in places))
    leaves = [inputs[i] for i in places]
    expected = [torch.zeros_like(t) for t in leaves]
    if outputs[0].requires_grad:
        options = {"allow_unused": True, "materialize_grads": True}
        cotangent = torch.tensor(cotangents["output0"])
        first = torch.autograd.grad(outputs[0], leaves, cotangent, create_graph=True, **options)
        total = sum((g * torch.tensor(directions[i])).sum() for i, g in zip(places, first, strict=True))
        if total.requires_grad:
            expected = torch.autograd.grad(total, leaves, **options)
    for i, a, b in zip(places, actual, expected, strict=True):
        scale = 1 + float(b.abs().max()) if b.numel() else None
        assert_close(np.asarray(a), b, "float64", 256, f"{case}: second derivative of {i}", scale)


#: Gradients that differ from torch on purpose.
OWN = {
    ("binary_cross_entropy", "x1"): "logarithms are held at -100 in the gradient of the target too; torch: infinite",
    ("kl_div", "x1"): "a target of 0 counts as 0; torch: NaN",
}


@pytest.mark.parametrize("bend", BENDS, ids=lambda bend: f"{bend[0]}-{bend[1:]}"[:60])
def test_gradients_where_functions_bend(bend):
    name, *args = bend
    case = Case(name, str(args), tuple(np.array(a) if isinstance(a, list) else a for a in args))
    inputs = [to_torch(a, gradient=True) for a in case.args]
    outputs = torch_ops.run(name, inputs, "float64")
    cotangents = random_cotangents(outputs)
    with np.errstate(all="ignore"):
        _, gradients = Single(case, BACKEND("float64")).run(cotangents)
    for key, gradient in torch_gradients(case, inputs, outputs, cotangents).items():
        if (name, key) in OWN:
            assert np.isfinite(gradients[key]).all()
        else:
            assert_close(gradients[key], gradient, "float64", 64, f"{case}: gradient of {key}")


#: Ops, or single cases, that need the first size of their first tensor as a number.
NUMBERS = {
    "split": "whether equal parts are possible, and of which size, depends on it",
    "diagonal": "the size of a diagonal is the smaller of two sizes",
    "diag": "the size of a diagonal is the smaller of two sizes",
    "trace": "the size of a diagonal is the smaller of two sizes",
    "squeeze [1,1]": "a symbol is not 1",
    "squeeze [1,3,1]": "a symbol is not 1",
    "squeeze [1,3,1] axis=0": "a symbol is not 1",
    "squeeze [1,3,1] axis=(0,2)": "a symbol is not 1",
    "broadcast_to [1,3] shape=(0,3)": "a symbol is not 1",
    "take_along_axis [1,6] i64[3,2] axis=1": "a symbol is not 1",
    "batch_norm [4,3,2] [3] [3] [3] [3] training=true batch_groups=2": "whether a symbol divides is not known",
    "unflatten [6,2] axis=0 sizes=(-1,2)": "whether a symbol divides is not known",
    "fold [8,4] output_size=4 kernel_size=2 stride=2": "without a batch the first size is that of the channels",
    "pixel_shuffle [9,2,1] upscale_factor=3": "without a batch the first size is that of the channels",
}


class Batch:
    """A model of one op: tensors that start with the first size get it from data, as a number or a symbol."""

    def __init__(self, case, size):
        arrays = {f"x{i}": a for i, a in enumerate(case.args) if isinstance(a, np.ndarray)}
        first = next(iter(arrays.values())).shape[0]
        self.params, self.data, inputs = {}, {}, {}
        shapes = {name: a.shape for name, a in arrays.items()}
        for name, a in arrays.items():
            inputs[name] = ml.IOKey(name)
            batched = a.ndim > 0 and a.shape[0] == first
            if batched:
                shapes[name] = [size or first, *a.shape[1:]]
            if a.dtype != np.float64:
                self.data[name] = a
            elif batched:
                # Parameters have fixed shapes: the gradient is taken of a factor of one.
                self.data[name], factor = a, np.ones(a.shape[1:])
                self.params[f"factor_{name}"], shapes[f"factor_{name}"] = factor, factor.shape
                inputs[name] = _core.apply_op("multiply", [inputs[name], ml.IOKey(f"factor_{name}")])
            else:
                self.params[name] = a
        args = [inputs.get(f"x{i}", a) for i, a in enumerate(case.args)]
        outputs = _core.apply_op(case.op, args)
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        self.compiled = ml.compile(
            ml.Model.create(**{f"output{i}": o for i, o in enumerate(outputs)}),
            BACKEND("float64"),
            shapes=shapes,
            dtypes={name: str(a.dtype) for name, a in arrays.items()},
            trainable_keys=list(self.params),
        )

    def run(self):
        outputs = self.compiled.evaluate(self.params, self.data)
        random = np.random.default_rng(7)
        cotangents = {n: random.uniform(-1, 1, o.shape) for n, o in outputs.items() if o.dtype == np.float64}
        if not cotangents or not self.params:
            return outputs, {}
        return self.compiled.evaluate(self.params, self.data, cotangents)


@rows("symbolic batch")
def test_symbolic_batch(name):
    """With a symbol for the first size the numbers are the same, to the last bit."""
    if name in NUMBERS:
        pytest.skip(NUMBERS[name])
    for case in every_case(ROWS[name]):
        arrays = [a for a in case.args if isinstance(a, np.ndarray)]
        if str(case) in NUMBERS or not arrays or arrays[0].ndim < 2:
            continue
        for expected, actual in zip(Batch(case, None).run(), Batch(case, "batch").run(), strict=True):
            assert set(actual) == set(expected)
            for key in expected:
                np.testing.assert_array_equal(actual[key], expected[key], err_msg=f"{case}: {key}", strict=True)


def test_what_is_left_out_exists():
    known = {*ROWS, *(str(case) for row in ROWS.values() for case in every_case(row))}
    assert {*NUMBERS, *ONCE, *MORE, *TAILS, *FLOATS_ONLY} <= known
    bends = {f"{op} {args}" for op, *args in BENDS}
    assert {label.split(":")[0] for label in TERMS} <= known | bends
