"""Sizes as values: those of tensors, and arithmetic with them."""

from __future__ import annotations

from typing import Any

from .registry import OPS, Use, apply, convert, is_connection

#: Ops whose results are numbers: they are computed where they are read.
SIZES = frozenset(
    (
        "aten.sym_size.int",
        "aten.sym_numel.default",
        *(f"operator.{n}" for n in ("add", "sub", "mul", "floordiv", "neg", "mod")),
    )
)


@convert("sym_size.int")
def _size(use: Use, x: Any, dim: int) -> Any:
    return x.shape[dim]


@convert("sym_numel.default")
def _numel(use: Use, x: Any) -> Any:
    shape = x.shape
    total = shape[0]
    for i in range(1, use.rank_of(0)):
        total = total * shape[i]
    return total


def _arithmetic(compute: Any) -> Any:
    def function(use: Use, *args: Any) -> Any:
        return compute(*args)

    return function


def _floor_divide(x: Any, y: Any) -> Any:
    return apply("floor_divide", x, y) if is_connection(x) or is_connection(y) else x // y


OPS.update(
    {
        "operator.add": _arithmetic(lambda x, y: x + y),
        "operator.sub": _arithmetic(lambda x, y: x - y),
        "operator.mul": _arithmetic(lambda x, y: x * y),
        "operator.floordiv": _arithmetic(_floor_divide),
        "operator.neg": _arithmetic(lambda x: -x),
        "operator.mod": _arithmetic(lambda x, y: x % y),
    }
)
for _name in ("ge", "gt", "le", "lt", "eq", "ne"):
    # Conditions on sizes guard what was traced; nothing is computed from them.
    OPS[f"operator.{_name}"] = _arithmetic(lambda *args: None)


@convert("_assert_scalar.default", "_assert_tensor_metadata.default", "sym_constrain_range_for_size.default")
def _assertion(use: Use, *args: Any, **named: Any) -> None:
    return None
