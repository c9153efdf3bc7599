"""Complex numbers, which are pairs of real tensors here, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...complexes import Complex
from .create import FILLED, parts_of
from .movement import along, rolled
from .registry import OPS, Use, apply, cast, convert, dtype_name, is_connection
from .symbols import are_equal

__all__ = ["COMPLEX", "convert_complex"]


#: Ops that read complex numbers, and what they become; those of `PARTS` are applied to both parts.
COMPLEX: dict[str, Callable[..., Any]] = {}

#: Ops that move elements or add them up, and the positions of the arguments whose elements they take: these have two
#: parts, and the others are the same for both.
PARTS: dict[str, tuple[int, ...]] = {
    f"aten.{n}": positions
    for positions, names in {
        (0,): (
            *("view.default", "reshape.default", "_unsafe_view.default", "view_copy.default", "flatten.using_ints"),
            *("unflatten.int", "permute.default", "transpose.int", "swapaxes.default", "t.default", "mT.default"),
            *("movedim.int", "unsqueeze.default", "squeeze.dim", "squeeze.dims", "squeeze.default", "expand.default"),
            *("repeat.default", "slice.Tensor", "select.int", "narrow.default", "split.Tensor", "chunk.default"),
            *("split_with_sizes.default", "unbind.int", "cat.default", "stack.default", "roll.default", "flip.default"),
            *("tril.default", "triu.default", "index.Tensor", "index_select.default", "gather.default"),
            *("clone.default", "alias.default", "contiguous.default", "detach.default", "neg.default"),
            *("sum.default", "sum.dim_IntList", "mean.default", "mean.dim", "cumsum.default"),
            *("fft_fftshift.default", "fft_ifftshift.default", "expand_as.default", "broadcast_to.default"),
            *("lift_fresh_copy.default", "movedim.intlist", "lift_fresh.default", "diagonal.default", "zero.default"),
            *(
                "numpy_T.default",
                "swapdims.default",
                "expand_copy.default",
                "repeat_interleave.self_int",
                "tile.default",
            ),
            *(
                "rot90.default",
                "hstack.default",
                "vstack.default",
                "concat.default",
                "concatenate.default",
                "unfold.default",
            ),
        ),
        (0, 1): ("slice_scatter.default", "select_scatter.default", "copy.default"),
        (0, 2): ("constant_pad_nd.default", "masked_fill.Scalar", "masked_fill.Tensor", "index_put.default"),
        (0, 3): ("pad.default", "scatter.src", "scatter.value", "scatter_add.default", "index_add.default"),
        (1, 2): ("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar"),
    }.items()
    for n in names
}


def convert_complex(use: Use, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Convert an op of which an argument is complex."""
    if name in COMPLEX:
        return COMPLEX[name](use, *args, **kwargs)
    if name not in PARTS or name not in OPS:
        raise use.refuse("of complex numbers")
    results = []
    for i in range(2):
        own = [_part(value, i) if k in PARTS[name] else value for k, value in enumerate(args)]
        named = {key: _part(value, i) if key == "value" else value for key, value in kwargs.items()}
        results.append(OPS[name](use, *own, **named))
    real, imag = results
    if isinstance(real, list):
        return [Complex(pair) for pair in zip(real, imag, strict=True)]
    return Complex((real, imag))


def _part(value: Any, i: int) -> Any:
    """Return the real or the imaginary part of an argument; that of real numbers among complex ones is 0."""
    if isinstance(value, list) and not isinstance(value, Complex):
        return [_part(item, i) for item in value]
    if i == 0 and not isinstance(value, (Complex, complex)):
        return value
    return value if value is None else _pair(value)[i]


def _pair(value: Any) -> Complex:
    """Write a number or a tensor as a complex one."""
    if isinstance(value, Complex):
        return value
    if is_connection(value):
        return Complex((value, apply("zeros_like", value)))
    return Complex(parts_of(value))


