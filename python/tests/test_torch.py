"""Every op against torch: results in two dtypes, gradients, and the same with a symbol for the batch."""

import functools

import mithril as ml
import numpy as np
import pytest
import torch
import torch_ops
from mithril import _core
from mithril.testing import Case, cases

ROWS = {row["name"]: row for row in _core.op_rows()}
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


#: Where terms cancel: the size of the terms instead of that of the gradient.
TERMS = {
    # Two elements normalise to -1 and 1 whatever they are; what is left of the gradient is a matter of eps.
    "group_norm [2,4] [4] num_groups=2: gradient of x0": 1.0,
}

#: More uses than the rows list: combinations of arguments that have gone wrong in other libraries.
MORE = {
    "clip": [
        "[2,3] min=-0.5 max=0.75",
        "[2,3] [3] [2,1]",
        "[2,3] min=0.25",
        "[2,3] none [2,3]",
        "[4] min=1.0 max=-1.0",
    ],
    "where": ["bool[] [2,3] [1]", "bool[2,3] i64[3] [2,3]"],
    "power": ["[2,3] right=2.0", "[2,3] right=0.5", "[2,3] right=0", "left=2.0 [2,3]", "[2,3] right=-1"],
    "softmax": ["[3,1]", "[2,3,4,2] axis=-2"],
    "reshape": ["[2,0,3] shape=(3,0)", "[2,3,4] shape=(4,-1,3)"],
    "transpose": ["[2,3,4,5] axes=(3,1,0,2)"],
    "squeeze": ["[1,1]", "[2,1,3] axis=1"],
    "slice": [
        "[5,4] starts=(-1,-1) stops=(none,none) steps=(-3,-1)",
        "[5] starts=(1,) stops=(-7,) steps=(-1,)",
    ],
    "pad": [
        '[3,4] pads=((2,2),(3,3)) mode="reflect"',
        '[2,3] pads=((2,1),(0,3)) mode="symmetric"',
        '[2,3] pads=((2,1),(0,3)) mode="circular"',
        "[2,3] pads=((-1,2),(1,-2)) value=3.0",
    ],
    "roll": ["[2,3] shift=-7 axis=1", "[2,3,4] shift=(1,-1,5) axis=(0,1,2)"],
    "concat": ["axis=-2 [2,0,3] [2,1,3] [2,2,3]", "axis=0 [2] i64[3]"],
    "take": ["[6,3,2] i64[2,1,3]<3 axis=-2", "[6] i64[] axis=0"],
    "getitem": ['[6,5,4] key=(...,"tensor",1:3:1) i64[2,2]<5', "[4,5] key=(none:none:-2,none,-1)"],
    "scatter_add": ["[2,3,6] i64[2,3,4]<6 [2,3,4] axis=2"],
    "diagonal": ["[3,4,2,2] offset=-1 axis1=1 axis2=3"],
    "matmul": ["[2,1,3,4] [1,5,4,2]", "[1,1] [1,1]", "[4] [3,4,0]", "[3,2,4] [1,4,2]"],
    "tensordot": ["[2,3,4] [4,3,2] axes=((2,1,0),(0,1,2))"],
    "einsum": [
        'equation="ijk,ikj->i" [2,3,4] [2,4,3]',
        'equation="...i,...i->..." [2,1,3] [4,3]',
        'equation="iji->j" [3,2,3]',
        'equation="a,b,c->cab" [2] [3] [4]',
        'equation="ij,kj->ik" [2,3] [4,3]',
        'equation="ij,ij->j" [2,3] [2,3]',
    ],
    "sum": [
        "[2,0,3] axis=1",
        "[2,3,4] axis=()",
        "[2,3,4] axis=(0,1,2) keepdim=true",
        "bool[3,4] axis=0",
        "i32[3,4]",
    ],
    "mean": ["i64[3,4] axis=0", "[2,3,4] axis=(0,1,2) keepdim=true"],
    "prod": ["[2,0,3] axis=1", "i64[5]<4", "[2,3,4] axis=(1,2) keepdim=true"],
    "max": ["i64[4,5]<9 axis=0", "[2,3,4] axis=(0,1,2) keepdim=true"],
    "var": ["[6] correction=0.5", "[2,3,4] axis=(0,2) keepdim=true"],
    "std": ["[6] correction=0.5", "[2,3,4] axis=(0,2) keepdim=true"],
    "norm": ["[2,3,4] p=3 axis=(0,2) keepdim=true", "[2,3] p=2 axis=0", "[2,3] p=-1.5"],
    "cumsum": ["[2,3,4] axis=1 exclusive=true reverse=true", "bool[5] axis=0"],
    "cumprod": ["[2,3,4] axis=1 exclusive=true reverse=true"],
    "topk": ["[2,3,4] k=2 axis=0 largest=false"],
    "conv1d": ["[1,2,5] [4,2,5] [4]", "[2,4,7] [4,1,3] groups=4 padding=((2,0),) dilation=3"],
    "conv2d": [
        "[2,3,7,6] [4,3,3,2] [4] stride=(3,2) padding=(2,1) dilation=(2,1)",
        '[2,4,5,5] [8,1,3,3] [8] groups=4 padding="same" stride=2',
        "[1,1,3,3] [1,1,3,3] padding=2",
        "[2,3,4,4] [5,3,1,1] stride=2",
    ],
    "conv3d": ["[1,2,4,3,5] [4,1,2,2,2] [4] groups=2 stride=2 padding=1 dilation=(1,2,1)"],
    "conv_transpose1d": ["[2,4,5] [4,3,3] [6] stride=3 padding=2 output_padding=1 groups=2 dilation=2"],
    "conv_transpose2d": [
        "[1,2,3,4] [2,3,3,2] [3] stride=(3,2) padding=(1,0) output_padding=(2,1)",
        '[1,2,3,4] [2,3,3,3] padding="same" stride=2',
        "[1,2,3,4] [2,3,1,1] stride=2",
    ],
    "max_pool2d": [
        "[2,3,7,6] kernel_size=(3,2) stride=(1,2) padding=(1,1) dilation=(2,1) ceil_mode=true",
        "[1,1,5,5] kernel_size=2 stride=3 ceil_mode=true",
    ],
    "avg_pool2d": [
        "[2,3,7,6] kernel_size=(3,2) stride=(2,3) padding=(1,1) ceil_mode=true count_include_pad=false",
        "[2,3,7,6] kernel_size=(3,2) stride=(2,3) padding=(1,1) ceil_mode=true",
        "[1,1,5,5] kernel_size=2 stride=3 ceil_mode=true",
        '[1,2,5,5] kernel_size=3 padding="same" stride=2 count_include_pad=false',
    ],
    "max_pool3d": ["[1,2,5,4,5] kernel_size=(2,3,2) stride=2 padding=1 dilation=(1,1,2) ceil_mode=true"],
    "avg_pool3d": ["[1,2,5,4,5] kernel_size=(2,3,2) stride=2 padding=1 ceil_mode=true count_include_pad=false"],
    "adaptive_avg_pool2d": ["[2,3,5,7] output_size=(7,3)"],
    "adaptive_max_pool2d": ["[2,3,5,7] output_size=(7,3)"],
    "layer_norm": ["[2,3,4] [3,4] none eps=0.1", "[2,3,4] none [4]"],
    "scaled_dot_product_attention": [
        "[2,2,5,4] [2,2,3,4] [2,2,3,6] is_causal=true",
        "[2,2,3,4] [2,2,5,4] [2,2,5,4] [2,1,3,5] is_causal=true scale=0.3",
        "[2,4,3,4] [2,1,5,4] [2,1,5,2] is_causal=true enable_gqa=true",
    ],
    "rope": ["[2,4] base=10.0", "[2,3,5,6] i64[5]<99"],
    "interpolate": [
        '[1,2,4,6] size=(7,3) mode="bicubic"',
        '[1,2,4,6] size=(7,3) mode="bicubic" align_corners=true',
        '[1,1,5] scale_factor=2.6 mode="linear"',
        '[1,1,5] size=1 mode="linear" align_corners=true',
        '[1,1,7] scale_factor=0.4 mode="nearest-exact"',
        '[1,1,2,3,4] size=(3,2,6) mode="nearest"',
    ],
    "huber_loss": ["[3,4] [3,4] delta=0.3"],
    "smooth_l1_loss": ["[3,4] [3,4] beta=0.3"],
    "nll_loss": ["[2,3,4] i64[2,4]<3 [3] ignore_index=1", '[4,3] i64[4]<3 [3] reduction="sum"'],
    "cross_entropy": [
        "[2,3,4] i64[2,4]<3 [3] ignore_index=1 label_smoothing=0.3",
        '[2,3,4] [2,3,4] [3] reduction="sum" label_smoothing=0.3',
        '[2,3,4] [2,3,4] reduction="none"',
        '[2,3,4,2] i64[2,4,2]<3 [3] reduction="none" label_smoothing=0.5',
    ],
    "kl_div": ["[2,3] [2,3] log_target=true"],
    "binary_cross_entropy_with_logits": ["[2,3] [2,3] [2,3] [3]"],
    "batch_norm": [
        "[4,3] none [3] [3] [3] training=true momentum=1.0",
        "[2,3,4] [3] none [3] [3] training=false",
    ],
    "rms_norm": ["[2,3,4] [3,4]"],
    "group_norm": ["[2,6,3,2] none [6] num_groups=2", "[2,6,4] [6] [6] num_groups=1 eps=0.5"],
    "instance_norm": ["[2,3,5] none [3] eps=0.5"],
    "embedding": ["i64[3,2]<5 [5,2] padding_idx=2"],
    "one_hot": ["i64[2,2]<3 depth=3 dtype=f64"],
    "irfft": ["[2,3] [2,3]", '[4,2] [4,2] axis=0 n=7 norm="ortho"'],
    "matrix_power": ["spd[3,3] n=3", "spd[2,2] n=-1"],
}


