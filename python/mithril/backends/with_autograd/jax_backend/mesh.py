"""Several devices of JAX: programs of a mesh run by `jax.shard_map`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from ....errors import BackendUnavailableError, InvalidValueError
from ....parallel.mesh_engine import Division, MeshEngine, Spec, selected
from ....parallel.pipeline import Pipeline
from ....parallel.processes import exchanging
from ....parallel.stored import StoredArray
from .devices import find_device, placed, restored, whole

__all__ = ["JaxMeshEngine", "JaxProcesses", "pipeline_devices"]


class JaxMeshEngine(MeshEngine):
    """Runs the programs of a mesh on the devices of this process, or of all processes of `jax.distributed`.

    Results are arrays of JAX that lie divided on the devices, as the layout says.
    """

    #: An array of JAX is divided into blocks.
    divides_sections = False

    def __init__(self, backend: Any, layout: Any) -> None:
        super().__init__(backend, layout)
        jax = self._jax = backend._jax
        mesh = layout.mesh
        platform = backend._device.platform
        devices = jax.devices(platform)
        if len(devices) < mesh.devices:
            hint = _more_devices(
                platform,
                mesh.devices,
                "make the mesh smaller, or start JAX on further machines (jax.distributed.initialize)",
            )
            raise BackendUnavailableError(
                f"{mesh!r} has {mesh.devices} devices; JAX finds {len(devices)} of {platform}", hint=hint
            )
        listed = backend.listed_devices
        if len(set(listed)) == mesh.devices:
            devices = [find_device(jax, name) for name in listed]
        grid = np.array(devices[: mesh.devices]).reshape(tuple(mesh.axes.values()))
        self._mesh = jax.sharding.Mesh(grid, tuple(mesh.axes))
        #: Whether all devices are of this process.
        self._is_alone = jax.process_count() == 1
        if not self._is_alone and mesh.devices != len(devices):
            raise BackendUnavailableError(
                f"{mesh!r} has {mesh.devices} devices, and the processes have {len(devices)} together",
                hint="a mesh of several processes has all of their devices",
            )

    def divided(self, module: Any, name: str, division: Division) -> Callable[..., Any]:
        """Return a function of whole arrays that runs the function of that name on all devices."""
        jax = self._jax
        function = module.namespace[name]
        specs = tuple({name: _partition(jax, spec) for name, spec in group.items()} for group in division.arguments)
        names = [tuple(group) for group in division.results]
        results = [[_partition(jax, spec) for spec in group.values()] for group in division.results]

        def on_device(*arguments: Any) -> Any:
            results = function(*arguments)
            dicts = results if isinstance(results, tuple) else (results,)
            # Lists keep the order of names, which JAX would sort in dicts.
            return [[group[name] for name in keys] for group, keys in zip(dicts, names, strict=True)]

        mapped = jax.shard_map(on_device, mesh=self._mesh, in_specs=specs, out_specs=results, check_vma=False)
        compiled = jax.jit(mapped)
        shardings = [
            {name: jax.sharding.NamedSharding(self._mesh, spec) for name, spec in group.items()} for group in specs
        ]

        def call(*groups: Any) -> Any:
            arguments = tuple(
                {name: self._placed(value, sharding[name]) for name, value in selected(group, sharding).items()}
                for group, sharding in zip(groups, shardings, strict=True)
            )
            with nullcontext() if self._is_alone else _exchanging():
                results = [
                    dict(zip(keys, values, strict=True))
                    for keys, values in zip(names, compiled(*arguments), strict=True)
                ]
                if not self._is_alone:
                    results = [self._in_process(i, group, groups) for i, group in enumerate(results)]
            return results[0] if len(results) == 1 else tuple(results)

        return module.under_settings(call)  # type: ignore[no-any-return]

    def _in_process(self, number: int, results: dict[str, Any], groups: Any) -> dict[str, Any]:
        """Return results whole, but what was given in parts: gradients of parameters, and a step of an optimizer."""
        if number == 0 and any(not array.is_fully_addressable for array in groups[1].values()):
            return results
        received = groups[0] if number == 1 and len(groups) == 4 else {}
        return {
            name: array if name in received and not received[name].is_fully_addressable else whole(self._jax, array)
            for name, array in results.items()
        }

    def distribute(self, array: Any, spec: Spec) -> Any:
        """Return an array whose parts lie on their devices."""
        sharding = self._jax.sharding.NamedSharding(self._mesh, _partition(self._jax, spec))
        if isinstance(array, StoredArray):
            return restored(self._jax, array, sharding)
        return placed(self._jax, array, sharding)

    def data_parallel(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of arrays that divides their first axis among the devices."""
        jax = self._jax
        count = self.layout.mesh.devices
        divided, whole = (jax.sharding.NamedSharding(self._mesh, _partition(jax, spec)) for spec in ((("data",),), ()))
        compiled = jax.jit(function)

        def placed(value: Any) -> Any:
            if not hasattr(value, "shape"):
                return value
            if value.shape and value.shape[0] % count:
                raise InvalidValueError(
                    f"a batch of {value.shape[0]} does not divide among {count} devices",
                    hint=f"make it a multiple of {count}",
                )
            return jax.device_put(value, divided if value.shape else whole)

        return lambda *args, **options: compiled(*jax.tree.map(placed, args), **jax.tree.map(placed, options))

    def _placed(self, value: Any, sharding: Any) -> Any:
        """Return an array as the program takes it: the parts on their devices."""
        if isinstance(value, self._jax.core.Tracer) or value.sharding == sharding:
            return value
        return placed(self._jax, value, sharding)


