"""Every op against torch: results in two dtypes, gradients, and the same with a symbol for the batch."""

import functools

import mithril as ml
import numpy as np
import pytest
import torch
import torch_ops
from mithril import _core
from mithril.testing import cases

ROWS = {row["name"]: row for row in _core.op_rows()}
EPSILON = {"float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}
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
MORE = {}


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
    wanted = wanted.detach().numpy()
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
        args = [
            a.astype(dtype) if isinstance(a, np.ndarray) and a.dtype == np.float64 else a for a in case.args
        ]
        wanted = torch_ops.run(name, [to_torch(a) for a in case.args], dtype)
        found = BACKEND(dtype)._op(name, args)
        found = found if isinstance(found, tuple) else (found,)
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            assert_close(
                np.asarray(a), b, given_dtype(row, case) or dtype, UNITS[row["tolerance"]], str(case)
            )


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
        f"output{i}": random.uniform(-1, 1, tuple(t.shape))
        for i, t in enumerate(tensors)
        if t.dtype == torch.float64
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


#: Ops, or single cases, that need the first size of their first tensor as a number.
NUMBERS = {
    "split": "whether equal parts are possible, and of which size, depends on it",
    "diagonal": "the size of a diagonal is the smaller of two sizes",
    "diag": "the size of a diagonal is the smaller of two sizes",
    "trace": "the size of a diagonal is the smaller of two sizes",
    "squeeze [1,3,1]": "a symbol is not 1",
    "squeeze [1,3,1] axis=0": "a symbol is not 1",
    "squeeze [1,3,1] axis=(0,2)": "a symbol is not 1",
    "broadcast_to [1,3] shape=(0,3)": "a symbol is not 1",
    "take_along_axis [1,6] i64[3,2] axis=1": "a symbol is not 1",
    "pixel_shuffle [9,2,1] upscale_factor=3": "without a batch the first size is that of the channels",
    "pixel_unshuffle [3,6] downscale_factor=3": "without a batch the first size is that of the channels",
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