def every_case(row):
    yield from cases(row)
    if row["name"] in MORE:
        yield from cases({**row, "cases": MORE[row["name"]]})


def to_torch(arg, gradient=False):
    if not isinstance(arg, np.ndarray):
        return arg
    return torch.tensor(arg, requires_grad=gradient and arg.dtype == np.float64)


def given_dtype(row, case):
    ports = [p["name"] for p in row["ports"]]
    value = case.args[ports.index("dtype")] if "dtype" in ports else None
    return None if value is None else str(value)


def assert_close(found, wanted, dtype, units, label, scale=None):
    """Compare with numbers in float64; the error is ``units`` epsilon of the largest, or of ``scale``."""
    assert found.shape == tuple(wanted.shape), f"{label}: shape {found.shape}, torch {tuple(wanted.shape)}"
    wanted = wanted.numpy(force=True)
    if wanted.dtype.kind != "f":
        assert found.dtype == wanted.dtype, f"{label}: dtype {found.dtype}, torch {wanted.dtype}"
        np.testing.assert_array_equal(found, wanted, err_msg=label)
        return
    assert str(found.dtype) == dtype, f"{label}: dtype {found.dtype}, wanted {dtype}"
    if units == 0:
        np.testing.assert_array_equal(found, wanted.astype(dtype), err_msg=label)
        return
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(found[~finite], wanted[~finite], err_msg=label)
    if finite.any():
        scale = np.abs(wanted[finite]).max() if scale is None else scale
        error = np.abs(found[finite] - wanted[finite]) / np.maximum(scale, 1e-30) / EPSILON[dtype]
        assert error.max() <= units, f"{label}: {error.max():.1f} epsilon, allowed {units}"


