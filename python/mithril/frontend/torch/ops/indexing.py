"""Elements at positions that are data."""

from __future__ import annotations

from typing import Any

from .movement import along
from .registry import Use, apply, convert, dtype_name, is_connection, promoted


def _key(use: Use, indices: Any) -> tuple[tuple[Any, ...], list[Any]]:
    """Write indices as the key of an op and the tensors in it."""
    nodes = use.node.args[1]
    for node in nodes:
        if node is not None and dtype_name(node.meta["val"].dtype) in ("bool", "uint8"):
            raise use.refuse("a mask as an index: the shape of the result depends on data")
    return tuple("tensor" if i is not None else slice(None) for i in indices), [i for i in indices if i is not None]


@convert("index.Tensor", "_unsafe_index.Tensor")
def _index(use: Use, x: Any, indices: Any) -> Any:
    key, places = _key(use, indices)
    return apply("getitem", x, key, *places)


@convert("index_put.default", "_unsafe_index_put.default", "_index_put_impl.default")
def _index_put(use: Use, x: Any, indices: Any, values: Any, accumulate: bool = False, *ignored: Any) -> Any:
    nodes = use.node.args[1]
    if len(nodes) == 1 and dtype_name(nodes[0].meta["val"].dtype) == "bool" and not accumulate:
        mask = nodes[0].meta["val"]
        if use.operand(2).numel() != 1:
            raise use.refuse("values at the places of a mask, of which the number depends on data")
        open_axes = tuple(range(mask.dim(), use.rank))
        condition = apply("expand_dims", indices[0], open_axes) if open_axes else indices[0]
        return apply("where", condition, promoted(use, None, None, values)[2], x)
    key, places = _key(use, indices)
    return apply("index_put", x, key, promoted(use, None, None, values)[2], accumulate, *places)


@convert("gather.default")
def _gather(use: Use, x: Any, dim: int, index: Any, **ignored: Any) -> Any:
    sizes = zip(use.operand(0).shape, use.operand(2).shape, strict=True)
    for axis, (n, m) in enumerate(sizes):
        # PyTorch reads the first elements of a longer axis.
        if axis != dim % use.rank and n != m and isinstance(m, int):
            x = along(x, axis, slice(0, m))
    return apply("take_along_axis", x, index, dim)


@convert("take_along_dim.default")
def _take_along(use: Use, x: Any, index: Any, dim: Any = None) -> Any:
    return apply("take_along_axis", x, index, dim)


@convert("index_select.default")
def _index_select(use: Use, x: Any, dim: int, index: Any) -> Any:
    return apply("take", x, index, dim)


@convert("scatter.src", "scatter.value")
def _scatter(use: Use, x: Any, dim: int, index: Any, source: Any) -> Any:
    if not is_connection(source):
        source = apply("broadcast_to", apply("full", (), source, use.dtype), tuple(use.operand(2).shape))
    return apply("scatter", x, dim, index, source)


@convert("scatter_add.default")
def _scatter_add(use: Use, x: Any, dim: int, index: Any, source: Any) -> Any:
    return apply("scatter_add", x, index, source, dim)


@convert("index_add.default")
def _index_add(use: Use, x: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> Any:
    source = source if alpha == 1 else apply("multiply", source, alpha)
    return apply("index_add", x, index, source, dim)


@convert("index_copy.default")
def _index_copy(use: Use, x: Any, dim: int, index: Any, source: Any) -> Any:
    return apply("index_copy", x, index, source, dim)


@convert("one_hot.default")
def _one_hot(use: Use, x: Any, classes: int = -1) -> Any:
    if classes < 0:
        raise use.refuse("one_hot without a number of classes: the shape of the result depends on data")
    return apply("one_hot", x, classes, "int64")


@convert("bucketize.Tensor")
def _bucketize(use: Use, x: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    places = apply("searchsorted", boundaries, x, right)
    return apply("cast", places, "int32") if out_int32 else places
