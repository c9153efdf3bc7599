"""Losses for JAX."""

import jax.numpy as jnp


def _log_probabilities(x):
    """log(x) and log(1 - x), both at least -100."""
    return jnp.maximum(jnp.log(x), -100), jnp.maximum(jnp.log1p(-x), -100)


def _unlikelihood_value(x, target):
    yes, no = _log_probabilities(x)
    return -(target * yes + (1 - target) * no)


def _unlikelihood_by_target(y, x, target):
    yes, no = _log_probabilities(x)
    return no - yes


# Finite also for an input that is certain and wrong.
_unlikelihood = _differentiated(
    _unlikelihood_value,
    lambda y, x, target: (x - target) / jnp.maximum(x * (1 - x), 1e-12),
    _unlikelihood_by_target,
)


def _binary_cross_entropy(x, target, weight, reduction):
    """Cross-entropy of probabilities, times weight if there is one; of halves in float32."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    losses = _unlikelihood(*jnp.broadcast_arrays(x.astype(wide), target.astype(wide)))
    losses = losses if weight is None else losses * weight
    if reduction != "none":
        losses = jnp.sum(losses) if reduction == "sum" else jnp.mean(losses)
    return losses.astype(x.dtype)
