"""Scans of recurrent networks for JAX."""

import jax
import jax.numpy as jnp


def _through_steps(step, states, inputs, reverse):
    """The last states and what all steps give, stacked, for `step(states, elements)`, which gives states and results."""
    return jax.lax.scan(step, states, inputs, reverse=reverse)


def _logistic(x):
    return jax.nn.sigmoid(x)
