"""Elements at positions that are data."""

from __future__ import annotations

from typing import Any

import numpy as np

from .movement import along, size_of
from .registry import Use, apply, as_vectors, convert, dtype_name, is_connection, promoted, tensor


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


def _masked(use: Use, x: Any, mask: Any, values: Any, accumulate: bool) -> Any:
    """Put values, the same for all of them, at the places of a mask."""
    rank, shape = use.node.args[1][-1].meta["val"].dim(), tuple(use.operand(2).shape)
    inner = use.rank - len(use.node.args[1]) + 1 - rank
    outer = len(shape) - inner
    if outer > 0 and shape[outer - 1] != 1:
        raise use.refuse("values at the places of a mask, of which the number depends on data")
    values = promoted(use, None, None, values)[2]
    if outer > 0:
        # The axis of the places becomes those of the mask.
        values = apply("reshape", values, (*shape[: outer - 1], *(1,) * rank, *shape[outer:]))
    condition = apply("expand_dims", mask, tuple(range(rank, rank + inner))) if inner else mask
    return x + apply("where", condition, values, 0) if accumulate else apply("where", condition, values, x)


@convert("index_put.default", "_unsafe_index_put.default", "_index_put_impl.default")
def _index_put(use: Use, x: Any, indices: Any, values: Any, accumulate: bool = False, *ignored: Any) -> Any:
    *others, last = use.node.args[1]
    if not any(others) and dtype_name(last.meta["val"].dtype) == "bool":
        return _masked(use, x, indices[-1], values, accumulate)
    key, places = _key(use, indices)
    return apply("index_put", x, key, promoted(use, None, None, values)[2], accumulate, *places)


@convert("gather.default")
@as_vectors
def _gather(use: Use, x: Any, dim: int, index: Any, **ignored: Any) -> Any:
    if len(use.operand(2).shape) != use.rank_of(0):
        # Only an index without elements may have other axes.
        return apply("full", use.sizes, 0, use.dtype)
    sizes = zip(use.operand(0).shape, use.operand(2).shape, strict=True)
    for axis, (n, m) in enumerate(sizes):
        # PyTorch reads the first elements of a longer axis.
        if axis != dim % use.rank and n != m and isinstance(m, int):
            x = along(x, axis, slice(0, m))
    return apply("take_along_axis", x, index, dim)


@convert("take_along_dim.default")
@as_vectors
def _take_along(use: Use, x: Any, index: Any, dim: Any = None) -> Any:
    if dim is None:
        x, index, dim = apply("reshape", x, (-1,)), apply("reshape", index, (-1,)), 0
    return apply("take_along_axis", x, index, dim)


@convert("index_select.default")
@as_vectors
def _index_select(use: Use, x: Any, dim: int, index: Any) -> Any:
    return apply("take", x, index, dim)


@convert("scatter.src", "scatter.value")
@as_vectors
def _scatter(use: Use, x: Any, dim: int, index: Any, source: Any) -> Any:
    if not is_connection(source):
        source = apply("broadcast_to", apply("full", (), source, use.dtype), index.shape)
    return apply("scatter", x, dim, index, source)


_REDUCTIONS = {"add": "sum", "multiply": "prod"}


