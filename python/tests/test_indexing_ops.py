"""Ops that write at positions, count, search and leave NaN out: special values and repeated positions."""

import warnings

import mithril as ml
import numpy as np
import pytest
import torch
from backends import BACKENDS, backend

RANDOM = np.random.default_rng(11)
#: Lines with NaN and infinities, one of NaN alone, and one without.
MISSING = np.array(
    [
        [1.5, np.nan, -2.0, np.inf, 0.25],
        [np.nan] * 5,
        [-np.inf, 3.0, np.nan, np.nan, -1.0],
        [0.5, -0.5, 2.0, 2.0, -3.0],
    ]
)


def run(chosen, name, *args):
    """Result of an op as NumPy arrays."""
    outputs = chosen._op(name, [chosen.array(a) if isinstance(a, np.ndarray) else a for a in args])
    parts = [np.asarray(chosen.to_numpy(part)) for part in (outputs if isinstance(outputs, tuple) else (outputs,))]
    return parts[0] if len(parts) == 1 else parts


@pytest.mark.parametrize("name", BACKENDS)
class TestWriting:
    """Of several elements for one place the last one stays; on every backend the same one."""

    @pytest.mark.parametrize("axis", [0, 1, -1])
    def test_the_last_one_stays(self, name, axis):
        chosen = backend(name, "float32")
        x, source = np.zeros((3, 4), np.float32), np.arange(1, 1 + 60, dtype=np.float32)
        shape = (15, 4) if axis == 0 else (3, 20)
        source = source.reshape(shape)
        indices = RANDOM.integers(-x.shape[axis], x.shape[axis], shape)
        expected = x.copy()
        for place in np.ndindex(*shape):
            to = list(place)
            to[axis] = indices[place]
            expected[tuple(to)] = source[place]
        np.testing.assert_array_equal(run(chosen, "scatter", x, axis, indices, source), expected)

    @pytest.mark.parametrize("dtype", ["float32", "int64", "int8", "bool"])
    def test_values_come_out_as_they_are(self, name, dtype):
        chosen = backend(name, "float32")
        x = np.array([1, 0, 1, 1]).astype(dtype)
        source = np.array([0, 1, 0, 1, 0]).astype(dtype)
        if dtype == "float32":
            source = np.array([np.nan, -0.0, np.inf, -np.inf, 1.0], np.float32)
        indices = np.array([0, 1, -1, -1, 0])
        actual = run(chosen, "scatter", x, 0, indices, source)
        expected = x.copy()
        expected[indices] = source
        assert actual.dtype == x.dtype
        np.testing.assert_array_equal(actual, expected)

    @pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
    @pytest.mark.parametrize("include_self", [True, False])
    def test_brought_together_as_in_torch(self, name, reduce, include_self):
        chosen = backend(name, "float32")
        x, source = RANDOM.normal(size=(4, 5)), RANDOM.normal(size=(7, 3))
        x, source = x.astype(np.float32), source.astype(np.float32)
        indices = RANDOM.integers(0, 4, (6, 3))
        actual = run(chosen, "scatter_reduce", x, 0, indices, source, reduce, include_self)
        args = [torch.tensor(a) for a in (x, indices, source)]
        expected = torch.scatter_reduce(args[0], 0, *args[1:], reduce, include_self=include_self)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("op", ["scatter_max", "scatter_min"])
    def test_nan_stays(self, name, op):
        chosen = backend(name, "float32")
        x = np.array([np.nan, 1.0, -np.inf, np.inf, 2.0], np.float32)
        source = np.array([5.0, np.nan, 3.0, -3.0, np.inf, 9.0], np.float32)
        indices = np.array([0, 1, 2, 3, 2, 1])
        function = np.maximum if op == "scatter_max" else np.minimum
        expected = x.copy()
        with np.errstate(invalid="ignore"):
            function.at(expected, indices, source)
            actual = run(chosen, op, x, indices, source, 0)
        np.testing.assert_array_equal(actual, expected)

    @pytest.mark.parametrize("accumulate", [False, True])
    def test_index_put_repeats(self, name, accumulate):
        chosen = backend(name, "float32")
        x = RANDOM.normal(size=(3, 4)).astype(np.float32)
        rows, columns = np.array([0, 2, 0, -1, 0]), np.array([1, 3, 1, 3, -3])
        values = np.arange(5, dtype=np.float32)
        key = ("tensor", "tensor")
        actual = run(chosen, "index_put", x, key, values, accumulate, rows, columns)
        expected = x.copy()
        if accumulate:
            np.add.at(expected, (rows, columns), values)
        else:
            expected[rows, columns] = values
        np.testing.assert_allclose(actual, expected, rtol=1e-6)

    @pytest.mark.parametrize("op", ["scatter", "scatter_max", "index_put", "index_fill"])
    @pytest.mark.parametrize("index", [3, -4])
    def test_outside_is_an_error(self, name, op, index):
        if name in ("jax", "mlx", "torch"):
            pytest.skip("what frameworks do with positions that are data is their own; see take")
        chosen = backend(name, "float32")
        x, at = np.zeros(3, np.float32), np.array([0, index])
        values = np.ones(2, np.float32)
        args = {
            "scatter": (x, 0, at, values),
            "scatter_max": (x, at, values, 0),
            "index_put": (x, "tensor", values, False, at),
            "index_fill": (x, 0, at, 1.0),
        }
        with pytest.raises((ml.MithrilError, IndexError)):
            run(chosen, op, *args[op])

    def test_masks(self, name):
        chosen = backend(name, "float32")
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        mask = np.array([[True, False, True], [False, True, False]])
        source = np.array([10.0, 20.0, 30.0, 40.0], np.float32)
        expected = torch.tensor(x).masked_scatter(torch.tensor(mask), torch.tensor(source))
        np.testing.assert_array_equal(run(chosen, "masked_scatter", x, mask, source), expected)
        filled = run(chosen, "masked_fill", x, mask, float("-inf"))
        np.testing.assert_array_equal(filled, np.where(mask, -np.inf, x))


