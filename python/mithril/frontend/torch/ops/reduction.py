"""Reductions, scans and sorting."""

from __future__ import annotations

from typing import Any

from ..missing import DATA_DEPENDENT
from .movement import size_of
from .registry import OPS, Use, apply, cast, convert, promoted


def _axes(use: Use, dim: Any) -> Any:
    # A tensor without axes has the axis 0 for PyTorch.
    if dim is None or dim == [] or use.rank_of(0) == 0:
        return None
    return tuple(dim) if isinstance(dim, (list, tuple)) else dim


@convert("mean.default", "mean.dim")
def _mean(use: Use, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return apply("mean", promoted(use, x)[0], _axes(use, dim), keepdim)


@convert("sum.default", "sum.dim_IntList")
def _sum(use: Use, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return apply("sum", promoted(use, x)[0], _axes(use, dim), keepdim)


@convert("prod.default", "prod.dim_int")
def _product(use: Use, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return apply("prod", promoted(use, x)[0], _axes(use, dim), keepdim)


def _plain(op: str) -> Any:
    def function(use: Use, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return apply(op, x, _axes(use, dim), keepdim)

    return function


for _name, _op in {"amax": "max", "amin": "min", "logsumexp": "logsumexp"}.items():
    OPS[f"aten.{_name}.default"] = _plain(_op)
for _name, _op in {"max": "max", "min": "min"}.items():
    OPS[f"aten.{_name}.default"] = _plain(_op)
for _name in ("argmax", "argmin"):
    OPS[f"aten.{_name}.default"] = _plain(_name)


@convert("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def _truth(use: Use, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    name = str(use.node.target).split(".")[1]
    return apply(name, cast(x, "bool"), _axes(use, dim), keepdim)


@convert("max.dim", "min.dim")
def _extreme(use: Use, x: Any, dim: int, keepdim: bool = False) -> Any:
    name = str(use.node.target).split(".")[1]
    if use.rank_of(0) == 0:
        return [x, apply("full", (), 0, "int64")]
    return [apply(name, x, dim, keepdim), apply(f"arg{name}", x, dim, keepdim)]


@convert("aminmax.default")
def _extremes(use: Use, x: Any, *, dim: Any = None, keepdim: bool = False) -> Any:
    return [apply(name, x, _axes(use, dim), keepdim) for name in ("min", "max")]


@convert("max.other", "min.other")
def _larger(use: Use, x: Any, y: Any) -> Any:
    op = "maximum" if "max" in str(use.node.target) else "minimum"
    return apply(op, *promoted(use, x, y))


@convert("var.correction", "std.correction", "var.dim", "std.dim", "var.default", "std.default")
def _variance(
    use: Use, x: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
) -> Any:
    name = str(use.node.target).split(".")[1]
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    correction = float(unbiased) if correction is None else float(correction)
    return apply(name, x, _axes(use, dim), keepdim, correction)


@convert("var_mean.correction")
def _variance_and_mean(use: Use, x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    by = 1.0 if correction is None else float(correction)
    return [apply("var", x, _axes(use, dim), keepdim, by), apply("mean", x, _axes(use, dim), keepdim)]


@convert("cumsum.default", "cumprod.default")
def _scan(use: Use, x: Any, dim: int, *, dtype: Any = None) -> Any:
    (x,) = promoted(use, x)
    return apply(str(use.node.target).split(".")[1], x, dim) if use.rank else x


@convert("diff.default")
def _diff(use: Use, x: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    return apply("diff", x, n, dim, prepend=prepend, append=append)


@convert("histc.default")
def _histc(use: Use, x: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    return apply("histc", x, bins, float(min), float(max))


@convert("histogram.bin_ct")
def _histogram(
    use: Use, x: Any, bins: int = 100, *, range: Any = None, weight: Any = None, density: bool = False
) -> Any:
    low, high = range or (None, None)
    x, weight = (apply("reshape", y, (-1,)) if y is not None else None for y in (x, weight))
    counts, bounds = apply("histogram", x, bins, low, high, weight, density)
    return [cast(counts, use.dtype), bounds]


@convert("bincount.default")
def _bincount(use: Use, x: Any, weights: Any = None, length: int = 0) -> Any:
    if length <= 0:
        raise use.refuse("without minlength, the shape of the result depends on data")
    # Larger numbers would make PyTorch's result longer: they are positions out of range, as negative ones are.
    places = cast(x, "int64")
    places = apply("where", apply("less", places, 0), length, places)
    zeros = apply("full", (length,), 0, use.dtype)
    ones = apply("full", tuple(size_of(use, x, 0, i) for i in range(use.rank_of(0))), 1, use.dtype)
    return apply("scatter_add", zeros, places, ones if weights is None else cast(weights, use.dtype), 0)


def _depends_on_data(use: Use, *args: Any, **named: Any) -> Any:
    raise use.refuse(DATA_DEPENDENT)


for _name in (
    *("nonzero.default", "nonzero_static.default", "masked_select.default", "argwhere.default", "unique_dim.default"),
    *("_unique.default", "_unique2.default", "unique_consecutive.default", "repeat_interleave.Tensor"),
    *("repeat_interleave.self_Tensor", "combinations.default"),
):
    OPS[f"aten.{_name}"] = _depends_on_data
