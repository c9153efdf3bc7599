"""Decompositions of matrices, and systems of linear equations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...matrices import LARGEST_LU, householder_product, lu
from .registry import Use, apply, convert, tensor

__all__ = ["determinant", "linear_system"]


def _transposed(x: Any) -> Any:
    return apply("swapaxes", x, -1, -2)


@convert("cholesky")
def _cholesky(use: Use, x: Any, **ignored: Any) -> Any:
    return apply("cholesky", x)


@convert("triangular_solve")
def _triangular_solve(
    use: Use,
    a: Any,
    b: Any,
    *,
    left_side: bool,
    lower: bool,
    transpose_a: bool,
    unit_diagonal: bool,
    **ignored: Any,
) -> Any:
    a, b = tensor(a), tensor(b)
    if left_side:
        return apply("triangular_solve", a, b, lower, transpose_a, unit_diagonal)
    return _transposed(apply("triangular_solve", a, _transposed(b), lower, not transpose_a, unit_diagonal))


@convert("svd")
def _svd(use: Use, x: Any, *, full_matrices: bool, compute_uv: bool, subset_by_index: Any, **ignored: Any) -> Any:
    if subset_by_index is not None:
        raise use.refuse("some of the singular values")
    if not compute_uv:
        return [apply("svdvals", x)]
    u, s, vh = apply("svd", x, full_matrices)
    return [s, u, vh]


@convert("eigh")
def _eigh(use: Use, x: Any, *, lower: bool, subset_by_index: Any, **ignored: Any) -> Any:
    if subset_by_index is not None:
        raise use.refuse("some of the eigenvalues")
    # The primitive reads one triangle, the op the symmetric part.
    half, strict = (apply("tril", x, 0), apply("tril", x, -1)) if lower else (apply("triu", x, 0), apply("triu", x, 1))
    x = apply("add", half, _transposed(strict))
    values, vectors = apply("eigh", x)
    return [vectors, values]


@convert("qr")
def _qr(use: Use, x: Any, *, full_matrices: bool, pivoting: bool, **ignored: Any) -> Any:
    if pivoting:
        raise use.refuse("with pivots")
    return list(apply("qr", x, "complete" if full_matrices else "reduced"))


@convert("lu")
def _lu(use: Use, x: Any, **ignored: Any) -> Any:
    shape = use.shape_of(0)
    if min(shape[-2:]) > LARGEST_LU:
        raise use.refuse(
            f"of more than {LARGEST_LU} columns: use jnp.linalg.solve, det, slogdet or inv, which have no limit"
        )
    return list(lu(x, shape, use.dtype))


@convert("lu_pivots_to_permutation")
def _pivots_to_permutation(use: Use, pivots: Any, *, permutation_size: int, **ignored: Any) -> Any:
    rows = tensor(np.arange(permutation_size, dtype=np.int32))
    order: Any = apply("broadcast_to", rows, use.shape)
    for k in range(use.shape_of(0)[-1]):
        pivot = pivots[(..., slice(k, k + 1))]
        is_own, is_pivot = tensor(np.arange(permutation_size) == k), apply("equal", rows, pivot)
        order = apply("take_along_axis", order, apply("where", is_own, pivot, apply("where", is_pivot, k, rows)), -1)
    return order


@convert("householder_product")
def _householder_product(use: Use, x: Any, tau: Any, **ignored: Any) -> Any:
    count = use.shape_of(1)[-1]
    if count > LARGEST_LU:
        raise use.refuse(f"of more than {LARGEST_LU} columns")
    return householder_product(tensor(x), tensor(tau), use.shape, count, use.dtype)


def linear_system(eqn: Any, run: Callable[..., list[Any]]) -> Callable[[Any, Any], Any] | None:
    """Find what solves the system of ``custom_linear_solve``, if it is one of a matrix.

    The equation holds its product with a matrix as a function of its own: which axes it acts on shows with numbers.
    """
    product, count = eqn.params["jaxprs"].matvec, eqn.params["const_lengths"].matvec
    if count != 1 or len(eqn.outvars) != 1:
        return None
    matrix, right = eqn.invars[0].aval, eqn.invars[-1].aval
    n = matrix.shape[-1] if matrix.ndim > 1 else 0
    if not n or matrix.shape[-2:] != (n, n) or right.dtype != matrix.dtype or matrix.dtype.kind != "f":
        return None
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=v.shape).astype(v.dtype) for v in (matrix, right))
    (value,) = run(product.jaxpr, product.consts, [a, b])
    for multiply, solve in _LAYOUTS:
        try:
            expected = multiply(a, b)
        except ValueError:
            continue
        if expected.shape == np.shape(value) and np.allclose(value, expected, rtol=1e-3, atol=1e-3):
            return solve
    return None


def _columns(a: Any, b: Any) -> Any:
    return apply("solve", a, b)


def _rows(a: Any, b: Any) -> Any:
    return _transposed(apply("solve", a, _transposed(b)))


def _vectors(a: Any, b: Any) -> Any:
    return apply("squeeze", apply("solve", a, apply("expand_dims", b, -1)), (-1,))


#: Products of a matrix with the columns, rows or vectors of an array, and what solves the system.
_LAYOUTS: tuple[tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]], ...] = (
    (lambda a, b: np.einsum("...ij,...j->...i", a, b), _vectors),
    (lambda a, b: np.einsum("...ij,...kj->...ki", a, b), _rows),
    (lambda a, b: np.einsum("...ij,...jk->...ik", a, b), _columns),
    # Of the transposed matrix, as in gradients.
    (lambda a, b: np.einsum("...ji,...j->...i", a, b), lambda a, b: _vectors(_transposed(a), b)),
    (lambda a, b: np.einsum("...ji,...kj->...ki", a, b), lambda a, b: _rows(_transposed(a), b)),
    (lambda a, b: np.einsum("...ji,...jk->...ik", a, b), lambda a, b: _columns(_transposed(a), b)),
)


def determinant(
    eqn: Any, inner: Any, consts: Sequence[Any], run: Callable[..., list[Any]]
) -> Callable[[Any], Any] | None:
    """Find whether a function that factors a matrix computes its determinant, or the sign and logarithm of it."""
    if len(eqn.invars) != 1 or not any(inside.primitive.name == "lu" for inside in inner.eqns):
        return None
    aval = eqn.invars[0].aval
    if aval.ndim < 2 or aval.dtype.kind != "f" or not aval.shape[-1]:
        return None
    rng = np.random.default_rng(0)
    examples = [rng.normal(size=aval.shape).astype(aval.dtype) for _ in range(4)]
    results = [run(inner, consts, [x]) for x in examples]

    def is_same(function: Callable[[Any], Any]) -> bool:
        for x, actual in zip(examples, results, strict=True):
            expected = function(x.astype(np.float64))
            if [v.shape for v in expected] != [np.shape(v) for v in actual]:
                return False
            if not all(np.allclose(v, w, rtol=1e-3, atol=1e-4) for v, w in zip(actual, expected, strict=True)):
                return False
        return True

    if is_same(lambda x: [np.asarray(np.linalg.det(x))]):
        return lambda x: [apply("det", x)]
    if is_same(lambda x: [np.asarray(v) for v in np.linalg.slogdet(x)]):
        return lambda x: list(apply("slogdet", x))
    return None
