"""Reductions over windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..sizes import is_open
from .folds import Fold
from .movement import along, padded, spread
from .registry import OPS, Use, apply, cast, convert, is_connection, tensor

#: Of a function of two elements that is one primitive: the reduction, and what joins it with the initial value.
_MONOIDS = {
    "add": ("sum", "add"),
    "mul": ("prod", "multiply"),
    "max": ("max", "maximum"),
    "min": ("min", "minimum"),
    "and": ("all", "logical_and"),
    "or": ("any", "logical_or"),
}


def _monoid(use: Use, jaxpr: Any) -> str | None:
    """Name the primitive that a function of two elements is; None of another function."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    if len(inner.eqns) == 1 and set(inner.eqns[0].invars) == set(inner.invars) and len(inner.invars) == 2:
        name = str(inner.eqns[0].primitive.name)
        is_truth = use.dtype == "bool"
        if name in _MONOIDS and is_truth == (name in ("and", "or")):
            return name
    return None


def _neutral(name: str, dtype: str) -> Any:
    if name in ("add", "mul"):
        return (0 if name == "add" else 1) if "int" in dtype else (0.0 if name == "add" else 1.0)
    if name in ("and", "or"):
        return name == "and"
    if "int" in dtype:
        return int(np.iinfo(dtype).min if name == "max" else np.iinfo(dtype).max)
    return float("-inf" if name == "max" else "inf")


def _joined(use: Use, name: str, y: Any, initial: Any) -> Any:
    """Join a reduction with its initial value, unless that changes nothing."""
    if not is_connection(initial) and np.asarray(initial).item() == _neutral(name, use.dtype):
        return y
    return apply(_MONOIDS[name][1], y, tensor(initial))


@convert("reduce")
def _reduce(use: Use, *xs: Any, dimensions: Any, jaxpr: Any, **ignored: Any) -> Any:
    count = len(xs) // 2
    operands, initial = [tensor(x) for x in xs[:count]], xs[count:]
    if (name := _monoid(use, jaxpr)) is not None:
        y = operands[0]
        if dimensions:
            y = apply(_MONOIDS[name][0], y, tuple(dimensions), False)
        return [_joined(use, name, cast(y, use.dtype) if "int" in use.dtype else y, initial[0])]
    fold, shape = Fold(use, jaxpr.jaxpr, jaxpr.consts), list(use.shape_of(0))
    if not all(shape[axis] for axis in dimensions):
        return [apply("broadcast_to", tensor(x), use.shape) if use.shape else tensor(x) for x in initial]
    if any(map(is_connection, initial)):
        raise use.refuse("by a function of its own from an initial value that is data")
    fold.check(initial)
    for axis in sorted(dimensions, reverse=True):
        operands = fold.along(operands, axis, shape)
        del shape[axis]
    return fold.started(initial, operands, shape)


@convert("reduce_window")
def _reduce_window(use: Use, *xs: Any, jaxpr: Any, consts: Any, **params: Any) -> Any:
    count = len(xs) // 2
    operands, initial = [tensor(x) for x in xs[:count]], xs[count:]
    if (name := _monoid(use, jaxpr)) is not None:
        return [_joined(use, name, reduced(use, name, operands[0], use.shape_of(0), **params), initial[0])]
    if any(map(is_connection, initial)):
        raise use.refuse("by a function of its own from an initial value that is data")
    fold = Fold(use, jaxpr, consts)
    fold.check(initial)
    parts = [_windows(use, x, np.asarray(v).item(), **params) for x, v in zip(operands, initial, strict=True)]
    size = int(np.prod(params["window_dimensions"]))
    return fold.started(initial, fold.along(parts, use.rank, [*use.shape, size]), use.shape)


def _dilated(x: Any, shape: Sequence[int], base_dilation: Sequence[int], value: Any) -> tuple[Any, list[int]]:
    """Spread elements with a value between them; give the shape, too."""
    sizes = list(shape)
    for axis, inner in enumerate(base_dilation):
        if int(inner) == 1:
            continue
        x = spread(x, axis, int(inner) - 1, tuple(sizes), value)
        sizes[axis] = (sizes[axis] - 1) * int(inner) + 1 if sizes[axis] else 0
    return x, sizes