def test_every_op_has_an_oracle():
    known = set(torch_ops.OPS) | set(torch_ops.EXCEPTIONS)
    assert set(ROWS) - known == set(), "add these to torch_ops.OPS, or to EXCEPTIONS with the reason"
    assert known - set(ROWS) == set(), "these are no ops"


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
        wanted = torch_ops.run(name, [to_torch(a) for a in case.args], dtype)
        found = BACKEND(dtype)._op(name, args)
        found = found if isinstance(found, tuple) else (found,)
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            assert_close(np.asarray(a), b, given_dtype(row, case) or dtype, UNITS[row["tolerance"]], str(case))


#: Ops that are no functions of elements alone, or that torch refuses integers for.
FLOATS_ONLY = {"prelu": "torch wants floats", "cast": "its own cases do", "clip": "its own cases do"}
ELEMENTWISE = [
    name
    for name, row in ROWS.items()
    if row["family"] in ("elementwise", "function", "compare", "activation")
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
    found = np.asarray(BACKEND("float64")._op(name, [*arrays, *defaults]))
    if found.dtype.kind == "f":
        arrays = [a.astype(np.float64) for a in arrays]
    with np.errstate(all="ignore"):
        [wanted] = torch_ops.run(name, [*map(torch.tensor, arrays), *defaults], "float64")
    assert_close(found, wanted, "float64", 4, f"{name} {dtype}")


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
        found = np.asarray(BACKEND(dtype)._op(name, [*(a.astype(dtype) for a in arrays), *defaults]))
        exact = [torch.tensor(a.astype(dtype).astype(np.float64)) for a in arrays]
        [wanted] = torch_ops.run(name, [*exact, *defaults], dtype)
        wanted = wanted.numpy()
        if wanted.dtype.kind == "f":
            # What is too large for the dtype is infinite; what is too small, 0.
            wanted = wanted.astype(dtype).astype(np.float64)
            finite = np.isfinite(wanted)
            np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted), err_msg=name)
            np.testing.assert_array_equal(found[~finite], wanted[~finite], err_msg=name)
            scale = np.abs(arrays[0] if name in TAILS else wanted)[finite]
            scale = np.maximum(scale, np.finfo(dtype).tiny)
            error = np.abs(found[finite].astype(np.float64) - wanted[finite]) / scale / EPSILON[dtype]
            assert error.max() <= 4, (name, [a[finite][error.argmax()] for a in arrays], error.max())
        else:
            np.testing.assert_array_equal(found, wanted, err_msg=name)


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
        found = np.asarray(backend._op(name, [x, *defaults]))
        [wanted] = torch_ops.run(name, [torch.tensor(x.astype(np.float64)), *defaults], "float64")
        wanted = wanted.numpy()
        if wanted.dtype.kind != "f":
            np.testing.assert_array_equal(found, wanted, err_msg=name)
            return
        assert found.dtype == x.dtype
        rounded = wanted.astype(x.dtype).astype(np.float64)
        found = found.astype(np.float64)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded), err_msg=name)
        # Within the tolerance of the largest number, both it and infinity are right.
        edge = np.isfinite(wanted) & (np.isfinite(found) != np.isfinite(rounded))
        assert np.all(np.abs(wanted[edge]) < LARGEST[dtype] * (1 + 4 * EPSILON[dtype])), name
        assert np.all(np.abs(wanted[edge]) > LARGEST[dtype] * (1 - 4 * EPSILON[dtype])), name
        finite = np.isfinite(rounded) & ~edge
        infinite = ~finite & ~edge
        np.testing.assert_array_equal(found[infinite], rounded[infinite], err_msg=name)
        error = np.abs(found[finite] - wanted[finite])
        error /= np.maximum(np.abs(wanted[finite]), NORMAL[dtype]) * EPSILON[dtype]
        assert error.max() <= 4, (name, x[finite][error.argmax()], error.max())