@pytest.mark.parametrize("name", BACKENDS)
class TestMissing:
    """NaN left out as in NumPy."""

    @pytest.mark.parametrize("axis", [None, 0, 1])
    @pytest.mark.parametrize(
        "op", ["nansum", "nanprod", "nanmean", "nanmax", "nanmin", "nanvar", "nanstd", "nanmedian", "nanquantile"]
    )
    def test_as_in_numpy(self, name, op, axis):
        chosen, more, options = backend(name, "float64"), [], {}
        x = MISSING
        if op in ("nanvar", "nanstd"):
            more, options = [0.0], {"ddof": 0}
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            if op == "nanquantile":
                x = np.where(np.isinf(x), 7.0, x)
                actual = run(chosen, op, x, np.array([0.0, 0.3, 1.0]), axis, False, "linear")
                expected = np.nanquantile(x, [0.0, 0.3, 1.0], axis)
            else:
                x = np.where(np.isinf(x), 7.0, x) if op == "nanmedian" else x
                actual = run(chosen, op, x, axis, False, *more)
                expected = getattr(np, op)(x, axis, **options)
        np.testing.assert_allclose(actual, expected, rtol=1e-12)

    @pytest.mark.parametrize("op", ["nanargmax", "nanargmin"])
    def test_positions(self, name, op):
        x = np.array([[np.nan, -np.inf, np.nan], [2.0, np.nan, 2.0], [np.nan, 5.0, 1.0]])
        actual = run(backend(name, "float64"), op, x, 1, False)
        # NumPy's own gives the place of the NaN for minus infinity beside it.
        np.testing.assert_array_equal(actual, [1, 0, 1] if op == "nanargmax" else [1, 0, 2])
        assert run(backend(name, "float64"), op, np.full(3, np.nan), 0, False) == 0

    @pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "nearest", "midpoint"])
    def test_quantiles(self, name, interpolation):
        x, q = RANDOM.normal(size=(5, 6, 3)), np.array([0.0, 0.1, 0.5, 0.77, 1.0])
        actual = run(backend(name, "float64"), "quantile", x, q, (0, 2), True, interpolation)
        np.testing.assert_allclose(actual, np.quantile(x, q, (0, 2), keepdims=True, method=interpolation), rtol=1e-12)

    def test_quantiles_of_infinities(self, name):
        x = np.array([np.inf, 1.0, -np.inf, np.inf, -np.inf])
        actual = run(
            backend(name, "float64"), "quantile", x, np.array([0.0, 0.2, 0.5, 0.8, 1.0]), None, False, "linear"
        )
        np.testing.assert_array_equal(actual, [-np.inf, -np.inf, 1.0, np.inf, np.inf])
        outside = run(backend(name, "float64"), "quantile", x, np.array([-0.1, 1.1, np.nan]), None, False, "linear")
        assert np.isnan(outside).all()

    @pytest.mark.parametrize("op", ["cummax", "cummin"])
    def test_running_extremes(self, name, op):
        x = np.array([[2.0, 2.0, 1.0, np.nan, 3.0, np.nan, 0.0], [1.0, -np.inf, np.inf, 1.0, np.inf, 0.0, -0.0]])
        values, indices = run(backend(name, "float64"), op, x, 1)
        expected = getattr(torch, op)(torch.tensor(x), 1)
        np.testing.assert_array_equal(values, expected.values)
        np.testing.assert_array_equal(indices, expected.indices)
        backwards = run(backend(name, "float64"), f"cumulative_{op[3:]}", x, 1, True)
        forwards = run(backend(name, "float64"), f"cumulative_{op[3:]}", x[:, ::-1].copy(), 1, False)
        np.testing.assert_array_equal(backwards, forwards[:, ::-1])


