"""Decompositions of matrices, and systems of linear equations.

Matrices that PyTorch takes for symmetric are here by their symmetric part; signs of factors are Mithril's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...matrices import LARGEST_LU, expm, householder_product, lu
from .registry import OPS, Use, apply, cast, convert, reads, tensor


def _transposed(x: Any) -> Any:
    return apply("swapaxes", x, -1, -2)


@convert("linalg_inv.default", "inverse.default")
def _inv(use: Use, x: Any) -> Any:
    return apply("inv", x)


@convert("linalg_inv_ex.default")
def _inv_checked(use: Use, x: Any, check_errors: bool = False) -> Any:
    return [apply("inv", x), None]


def _is_transposition(x: Any, y: Any) -> bool:
    """Whether node ``y`` is the transposed matrices of node ``x``."""
    name, arguments = str(y.target), y.args
    if not arguments or arguments[0] is not x:
        return False
    rank = x.meta["val"].dim()
    # `x.T` reverses all axes.
    if name in ("aten.t.default", "aten.mT.default") or (name == "aten.numpy_T.default" and rank == 2):
        return True
    if name not in ("aten.transpose.int", "aten.swapaxes.default"):
        return False
    return sorted(axis % rank for axis in arguments[1:3]) == [rank - 2, rank - 1]


def _is_symmetric(node: Any) -> bool:
    """Whether a matrix is symmetric by the way it is computed: ``x + x.mT``, ``x @ x.mT``, and these times a number."""
    name = str(node.target)
    if name in ("aten.mul.Tensor", "aten.div.Tensor", "aten.neg.default") and len(node.all_input_nodes) == 1:
        return _is_symmetric(node.all_input_nodes[0])
    if name == "aten.add.Tensor" and len(node.all_input_nodes) == 2:
        x, y = node.all_input_nodes
        is_sum = not node.kwargs and (_is_transposition(x, y) or _is_transposition(y, x))
        return is_sum or (_is_symmetric(x) and _is_symmetric(y))
    if name in ("aten.matmul.default", "aten.mm.default", "aten.bmm.default") and len(node.all_input_nodes) == 2:
        return any(_is_transposition(x, y) for x, y in (node.args, node.args[::-1]))
    return name == "aten.eye.default"


def _symmetric(use: Use, x: Any, uplo: str = "L") -> Any:
    """Make symmetric matrices of one triangle: PyTorch does not read the other one, our ops read both.

    The gradient is as if both were read, as PyTorch's is.
    """
    if _is_symmetric(use.node.args[0]):
        return x
    half, k = ("triu", 1) if uplo.upper() == "U" else ("tril", -1)
    whole = apply(half, x) + _transposed(apply(half, x, k))
    return apply("stop_gradient", whole) + (x - apply("stop_gradient", x))


@convert("linalg_cholesky.default", "cholesky.default")
def _cholesky(use: Use, x: Any, upper: bool = False) -> Any:
    factor = apply("cholesky", _symmetric(use, x, "U" if upper else "L"))
    return _transposed(factor) if upper else factor


@convert("linalg_cholesky_ex.default")
def _cholesky_checked(use: Use, x: Any, upper: bool = False, check_errors: bool = False) -> Any:
    return [_cholesky(use, x, upper), None]


@convert("linalg_det.default", "det.default")
def _det(use: Use, x: Any) -> Any:
    return apply("det", x)


@convert("_linalg_det.default")
def _det_of_factors(use: Use, x: Any) -> Any:
    return [apply("det", x), None, None]


@convert("linalg_slogdet.default", "slogdet.default", "_linalg_slogdet.default")
def _slogdet(use: Use, x: Any) -> Any:
    return [*apply("slogdet", x), None, None]


@convert("logdet.default")
def _logdet(use: Use, x: Any) -> Any:
    sign, logarithm = apply("slogdet", x)
    return apply("where", apply("less", sign, 0), float("nan"), logarithm)


@convert("linalg_qr.default")
def _qr(use: Use, x: Any, mode: str = "reduced") -> Any:
    q, r = apply("qr", x, "reduced" if mode == "r" else mode)
    return [None if mode == "r" else q, r]


@convert("linalg_svd.default", "_linalg_svd.default")
def _svd(use: Use, x: Any, full_matrices: bool | None = None, compute_uv: bool = True, *, driver: Any = None) -> Any:
    if reads(use) <= {1}:
        return [None, apply("svdvals", x), None]
    if full_matrices is None:
        full_matrices = "_linalg" not in str(use.node.target)
    return list(apply("svd", x, full_matrices))


@convert("svd.default")
def _svd_old(use: Use, x: Any, some: bool = True, compute_uv: bool = True) -> Any:
    u, s, vh = apply("svd", x, not some)
    return [u, s, _transposed(vh)]


@convert("linalg_svdvals.default")
def _svdvals(use: Use, x: Any, *, driver: Any = None) -> Any:
    return apply("svdvals", x)


@convert("linalg_eigh.default", "_linalg_eigh.default")
def _eigh(use: Use, x: Any, uplo: str = "L", compute_v: bool = True) -> Any:
    x = _symmetric(use, x, uplo)
    if reads(use) <= {0}:
        return [apply("eigvalsh", x), None]
    return list(apply("eigh", x))


@convert("linalg_eigvalsh.default")
def _eigvalsh(use: Use, x: Any, uplo: str = "L") -> Any:
    return apply("eigvalsh", _symmetric(use, x, uplo))


@convert("linalg_pinv.atol_rtol_tensor", "linalg_pinv.atol_rtol_float", "linalg_pinv.default")
def _pinv(use: Use, x: Any, *args: Any, **named: Any) -> Any:
    words = ("rcond", "hermitian") if str(use.node.target).endswith("default") else ("hermitian",)
    named = dict(zip(words, args, strict=False)) | named
    rtol, atol = named.get("rtol", named.get("rcond")), named.get("atol")
    if any(not isinstance(t, (float, int, type(None))) for t in (rtol, atol)):
        raise use.refuse("with a tolerance that is a tensor")
    if named.get("hermitian"):
        x = _symmetric(use, x)
    return apply("pinv", x, rtol, atol)


def _solution(use: Use, a: Any, b: Any, left: bool) -> Any:
    if not left:
        return _transposed(apply("solve", _transposed(a), _transposed(b)))
    matrix, right = (use.operand(i).shape for i in range(2))
    if len(right) > 1 and len(right) == len(matrix) - 1 and tuple(right) == tuple(matrix[:-1]):
        # A vector for each matrix.
        return apply("squeeze", apply("solve", a, apply("expand_dims", b, -1)), (-1,))
    return apply("solve", a, b)


@convert("linalg_solve.default")
def _solve(use: Use, a: Any, b: Any, *, left: bool = True) -> Any:
    return _solution(use, a, b, left)


@convert("_linalg_solve_ex.default", "linalg_solve_ex.default")
def _solve_checked(use: Use, a: Any, b: Any, *, left: bool = True, check_errors: bool = False) -> Any:
    return [_solution(use, a, b, left), None, None, None]


@convert("linalg_solve_triangular.default")
def _solve_triangular(use: Use, a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    if left:
        return apply("triangular_solve", a, b, not upper, False, unitriangular)
    return _transposed(apply("triangular_solve", a, _transposed(b), not upper, True, unitriangular))


@convert("triangular_solve.default")
def _triangular_solve(
    use: Use, b: Any, a: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    return [apply("triangular_solve", a, b, not upper, transpose, unitriangular), a]


@convert("cholesky_solve.default")
def _cholesky_solve(use: Use, b: Any, factor: Any, upper: bool = False) -> Any:
    return apply("cholesky_solve", b, factor, upper)


@convert("cholesky_inverse.default")
def _cholesky_inverse(use: Use, factor: Any, upper: bool = False) -> Any:
    return apply("cholesky_inverse", factor, upper)


def _with_effects(use: Use, token: Any, op: Any, *args: Any, **named: Any) -> Any:
    if str(op) != "aten._linalg_check_errors.default":
        raise use.refuse(f"of {op}")
    # Backends check on their own.
    return [token, None]


OPS["torch.ops.higher_order.with_effects"] = _with_effects


@convert("linalg_matrix_exp.default")
def _matrix_exp(use: Use, x: Any) -> Any:
    return expm(x, int(use.shape[-1]), use.dtype)


def _factors(use: Use, x: Any, pivot: bool) -> tuple[Any, Any, Any]:
    shape = use.operand(0).shape
    if not pivot:
        raise use.refuse("without pivots")
    if not all(isinstance(n, int) for n in shape):
        raise use.refuse("of a shape that is not known when converting")
    if min(shape[-2:]) > LARGEST_LU:
        raise use.refuse(
            f"of more than {LARGEST_LU} columns: use torch.linalg.solve, inv, det or slogdet, which have no limit"
        )
    return lu(x, shape, use.dtype)


def _unpacked(factors: Any, shape: Any) -> tuple[Any, Any]:
    """Take both triangular factors out of one matrix."""
    m, n = int(shape[-2]), int(shape[-1])
    k = min(m, n)
    lower = apply("tril", factors[(..., slice(None), slice(0, k))], -1)
    return apply("add", lower, tensor(np.eye(m, k, dtype=bool).astype(np.int8))), apply(
        "triu", factors[(..., slice(0, k), slice(None))]
    )


def _permuting(use: Use, permutation: Any, m: int) -> Any:
    rows = tensor(np.arange(m)[:, None])
    return cast(apply("equal", rows, cast(apply("expand_dims", permutation, -2), "int64")), use.dtype)


@convert("linalg_lu_factor_ex.default", "linalg_lu_factor.default")
def _lu_factor(use: Use, x: Any, *, pivot: bool = True, check_errors: bool = False) -> Any:
    factors, pivots, _ = _factors(use, x, pivot)
    # PyTorch counts from 1.
    return [factors, apply("add", pivots, 1), None]


@convert("linalg_lu.default")
def _lu(use: Use, x: Any, *, pivot: bool = True) -> Any:
    factors, _, permutation = _factors(use, x, pivot)
    shape = use.operand(0).shape
    return [_permuting(use, permutation, int(shape[-2])), *_typed(use, _unpacked(factors, shape))]


def _typed(use: Use, parts: Any) -> list[Any]:
    return [cast(part, use.dtype) for part in parts]


def _order(use: Use, pivots: Any, m: int, count: int) -> Any:
    """Follow the swaps of rows."""
    rows = tensor(np.arange(m))
    order: Any = apply("broadcast_to", rows, (*use.operand(1).shape[:-1], m))
    for k in range(count):
        pivot = cast(pivots[(..., slice(k, k + 1))], "int64") - 1
        swapped = apply("where", tensor(np.arange(m) == k), pivot, apply("where", apply("equal", rows, pivot), k, rows))
        order = apply("take_along_axis", order, swapped, -1)
    return order


@convert("lu_unpack.default")
def _lu_unpack(use: Use, factors: Any, pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    shape, count = use.operand(0).shape, use.operand(1).shape[-1]
    if not all(isinstance(n, int) for n in (*shape, count)) or count > LARGEST_LU:
        raise use.refuse(f"of a shape that is not known when converting, or of more than {LARGEST_LU} columns")
    order = _order(use, pivots, int(shape[-2]), int(count))
    return [_permuting(use, order, int(shape[-2])), *_typed(use, _unpacked(factors, shape))]


@convert("linalg_lu_solve.default")
def _lu_solve(use: Use, factors: Any, pivots: Any, b: Any, *, left: bool = True, adjoint: bool = False) -> Any:
    n = use.operand(0).shape[-1]
    if not all(isinstance(n, int) for n in (*use.operand(0).shape, *use.operand(2).shape)) or n > LARGEST_LU:
        raise use.refuse(f"of a shape that is not known when converting, or of more than {LARGEST_LU} columns")
    if not left:
        b, adjoint = _transposed(b), not adjoint
    order = apply("expand_dims", _order(use, pivots, int(n), int(n)), -1)
    if adjoint:
        # Of the transposed product of the factors and the permutation.
        x = apply("triangular_solve", factors, b, False, True, False)
        x = apply("triangular_solve", factors, x, True, True, True)
        x = apply("take_along_axis", x, apply("argsort", order, -2), -2)
    else:
        x = apply("take_along_axis", b, order, -2)
        x = apply("triangular_solve", factors, x, True, False, True)
        x = apply("triangular_solve", factors, x, False, False, False)
    return x if left else _transposed(x)


@convert("linalg_householder_product.default")
def _householder_product(use: Use, x: Any, tau: Any) -> Any:
    shape, count = use.shape, use.operand(1).shape[-1]
    if not all(isinstance(n, int) for n in (*shape, count)) or count > LARGEST_LU:
        raise use.refuse(f"of a shape that is not known when converting, or of more than {LARGEST_LU} columns")
    return householder_product(x, tau, [int(n) for n in shape], int(count), use.dtype)


_NO_COUNTERPART = {
    "linalg_eig.default": "eigenvalues may be complex: of a symmetric matrix use torch.linalg.eigh",
    "linalg_eigvals.default": "eigenvalues may be complex: of a symmetric matrix use torch.linalg.eigvalsh",
    "geqrf.default": "use torch.linalg.qr",
    "ormqr.default": "multiply by the first factor of torch.linalg.qr",
    "linalg_ldl_factor_ex.default": "use torch.linalg.cholesky or torch.linalg.solve",
    "linalg_ldl_solve.default": "use torch.linalg.cholesky or torch.linalg.solve",
}


def _refused(reason: str) -> Any:
    def function(use: Use, *args: Any, **named: Any) -> Any:
        raise use.refuse(reason)

    return function


OPS.update({f"aten.{_name}": _refused(_reason) for _name, _reason in _NO_COUNTERPART.items()})