class Single:
    """A model of one op: its arrays are inputs, floats among them trainable."""

    def __init__(self, case, shapes=None):
        self.arrays = {f"x{i}": a for i, a in enumerate(case.args) if isinstance(a, np.ndarray)}
        args = [ml.IOKey(f"x{i}") if isinstance(a, np.ndarray) else a for i, a in enumerate(case.args)]
        found = _core.apply_op(case.op, args)
        found = found if isinstance(found, (tuple, list)) else (found,)
        self.names = [f"output{i}" for i in range(len(found))]
        self.trainable = [name for name, a in self.arrays.items() if a.dtype == np.float64]
        self.compiled = ml.compile(
            ml.Model.create(**dict(zip(self.names, found, strict=True))),
            BACKEND("float64"),
            shapes={name: a.shape for name, a in self.arrays.items()} | (shapes or {}),
            dtypes={name: str(a.dtype) for name, a in self.arrays.items()},
            trainable_keys=self.trainable,
        )

    def run(self, cotangents):
        params = {name: self.arrays[name] for name in self.trainable}
        data = {name: a for name, a in self.arrays.items() if name not in params}
        if not cotangents or not params:
            return self.compiled.evaluate(params, data), {}
        return self.compiled.evaluate(params, data, cotangents)


def random_cotangents(tensors):
    random = np.random.default_rng(7)
    return {
        f"output{i}": random.uniform(-1, 1, tuple(t.shape)) for i, t in enumerate(tensors) if t.dtype == torch.float64
    }