@convert("scatter_reduce.two")
@as_vectors
def _scatter_reduce(
    use: Use, x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    return apply("scatter_reduce", x, dim, index, source, reduce, include_self)


@convert("scatter.reduce", "scatter.value_reduce")
@as_vectors
def _scatter_reduced(use: Use, x: Any, dim: int, index: Any, source: Any, *, reduce: str) -> Any:
    if not is_connection(source):
        source = apply("full", tuple(size_of(use, index, 2, i) for i in range(use.rank)), source, use.dtype)
    return apply("scatter_reduce", x, dim, index, source, _REDUCTIONS[reduce], True)


@convert("index_reduce.default")
@as_vectors
def _index_reduce(
    use: Use, x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    like = tuple(-1 if axis == dim % use.rank else 1 for axis in range(use.rank))
    shape = tuple(size_of(use, source, 3, i) for i in range(use.rank))
    index = apply("broadcast_to", apply("reshape", index, like), shape)
    return apply("scatter_reduce", x, dim, index, source, reduce, include_self)


@convert("index_fill.int_Scalar", "index_fill.int_Tensor")
@as_vectors
def _index_fill(use: Use, x: Any, dim: int, index: Any, value: Any) -> Any:
    value = apply("reshape", value, ()) if is_connection(value) else value
    return apply("index_fill", x, indices=index, value=value, axis=dim)


@convert("masked_scatter.default")
def _masked_scatter(use: Use, x: Any, mask: Any, source: Any) -> Any:
    x, mask = (
        y if tuple(use.operand(i).shape) == use.shape else apply("broadcast_to", y, use.sizes)
        for i, y in enumerate((x, mask))
    )
    return apply("masked_scatter", x, mask, source)


@convert("put.default")
def _put(use: Use, x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    flat = apply("reshape", x, (-1,))
    index, source = apply("reshape", index, (-1,)), apply("reshape", source, (-1,))
    y = apply("index_put", flat, ("tensor",), source, accumulate, index)
    return apply("reshape", y, tuple(size_of(use, x, 0, i) for i in range(use.rank)))


@convert("take.default")
def _take(use: Use, x: Any, index: Any) -> Any:
    return apply("take", apply("reshape", x, (-1,)), index, 0)


@convert("diagonal_scatter.default")
def _diagonal_scatter(use: Use, x: Any, source: Any, offset: int = 0, a: int = 0, b: int = 1) -> Any:
    a, b = a % use.rank, b % use.rank
    if not all(isinstance(use.shape[d], int) for d in (a, b)):
        raise use.refuse("of sizes that are not known when converting")
    rows, columns = (np.arange(use.shape[d]) for d in (a, b))
    on = columns - rows[:, None] == offset
    # Where a row has no element of the diagonal, any one stands for it.
    count = max(int(on.sum()), 1)
    first = min(offset, 0)
    (source,) = promoted(use, None, source)[1:]
    spread = apply("take", source, tensor(np.clip(rows + first, 0, count - 1)), -1)
    order = [i for i in range(use.rank) if i not in (a, b)]
    moved = apply("transpose", x, (*order, a, b))
    moved = apply("where", tensor(on), apply("expand_dims", spread, -1), moved)
    return apply("transpose", moved, tuple(int(i) for i in np.argsort((*order, a, b))))


@convert("unfold.default")
def _unfold(use: Use, x: Any, dim: int, size: int, step: int) -> Any:
    rank = use.rank_of(0)
    if rank == 0:
        return apply("reshape", x, (size,))
    count = use.shape[dim % rank]
    if isinstance(count, int):
        places: Any = tensor(np.arange(count)[:, None] * step + np.arange(size))
    else:
        starts = apply("arange", 0, use.size(count), 1, "int64") * step
        places = apply("expand_dims", starts, 1) + tensor(np.arange(size))
    windows = apply("take", x, places, dim % rank)
    return apply("moveaxis", windows, dim % rank + 1, -1)


@convert("scatter_add.default")
@as_vectors
def _scatter_add(use: Use, x: Any, dim: int, index: Any, source: Any) -> Any:
    sizes = (use.operand(i).shape for i in (0, 2, 3))
    if any(len(set(map(str, n))) > 1 for axis, n in enumerate(zip(*sizes, strict=True)) if axis != dim % use.rank):
        return apply("scatter_reduce", x, dim, index, source, "sum", True)
    return apply("scatter_add", x, index, source, dim)


@convert("index_add.default")
@as_vectors
def _index_add(use: Use, x: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> Any:
    source = source if alpha == 1 else apply("multiply", source, alpha)
    return apply("index_add", x, index, source, dim)


@convert("index_copy.default")
@as_vectors
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


@convert("as_strided.default", "as_strided_copy.default")
def _as_strided(use: Use, x: Any, size: Any, stride: Any, offset: Any = None) -> Any:
    own = use.operand(0)
    layouts = [[str(n) for n in (*v.shape, *v.stride(), v.storage_offset())] for v in (own, use.value)]
    if layouts[0] == layouts[1]:
        return x
    numbers = (*own.shape, *own.stride(), own.storage_offset(), *size, *stride, offset or 0)
    if not all(isinstance(n, int) for n in numbers):
        raise use.refuse("of sizes or strides that are not known when converting")
    # The elements in the order in which they lie in memory.
    order = sorted(range(own.dim()), key=lambda axis: (-own.stride(axis), -own.shape[axis]))
    if not own.permute(order).is_contiguous():
        raise use.refuse("of a tensor that is a part of a larger one: call contiguous() first")
    if order != list(range(own.dim())):
        x = apply("transpose", x, tuple(order))
    start = 0 if offset is None else offset - own.storage_offset()
    places = np.full(tuple(size), start, np.int64)
    for axis, (count, step) in enumerate(zip(size, stride, strict=True)):
        places += (np.arange(count) * step).reshape((-1,) + (1,) * (len(size) - axis - 1))
    if places.size and not 0 <= places.min() <= places.max() < own.numel():
        raise use.refuse("of elements outside of the tensor: use one that holds them all")
    flat = apply("reshape", x, (-1,))
    in_order = places.ravel()
    if places.size and (in_order == np.arange(start, start + places.size)).all():
        return apply("reshape", along(flat, 0, slice(start, start + places.size)), tuple(size))
    return apply("take", flat, tensor(places), 0)
