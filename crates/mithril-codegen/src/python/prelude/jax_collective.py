"""Helpers of JAX for collectives."""

import jax


# The block of this device along an axis of the mesh.
def _shard(x, mesh_axis, devices, axis):
    size = x.shape[axis] // devices
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(mesh_axis) * size, size, axis)
