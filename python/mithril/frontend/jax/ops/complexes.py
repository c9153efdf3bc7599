"""Complex numbers, which are pairs of real tensors here, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...complexes import Complex
from .registry import OPS, Use, apply, cast, is_connection, tensor

__all__ = ["COMPLEX", "PARTS", "convert_complex", "converts", "is_complex", "pair", "tensors"]

#: Primitives that read or return complex numbers, and what they become; those of `PARTS` are applied to both parts.
COMPLEX: dict[str, Callable[..., Any]] = {}

#: Primitives that move elements or add them up.
PARTS = frozenset(
    (
        *("reshape", "transpose", "broadcast_in_dim", "slice", "concatenate", "squeeze", "expand_dims", "rev"),
        *("reduce_sum", "select_n", "gather", "dynamic_slice", "copy", "stop_gradient", "split", "neg", "stack"),
        *("cumsum", "tile", "copy_p", "device_put", "scatter", "scatter-add", "scatter-sub", "dynamic_update_slice"),
        *("reduce_window_sum", "sharding_constraint", "optimization_barrier", "unstack"),
    )
)


def is_complex(eqn: Any) -> bool:
    """Whether an equation reads or returns complex numbers."""
    avals = [v.aval for v in (*eqn.invars, *eqn.outvars)]
    return any(getattr(getattr(aval, "dtype", None), "kind", "") == "c" for aval in avals)


def convert_complex(use: Use, name: str, args: Sequence[Any], params: Any) -> Any:
    """Convert a primitive that reads or returns complex numbers."""
    if name in COMPLEX:
        return COMPLEX[name](use, *args, **params)
    if name not in PARTS:
        raise use.refuse("of complex numbers")
    kinds = [v.aval.dtype.kind for v in use.eqn.invars]
    pairs = [pair(x) if kind == "c" else (x, x) for x, kind in zip(args, kinds, strict=True)]
    real, imag = (OPS[name](use, *(both[i] for both in pairs), **params) for i in range(2))
    if isinstance(real, list):
        return [Complex(both) for both in zip(real, imag, strict=True)]
    return Complex((tensor(real), tensor(imag)))


def pair(x: Any) -> Complex:
    """Write what is known as a pair, and a real tensor too."""
    if isinstance(x, Complex):
        return x
    if not is_connection(x):
        x = np.asarray(x)
        # Real and imaginary parts of numbers that are not complex, too.
        return Complex((np.ascontiguousarray(x.real), np.ascontiguousarray(x.imag)))
    return Complex((x, apply("zeros_like", x)))


def tensors(x: Any) -> Complex:
    """Write both parts as tensors."""
    return Complex(map(tensor, pair(x)))


def converts(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function for these primitives of complex numbers."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        COMPLEX.update(dict.fromkeys(names, function))
        return function

    return enter


@converts("complex")
def _complex(use: Use, real: Any, imag: Any, **ignored: Any) -> Any:
    parts = zip((tensor(real), tensor(imag)), map(use.shape_of, range(2)), strict=True)
    return Complex(x if shape == use.shape else apply("broadcast_to", x, use.shape) for x, shape in parts)


@converts("real")
def _real(use: Use, x: Any, **ignored: Any) -> Any:
    return x.real


@converts("imag")
def _imag(use: Use, x: Any, **ignored: Any) -> Any:
    return x.imag


@converts("conj")
def _conj(use: Use, x: Any, **ignored: Any) -> Any:
    return Complex(apply("conj", *tensors(x)))


@converts("convert_element_type")
def _cast(use: Use, x: Any, **ignored: Any) -> Any:
    if use.eqn.outvars[0].aval.dtype.kind == "c":
        return Complex(cast(part, use.dtype) for part in tensors(x))
    return cast(tensor(x.real), use.dtype)


@converts("add", "add_any", "sub")
def _add(use: Use, x: Any, y: Any, **ignored: Any) -> Any:
    op = "subtract" if use.eqn.primitive.name == "sub" else "add"
    return Complex(apply(op, *both) for both in zip(tensors(x), tensors(y), strict=True))


@converts("mul")
def _multiply(use: Use, x: Any, y: Any, **ignored: Any) -> Any:
    return Complex(apply("complex_multiply", *tensors(x), *tensors(y)))


@converts("div")
def _divide(use: Use, x: Any, y: Any, **ignored: Any) -> Any:
    return Complex(apply("complex_divide", *tensors(x), *tensors(y)))


@converts("dot_general", "conv_general_dilated")
def _dot(use: Use, x: Any, y: Any, **params: Any) -> Any:
    (a, b), (c, d) = tensors(x), tensors(y)
    function = OPS[str(use.eqn.primitive.name)]
    ac, bd, ad, bc = (function(use, *both, **params) for both in ((a, c), (b, d), (a, d), (b, c)))
    return Complex((apply("subtract", ac, bd), apply("add", ad, bc)))


@converts("pad")
def _pad(use: Use, x: Any, value: Any, **params: Any) -> Any:
    return Complex(OPS["pad"](use, *both, **params) for both in zip(tensors(x), pair(value), strict=True))


@converts("fft")
def _fft(use: Use, x: Any, *, fft_type: Any, fft_lengths: Sequence[int], **ignored: Any) -> Any:
    kind = ("fft", "ifft", "rfft", "irfft")[int(fft_type)]
    rank = len(use.shape_of(0))
    axes = list(range(rank - len(fft_lengths), rank))
    if kind == "rfft":
        x = Complex(apply("rfft", tensor(x), axes.pop(), "backward"))
    last = axes.pop() if kind == "irfft" else None
    for axis in axes:
        x = Complex(apply(kind.replace("r", ""), *x, axis, "backward"))
    return x if last is None else apply("irfft", *x, int(fft_lengths[-1]), last, "backward")
