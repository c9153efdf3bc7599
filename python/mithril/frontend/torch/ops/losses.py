"""Losses."""

from __future__ import annotations

from typing import Any

from .registry import Use, apply, convert, promoted

#: What ATen says by number.
_REDUCTIONS = ("none", "mean", "sum")


@convert("mse_loss.default")
def _mse_loss(use: Use, x: Any, target: Any, reduction: int = 1) -> Any:
    return apply("mse_loss", *promoted(use, x, target), _REDUCTIONS[reduction])


@convert("l1_loss.default")
def _l1_loss(use: Use, x: Any, target: Any, reduction: int = 1) -> Any:
    return apply("l1_loss", *promoted(use, x, target), _REDUCTIONS[reduction])


@convert("huber_loss.default")
def _huber_loss(use: Use, x: Any, target: Any, reduction: int = 1, delta: float = 1.0) -> Any:
    return apply("huber_loss", *promoted(use, x, target), _REDUCTIONS[reduction], delta)


@convert("smooth_l1_loss.default")
def _smooth_l1_loss(use: Use, x: Any, target: Any, reduction: int = 1, beta: float = 1.0) -> Any:
    return apply("smooth_l1_loss", *promoted(use, x, target), _REDUCTIONS[reduction], beta)


@convert("binary_cross_entropy.default")
def _binary_cross_entropy(use: Use, x: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    return apply("binary_cross_entropy", *promoted(use, x, target, weight), _REDUCTIONS[reduction])


@convert("binary_cross_entropy_with_logits.default")
def _with_logits(use: Use, x: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1) -> Any:
    tensors = promoted(use, x, target, weight, pos_weight)
    return apply("binary_cross_entropy_with_logits", *tensors, _REDUCTIONS[reduction])


@convert("kl_div.default")
def _kl_div(use: Use, x: Any, target: Any, reduction: int = 1, *, log_target: bool = False) -> Any:
    return apply("kl_div", *promoted(use, x, target), _REDUCTIONS[reduction], log_target)


@convert("nll_loss.default", "nll_loss_nd.default", "nll_loss2d.default")
def _nll_loss(use: Use, x: Any, target: Any, weight: Any = None, reduction: int = 1, ignore_index: int = -100) -> Any:
    return apply("nll_loss", x, target, weight, _REDUCTIONS[reduction], ignore_index)


@convert("cross_entropy_loss.default")
def _cross_entropy(
    use: Use,
    x: Any,
    target: Any,
    weight: Any = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    return apply("cross_entropy", x, target, weight, _REDUCTIONS[reduction], ignore_index, label_smoothing)
