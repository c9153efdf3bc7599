"""Convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .registry import Use, apply, convert, is_connection


def sizes(value: Any, rank: int) -> Any:
    """Give one number for each spatial axis; one for all of them if they are the same."""
    if isinstance(value, (list, tuple)):
        value = tuple(value) * (rank if len(value) == 1 else 1)
        return value[0] if len(set(value)) == 1 else value
    return value


def batched(use: Use, rank: int, x: Any, compute: Callable[[Any], Any]) -> Any:
    """Compute with a batch axis, which Mithril's ops need and PyTorch lets images lack."""
    if use.rank_of(0) == rank + 2:
        return compute(x)
    result = compute(apply("expand_dims", x, 0))
    if isinstance(result, list):
        return [apply("squeeze", y, (0,)) if is_connection(y) else y for y in result]
    return apply("squeeze", result, (0,))


def refuse_integers(use: Use) -> None:
    """Refuse integers, for which our ops return floats."""
    if not (use.value.is_floating_point() or use.value.is_complex()):
        raise use.refuse("of integers: convert them to floats first, and the result back")


@convert("conv1d.default", "conv2d.default", "conv3d.default", "conv1d.padding", "conv2d.padding", "conv3d.padding")
def _convolution(
    use: Use,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    refuse_integers(use)
    rank = use.rank_of(1) - 2
    padding = padding if isinstance(padding, str) else sizes(padding, rank)
    geometry = [sizes(stride, rank), padding, sizes(dilation, rank)]
    return batched(use, rank, x, lambda x: apply(f"conv{rank}d", x, weight, bias, *geometry, groups))


@convert("convolution.default")
def _general(
    use: Use,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    if transposed:
        return _transposed(use, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return _convolution(use, x, weight, bias, stride, padding, dilation, groups)


@convert("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def _transposed(
    use: Use,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    refuse_integers(use)
    rank = use.rank_of(1) - 2
    geometry = [sizes(value, rank) for value in (stride, padding, output_padding)]
    rest = (*geometry, groups, sizes(dilation, rank))
    return batched(use, rank, x, lambda x: apply(f"conv_transpose{rank}d", x, weight, bias, *rest))
