"""Factors of matrices on every backend: sizes, ranks, special values and gradients beyond the cases of the rows."""

import functools
import shutil

import mithril as ml
import numpy as np
import pytest
import scipy.linalg
from backends import BACKENDS, backend
from mithril.errors import MithrilError
from mithril.testing import Case
from op_cases import Single

#: Those that compute in double precision; GGML does not.
NAMES = [*BACKENDS, "c"]
SHAPES = [(1, 1), (2, 2), (1, 5), (5, 1), (7, 4), (4, 7), (16, 16), (33, 20), (64, 64)]


@functools.cache
def chosen(name, dtype):
    if name == "c":
        if not any(map(shutil.which, ("gcc", "clang"))):
            pytest.skip("no C compiler")
        return ml.CBackend(dtype=dtype)
    if name != "ggml":
        return backend(name, dtype)
    if dtype == "float64":
        pytest.skip("GGML computes in float32")
    return ml.GGMLBackend()


def run(name, op, *args, dtype="float64"):
    """Outputs of an op in a compiled model, as NumPy arrays in float64."""
    target = chosen(name, dtype)
    single = Single(Case(op, op, args), target)
    outputs, _ = single.run(None)
    return [np.asarray(target.to_numpy(outputs[key]), np.float64) for key in single.names]


def matrix(*shape, rank=None, seed=0):
    random = np.random.default_rng([seed, *shape])
    if rank is None:
        return random.standard_normal(shape)
    return random.standard_normal((*shape[:-1], rank)) @ random.standard_normal((*shape[:-2], rank, shape[-1]))


def transposed(x):
    return np.swapaxes(x, -1, -2)


def close(actual, expected, dtype="float64", units=512):
    scale = max(np.abs(expected).max(initial=0), 1e-30)
    error = np.abs(actual - expected).max(initial=0) / scale / np.finfo(dtype).eps
    assert actual.shape == expected.shape
    assert error <= units, f"{error:.0f} epsilon"


def first_large(columns):
    """The first element of each column that is not small."""
    m = columns.shape[-2]
    return [next(x for x in column if abs(x) > 0.63 / m**0.5) for column in columns.reshape(m, -1).T]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", [*NAMES, "ggml"])
def test_factors_multiply_to_the_matrix(name, dtype):
    # JAX and C compile each of them.
    for m, n in SHAPES if dtype == "float64" or name not in ("jax", "c") else SHAPES[-2:]:
        x = matrix(m, n).astype(dtype).astype(np.float64)
        for full in (True, False):
            u, s, vh = run(name, "svd", x, full, dtype=dtype)
            k = min(m, n)
            assert u.shape == ((m, m) if full else (m, k))
            close(u[:, :k] * s @ vh[:k], x, dtype)
            close(u.T @ u, np.eye(u.shape[1]), dtype)
            close(vh @ vh.T, np.eye(len(vh)), dtype)
            close(s, scipy.linalg.svdvals(x), dtype)
            assert min(first_large(u[:, :k])) > 0
        for mode in ("reduced", "complete"):
            q, r = run(name, "qr", x, mode, dtype=dtype)
            close(q @ r, x, dtype)
            close(q.T @ q, np.eye(q.shape[1]), dtype)
            assert (np.diagonal(r) >= 0).all()
            assert (np.tril(r, -1) == 0).all()
        if m == n:
            values, vectors = run(name, "eigh", x, dtype=dtype)
            symmetric = (x + x.T) / 2
            close(vectors * values @ vectors.T, symmetric, dtype)
            close(vectors.T @ vectors, np.eye(n), dtype)
            close(values, scipy.linalg.eigvalsh(symmetric), dtype)
            assert min(first_large(vectors)) > 0


@pytest.mark.parametrize("name", [n for n in NAMES if n != "numpy"])
def test_all_backends_give_the_same_numbers(name):
    """Signs and the columns that complete full matrices too; the last matrices have vectors with elements that tie."""
    cases = [matrix(6, 3), matrix(3, 6), matrix(2, 5, 5), np.array([[2.0, 1.0], [1.0, 2.0]]), np.diag([3.0, -1.0, 2.0])]
    for x in [*cases, matrix(6, 3) - matrix(6, 3).mean(0)]:
        for op, *args in [
            ("svd", x, True),
            ("svd", x, False),
            ("qr", x, "complete"),
            ("qr", x, "reduced"),
            ("pinv", x),
        ]:
            for actual, expected in zip(run(name, op, *args), run("numpy", op, *args), strict=True):
                close(actual, expected, units=4096)
        if x.shape[-1] == x.shape[-2]:
            for actual, expected in zip(run(name, "eigh", x), run("numpy", "eigh", x), strict=True):
                close(actual, expected, units=4096)


