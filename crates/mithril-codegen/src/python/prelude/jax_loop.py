"""Sequences of loops."""

import jax
import jax.numpy as jnp


def _items_of_axis(x, axis, start, length, count):
    """Consecutive parts of an axis, stacked: what a scan goes through."""
    part = jax.lax.slice_in_dim(x, start, start + length * count, axis=axis)
    part = part.reshape(x.shape[:axis] + (count, length) + x.shape[axis + 1 :])
    return jnp.moveaxis(part, axis, 0)


def _concatenated(items, axis):
    """Stacked arrays, one after the other along an axis of theirs."""
    shape = items.shape[1:]
    items = jnp.moveaxis(items, 0, axis)
    return items.reshape(shape[:axis] + (items.shape[axis] * shape[axis],) + shape[axis + 1 :])