def torch_gradients(case, inputs, outputs, cotangents):
    """Gradients from torch; zeros where it knows of no path."""
    wanted = {f"x{i}": t for i, t in enumerate(inputs) if isinstance(t, torch.Tensor) and t.requires_grad}
    pairs = [(t, torch.tensor(cotangents[f"output{i}"])) for i, t in enumerate(outputs) if t.requires_grad]
    if not pairs or not wanted:
        return {name: torch.zeros_like(t) for name, t in wanted.items()}
    found = torch.autograd.grad(
        [t for t, _ in pairs],
        list(wanted.values()),
        [g for _, g in pairs],
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(wanted, found, strict=True))


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
        _, found = Single(case).run(cotangents)
        wanted = torch_gradients(case, inputs, outputs, cotangents)
        assert set(found) == set(wanted)
        for key, gradient in wanted.items():
            label = f"{case}: gradient of {key}"
            assert_close(found[key], gradient, "float64", units, label, TERMS.get(label))


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

    found = backend.grad(along, range(len(places)))(*(case.args[i] for i in places))
    leaves = [inputs[i] for i in places]
    wanted = [torch.zeros_like(t) for t in leaves]
    if outputs[0].requires_grad:
        options = {"allow_unused": True, "materialize_grads": True}
        cotangent = torch.tensor(cotangents["output0"])
        first = torch.autograd.grad(outputs[0], leaves, cotangent, create_graph=True, **options)
        total = sum((g * torch.tensor(directions[i])).sum() for i, g in zip(places, first, strict=True))
        if total.requires_grad:
            wanted = torch.autograd.grad(total, leaves, **options)
    for i, a, b in zip(places, found, wanted, strict=True):
        scale = 1 + float(b.abs().max()) if b.numel() else None
        assert_close(np.asarray(a), b, "float64", 256, f"{case}: second derivative of {i}", scale)


