"""Shapes, order and parts of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .registry import Use, apply, as_vectors, cast, convert, dtype_name, is_connection, promoted
from .symbols import are_equal, symbolic


@convert("view.default", "reshape.default", "_unsafe_view.default", "_reshape_copy.default", "view_copy.default")
def _reshape(use: Use, x: Any, shape: Any) -> Any:
    return apply("reshape", x, tuple(shape))


@convert("flatten.using_ints")
def _flatten(use: Use, x: Any, start: int = 0, end: int = -1) -> Any:
    rank = use.rank_of(0)
    if rank == 0:
        return apply("reshape", x, (1,))
    before, after = start % rank, rank - 1 - end % rank
    sizes = [size_of(use, x, 0, i) for i in range(rank)]
    return apply("reshape", x, (*sizes[:before], -1, *sizes[rank - after :]))


@convert("unflatten.int")
def _unflatten(use: Use, x: Any, dim: int, sizes: Any) -> Any:
    rank = use.rank_of(0)
    own = [size_of(use, x, 0, i) for i in range(rank)]
    return apply("reshape", x, (*own[: dim % rank], *sizes, *own[dim % rank + 1 :]))


def size_of(use: Use, x: Any, argument: int, axis: int) -> Any:
    """Give the size of a tensor along an axis: a number if it is known, else the size when running."""
    size = use.operand(argument).shape[axis]
    return size if isinstance(size, int) else x.shape[axis]


def along(x: Any, axis: int, key: Any) -> Any:
    """Index one axis."""
    if isinstance(key, slice) and (is_connection(key.start) or is_connection(key.stop)):
        whole = (None,) * axis
        starts, stops = (*whole, 0 if key.start is None else key.start), (*whole, key.stop)
        return apply("slice", x, starts, stops, None if key.step is None else (*(1,) * axis, key.step))
    return x[(slice(None),) * axis + (key,)]


@convert("permute.default")
def _permute(use: Use, x: Any, dims: Any) -> Any:
    return apply("transpose", x, tuple(d % len(dims) for d in dims))


@convert("transpose.int", "swapaxes.default")
def _transpose(use: Use, x: Any, a: int, b: int) -> Any:
    return x if use.rank == 0 else apply("swapaxes", x, a, b)


@convert("t.default", "numpy_T.default", "mT.default")
def _transposed(use: Use, x: Any) -> Any:
    return x if use.rank < 2 else apply("swapaxes", x, -1, -2)


@convert("movedim.int", "movedim.intlist")
def _move(use: Use, x: Any, source: Any, destination: Any) -> Any:
    rank = use.rank
    if rank == 0:
        return x
    sources, places = ([v] if isinstance(v, int) else list(v) for v in (source, destination))
    sources, places = [s % rank for s in sources], [p % rank for p in places]
    rest = iter([i for i in range(rank) if i not in sources])
    order = [sources[places.index(i)] if i in places else next(rest) for i in range(rank)]
    return apply("transpose", x, tuple(order))


@convert("unsqueeze.default")
def _unsqueeze(use: Use, x: Any, dim: int) -> Any:
    return apply("expand_dims", x, dim % use.rank)


@convert("squeeze.dim", "squeeze.dims", "squeeze.default")
def _squeeze(use: Use, x: Any, dims: Any = None) -> Any:
    operand = use.operand(0)
    rank = operand.dim()
    chosen = range(rank) if dims is None else [dims] if isinstance(dims, int) else dims
    # An axis of another size stays.
    axes = tuple(d % rank for d in chosen if rank and operand.shape[d] == 1)
    return apply("squeeze", x, axes) if axes else x


@convert("expand.default", "broadcast_to.default", "expand_copy.default")
def _expand(use: Use, x: Any, sizes: Any, *, implicit: bool = False) -> Any:
    new = len(sizes) - use.rank_of(0)
    shape = [size_of(use, x, 0, i - new) if isinstance(n, int) and n == -1 else n for i, n in enumerate(sizes)]
    return apply("broadcast_to", x, tuple(shape))


@convert("expand_as.default")
def _expand_as(use: Use, x: Any, other: Any) -> Any:
    return apply("broadcast_to", x, tuple(size_of(use, other, 1, i) for i in range(use.rank)))


@convert("repeat.default")
def _tile(use: Use, x: Any, repeats: Any) -> Any:
    return apply("tile", x, tuple(repeats))


@convert("repeat_interleave.self_int")
def _repeat(use: Use, x: Any, repeats: int, dim: Any = None, **ignored: Any) -> Any:
    return apply("repeat", x, repeats, dim)


@convert("slice.Tensor", "slice_copy.Tensor")
def _slice(use: Use, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    end = None if isinstance(end, int) and end > 2**40 else end
    if (start is None or (isinstance(start, int) and start == 0)) and end is None and step == 1:
        return x
    return along(x, dim % use.rank, slice(start, end, None if step == 1 else step))


@convert("select.int", "select_copy.int")
def _select(use: Use, x: Any, dim: int, index: Any) -> Any:
    return along(x, dim % (use.rank + 1), index)


@convert("narrow.default")
def _narrow(use: Use, x: Any, dim: int, start: Any, length: Any) -> Any:
    return along(x, dim % use.rank, slice(start, start + length))


@convert("split.Tensor", "split_with_sizes.default", "split.sizes", "split_with_sizes_copy.default")
def _split(use: Use, x: Any, sizes: Any, dim: int = 0) -> Any:
    parts = [part.shape[dim] for part in use.node.meta["val"]]
    axis = dim % use.rank
    if len(parts) == 1:
        return [x]
    if all(isinstance(n, int) for n in parts):
        return apply("split", x, tuple(parts), axis)
    ends = [use.size(sum(parts[:i])) for i in range(1, len(parts))]
    return [along(x, axis, slice(a, b)) for a, b in zip([0, *ends], [*ends, None], strict=True)]


@convert("chunk.default")
def _chunk(use: Use, x: Any, chunks: int, dim: int = 0) -> Any:
    return _split(use, x, None, dim)


@convert("unbind.int")
def _unbind(use: Use, x: Any, dim: int = 0) -> Any:
    count = len(use.node.meta["val"])
    return [along(x, dim % (use.rank + 1), i) for i in range(count)]


def _same_dtype(use: Use, xs: Any) -> list[Any]:
    values = [node.meta["val"] for node in use.node.args[0]]
    return [x if dtype_name(v.dtype) == use.dtype else cast(x, use.dtype) for x, v in zip(xs, values, strict=True)]


@convert("cat.default", "concat.default")
def _concat(use: Use, xs: Any, dim: int = 0) -> Any:
    values = [node.meta["val"] for node in use.node.args[0]]
    # A tensor of shape [0] fits to all others.
    kept = [x for x, v in zip(_same_dtype(use, xs), values, strict=True) if tuple(v.shape) != (0,) or use.rank == 1]
    return kept[0] if len(kept) == 1 else apply("concat", dim % use.rank, *kept)


@convert("stack.default")
def _stack(use: Use, xs: Any, dim: int = 0) -> Any:
    return apply("stack", dim % use.rank, *_same_dtype(use, xs))


@convert("constant_pad_nd.default")
def _pad_constant(use: Use, x: Any, pad: Any, value: float = 0.0) -> Any:
    return _pad(use, x, pad, "constant", value)


@convert("pad.default")
def _pad(use: Use, x: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    pairs: list[tuple[Any, Any]] = [(0, 0)] * use.rank
    for i in range(len(pad) // 2):
        pairs[use.rank - 1 - i] = (pad[2 * i], pad[2 * i + 1])
    is_known = all(isinstance(n, int) for pair in pairs for n in pair)
    if mode == "constant" and is_known:
        # Negative padding cuts off.
        key = tuple(slice(max(-a, 0) or None, min(b, 0) or None) if a < 0 or b < 0 else slice(None) for a, b in pairs)
        x = x[key] if any(k != slice(None) for k in key) else x
        pairs = [(max(a, 0), max(b, 0)) for a, b in pairs]
        if not any(n for pair in pairs for n in pair):
            return x
    if not is_known:
        # Pairs of sizes stand in one flat tuple.
        return apply("pad", x, tuple(n for pair in pairs for n in pair), mode, 0.0 if value is None else value)
    mode = {"replicate": "edge", "circular": "wrap"}.get(mode, mode)
    negative = [all(isinstance(n, int) for n in pair) and min(pair) < 0 for pair in pairs]
    if any(negative):
        cut = tuple(
            slice(max(-a, 0) or None, min(b, 0) or None) if is_cut else slice(None)
            for (a, b), is_cut in zip(pairs, negative, strict=True)
        )
        pads = tuple(
            (max(a, 0), max(b, 0)) if is_cut else (a, b) for (a, b), is_cut in zip(pairs, negative, strict=True)
        )
        # What is wrapped around is that which is left; edges and mirrors are those of the whole.
        x = x[cut] if mode == "wrap" else apply("pad", x, pads, mode, 0.0)
        return apply("pad", x, pads, mode, 0.0) if mode == "wrap" else x[cut]
    return apply("pad", x, tuple(pairs), mode, 0.0 if value is None else value)


@convert("reflection_pad1d.default", "reflection_pad2d.default")
def _pad_reflected(use: Use, x: Any, pad: Any) -> Any:
    return _pad(use, x, pad, "reflect")


@convert("replication_pad1d.default", "replication_pad2d.default")
def _pad_replicated(use: Use, x: Any, pad: Any) -> Any:
    return _pad(use, x, pad, "replicate")


@convert("roll.default")
def _roll(use: Use, x: Any, shifts: Any, dims: Any = ()) -> Any:
    if dims:
        return rolled(x, shifts, [dim % use.rank for dim in dims])
    if not is_connection(shifts[0]):
        return apply("roll", x, shifts[0], None)
    return apply("reshape", rolled(apply("reshape", x, (-1,)), shifts, [0]), use.sizes)


def rolled(x: Any, shifts: Sequence[Any], axes: Sequence[int]) -> Any:
    """Move elements along axes by numbers that may depend on sizes; those behind the end come to the front."""
    if not any(map(is_connection, shifts)):
        return apply("roll", x, tuple(shifts), tuple(axes))
    for shift, axis in zip(shifts, axes, strict=True):
        first = -shift % x.shape[axis]
        x = apply("concat", axis, along(x, axis, slice(first, None)), along(x, axis, slice(0, first)))
    return x


@convert("flip.default")
@as_vectors
def _flip(use: Use, x: Any, dims: Any) -> Any:
    return apply("flip", x, tuple(dims))


@convert("tril.default", "triu.default")
def _triangle(use: Use, x: Any, diagonal: int = 0) -> Any:
    return apply(str(use.node.target).split(".")[1], x, diagonal)


@convert("diagonal.default")
def _diagonal(use: Use, x: Any, offset: int = 0, a: int = 0, b: int = 1) -> Any:
    return apply("diagonal", x, offset, a, b)


@convert("slice_scatter.default")
def _slice_scatter(
    use: Use, x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    size, axis = use.shape[dim], dim % use.rank
    if isinstance(size, int) and not (is_connection(start) or is_connection(end)):
        first, stop, _ = slice(start, end).indices(size)
        count: Any = len(range(first, stop, step))
    else:
        # PyTorch says how many elements there are between the ends.
        count = use.operand(1).shape[dim]
        first = _first(use, start, end, size, count)
    return _replaced(use, x, source, axis, first, count, step)


@convert("select_scatter.default")
def _select_scatter(use: Use, x: Any, source: Any, dim: int, index: Any) -> Any:
    row = apply("expand_dims", source, dim % use.rank)
    size = use.shape[dim]
    return _replaced(use, x, row, dim % use.rank, index + size if _is_negative(index) else index, 1, 1)


def _first(use: Use, start: Any, end: Any, size: Any, count: Any) -> Any:
    """Find where a slice of ``count`` elements begins, in PyTorch's numbers."""
    start = 0 if start is None else use.operand(3) if is_connection(start) else start
    if not _is_negative(start):
        return start
    return size - count if end is None or (isinstance(end, int) and end > 2**40) else size + start


def _replaced(use: Use, x: Any, source: Any, axis: int, first: Any, count: Any, step: int) -> Any:
    """Replace elements of an axis: ``count`` of them from ``first`` on; both may be symbols of PyTorch."""
    size, end = use.shape[axis], first + count * step
    source = promoted_source(use, source)
    if step != 1:
        places = apply("arange", use.size(first), use.size(end), step, "int64")
        return apply("index_copy", x, places, source, axis)
    before = [along(x, axis, slice(0, use.size(first)))] if not are_equal(first, 0) else []
    rest = size - end
    if are_equal(rest, 0):
        behind = []
    else:
        behind = [along(x, axis, slice(-rest if isinstance(rest, int) else use.size(end), None))]
    parts = [*before, source, *behind]
    return parts[0] if len(parts) == 1 else apply("concat", axis, *parts)


def _is_negative(x: Any) -> bool:
    expression = symbolic(x)
    return x < 0 if expression is None else bool(expression.is_negative)


def promoted_source(use: Use, source: Any) -> Any:
    """Cast what is put in to the dtype of the result."""
    return promoted(use, None, source)[1]
