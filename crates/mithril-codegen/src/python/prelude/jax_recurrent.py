"""Scans of recurrent networks for JAX."""

import jax


def _through_steps(step, states, inputs, reverse):
    """The last states and the stacked results, for `step(states, elements)`, which gives states and results."""
    return jax.lax.scan(step, states, inputs, reverse=reverse)


def _logistic(x):
    return jax.nn.sigmoid(x)