@pytest.mark.parametrize("name", BACKENDS)
class TestCounting:
    """Searching and counting as in NumPy and torch."""

    @pytest.mark.parametrize("size", [0, 1, 5, 32, 33, 100])
    @pytest.mark.parametrize("right", [False, True])
    def test_searching(self, name, size, right):
        sequence = np.sort(RANDOM.integers(0, 30, size)).astype(np.float32)
        values = np.array([*RANDOM.integers(-2, 33, 20), np.inf, -np.inf, np.nan, 29.5], np.float32)
        if size:
            sequence[-1] = np.nan
        actual = run(backend(name, "float32"), "searchsorted", sequence, values, right)
        np.testing.assert_array_equal(actual, np.searchsorted(sequence, values, "right" if right else "left"))
        bucket = run(backend(name, "float32"), "bucketize", values.reshape(4, 6), sequence, right)
        np.testing.assert_array_equal(bucket, actual.reshape(4, 6))

    @pytest.mark.parametrize("size", [4, 50])
    def test_searching_in_lines(self, name, size):
        sequence = np.sort(RANDOM.integers(0, 30, (2, 3, size)), -1)
        values = RANDOM.integers(-2, 33, (2, 3, 7))
        actual = run(backend(name, "float32"), "searchsorted", sequence, values, True)
        expected = torch.searchsorted(torch.tensor(sequence), torch.tensor(values), right=True)
        np.testing.assert_array_equal(actual, expected)

    def test_counting(self, name):
        chosen = backend(name, "float32")
        x = np.array([3, 0, -1, 3, 7, 1, -8])
        np.testing.assert_array_equal(run(chosen, "bincount", x, 5, None), [1, 1, 0, 2, 0])
        weights = np.arange(7, dtype=np.float32)
        np.testing.assert_array_equal(run(chosen, "bincount", x, 4, weights), [1, 5, 0, 3])

    @pytest.mark.parametrize("bounds", [(0, 0), (-1, 2), (0, 9)])
    def test_histc(self, name, bounds):
        x = np.array([*RANDOM.normal(size=200), -1.0, 2.0, np.inf, np.nan], np.float32)
        x = x[:200] if bounds == (0, 0) else x
        actual = run(backend(name, "float32"), "histc", x, 10, *bounds)
        np.testing.assert_array_equal(actual, torch.histc(torch.tensor(x), 10, *bounds))

    def test_tokens_of_experts(self, name):
        # What routers of mixtures of experts count: integers, one part for each.
        x = RANDOM.integers(0, 64, 500)
        actual = run(backend(name, "float32"), "histc", x, 64, 0, 63)
        np.testing.assert_array_equal(actual, np.bincount(x, minlength=64))

    def test_histogram(self, name):
        x = RANDOM.normal(size=300)
        counts, bounds = run(backend(name, "float64"), "histogram", x, 12, None, None, None, False)
        expected, edges = np.histogram(x, 12)
        np.testing.assert_array_equal(counts, expected)
        np.testing.assert_allclose(bounds, edges, rtol=1e-12, atol=1e-12)
        weights = RANDOM.uniform(size=300)
        counts, _ = run(backend(name, "float64"), "histogram", x, 5, -1.0, 1.5, weights, True)
        np.testing.assert_allclose(counts, np.histogram(x, 5, (-1.0, 1.5), True, weights)[0], rtol=1e-12)

    @pytest.mark.parametrize("size", [2, 4, 9])
    def test_unique(self, name, size):
        x = np.array([[3.0, np.nan, -1.0, 3.0], [np.inf, np.nan, -1.0, 3.0]])
        values, inverse, counts = run(backend(name, "float64"), "unique", x, size, None)
        expected, places, times = np.unique(x, return_inverse=True, return_counts=True)
        room = max(size - 4, 0)
        np.testing.assert_array_equal(values, [*expected[:size], *[-1.0] * room])
        np.testing.assert_array_equal(inverse, places.reshape(x.shape))
        np.testing.assert_array_equal(counts, [*times[:size], *[0] * room])


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [False, True])
def test_grids_far_outside(name, mode, padding, corners):
    x, grid = RANDOM.normal(size=(2, 3, 5, 7)), RANDOM.uniform(-4, 4, (2, 6, 4, 2))
    actual = run(backend(name, "float64"), "grid_sample", x, grid, mode, padding, corners)
    args = [torch.tensor(a) for a in (x, grid)]
    expected = torch.nn.functional.grid_sample(*args, mode, padding, corners)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_grid_of_one_element(name):
    theta = np.array([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]])
    actual = run(backend(name, "float64"), "affine_grid", theta, (1, 1, 1, 2), False)
    expected = torch.nn.functional.affine_grid(torch.tensor(theta), [1, 1, 1, 2], False)
    np.testing.assert_allclose(actual, expected)


