"""Functions of matrices without an op, in terms of ops: exponentials, and factors with pivots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._core import IOKey
from .rows import apply, cast

__all__ = ["LARGEST_LU", "expm", "householder_product", "lu"]

#: Padé's approximation of the exponential of degree 13, and the norm up to which it is exact (Higham 2005).
_PADE = (
    *(64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0),
    *(10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0),
)
_EXACT_TO = 5.371920351148152
#: Matrices up to `2^SQUARINGS` times that norm.
_SQUARINGS = 16
#: Largest matrix that is factored: each column is some ops.
LARGEST_LU = 32


def expm(x: Any, n: int, dtype: str) -> Any:
    """Compute the exponential of matrices ``[..., n, n]``; NaN where the norm is above 300000."""
    norm = apply("max", apply("sum", apply("abs", x), -2, True), -1, True)
    halvings = apply("ceil", apply("log2", apply("maximum", apply("stop_gradient", norm) / _EXACT_TO, 1.0)))
    a = x * apply("power", 2.0, -halvings)
    eye = IOKey(value=np.eye(n, dtype=dtype))
    b = _PADE
    a2 = apply("matmul", a, a)
    a4 = apply("matmul", a2, a2)
    a6 = apply("matmul", a4, a2)
    odd = apply("matmul", a6, a6 * b[13] + a4 * b[11] + a2 * b[9]) + a6 * b[7] + a4 * b[5] + a2 * b[3] + eye * b[1]
    odd = apply("matmul", a, odd)
    even = apply("matmul", a6, a6 * b[12] + a4 * b[10] + a2 * b[8]) + a6 * b[6] + a4 * b[4] + a2 * b[2] + eye * b[0]
    result = apply("solve", even - odd, even + odd)
    for i in range(_SQUARINGS):
        result = apply("where", halvings > float(i), apply("matmul", result, result), result)
    return apply("where", halvings > float(_SQUARINGS), math.nan, result)


def lu(x: Any, shape: Sequence[int], dtype: str) -> tuple[Any, Any, Any]:
    """Factor matrices with the largest element of each column as its pivot.

    Parameters
    ----------
    x : connection
        The matrices ``[..., m, n]``.
    shape : sequence of int
        Their shape.
    dtype : str
        Their dtype.

    Returns
    -------
    factors : connection
        Both factors in one matrix: below the diagonal the lower one, whose diagonal is 1.
    pivots : connection
        The row that each row was swapped with, from 0, as int32.
    permutation : connection
        The row of the matrix that each row of the product of the factors is, as int32.
    """
    *batch, m, n = shape
    rows = IOKey(value=np.arange(m, dtype=np.int64))
    permutation: Any = apply("broadcast_to", rows, (*batch, m))
    pivots = []
    for k in range(min(m, n)):
        column = apply("abs", apply("stop_gradient", x[(..., k)]))
        candidates = apply("where", IOKey(value=np.arange(m) >= k), column, -1.0)
        pivot = apply("argmax", candidates, -1, True)
        pivots.append(pivot)
        # Swap the rows: of each row, the one that it becomes.
        order = apply(
            "where", IOKey(value=np.arange(m) == k), pivot, apply("where", apply("equal", rows, pivot), k, rows)
        )
        permutation = apply("take_along_axis", permutation, order, -1)
        x = apply("take_along_axis", x, apply("expand_dims", order, -1), -2)
        below = IOKey(value=(np.arange(m) > k).astype(dtype))
        top = x[(..., k, slice(None))]
        diagonal = apply("expand_dims", top[(..., k)], -1)
        # What is 0 in the whole column stays.
        divisor = apply("where", apply("equal", diagonal, 0.0), 1.0, diagonal)
        factor = x[(..., k)] * below / divisor
        right = IOKey(value=(np.arange(n) > k).astype(dtype))
        own = IOKey(value=((np.arange(m) > k)[:, None] & (np.arange(n) == k)))
        x = x - apply("expand_dims", factor, -1) * apply("expand_dims", top * right, -2)
        x = apply("where", own, apply("expand_dims", factor, -1), x)
    swapped = apply("concat", -1, *pivots) if len(pivots) > 1 else pivots[0]
    return x, cast(swapped, "int32"), cast(permutation, "int32")


def householder_product(x: Any, tau: Any, shape: Sequence[int], count: int, dtype: str) -> Any:
    """Multiply the reflections that the columns of matrices ``[..., m, n]`` stand for, of which there are ``count``."""
    *batch, m, n = shape
    result: Any = apply("broadcast_to", IOKey(value=np.eye(m, n, dtype=dtype)), (*batch, m, n))
    for k in reversed(range(count)):
        below = IOKey(value=(np.arange(m) > k).astype(dtype))
        unit = IOKey(value=(np.arange(m) == k).astype(dtype))
        v = apply("expand_dims", x[(..., k)] * below + unit, -1)
        product = apply("matmul", apply("swapaxes", v, -1, -2), result)
        scale = apply("expand_dims", tau[(..., slice(k, k + 1))], -1)
        result = result - v * product * scale
    return result
