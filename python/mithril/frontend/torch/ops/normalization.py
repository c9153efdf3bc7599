"""Normalization."""

from __future__ import annotations

from typing import Any

from .registry import Use, apply, convert, promoted


@convert("layer_norm.default")
def _layer_norm(
    use: Use, x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *ignored: Any
) -> Any:
    return apply("layer_norm", x, weight, bias, normalized_shape=tuple(shape), eps=eps)


@convert("native_layer_norm.default")
def _native_layer_norm(use: Use, x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    return [_layer_norm(use, x, shape, weight, bias, eps), None, None]


@convert("rms_norm.default")
def _rms_norm(use: Use, x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    return apply("rms_norm", x, weight, normalized_shape=tuple(shape), eps=eps)


@convert("group_norm.default")
def _group_norm(
    use: Use, x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *ignored: Any
) -> Any:
    return apply("group_norm", x, weight, bias, num_groups=groups, eps=eps)


@convert("native_group_norm.default")
def _native_group_norm(
    use: Use, x: Any, weight: Any, bias: Any, n: Any, c: Any, size: Any, groups: int, eps: float
) -> Any:
    return [_group_norm(use, x, groups, weight, bias, eps), None, None]


@convert("batch_norm.default")
def _batch_norm_of_a_module(
    use: Use, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, *rest: Any
) -> Any:
    eps = rest[0]
    # In training, where it changes them, it has become the one that returns them.
    if training or mean is None:
        return _batch_norm_of_the_batch(use, x, weight, bias, training, momentum, eps)[0]
    return _batch_norm(use, x, weight, bias, mean, variance, momentum, eps)[0]


@convert("_native_batch_norm_legit_no_training.default")
def _batch_norm(use: Use, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, eps: float) -> Any:
    return _batch_norm_with_updates(use, x, weight, bias, mean, variance, False, momentum, eps)[:3]


@convert("_native_batch_norm_legit_functional.default")
def _batch_norm_with_updates(
    use: Use, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> Any:
    result = apply(
        "batch_norm",
        x,
        weight,
        bias,
        running_mean=mean,
        running_var=variance,
        training=training,
        momentum=momentum,
        eps=eps,
    )
    return [result[0], None, None, *result[1:]]


@convert("_native_batch_norm_legit.no_stats")
def _batch_norm_of_the_batch(
    use: Use, x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> Any:
    # Always the statistics of the batch, unlike the row, which takes running ones in inference.
    axes = tuple(i for i in range(use.rank) if i != 1)
    like = tuple(-1 if i == 1 else 1 for i in range(use.rank))
    centered = apply("subtract", x, apply("mean", x, axes, True))
    scale = apply("rsqrt", apply("add", apply("var", x, axes, True, 0.0), eps))
    y = apply("multiply", centered, scale)
    y = y if weight is None else apply("multiply", y, apply("reshape", weight, like))
    return [y if bias is None else apply("add", y, apply("reshape", bias, like)), None, None]


@convert("instance_norm.default")
def _instance_norm(
    use: Use,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    use_input: bool,
    momentum: float,
    eps: float,
    *ignored: Any,
) -> Any:
    if not use_input:
        return _batch_norm_with_updates(use, x, weight, bias, mean, variance, False, momentum, eps)[0]
    # Where it changes running statistics, it has been decomposed.
    return apply("instance_norm", x, weight, bias, eps)


@convert("softmax.int", "_softmax.default")
def _softmax(use: Use, x: Any, dim: int, *ignored: Any) -> Any:
    (x,) = promoted(use, x)
    return apply("softmax", x, dim) if use.rank else apply("exp", apply("subtract", x, x))


@convert("_safe_softmax.default")
def _safe_softmax(use: Use, x: Any, dim: int, *ignored: Any) -> Any:
    return safe_softmax(promoted(use, x)[0], dim)


def safe_softmax(x: Any, axis: int) -> Any:
    """Softmax that is 0, as its gradient, where all that it is of is minus infinity."""
    is_empty = apply("all", apply("equal", x, float("-inf")), axis, True)
    return apply("where", is_empty, 0.0, apply("softmax", apply("where", is_empty, 0.0, x), axis))


@convert("log_softmax.int", "_log_softmax.default")
def _log_softmax(use: Use, x: Any, dim: int, *ignored: Any) -> Any:
    (x,) = promoted(use, x)
    return apply("log_softmax", x, dim) if use.rank else apply("subtract", x, x)