#: Arguments at which functions bend, tie or vanish; the rows say that the gradient is the one torch has.
BENDS = [
    ("relu", [0.0, -0.0, 1.0, -1.0]),
    ("relu6", [0.0, 6.0, 3.0, 7.0]),
    ("leaky_relu", [0.0, 1.0, -1.0], 0.2),
    ("hard_sigmoid", [-3.0, 3.0, 0.0]),
    ("hard_tanh", [-1.0, 1.0, 0.0], -1.0, 1.0),
    ("hard_swish", [-3.0, 3.0, 0.0]),
    ("elu", [0.0, -0.0], 0.5),
    ("abs", [0.0, -0.0, 2.0]),
    ("sign", [0.0, 2.0]),
    ("softplus", [20.0, 20.5, -800.0, 800.0], 1.0, 20.0),
    ("log_sigmoid", [-800.0, 0.0, 800.0]),
    ("sigmoid", [-800.0, 0.0, 800.0]),
    ("silu", [-100.0, 100.0]),
    ("mish", [-100.0, 0.0, 100.0]),
    ("tanh", [-400.0, 0.0, 400.0]),
    ("gelu", [-40.0, 0.0, 40.0], "none"),
    ("gelu", [-40.0, 0.0, 40.0], "tanh"),
    ("clip", [-1.0, 0.5, 2.0], -1.0, 2.0),
    ("clip", [-1.0, 0.5, 2.0], [-1.0, 1.0, 0.0], [1.0, 2.0, 2.0]),
    ("maximum", [1.0, 2.0, 3.0], [1.0, 3.0, 2.0]),
    ("minimum", [1.0, 2.0, 3.0], [1.0, 3.0, 2.0]),
    ("max", [1.0, 3.0, 3.0], None, False),
    ("min", [[1.0, 1.0], [2.0, 1.0]], 1, False),
    ("prod", [2.0, 0.0, 3.0], None, False),
    ("prod", [0.0, 0.0, 3.0], None, False),
    ("cumprod", [2.0, 0.0, 3.0, 0.0, 5.0], 0, False, False),
    ("norm", [0.0, 0.0], 2.0, None, False),
    ("norm", [0.0, 1.0, -1.0], 1.0, None, False),
    ("norm", [0.0, 1.0, -2.0], float("inf"), None, False),
    ("norm", [0.0, 1.0, -2.0], 3.0, None, False),
    ("logsumexp", [1000.0, 1000.0, -1000.0], None, False),
    ("logsumexp", [float("-inf"), 0.0], None, False),
    ("softmax", [1000.0, -1000.0, 999.0], 0),
    ("log_softmax", [1000.0, -1000.0, 999.0], 0),
    ("power", [0.0, 2.0, 3.0], [2.0, 0.0, 1.0]),
    ("power", [0.0, 2.0, -3.0], 2.0),
    ("sqrt", [0.0, 4.0]),
    ("remainder", [5.0, -5.0, 4.0], [3.0, 3.0, -2.0]),
    ("where", np.array([True, False]), [0.0, 1.0], [1.0, float("inf")]),
    ("l1_loss", [1.0, 2.0], [1.0, 3.0], "sum"),
    ("huber_loss", [1.0, 2.0, 4.0], [1.0, 3.0, 2.0], "sum", 1.0),
    ("smooth_l1_loss", [1.0, 2.0, 4.0], [1.0, 3.0, 2.0], "sum", 1.0),
    ("binary_cross_entropy", [0.0, 1.0, 0.5], [0.0, 1.0, 1.0], None, "sum"),
    ("binary_cross_entropy_with_logits", [-500.0, 500.0], [1.0, 0.0], None, None, "sum"),
    ("cross_entropy", [[1000.0, 0.0], [0.0, -1000.0]], np.array([1, 0]), None, "mean", -100, 0.0),
    ("cross_entropy", [[1.0, 0.0], [0.0, 1.0]], np.array([1, -100]), None, "mean", -100, 0.1),
    ("kl_div", [-1.0, -2.0], [0.0, 1.0], "sum", False),
    ("sort", [2.0, 1.0, 2.0, 1.0], 0, False),
    ("max_pool1d", [[[1.0, 1.0, 0.0, 1.0]]], 2, None, 0, 1, False),
    ("normalize", [[3.0, 4.0], [1e-20, 0.0]], 1, 1e-12),
    ("atan2", [0.0, 0.0, 1.0], [1.0, -1.0, 0.0]),
    ("erfinv", [0.0, 0.999]),
    ("round", [0.5, 1.5]),
]


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
        _, found = Single(case).run(cotangents)
    for key, gradient in torch_gradients(case, inputs, outputs, cotangents).items():
        if (name, key) in OWN:
            assert np.isfinite(found[key]).all()
        else:
            assert_close(found[key], gradient, "float64", 64, f"{case}: gradient of {key}")


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
        found = _core.apply_op(case.op, args)
        found = found if isinstance(found, (tuple, list)) else (found,)
        self.compiled = ml.compile(
            ml.Model.create(**{f"output{i}": o for i, o in enumerate(found)}),
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
        for wanted, found in zip(Batch(case, None).run(), Batch(case, "batch").run(), strict=True):
            assert set(found) == set(wanted)
            for key in wanted:
                np.testing.assert_array_equal(found[key], wanted[key], err_msg=f"{case}: {key}", strict=True)


def test_what_is_left_out_exists():
    known = {*ROWS, *(str(case) for row in ROWS.values() for case in every_case(row))}
    assert {*NUMBERS, *ONCE, *MORE, *TAILS, *FLOATS_ONLY} <= known
    assert {label.split(":")[0] for label in TERMS} <= known
