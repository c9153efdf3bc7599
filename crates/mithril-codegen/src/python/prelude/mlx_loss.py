"""Losses for MLX."""

import mlx.core as mx


def _log_probabilities(x):
    """log(x) and log(1 - x), both at least -100."""
    return mx.maximum(mx.log(x), -100), mx.maximum(mx.log1p(-x), -100)


def _unlikelihood(x, target):
    yes, no = _log_probabilities(x)
    return -(target * yes + (1 - target) * no)


def _unlikelihood_gradient(primals, cotangent, _):
    """Finite also for an input that is certain and wrong."""
    x, target = primals
    yes, no = _log_probabilities(x)
    return cotangent * ((x - target) / mx.maximum(x * (1 - x), 1e-12)), cotangent * (no - yes)


_binary_losses = _with_gradient(_unlikelihood, _unlikelihood_gradient)


def _binary_cross_entropy(x, target, weight, reduction):
    """Cross-entropy of probabilities, times weight if there is one."""
    losses = _binary_losses(*mx.broadcast_arrays(_widened(x), _widened(target)))
    losses = losses if weight is None else losses * weight
    if reduction != "none":
        losses = _reduced(mx.sum, 0, losses) if reduction == "sum" else _reduced(mx.mean, mx.nan, losses)
    return losses.astype(x.dtype)
