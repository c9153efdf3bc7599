"""Matrix products, attention, tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .elementwise import drop
from .movement import along, size_of
from .normalization import safe_softmax
from .registry import Use, apply, cast, convert, dtype_name, promoted, tensor


@convert("linear.default")
def _linear(use: Use, x: Any, weight: Any, bias: Any = None) -> Any:
    if use.rank_of(1) == 1:
        product = apply("matmul", x, weight)
        return product if bias is None else apply("add", product, bias)
    return apply("linear", x, weight, bias)


@convert("bilinear.default")
def _bilinear(use: Use, x: Any, y: Any, weight: Any, bias: Any = None) -> Any:
    result = apply("einsum", "...i,oij,...j->...o", x, weight, y)
    return result if bias is None else apply("add", result, bias)


@convert("matmul.default", "mm.default", "bmm.default", "mv.default", "dot.default")
def _matmul(use: Use, x: Any, y: Any) -> Any:
    return apply("matmul", x, y)


@convert("addmm.default", "baddbmm.default", "addbmm.default", "addmv.default")
def _addmm(use: Use, bias: Any, x: Any, y: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    if "int" in use.dtype:
        # As PyTorch computes with numbers that are no integers.
        beta, alpha = int(beta), int(alpha)
    product = apply("matmul", x, y)
    if ".addbmm" in str(use.node.target):
        product = apply("sum", product, 0, False)
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
    if not dropout:
        return apply("scaled_dot_product_attention", query, key, value, mask, is_causal, scale, enable_gqa)
    weights, value = _attention_weights(use, query, key, value, mask, is_causal, scale, enable_gqa)
    return apply("matmul", drop(weights, dropout), value)


def _attention_weights(
    use: Use, query: Any, key: Any, value: Any, mask: Any, is_causal: bool, scale: float | None, enable_gqa: bool
) -> tuple[Any, Any]:
    """Weights ``[..., l, s]`` of attention, and the values that they belong to, one head for each of the query."""
    heads = [use.operand(i).shape[-3] if enable_gqa else 1 for i in range(2)]
    if heads[0] != heads[1]:
        key, value = (apply("repeat", x, heads[0] // heads[1], -3) for x in (key, value))
    features = use.operand(0).shape[-1]
    factor = scale if scale is not None else 1 / math.sqrt(features)
    scores = apply("matmul", apply("multiply", query, factor), apply("matrix_transpose", key))
    allowed = None
    if is_causal:
        positions = [apply("arange", 0, size_of(use, x, i, -2), 1, "int64") for i, x in enumerate((query, key))]
        allowed = apply("greater_equal", apply("expand_dims", positions[0], -1), positions[1])
    if mask is not None and dtype_name(use.operand(3).dtype) == "bool":
        allowed = mask if allowed is None else apply("logical_and", allowed, mask)
    elif mask is not None:
        scores = apply("add", scores, mask)
    if allowed is not None:
        scores = apply("where", allowed, scores, float("-inf"))
    if mask is None:
        return apply("softmax", scores, -1), value
    # A query that attends to nothing has weights of 0.
    return safe_softmax(scores, -1), value


@convert("embedding.default")
def _embedding(use: Use, weight: Any, indices: Any, padding: int = -1, *ignored: Any) -> Any:
    return apply("embedding", indices, weight, padding if padding >= 0 else None)


@convert("_embedding_bag.default", "_embedding_bag_forward_only.default", "embedding_bag.padding_idx")
def _embedding_bag(
    use: Use,
    weight: Any,
    indices: Any,
    offsets: Any,
    scale: bool = False,
    mode: int = 0,
    sparse: bool = False,
    factors: Any = None,
    with_end: bool = False,
    padding: Any = -1,
) -> Any:
    count = use.operand(1).shape[0]
    if str(use.node.target) == "aten.embedding_bag.padding_idx" and padding is not None:
        # Here it counts from the end; -1 is no row elsewhere.
        padding %= int(use.operand(0).shape[0])
    padding = None if padding is None or padding < 0 else padding
    rows = apply("embedding", indices, weight, padding)
    kept = apply("full", (size_of(use, indices, 1, 0),), 1, use.dtype)
    if padding is not None:
        kept = cast(apply("not_equal", indices, padding), use.dtype)
    weights = kept if factors is None else apply("multiply", kept, factors)
    number = use.shape[0]
    # Row i is in the last bag that begins before it.
    places = apply("arange", 0, count if isinstance(count, int) else indices.shape[0], 1, "int64")
    starts = along(offsets, 0, slice(0, -1)) if with_end else offsets
    bags = apply("subtract", apply("searchsorted", cast(starts, "int64"), places, True), 1)
    shape = (number if isinstance(number, int) else starts.shape[0], int(use.shape[1]))
    zeros = apply("full", shape, 0, use.dtype)
    if mode == 2:
        bag = apply("where", apply("equal", apply("expand_dims", kept, 1), 0), float("-inf"), rows)
        index = apply("broadcast_to", apply("expand_dims", bags, 1), rows.shape)
        lowest = apply("full", shape, float("-inf"), use.dtype)
        largest = apply("scatter_reduce", lowest, 0, index, bag, "amax", True)
        result = apply("where", apply("isfinite", largest), largest, 0.0)
    else:
        result = apply("index_add", zeros, bags, apply("multiply", rows, apply("expand_dims", weights, 1)), 0)
        if mode == 1:
            counts = apply("index_add", apply("full", (shape[0],), 0, use.dtype), bags, kept, 0)
            result = apply("divide", result, apply("expand_dims", apply("maximum", counts, 1.0), 1))
    return [result, None, None, None]


@convert("cdist.default", "_cdist_forward.default", "_euclidean_dist.default")
def _cdist(use: Use, x: Any, y: Any, p: float = 2.0, mode: Any = None) -> Any:
    difference = apply("subtract", apply("expand_dims", x, -2), apply("expand_dims", y, -3))
    return apply("norm", difference, float(p), -1, False)


@convert("pdist.default", "_pdist_forward.default")
def _pdist(use: Use, x: Any, p: float = 2.0) -> Any:
    rows = use.operand(0).shape[0]
    if not isinstance(rows, int):
        raise use.refuse("of a number of rows that is not known when converting")
    first, second = np.triu_indices(rows, 1)
    difference = apply("subtract", apply("take", x, tensor(first), 0), apply("take", x, tensor(second), 0))
    return apply("norm", difference, float(p), -1, False)


@convert("linalg_vector_norm.default", "norm.ScalarOpt_dim", "norm.Scalar")
def _norm(use: Use, x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    axes = None if dim is None or dim == [] else tuple(dim) if isinstance(dim, (list, tuple)) else dim
    axes = None if use.rank_of(0) == 0 else axes
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
