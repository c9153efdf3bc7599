"""Matrix products, attention, tables."""

from __future__ import annotations

from typing import Any

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