@pytest.mark.parametrize("name", NAMES)
def test_a_vector_of_a_singular_value_of_zero_has_its_own_sign(name):
    x = matrix(4, 4, rank=3)
    u, s, vh = run(name, "svd", x)
    assert s[3] < 1e-14
    assert min(first_large(u)) > 0
    assert first_large(vh.T)[3] > 0
    close(u * s @ vh, x)


@pytest.mark.parametrize("name", NAMES)
def test_ranks(name):
    for m, n, rank in [(5, 5, 3), (6, 4, 2), (4, 6, 1), (20, 20, 7), (3, 3, 0)]:
        x = matrix(m, n, rank=rank) if rank else np.zeros((m, n))
        assert run(name, "matrix_rank", x)[0] == rank
        [inverse] = run(name, "pinv", x)
        close(inverse, np.linalg.pinv(x, rcond=1e-13), units=2**20)
        b = matrix(m, 2, seed=1)
        close(run(name, "lstsq", x, b)[0], np.linalg.lstsq(x, b, rcond=1e-13)[0], units=2**20)
        u, s, vh = run(name, "svd", x)
        close(u[:, : len(s)] * s @ vh[: len(s)], x)
        close(u.T @ u, np.eye(m))
        close(vh @ vh.T, np.eye(n))


