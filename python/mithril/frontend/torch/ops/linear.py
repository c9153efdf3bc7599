"""Matrix products, attention, tables."""

from __future__ import annotations

from typing import Any

from .movement import size_of
from .registry import Use, apply, convert, promoted


@convert("linear.default")
def _linear(use: Use, x: Any, weight: Any, bias: Any = None) -> Any:
    return apply("linear", x, weight, bias)


@convert("matmul.default", "mm.default", "bmm.default", "mv.default", "dot.default")
def _matmul(use: Use, x: Any, y: Any) -> Any:
    return apply("matmul", x, y)


@convert("addmm.default", "baddbmm.default", "addbmm.default", "addmv.default")
def _addmm(use: Use, bias: Any, x: Any, y: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    if "addbmm" in str(use.node.target) and "baddbmm" not in str(use.node.target):
        raise use.refuse("a sum of products of matrices")
    product = apply("matmul", x, y)
    product = product if alpha == 1 else apply("multiply", product, alpha)
    if beta == 0:
        return product
    return apply("add", bias if beta == 1 else apply("multiply", bias, beta), product)


@convert("outer.default")
def _outer(use: Use, x: Any, y: Any) -> Any:
    return apply("outer", *promoted(use, x, y))


@convert("einsum.default")
def _einsum(use: Use, equation: str, operands: Any, path: Any = None) -> Any:
    return apply("einsum", equation, *operands)


@convert("scaled_dot_product_attention.default")
def _attention(
    use: Use,
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if dropout:
        raise use.refuse("attention with dropout of its weights")
    return apply("scaled_dot_product_attention", query, key, value, mask, is_causal, scale, enable_gqa)


@convert("embedding.default")
def _embedding(use: Use, weight: Any, indices: Any, padding: int = -1, *ignored: Any) -> Any:
    return apply("embedding", indices, weight, padding if padding >= 0 else None)


@convert("linalg_vector_norm.default", "norm.ScalarOpt_dim", "norm.Scalar")
def _norm(use: Use, x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    axes = None if dim is None or dim == [] else tuple(dim) if isinstance(dim, (list, tuple)) else dim
    return apply("norm", promoted(use, x)[0], float(2 if ord is None else ord), axes, keepdim)


@convert("_grouped_mm.default")
@convert("grouped_mm_fallback.default", prefix="transformers")
def _grouped_matmul(use: Use, x: Any, weight: Any, ends: Any = None, *ignored: Any) -> Any:
    # Row i belongs to the first group that ends behind it.
    if use.rank_of(0) != 2 or use.rank_of(1) != 3 or ends is None:
        raise use.refuse("a grouped product of other than rows and matrices")
    rows = apply("arange", 0, size_of(use, x, 0, 0), 1, "int64")
    groups = apply("searchsorted", apply("cast", ends, "int64"), rows, True)
    # Rows behind the last group are not used by anyone.
    groups = apply("minimum", groups, int(use.operand(1).shape[0]) - 1)
    own = apply("take", weight, groups, 0)
    return apply("squeeze", apply("matmul", apply("expand_dims", x, 1), own), (1,))
