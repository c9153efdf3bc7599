"""Helpers of JAX for collectives."""

import jax
import jax.numpy as jnp


# The block of this device along an axis of the mesh.
def _shard(x, mesh_axis, devices, axis):
    size = x.shape[axis] // devices
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(mesh_axis) * size, size, axis)


# The largest float of all devices, NaN if one is. XLA on processors loses NaN among floats, so integers are compared
# that have the same order: the bits, of negative numbers all but the sign inverted.
def _pmax(x, mesh_axis):
    integer = jnp.dtype(f"int{8 * x.dtype.itemsize}")
    largest = jnp.iinfo(integer).max
    bits = jax.lax.bitcast_convert_type(jnp.where(jnp.isnan(x), jnp.nan, x), integer)
    order = jax.lax.pmax(jnp.where(bits < 0, bits ^ largest, bits), mesh_axis)
    return jax.lax.bitcast_convert_type(jnp.where(order < 0, order ^ largest, order), x.dtype)
