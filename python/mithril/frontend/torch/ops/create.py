"""Tensors that are made of nothing but numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...complexes import Complex
from .movement import size_of
from .registry import Use, apply, cast, convert, is_connection, tensor

#: Ops that make tensors of one number.
FILLED = (
    *("full.default", "scalar_tensor.default", "zeros.default", "ones.default", "empty.memory_format"),
    *("zeros_like.default", "ones_like.default", "empty_like.default", "full_like.default"),
    *("new_zeros.default", "new_ones.default", "new_full.default", "new_empty.default"),
)


def _filled(use: Use, shape: Any, value: Any) -> Any:
    """Make a tensor of one number; complex ones are two."""
    if value is None:
        value = int("ones" in str(use.node.target))
    if use.value.is_complex():
        return Complex(apply("full", tuple(shape), float(part), use.dtype) for part in parts_of(value))
    if is_connection(value):
        return apply("broadcast_to", cast(value, use.dtype), tuple(shape))
    return apply("full", tuple(shape), value, use.dtype)


def parts_of(number: Any) -> tuple[float, float]:
    """Return the real and the imaginary part of a number."""
    return complex(number).real, complex(number).imag


@convert("full.default", "scalar_tensor.default")
def _full(use: Use, *args: Any, **named: Any) -> Any:
    shape, value = args if len(args) == 2 else ((), args[0])
    return _filled(use, shape, value)


@convert("zeros.default", "ones.default", "empty.memory_format", "empty_permuted.default", "empty_strided.default")
def _constant(use: Use, shape: Any, *args: Any, **named: Any) -> Any:
    return _filled(use, shape, None)


@convert("zeros_like.default", "ones_like.default", "empty_like.default", "full_like.default")
def _like(use: Use, x: Any, value: Any = None, **named: Any) -> Any:
    x = x.real if isinstance(x, Complex) else x
    return _filled(use, [size_of(use, x, 0, i) for i in range(use.rank)], value)


@convert("new_zeros.default", "new_ones.default", "new_full.default", "new_empty.default")
def _new(use: Use, x: Any, shape: Any, value: Any = None, **named: Any) -> Any:
    return _filled(use, shape, value)


@convert("arange.default", "arange.start", "arange.start_step")
def _arange(use: Use, *args: Any, **named: Any) -> Any:
    start, stop, step = [0, args[0], 1] if len(args) == 1 else [*args, 1][:3]
    start, stop, step = (int(number) if isinstance(number, bool) else number for number in (start, stop, step))
    if "int" in use.dtype and any(isinstance(number, float) for number in (start, stop, step)):
        # PyTorch rounds the numbers towards zero; how many there are says the shape.
        start, step = int(start), int(step)
        stop = start + step * use.sizes[0]
    return apply("arange", start, stop, step, use.dtype)


@convert("tril_indices.default", "triu_indices.default")
def _triangle_indices(use: Use, rows: int, columns: int, offset: int = 0, **named: Any) -> Any:
    indices = np.tril_indices if "tril" in str(use.node.target) else np.triu_indices
    return tensor(np.stack(indices(rows, offset, columns)).astype(use.dtype))


@convert("new_empty_strided.default")
def _new_strided(use: Use, x: Any, shape: Any, *args: Any, **named: Any) -> Any:
    return apply("full", tuple(shape), 0, use.dtype)


@convert("eye.default", "eye.m")
def _eye(use: Use, n: int, m: Any = None, **named: Any) -> Any:
    return apply("eye", n, m, 0, use.dtype)