@pytest.mark.parametrize("name", NAMES)
def test_repeated_values(name):
    """Of values that occur several times the space is determined."""
    for x in (np.eye(4), np.diag([2.0, 2.0, 5.0]), np.ones((3, 3)), np.zeros((2, 2))):
        values, vectors = run(name, "eigh", x)
        close(vectors * values @ vectors.T, x)
        close(vectors.T @ vectors, np.eye(len(x)))
        u, s, vh = run(name, "svd", x)
        close(u * s @ vh, x)
        close(u.T @ u, np.eye(len(x)))
        close(vh @ vh.T, np.eye(len(x)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_gives_nan(name, bad):
    x = matrix(2, 4, 4)
    x[1, 3, 2] = bad
    for op, *args in [("svd",), ("svd", False), ("qr", "complete"), ("eigh",), ("svdvals",), ("eigvalsh",), ("pinv",)]:
        for actual, expected in zip(run(name, op, x, *args), run(name, op, x[:1], *args), strict=True):
            close(actual[:1], expected)
            if op == "eigh" or "r" not in op:
                assert np.isnan(actual[1]).all(), op
            else:
                assert not np.isfinite(actual[1]).all(), op
    assert list(run(name, "matrix_rank", x)[0]) == [4, 0]
    assert np.isnan(run(name, "cond", x)[0][1])


@pytest.mark.parametrize("name", NAMES)
def test_large_and_small_numbers(name):
    for factor in (1e-200, 1e200):
        x = matrix(5, 3) * factor
        u, s, vh = run(name, "svd", x, False)
        close(u * (s / factor) @ vh, x / factor)
        q, r = run(name, "qr", x)
        close(q @ (r / factor), x / factor)
        symmetric = matrix(4, 4) * factor
        values, vectors = run(name, "eigh", symmetric)
        close(vectors * (values / factor) @ vectors.T, (symmetric + symmetric.T) / factor / 2)


@pytest.mark.parametrize("name", NAMES)
def test_empty_matrices(name):
    for shape in [(0, 3), (3, 0), (0, 0), (2, 0, 3), (0, 3, 2)]:
        for op in ("svd", "qr"):
            for flag in (True, False):
                args = (flag,) if op == "svd" else ("complete" if flag else "reduced",)
                factors = np.linalg.svd(np.zeros(shape), *args) if op == "svd" else np.linalg.qr(np.zeros(shape), *args)
                for actual, expected in zip(run(name, op, np.zeros(shape), *args), factors, strict=True):
                    np.testing.assert_array_equal(actual, expected)
    assert run(name, "lstsq", np.zeros((0, 2)), np.zeros((0, 3)))[0].tolist() == np.zeros((2, 3)).tolist()


def test_empty_matrices_end_on_mlx():
    """MLX may hang where it reduces an axis of size 0 of a transposed array: one call in some hundreds."""
    pytest.importorskip("mlx.core")
    single = Single(Case("svd", "svd", (np.zeros((0, 3)), True)), chosen("mlx", "float64"))
    for _ in range(500):
        outputs, _ = single.run(None)
        np.testing.assert_array_equal(np.asarray(chosen("mlx", "float64").to_numpy(outputs["output2"])), np.eye(3))


def gradient_of(name, op, x, cotangents, *args, autodiff="graph"):
    target = chosen(name, "float64")
    single = (
        Single(Case(op, op, (x, *args)), target, autodiff=autodiff)
        if name in BACKENDS
        else Single(Case(op, op, (x, *args)), target)
    )
    _, gradients = single.run({f"output{i}": g for i, g in cotangents.items()})
    return np.asarray(target.to_numpy(gradients["x0"]))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_where_values_repeat(name):
    """Vectors have none there, which is NaN; values have one, which is that of their sum."""
    x = np.diag([2.0, 2.0, 5.0])
    sums = {0: np.array([1.0, 1.0, 0.0])}
    close(gradient_of(name, "eigvalsh", x, sums), np.diag([1.0, 1.0, 0.0]))
    close(gradient_of(name, "svdvals", x, {0: np.array([0.0, 1.0, 1.0])}), np.diag([1.0, 1.0, 0.0]))
    assert np.isnan(gradient_of(name, "eigh", x, {0: np.zeros(3), 1: matrix(3, 3)})).any()
    assert np.isnan(gradient_of(name, "svd", x, {0: matrix(3, 3), 1: np.zeros(3), 2: matrix(3, 3)})).any()


def test_what_completes_a_basis_has_no_gradient():
    for op, args, hint in [("qr", ("complete",), "reduced"), ("svd", (True,), "full_matrices=False")]:
        with pytest.raises(MithrilError, match="has no gradient") as error:
            gradient_of("numpy", op, matrix(4, 2), {0: matrix(4, 4), 1: np.ones((4, 2) if op == "qr" else 2)}, *args)
        assert hint in str(error.value)
    with pytest.raises(MithrilError, match="float16 is not possible"):
        backend("numpy").svd(np.ones((2, 2), np.float16))
    with pytest.raises(MithrilError, match='must be "fro"'):
        backend("numpy").matrix_norm(np.ones((2, 2), np.float32), 3)


@pytest.mark.parametrize("name", NAMES)
def test_triangular_systems(name):
    a, b = matrix(5, 5) + 4 * np.eye(5), matrix(5, 3)
    for upper in (True, False):
        for transpose in (True, False):
            for unit in (True, False):
                expected = scipy.linalg.solve_triangular(a, b, int(transpose), not upper, unit)
                close(run(name, "solve_triangular", a, b, upper, transpose, unit)[0], expected)
                close(run(name, "triangular_solve", a, b, not upper, transpose, unit)[0], expected)
    spd = a @ a.T
    factor = np.linalg.cholesky(spd)
    for upper in (True, False):
        triangle = factor.T if upper else factor
        close(run(name, "cholesky_solve", b, triangle, upper)[0], scipy.linalg.solve(spd, b), units=2**14)
        close(run(name, "cholesky_inverse", triangle, upper)[0], np.linalg.inv(spd), units=2**14)


@pytest.mark.parametrize("name", NAMES)
def test_norms_and_conditions(name):
    for order in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf):
        x = matrix(5, 5, seed=3)
        close(run(name, "matrix_norm", x, order)[0], np.asarray(np.linalg.norm(x, order)))
        close(run(name, "cond", x, order)[0], np.asarray(np.linalg.cond(x, order)), units=2**14)
    x = matrix(4, 6)
    close(run(name, "cond", x)[0], np.asarray(np.linalg.cond(x)), units=2**12)
    assert run(name, "cond", np.ones((2, 2)))[0] > 1e15