def _windows(
    use: Use,
    x: Any,
    value: Any,
    *,
    window_dimensions: Any,
    window_strides: Any,
    padding: Any,
    base_dilation: Any,
    window_dilation: Any,
    **ignored: Any,
) -> Any:
    """Make windows, ``[*positions, elements]``."""
    x, shape = _dilated(x, use.shape_of(0), base_dilation, value)
    rank = use.rank
    x = padded(x, [tuple(map(int, pair)) for pair in padding], value)
    sizes = [int(n + sum(pair)) for n, pair in zip(shape, padding, strict=True)]
    sliding = [i for i in range(rank) if window_dimensions[i] != 1 or window_strides[i] != 1]
    if not sliding:
        return apply("expand_dims", x, -1)
    if len(sliding) > 3:
        raise use.refuse("over windows of more than three axes")
    order = (*(i for i in range(rank) if i not in sliding), *sliding)
    x = x if order == tuple(range(rank)) else apply("transpose", x, order)
    x = apply("reshape", x, (-1, 1, *(sizes[i] for i in sliding)))
    window, stride, gaps = (
        tuple(int(part[i]) for i in sliding) for part in (window_dimensions, window_strides, window_dilation)
    )
    x = apply("windows", x, window, stride, 0, gaps, value)
    x = apply("reshape", x, (*(use.shape[i] for i in order), int(np.prod(window))))
    return apply("transpose", x, (*(int(i) for i in np.argsort(order)), rank))


@convert("select_and_gather_add")
def _select_and_gather_add(use: Use, x: Any, chosen: Any, *, select_prim: Any, **params: Any) -> Any:
    """Take the element of the first tensor where the second is the largest, or smallest, of each window."""
    name = str(select_prim.name)
    if "float" not in use.dtype or name not in ("ge", "le"):
        raise use.refuse("of integers, or by another comparison than ge and le")
    values = _windows(use, tensor(x), 0.0, **params)
    keys = _windows(use, tensor(chosen), float("-inf" if name == "ge" else "inf"), **params)
    places = apply("argmax" if name == "ge" else "argmin", keys, -1, True)
    return apply("squeeze", apply("take_along_axis", values, places, -1), (-1,))


@convert("reduce_window_max", "reduce_window_min", "reduce_window_sum")
def _window(use: Use, x: Any, **params: Any) -> Any:
    kind = str(use.eqn.primitive.name).rpartition("_")[2]
    return reduced(use, {"sum": "add"}.get(kind, kind), x, use.shape_of(0), **params)


def reduced(
    use: Use,
    name: str,
    x: Any,
    shape: Sequence[int],
    *,
    window_dimensions: Any,
    window_strides: Any,
    padding: Any,
    base_dilation: Any,
    window_dilation: Any,
    **ignored: Any,
) -> Any:
    """Reduce windows that slide over any of the axes."""
    value, rank = _neutral(name, use.dtype), len(shape)
    x, shape = _dilated(x, shape, base_dilation, value)
    sliding = [i for i in range(rank) if window_dimensions[i] != 1 or window_strides[i] != 1 or any(padding[i])]
    # Windows have up to three axes: those of more are reduced one after the other.
    if later := sliding[3:]:
        parts = (window_dimensions, window_strides, padding, base_dilation, window_dilation)
        names = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
        plain = (1, 1, (0, 0), 1, 1)
        first, second = (
            {
                name: [value if (i in later) == is_later else unit for i, value in enumerate(part)]
                for name, part, unit in zip(names, parts, plain, strict=True)
            }
            for is_later in (False, True)
        )
        for own in (first, second):
            own["base_dilation"] = [1] * rank
        x = reduced(use, name, x, shape, **first)
        return reduced(use, name, x, _sizes(shape, **first), **second)
    after = _sizes(shape, window_dimensions, window_strides, padding, window_dilation)
    fixed = [i for i in range(rank) if i not in sliding]
    window, stride, gaps = (
        tuple(int(part[i]) for i in sliding) for part in (window_dimensions, window_strides, window_dilation)
    )
    if any(any(padding[i]) for i in sliding):
        x = padded(x, padding, value)
    order = (*fixed, *sliding)
    x = x if order == tuple(range(rank)) else apply("transpose", x, order)
    whole = [shape[i] + sum(padding[i]) for i in sliding]
    sizes = [n if is_open(n) else int(n) for n in whole]
    x = apply("reshape", x, (-1, 1, *sizes))
    pool = f"pool{len(sliding)}d"
    is_plain = "float" in use.dtype and 1 <= len(sliding) <= 3
    if is_plain and name == "max":
        x = apply(f"max_{pool}", x, window, stride, 0, gaps)
    elif is_plain and name == "add" and all(n == 1 for n in gaps):
        x = apply("multiply", apply(f"avg_{pool}", x, window, stride, 0), float(np.prod(window)))
    elif sliding:
        x = apply("windows", x, window, stride, 0, gaps, value)
        last = tuple(range(2 + len(sliding), 2 + 2 * len(sliding)))
        x = apply(_MONOIDS[name][0], x, last, False)
        x = cast(x, use.dtype) if "int" in use.dtype else x
    x = apply("reshape", x, tuple(after[i] for i in order))
    back = tuple(int(i) for i in np.argsort(order))
    return x if back == tuple(range(rank)) else apply("transpose", x, back)


