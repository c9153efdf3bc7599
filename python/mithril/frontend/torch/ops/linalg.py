"""Decompositions of matrices, and systems of linear equations.

Matrices that PyTorch takes for symmetric are here by their symmetric part; signs of factors are Mithril's.
"""

from __future__ import annotations

import operator
from typing import Any

from .registry import OPS, Use, apply, convert


def _transposed(x: Any) -> Any:
    return apply("swapaxes", x, -1, -2)


def _reads(use: Use) -> set[Any]:
    """Which results of an op are read."""
    return {user.args[1] if user.target is operator.getitem else None for user in use.node.users}


@convert("linalg_inv.default", "inverse.default")
def _inv(use: Use, x: Any) -> Any:
    return apply("inv", x)


@convert("linalg_inv_ex.default")
def _inv_checked(use: Use, x: Any, check_errors: bool = False) -> Any:
    return [apply("inv", x), None]


@convert("linalg_cholesky.default", "cholesky.default")
def _cholesky(use: Use, x: Any, upper: bool = False) -> Any:
    factor = apply("cholesky", x)
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
    if _reads(use) <= {1}:
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
    if _reads(use) <= {0}:
        return [apply("eigvalsh", x), None]
    return list(apply("eigh", x))


@convert("linalg_eigvalsh.default")
def _eigvalsh(use: Use, x: Any, uplo: str = "L") -> Any:
    return apply("eigvalsh", x)


@convert("linalg_pinv.atol_rtol_tensor", "linalg_pinv.atol_rtol_float", "linalg_pinv.default")
def _pinv(use: Use, x: Any, *args: Any, **named: Any) -> Any:
    words = ("rcond", "hermitian") if str(use.node.target).endswith("default") else ("hermitian",)
    named = dict(zip(words, args, strict=False)) | named
    rtol, atol = named.get("rtol", named.get("rcond")), named.get("atol")
    if any(not isinstance(t, (float, int, type(None))) for t in (rtol, atol)):
        raise use.refuse("with a tolerance that is a tensor")
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