def _reads_complex(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        COMPLEX.update({f"aten.{name}": function for name in names})
        return function

    return enter


# --- making and taking apart ------------------------------------------------------------------------------------------


@convert("view_as_complex.default")
def _view_as_complex(use: Use, x: Any) -> Any:
    return Complex(apply("view_as_complex", x))


@convert("polar.default")
def _polar(use: Use, size: Any, angle: Any) -> Any:
    return Complex(apply("polar", size, angle))


@convert("complex.default")
def _complex(use: Use, real: Any, imag: Any) -> Any:
    shape = use.shape
    whole = tuple(use.operand(0).shape) == shape and tuple(use.operand(1).shape) == shape
    return Complex((real, imag) if whole else (apply("broadcast_to", part, use.sizes) for part in (real, imag)))


@_reads_complex("view_as_real.default", "view_as_real_copy.default")
def _view_as_real(use: Use, x: Any) -> Any:
    return apply("view_as_real", *x)


@_reads_complex("real.default")
def _real(use: Use, x: Any) -> Any:
    return x.real


@_reads_complex("imag.default")
def _imag(use: Use, x: Any) -> Any:
    return x.imag


@convert("real.default")
def _real_of_real(use: Use, x: Any) -> Any:
    return x


@_reads_complex("abs.default")
def _abs(use: Use, x: Any) -> Any:
    # The gradient of `norm` is 0 where both parts are.
    return apply("norm", apply("view_as_real", *x), 2.0, -1, False)


@_reads_complex("angle.default")
def _angle(use: Use, x: Any) -> Any:
    return apply("angle", *x)


@convert("angle.default")
def _angle_of_real(use: Use, x: Any) -> Any:
    return apply("angle", x)


@_reads_complex("_conj.default", "conj.default", "conj_physical.default", "_conj_physical.default")
def _conj(use: Use, x: Any) -> Any:
    return Complex(apply("conj", *x))


@_reads_complex("resolve_conj.default", "resolve_neg.default")
def _same(use: Use, x: Any) -> Any:
    return x


@_reads_complex(
    *("_to_copy.default", "to.dtype", "to.device", "to.dtype_layout", "to.other", "type_as.default", "float.default")
)
def _converted(use: Use, x: Any, *args: Any, **named: Any) -> Any:
    """Convert to another precision, or to real numbers: the real parts, and whether a number is not 0."""
    differs = dtype_name(use.operand(0).dtype) != use.dtype
    if use.value.is_complex():
        return Complex(cast(part, use.dtype) if differs else part for part in _pair(x))
    if use.dtype == "bool":
        return _not_equal(use, x, 0)
    return cast(x.real, use.dtype) if differs else x.real


# --- arithmetic -------------------------------------------------------------------------------------------------------


@_reads_complex("add.Tensor", "add.Scalar")
def _add(use: Use, x: Any, y: Any, alpha: Any = 1) -> Any:
    x, y = _pair(x), _pair(y if alpha == 1 else _scaled(_pair(y), alpha))
    return Complex(apply("add", a, b) for a, b in zip(x, y, strict=True))


@_reads_complex("sub.Tensor", "sub.Scalar")
def _subtract(use: Use, x: Any, y: Any, alpha: Any = 1) -> Any:
    x, y = _pair(x), _pair(y if alpha == 1 else _scaled(_pair(y), alpha))
    return Complex(apply("subtract", a, b) for a, b in zip(x, y, strict=True))


def _scaled(x: Complex, by: Any) -> Complex:
    return Complex(apply("multiply", part, by) for part in x)


@_reads_complex("mul.Tensor", "mul.Scalar")
def _multiply(use: Use, x: Any, y: Any) -> Any:
    if not isinstance(x, (Complex, complex)):
        x, y = y, x
    if not isinstance(y, (Complex, complex)):
        return _scaled(_pair(x), y)
    return Complex(apply("complex_multiply", *_tensors(x, y), *_tensors(y, x)))


@_reads_complex("div.Tensor", "div.Scalar")
def _divide(use: Use, x: Any, y: Any) -> Any:
    if not isinstance(y, (Complex, complex)):
        return Complex(apply("divide", part, y) for part in _pair(x))
    return Complex(apply("complex_divide", *_tensors(x, y), *_tensors(y, x)))


def _tensors(x: Any, other: Any) -> Complex:
    """Write a number beside a complex tensor as a tensor."""
    if is_connection(x) or isinstance(x, Complex):
        return _pair(x)
    like = _pair(other).real
    return Complex(apply("full_like", like, part) for part in _pair(x))


@_reads_complex("reciprocal.default")
def _reciprocal(use: Use, x: Any) -> Any:
    return _divide(use, 1.0, x)


@_reads_complex("log.default")
def _log(use: Use, x: Any) -> Any:
    return Complex((apply("log", _abs(use, x)), apply("angle", *x)))


@_reads_complex("sqrt.default")
def _sqrt(use: Use, x: Any) -> Any:
    half = apply("multiply", apply("angle", *x), 0.5)
    return Complex(apply("polar", apply("sqrt", _abs(use, x)), half))


@_reads_complex("linalg_vector_norm.default")
def _vector_norm(use: Use, x: Any, *args: Any, **named: Any) -> Any:
    return OPS["aten.linalg_vector_norm.default"](use, _abs(use, x), *args, **named)


@_reads_complex("eq.Tensor", "eq.Scalar")
def _equal(use: Use, x: Any, y: Any) -> Any:
    return apply("logical_and", *(apply("equal", a, b) for a, b in zip(_pair(x), _pair(y), strict=True)))


@_reads_complex("ne.Tensor", "ne.Scalar")
def _not_equal(use: Use, x: Any, y: Any) -> Any:
    return apply("logical_or", *(apply("not_equal", a, b) for a, b in zip(_pair(x), _pair(y), strict=True)))


@_reads_complex("exp.default")
def _exp(use: Use, x: Any) -> Any:
    return Complex(apply("polar", apply("exp", x.real), x.imag))


@_reads_complex("square.default", "pow.Tensor_Scalar")
def _power(use: Use, x: Any, exponent: Any = 2) -> Any:
    if exponent != int(exponent) or not 1 <= exponent <= 8:
        raise use.refuse("of complex numbers, with another exponent than 1 to 8")
    result = x
    for _ in range(int(exponent) - 1):
        result = Complex(apply("complex_multiply", *result, *x))
    return result


@_reads_complex("matmul.default", "mm.default", "bmm.default", "mv.default", "dot.default")
def _matmul(use: Use, x: Any, y: Any) -> Any:
    return _bilinear(lambda a, b: apply("matmul", a, b), x, y)


@_reads_complex("einsum.default")
def _einsum(use: Use, equation: str, operands: Any, path: Any = None) -> Any:
    if len(operands) != 2:
        raise use.refuse("of complex numbers, with other than two operands")
    return _bilinear(lambda a, b: apply("einsum", equation, a, b), *operands)


def _bilinear(product: Callable[[Any, Any], Any], x: Any, y: Any) -> Complex:
    if not isinstance(x, Complex):
        return Complex(product(x, part) for part in y)
    if not isinstance(y, Complex):
        return Complex(product(part, y) for part in x)
    real = apply("subtract", product(x.real, y.real), product(x.imag, y.imag))
    return Complex((real, apply("add", product(x.real, y.imag), product(x.imag, y.real))))


# --- Fourier transforms -----------------------------------------------------------------------------------------------


def _fitted(use: Use, x: Any, axis: int, size: Any, own: Any) -> Any:
    """Cut or pad an axis to a size."""
    if size is None or are_equal(size, own):
        return x
    if isinstance(x, Complex):
        return Complex(_fitted(use, part, axis, size, own) for part in x)
    if not isinstance(size, int) or not isinstance(own, int):
        raise use.refuse("a size to which an axis is cut or padded, and which is not known when converting")
    if size < own:
        return along(x, axis, slice(0, size))
    pads = [(0, 0)] * use.rank_of(0)
    pads[axis] = (0, size - own)
    return apply("pad", x, tuple(pads), "constant", 0.0)


def _transformed(use: Use, kind: str, x: Any, axis: int, norm: str, size: Any) -> Any:
    """Transform one axis: ``fft`` and ``ifft`` of any numbers, ``rfft`` of real and ``irfft`` of complex ones."""
    if kind == "irfft":
        return apply("irfft", *_pair(x), size, axis, norm)
    if kind == "rfft":
        return Complex(apply("rfft", x, axis, norm))
    real, imag = x if isinstance(x, Complex) else (x, None)
    return Complex(apply(kind, real, imag, axis, norm))


def _fourier(kind: str, count: int | None) -> Callable[..., Any]:
    """Make the conversion of a transform of one axis, of two, or of any number."""

    def function(use: Use, x: Any, size: Any = None, dim: Any = None, norm: str | None = None) -> Any:
        if size is not None:
            # In PyTorch's numbers, which can be compared.
            size = use.operands(1) if count != 1 else use.operand(1)
        rank, shape = use.rank_of(0), use.operand(0).shape
        if count == 1:
            dims, sizes = [-1 if dim is None else dim], [size]
        else:
            default = [-2, -1] if count == 2 else list(range(rank)) if size is None else list(range(-len(size), 0))
            dims = default if dim is None or dim == [] else list(dim)
            sizes = [None] * len(dims) if size is None else [None if n == -1 else n for n in size]
        axes, name = [d % rank for d in dims], norm or "backward"
        inverse = kind.startswith("i")
        if kind.endswith("rfft"):
            # Real numbers are on one side of the last axis.
            other = kind.replace("r", "")
            if inverse:
                for axis, n in zip(axes[:-1], sizes[:-1], strict=True):
                    x = _transformed(use, other, _fitted(use, _pair(x), axis, n, shape[axis]), axis, name, None)
                own, n = shape[axes[-1]], sizes[-1]
                n = 2 * (own - 1) if n is None else n
                x = _fitted(use, _pair(x), axes[-1], n // 2 + 1, own)
                return _transformed(use, kind, x, axes[-1], name, use.size(n))
            x = _fitted(use, x, axes[-1], sizes[-1], shape[axes[-1]])
            x = _transformed(use, kind, x, axes[-1], name, None)
            axes, sizes, kind_of_rest = axes[:-1], sizes[:-1], other
        else:
            kind_of_rest = kind
        for axis, n in zip(axes, sizes, strict=True):
            x = _transformed(use, kind_of_rest, _fitted(use, x, axis, n, shape[axis]), axis, name, None)
        return x

    return function


for _kind in ("fft", "ifft", "rfft", "irfft"):
    for _suffix, _count in {"": 1, "2": 2, "n": None}.items():
        _name = f"aten.fft_{_kind}{_suffix}.default"
        OPS[_name] = COMPLEX[_name] = _fourier(_kind, _count)


@convert("fft_fftshift.default", "fft_ifftshift.default")
def _shift(use: Use, x: Any, dim: Any = None) -> Any:
    rank, shape = use.rank_of(0), use.shape
    axes = [d % rank for d in (range(rank) if dim is None else dim)]
    halves = [use.size(shape[axis] // 2) for axis in axes]
    shifts = [-half for half in halves] if "ifftshift" in str(use.node.target) else halves
    return rolled(x, shifts, axes)


def _norm_of(mode: int, *, is_forward: bool) -> str:
    """Name what ATen says by number: no factor, one over the root of the size, one over the size."""
    return ("backward" if is_forward else "forward", "ortho", "forward" if is_forward else "backward")[mode]


@convert("_fft_r2c.default")
def _real_to_complex(use: Use, x: Any, dims: Any, mode: int, onesided: bool) -> Any:
    axes, norm = [d % use.rank_of(0) for d in dims], _norm_of(mode, is_forward=True)
    x = _transformed(use, "rfft" if onesided else "fft", x, axes[-1], norm, None)
    for axis in axes[:-1]:
        x = _transformed(use, "fft", x, axis, norm, None)
    return x


@_reads_complex("_fft_c2c.default")
def _complex_to_complex(use: Use, x: Any, dims: Any, mode: int, forward: bool) -> Any:
    kind, norm = "fft" if forward else "ifft", _norm_of(mode, is_forward=forward)
    for axis in dims:
        x = _transformed(use, kind, x, axis % use.rank_of(0), norm, None)
    return x


@_reads_complex("_fft_c2r.default")
def _complex_to_real(use: Use, x: Any, dims: Any, mode: int, size: Any) -> Any:
    axes, norm = [d % use.rank_of(0) for d in dims], _norm_of(mode, is_forward=False)
    for axis in axes[:-1]:
        x = _transformed(use, "ifft", x, axis, norm, None)
    return _transformed(use, "irfft", x, axes[-1], norm, size)


# Tensors of one number, which may be complex or have the shape of a complex one.
COMPLEX.update({f"aten.{name}": OPS[f"aten.{name}"] for name in FILLED})

# What only reads complex numbers has a conversion too.
for _name in COMPLEX:
    OPS.setdefault(_name, lambda use, *args, **named: _refuse(use))


def _refuse(use: Use) -> Any:
    raise use.refuse("of numbers that are not complex")
