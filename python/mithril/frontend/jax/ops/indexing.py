"""Elements and slices at positions: gather and scatter as indexing in JAX makes them, and dynamic slices."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..sizes import is_open
from .registry import Use, apply, cast, convert, is_connection, tensor


def _clipped(start: Any, last: Any) -> Any:
    if not is_connection(start) and not is_open(start) and not is_open(last):
        return np.clip(start, 0, last)
    start = start if is_open(start) else tensor(start)
    return apply("minimum", apply("maximum", start, 0), last)


def _counted(shape: Sequence[Any], axis: int) -> Any:
    """Positions along an axis of a tensor of this shape."""
    if any(map(is_open, shape)):
        others = tuple(i for i in range(len(shape)) if i != axis)
        x = apply("arange", 0, shape[axis], 1, "int32")
        return apply("broadcast_to", apply("expand_dims", x, others) if others else x, tuple(shape))
    like = [-1 if i == axis else 1 for i in range(len(shape))]
    return np.broadcast_to(np.arange(shape[axis], dtype=np.int32).reshape(like), shape)


def _places(start: Any, batch: Sequence[int], windows: Sequence[int], k: int) -> Any:
    """Positions along one axis, of shape ``[*batch, *windows]``: those of a window after its start."""
    full = (*batch, *windows)
    if any(map(is_open, windows)):
        start = apply("expand_dims", tensor(start), tuple(range(len(batch), len(full))))
        return apply("add", start, _counted(full, len(batch) + k))
    shape = [1] * (len(batch) + len(windows))
    shape[len(batch) + k] = windows[k]
    steps = np.arange(windows[k], dtype=np.int32).reshape(shape)
    if not is_connection(start):
        return np.broadcast_to(np.asarray(start).reshape(*batch, *[1] * len(windows)) + steps, full)
    start = apply("reshape", start, (*batch, *[1] * len(windows)))
    if windows[k] > 1:
        start = apply("add", start, tensor(steps))
    return start if all(n == 1 for i, n in enumerate(windows) if i != k) else apply("broadcast_to", start, full)


class _Starts:
    """Where slices start: a tensor of indices, taken apart.

    Parameters
    ----------
    use : Use
        The gather or scatter.
    indices : array or connection
        Its indices, ``[..., components]``.
    numbers : GatherDimensionNumbers or ScatterDimensionNumbers
        What the components mean.
    windows : sequence of int
        Size of the slice along each axis of the operand.
    """

    def __init__(self, use: Use, indices: Any, numbers: Any, windows: Sequence[int]) -> None:
        self.shape, self.windows = use.shape_of(0), list(windows)
        mapped = getattr(numbers, "start_index_map", None)
        self.mapped = list(numbers.scatter_dims_to_operand_dims if mapped is None else mapped)
        own = getattr(numbers, "start_indices_batching_dims", None)
        own = numbers.scatter_indices_batching_dims if own is None else own
        self.batch = tuple(use.shape_of(1)[:-1])
        self.starts = [indices[..., i] for i in range(len(self.mapped))]
        for axis, place in zip(numbers.operand_batching_dims, own, strict=True):
            self.mapped.append(axis)
            self.starts.append(_counted(self.batch, place))
        for axis, size in enumerate(self.shape):
            if axis not in self.mapped and self.windows[axis] != size:
                self.mapped.append(axis)
                self.starts.append(np.zeros(self.batch, np.int32))
        self.rest = [axis for axis in range(len(self.shape)) if axis not in self.mapped]
        self.sizes = [self.windows[axis] for axis in self.mapped]
        self.last = [self.shape[axis] - self.windows[axis] for axis in self.mapped]
        self.order = (*self.mapped, *self.rest)

    def is_inside(self) -> Any:
        """Whether each slice lies within the tensor: True if that is known."""
        result: Any = True
        for start, last in zip(self.starts, self.last, strict=True):
            if is_connection(start) or is_open(last):
                start = tensor(start)
                part = apply("logical_and", apply("greater_equal", start, 0), apply("less_equal", start, last))
            else:
                part = (start >= 0) & (start <= last)
                if part.all():
                    continue
                part = tensor(part)
            result = part if result is True else apply("logical_and", result, part)
        return result

    def drops(self, mode: Any) -> bool:
        """Whether a scatter drops what lies outside: JAX also does where the opposite is promised."""
        name = str(mode).rpartition(".")[2]
        return name == "FILL_OR_DROP" or (name == "PROMISE_IN_BOUNDS" and not any(map(is_connection, self.starts)))

    def clip(self) -> None:
        """Move slices into the tensor."""
        self.starts = [_clipped(start, last) for start, last in zip(self.starts, self.last, strict=True)]

    def places(self) -> list[Any]:
        """Positions along the axes that are indexed, each ``[*batch, *sizes]``."""
        indices = [_places(start, self.batch, self.sizes, k) for k, start in enumerate(self.starts)]
        return [tensor(np.ascontiguousarray(p)) if not is_connection(p) else p for p in indices]


def _transposed(x: Any, order: Sequence[int]) -> Any:
    order = tuple(int(axis) for axis in order)
    return x if order == tuple(range(len(order))) else apply("transpose", x, order)


@convert("gather")
def _gather(
    use: Use, x: Any, indices: Any, *, dimension_numbers: Any, slice_sizes: Any, mode: Any, **params: Any
) -> Any:
    at = _Starts(use, indices, dimension_numbers, slice_sizes)
    numbers, fill = dimension_numbers, params.get("fill_value")
    is_filled = str(mode).rpartition(".")[2] == "FILL_OR_DROP"
    inside = at.is_inside() if is_filled else True
    is_known = not any(map(is_connection, at.starts))
    if at.mapped and not at.batch and use.is_open and is_known and inside is True and "CLIP" not in str(mode):
        return _sliced(tensor(x), at, dimension_numbers.collapsed_slice_dims)
    # JAX clips what is promised to be inside, too.
    if not is_filled or inside is not True:
        at.clip()
    y = _transposed(tensor(x), at.order)
    y = apply("getitem", y, ("tensor",) * len(at.mapped), *at.places()) if at.mapped else y
    # Axes are now those of the indices, of the windows, and the rest.
    count = len(at.batch)
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    place = (
        {axis: count + i for i, axis in enumerate(at.order)}
        if at.mapped
        else dict(enumerate(range(count, count + len(at.shape))))
    )
    if not at.mapped and count:
        y = apply("broadcast_to", y, (*at.batch, *at.shape))
    kept = [axis for axis in range(len(at.shape)) if axis not in dropped]
    gone = [place[axis] for axis in dropped]
    y = apply("squeeze", y, tuple(sorted(gone))) if gone else y
    now = {axis: place[axis] - sum(g < place[axis] for g in gone) for axis in kept}
    sources: list[int] = [0] * use.rank
    offsets = list(numbers.offset_dims)
    for axis, target in zip(kept, offsets, strict=True):
        sources[target] = now[axis]
    free = [i for i in range(use.rank) if i not in offsets]
    for i, target in enumerate(free):
        sources[target] = i
    y = _transposed(y, sources)
    if inside is True:
        return y
    fill = _fill(use.dtype) if fill is None else fill
    shape = [use.shape[i] if i in free else 1 for i in range(use.rank)]
    return apply("where", apply("reshape", inside, tuple(shape)), y, fill)


def _sliced(x: Any, at: _Starts, dropped: Sequence[int]) -> Any:
    """One slice that starts at a known place, but whose size may have a name."""
    starts: list[Any] = [0] * len(at.shape)
    stops: list[Any] = [None] * len(at.shape)
    for axis, start in zip(at.mapped, at.starts, strict=True):
        starts[axis] = int(start)
        stops[axis] = int(start) + at.windows[axis]
    y = apply("slice", x, tuple(starts), tuple(stops), None)
    return apply("squeeze", y, tuple(dropped)) if dropped else y


def _fill(dtype: str) -> Any:
    if "float" in dtype:
        return float("nan")
    return True if dtype == "bool" else int(np.iinfo(dtype).max if dtype.startswith("uint") else np.iinfo(dtype).min)


def _updates(use: Use, indices: Any, updates: Any, numbers: Any) -> tuple[_Starts, Any]:
    """Take apart where a scatter writes, and put what it writes in the order of the batch, the windows and the rest."""
    shape, update_shape = use.shape_of(0), use.shape_of(2)
    inserted = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    kept = [axis for axis in range(len(shape)) if axis not in inserted]
    windows = [1] * len(shape)
    for axis, place in zip(kept, numbers.update_window_dims, strict=True):
        windows[axis] = update_shape[place]
    at = _Starts(use, indices, numbers, windows)
    free = [i for i in range(len(update_shape)) if i not in numbers.update_window_dims]
    by_axis = dict(zip(kept, numbers.update_window_dims, strict=True))
    values = _transposed(tensor(updates), (*free, *(by_axis[axis] for axis in at.order if axis in by_axis)))
    return at, apply("reshape", values, (*at.batch, *(windows[axis] for axis in at.order)))


@convert("scatter", "scatter-add", "scatter_add", "scatter-sub", "scatter_sub")
def _scatter(use: Use, x: Any, indices: Any, updates: Any, *, dimension_numbers: Any, mode: Any, **ignored: Any) -> Any:
    shape, name = use.shape_of(0), str(use.eqn.primitive.name)
    computed = ignored.get("update_jaxpr")
    if name == "scatter" and computed is not None and computed.eqns:
        raise use.refuse("of a function of the elements, as x.at[i].apply(f): write x.at[i].set(f(x[i]))")
    at, values = _updates(use, indices, updates, dimension_numbers)
    accumulate = name != "scatter"
    values = apply("negative", values) if name.endswith("sub") else values
    if not at.mapped:
        if at.batch and int(np.prod(at.batch)) != 1:
            raise use.refuse("several updates of a whole tensor")
        values = apply("reshape", values, shape)
        return apply("add", tensor(x), values) if accumulate else values
    y = _transposed(tensor(x), at.order)
    inside = at.is_inside() if at.drops(mode) else True
    if inside is True:
        if str(mode).rpartition(".")[2] == "CLIP":
            at.clip()
        y = apply("index_put", y, ("tensor",) * len(at.mapped), values, accumulate, *at.places())
        return _transposed(y, np.argsort(at.order).tolist())
    # Updates outside are dropped: they go to rows behind the last one.
    at.clip()
    size = shape[at.mapped[0]]
    pads = (0, at.sizes[0], *(0, 0) * (len(shape) - 1))
    y = apply("pad", y, pads, "constant", False if use.dtype == "bool" else 0)
    at.starts[0] = apply("where", inside, tensor(at.starts[0]), size)
    y = apply("index_put", y, ("tensor",) * len(at.mapped), values, accumulate, *at.places())
    return _transposed(_first_rows(y, size), np.argsort(at.order).tolist())


def _first_rows(x: Any, count: Any) -> Any:
    return apply("slice", x, (0,), (count,), None)


def _product(sizes: Iterable[Any]) -> Any:
    """Multiply sizes, which may have names."""
    return functools.reduce(operator.mul, (n if is_open(n) else int(n) for n in sizes), 1)


_REDUCTIONS = {"mul": "prod", "min": "amin", "max": "amax"}


@convert("scatter-mul", "scatter-min", "scatter-max", "scatter_mul", "scatter_min", "scatter_max")
def _scatter_reduced(
    use: Use, x: Any, indices: Any, updates: Any, *, dimension_numbers: Any, mode: Any, **ignored: Any
) -> Any:
    shape = use.shape_of(0)
    kind = _REDUCTIONS[str(use.eqn.primitive.name)[-3:]]
    is_truth = use.dtype == "bool"
    if is_truth:
        x, updates = (cast(tensor(v), "int32") for v in (x, updates))
    at, values = _updates(use, indices, updates, dimension_numbers)
    if not at.mapped:
        # One update of the whole, in its order.
        op = {"prod": "multiply", "amin": "minimum", "amax": "maximum"}[kind]
        y = apply(op, tensor(x), apply("reshape", values, shape))
        return cast(y, "bool") if is_truth else y
    inside = at.is_inside() if at.drops(mode) else True
    if inside is not True or str(mode).rpartition(".")[2] == "CLIP":
        at.clip()
    rows = _product(shape[axis] for axis in at.mapped)
    y = apply("reshape", _transposed(tensor(x), at.order), (rows, -1))
    flat: Any = 0
    for place, axis in zip(at.places(), at.mapped, strict=True):
        flat = place if isinstance(flat, int) else apply("add", apply("multiply", flat, shape[axis]), place)
    if inside is not True:
        # Updates outside go to a row behind the last one.
        open_axes = tuple(range(len(at.batch), len(at.batch) + len(at.sizes)))
        flat = apply("where", apply("expand_dims", tensor(inside), open_axes), flat, rows)
        y = apply("pad", y, ((0, 1), (0, 0)), "constant", 0.0 if "float" in use.dtype else 0)
    values = apply("reshape", values, (-1, _product(shape[axis] for axis in at.rest)))
    flat = apply("expand_dims", apply("reshape", flat, (-1,)), 1)
    flat = apply("broadcast_to", flat, values.shape)
    y = apply("scatter_reduce", y, 0, flat, values, kind, True)
    y = apply("reshape", _first_rows(y, rows) if inside is not True else y, tuple(shape[axis] for axis in at.order))
    y = cast(y, "bool") if is_truth else y
    return _transposed(y, np.argsort(at.order).tolist())


@convert("dynamic_slice")
def _dynamic_slice(use: Use, x: Any, *starts: Any, slice_sizes: Any, **ignored: Any) -> Any:
    x, shape = tensor(x), use.shape_of(0)
    for axis, (start, size) in enumerate(zip(starts, slice_sizes, strict=True)):
        if size == shape[axis]:
            continue
        first = _clipped(start, shape[axis] - size)
        if is_connection(first):
            x = apply("take", x, apply("add", first, apply("arange", 0, size, 1, "int32")), axis)
        else:
            x = x[(slice(None),) * axis + (slice(int(first), int(first) + size),)]
    return x


@convert("dynamic_update_slice")
def _dynamic_update_slice(use: Use, x: Any, update: Any, *starts: Any, **ignored: Any) -> Any:
    shape, sizes = use.shape, use.shape_of(1)
    firsts = [_clipped(s, n - m) for s, n, m in zip(starts, shape, sizes, strict=True)]
    moving = [i for i in range(len(shape)) if sizes[i] != shape[i]]
    if not moving:
        return update
    if not any(is_connection(firsts[i]) for i in moving):
        stops = tuple(int(firsts[i]) + sizes[i] for i in range(len(shape)))
        return apply("slice_update", tensor(x), tensor(update), tuple(int(f) for f in firsts), stops)
    order = (*moving, *(i for i in range(len(shape)) if i not in moving))
    windows = [sizes[i] for i in moving]
    places = [_places(firsts[axis], (), windows, k) for k, axis in enumerate(moving)]
    key = [p if is_connection(p) else tensor(np.ascontiguousarray(p)) for p in places]
    values = _transposed(tensor(update), order)
    y = apply("index_put", _transposed(tensor(x), order), ("tensor",) * len(moving), values, False, *key)
    return _transposed(y, np.argsort(order).tolist())
