"""A stage of a pipeline that is divided over several devices of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....parallel.layout import Mesh
from ....parallel.mesh_engine import Spec
from ....parallel.pieces import holders
from ....parallel.workers import blocks, joined

__all__ = ["JaxStage"]


class JaxStage:
    """The devices of a stage. An array on them is one of JAX with an axis in front, which says of which device it is.

    Parameters
    ----------
    backend : JaxBackend
        One like it is made on the first device.
    devices : list of jax.Device
        The devices, in the order of the mesh.
    mesh : Mesh
        The mesh.
    """

    def __init__(self, backend: Any, devices: list[Any], mesh: Mesh) -> None:
        jax = self._jax = backend._jax
        self.backend = backend.engine.on_device(devices[0])
        self.stacked = len(devices)
        self._devices, self._mesh = devices, mesh
        grid = jax.sharding.Mesh(np.array(devices).reshape(tuple(mesh.axes.values())), tuple(mesh.axes))
        self._sharding = jax.sharding.NamedSharding(grid, jax.sharding.PartitionSpec(tuple(mesh.axes)))

    def load(self, source: Any) -> Any:
        """Load the steps of a program."""
        return self.backend.engine.load_source(source, "steps").compiled(self._on_devices)

    def _on_devices(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that each device computes of its own arrays."""
        jax, sharding = self._jax, self._sharding

        def on_device(values: dict[str, Any]) -> dict[str, Any]:
            results = function({name: array[0] for name, array in values.items()})
            return {name: array[None] for name, array in results.items()}

        mapped = jax.shard_map(
            on_device, mesh=sharding.mesh, in_specs=(sharding.spec,), out_specs=sharding.spec, check_vma=False
        )
        compiled = jax.jit(mapped)
        return lambda values: compiled({name: self.moved(array) for name, array in values.items()})

    def placed(self, array: Any, spec: Spec) -> Any:
        """Return what the devices have of an array."""
        jax = self._jax
        with jax.enable_x64(True):
            parts = blocks(array, self._mesh, spec, self.backend.engine, lambda part: part[None])
            own = [jax.device_put(part, device) for part, device in zip(parts, self._devices, strict=True)]
            shape = (len(own), *own[0].shape[1:])
            return jax.make_array_from_single_device_arrays(shape, self._sharding, own)

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return zeros, of which each device has an array of that shape."""
        return self.placed(self.backend.zeros(shape, dtype=dtype), ())

    def moved(self, array: Any) -> Any:
        """Return what the devices of another stage have, on these."""
        if array.sharding == self._sharding:
            return array
        with self._jax.enable_x64(True):
            return self._jax.device_put(array, self._sharding)

    def whole(self, array: Any, spec: Spec, home: Any) -> Any:
        """Return all of an array, on the device of an engine."""
        shards = {shard.device: shard.data for shard in array.addressable_shards}
        with self._jax.enable_x64(True):
            parts = {place: home.placed(shards[self._devices[place]])[0] for place in holders(self._mesh, spec)}
            return joined(parts, self._mesh, spec, home)