def gradients(name, op, args, autodiff):
    """Gradients of a weighted sum of the first result, by all arrays of floats."""
    chosen = backend(name, "float64")
    arrays = {f"x{i}": a for i, a in enumerate(args) if isinstance(a, np.ndarray)}
    trained = [key for key, a in arrays.items() if a.dtype == np.float64]
    connections = [ml.IOKey(f"x{i}") if isinstance(a, np.ndarray) else a for i, a in enumerate(args)]
    from mithril import _core

    output = _core.apply_op(op, connections)
    output = output[0] if isinstance(output, (tuple, list)) else output
    compiled = ml.compile(
        ml.Model.create(output=output),
        chosen,
        shapes={key: a.shape for key, a in arrays.items()},
        dtypes={key: str(a.dtype) for key, a in arrays.items()},
        trainable_keys=trained,
        **({"autodiff": autodiff} if autodiff else {}),
    )
    params = {key: chosen.array(arrays[key]) for key in trained}
    data = {key: chosen.array(a) for key, a in arrays.items() if key not in params}
    outputs = compiled.evaluate(params, data)
    cotangent = np.random.default_rng(5).normal(size=np.shape(chosen.to_numpy(outputs["output"])))
    _, output = compiled.evaluate(params, data, {"output": chosen.array(cotangent)})
    return [np.asarray(chosen.to_numpy(output[key])) for key in trained]


PLACES = np.array([[0, 2, 1], [2, 2, 1], [0, -1, 1], [2, 0, 3]])
TIES = (RANDOM.integers(0, 3, (4, 3)).astype(float), PLACES, RANDOM.integers(0, 3, (4, 3)).astype(float), 0)
NATIVE = [
    ("scatter_max", TIES),
    ("scatter_min", TIES),
    ("scatter_prod", TIES),
    ("scatter", (TIES[0], 0, PLACES, TIES[2])),
    ("scatter_reduce", (TIES[0], 0, PLACES, TIES[2], "prod", False)),
    ("cumulative_max", (TIES[2], 0, False)),
    ("cumulative_min", (TIES[2], 1, True)),
    ("quantile", (RANDOM.normal(size=(4, 5)), np.array([0.2, 0.7]), 1, False, "linear")),
    ("nanstd", (MISSING[2:, 1:].copy(), 0, False, 0.0)),
    ("index_put", (TIES[0], "tensor", TIES[2], False, np.array([1, 1, 0, 2]))),
    ("grid_sample", (RANDOM.normal(size=(1, 2, 4, 4)), RANDOM.uniform(-1, 1, (1, 3, 3, 2)), "bicubic", "zeros", False)),
    ("nan_to_num", (MISSING, 0.0, None, None)),
    ("hypot", (np.array([0.0, 3.0, -4.0]), np.array([0.0, 4.0, 3.0]))),
    ("logaddexp", (np.array([1.0, -np.inf, np.inf, 5.0]), np.array([1.0, -np.inf, 2.0, -800.0]))),
    ("fmod", (np.array([5.5, -5.5, 0.3]), np.array([2.0, 2.0, -0.7]))),
]


@pytest.mark.parametrize("name", [n for n in BACKENDS if n != "numpy"])
@pytest.mark.parametrize(("op", "args"), NATIVE, ids=lambda v: v if isinstance(v, str) else "")
def test_gradients_of_frameworks(name, op, args):
    """What frameworks differentiate themselves agrees with our own formulas, also for ties and zeros."""
    expected = gradients("numpy", op, args, None)
    actual = gradients(name, op, args, None)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