def _sizes(
    shape: Sequence[int],
    window_dimensions: Any,
    window_strides: Any,
    padding: Any,
    window_dilation: Any,
    base_dilation: Any = None,
) -> list[int]:
    """Count the windows along each axis."""
    parts = zip(shape, window_dimensions, window_strides, padding, window_dilation, strict=True)
    return [
        ((n if is_open(n) else int(n)) + sum(pads) - (k - 1) * gap - 1) // step + 1 for n, k, step, pads, gap in parts
    ]


@convert("select_and_scatter_add")
def _select_and_scatter_add(
    use: Use, source: Any, x: Any, *, select_prim: Any, window_dimensions: Any, window_strides: Any, padding: Any
) -> Any:
    """Give each element of the source to the largest (or smallest) element of its window, the first of several."""
    shape, rank = use.shape, use.rank
    name = str(select_prim.name)
    if "float" not in use.dtype or name not in ("ge", "le"):
        raise use.refuse("of integers, or by another comparison than ge and le")
    sliding = [i for i in range(rank) if window_dimensions[i] != 1 or window_strides[i] != 1 or any(padding[i])]
    if not sliding:
        return source
    fixed = [i for i in range(rank) if i not in sliding]
    window, stride = (tuple(int(part[i]) for i in sliding) for part in (window_dimensions, window_strides))
    value = float("-inf" if name == "ge" else "inf")
    pads = [tuple(map(int, pair)) for pair in padding]
    if any(n < 0 for pair in pads for n in pair):
        raise use.refuse("with negative padding")
    order = (*fixed, *sliding)
    x = apply("transpose", padded(tensor(x), pads, value), order)
    source = apply("transpose", tensor(source), order)
    sizes = [int(shape[i] + sum(padding[i])) for i in sliding]
    windows = apply("windows", apply("reshape", x, (-1, 1, *sizes)), window, stride, 0, 1, value)
    counts = [int(use.shape_of(0)[i]) for i in sliding]
    flat = apply("reshape", windows, (-1, 1, *counts, int(np.prod(window))))
    chosen = apply("argmax" if name == "ge" else "argmin", flat, -1, True)
    is_chosen = apply("equal", tensor(np.arange(int(np.prod(window)))), chosen)
    given = apply("where", is_chosen, apply("reshape", source, (-1, 1, *counts, 1)), 0.0)
    result = apply("fold_windows", apply("reshape", given, (-1, 1, *counts, *window)), tuple(sizes), stride, 0, 1)
    result = apply("reshape", result, (*(shape[i] for i in fixed), *sizes))
    result = apply("transpose", result, tuple(int(i) for i in np.argsort(order)))
    key = tuple(slice(a, a + n) for (a, _), n in zip(pads, shape, strict=True))
    return result[key] if any(map(any, pads)) else result


@convert("reduce_xor")
def _parity(use: Use, x: Any, *, axes: Any, **ignored: Any) -> Any:
    return bits(use, x, axes, "xor")


def bits(use: Use, x: Any, axes: Any, kind: str) -> Any:
    """Join the bits of integers, or truth values, along axes: halves, until one is left."""
    op = f"{'logical' if use.dtype == 'bool' else 'bitwise'}_{kind}"
    for axis in axes:
        size = use.shape_of(0)[axis]
        if not size:
            raise use.refuse("over an axis without elements")
        while size > 1:
            half = size // 2
            y = apply(op, x[along(axis, slice(0, half))], x[along(axis, slice(half, 2 * half))])
            x = apply("concat", axis, y, x[along(axis, slice(2 * half, size))]) if size % 2 else y
            size -= half
    return apply("squeeze", x, tuple(axes)) if axes else x


def _of_bits(kind: str) -> Any:
    of_truth = OPS[f"reduce_{kind}"]

    def function(use: Use, x: Any, *, axes: Any, **params: Any) -> Any:
        if use.dtype == "bool":
            return of_truth(use, x, axes=axes, **params)
        return bits(use, x, axes, kind)

    return function


OPS.update({f"reduce_{_kind}": _of_bits(_kind) for _kind in ("and", "or")})