def pipeline_devices(backend: Any, pipeline: Pipeline) -> list[Any]:
    """Return the devices of the stages: those that are named, else the first ones of the platform."""
    jax, listed, platform = backend._jax, backend.listed_devices, backend._device.platform
    if jax.process_count() > 1:
        raise BackendUnavailableError(
            f"{pipeline!r} runs on the devices of one process, and this one is one of several",
            hint="start the script as any other: python script.py; or divide tensors: layout=ml.Mesh(data=4)",
        )
    devices = jax.devices(platform)
    if len(devices) < pipeline.devices:
        raise BackendUnavailableError(
            f"{pipeline!r} needs {pipeline.devices} devices; JAX finds {len(devices)} of {platform}",
            hint=_more_devices(platform, pipeline.devices, "put more layers on each"),
        )
    if len(set(listed)) == len(listed) >= pipeline.devices:
        devices = [find_device(jax, name) for name in listed]
    return list(devices)


def _more_devices(platform: str, count: int, otherwise: str) -> str:
    return (
        f"to try it on one processor, set XLA_FLAGS=--xla_force_host_platform_device_count={count} before JAX starts"
        if platform == "cpu"
        else otherwise
    )


class JaxProcesses:
    """What a training asks of the processes of `jax.distributed`: which one this is, and to wait for the others."""

    def __init__(self, jax: Any) -> None:
        self.rank: int = jax.process_index()

    def gathered(self, number: int) -> list[int]:
        """Return the numbers that all processes give."""
        from jax.experimental.multihost_utils import process_allgather

        # Halves, which fit where JAX has 32 bits.
        high, low = divmod(number, 1 << 26)
        halves = process_allgather(np.array([high, low], np.int32))
        return [(int(high) << 26) + int(low) for high, low in halves]


@contextmanager
def _exchanging() -> Iterator[None]:
    """Explain errors of an exchange between processes, which JAX raises as others."""
    try:
        with exchanging("an exchange", "the mesh"):
            yield
    except ValueError as error:
        if "gloo" not in str(error).lower():
            raise
        with exchanging("an exchange", "the mesh"):
            raise OSError(str(error)) from error


def _partition(jax: Any, spec: Spec) -> Any:
    return jax.sharding.PartitionSpec(*(axes or None for axes in spec))
