"""How JAX runs and differentiates generated code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .... import dtypes
from ....compiled.compile_stats import observed
from ....errors import InvalidValueError
from ....parallel.divided_array import DividedArray, layout_of
from ....parallel.pieces import Piece
from ....parallel.pipeline_devices import DevicePipelineEngine
from ..framework_engine import FrameworkEngine
from .devices import placed, restored, whole
from .mesh import JaxMeshEngine, JaxProcesses, pipeline_devices
from .stage import JaxStage

if TYPE_CHECKING:
    from .... import _core
    from ....compiled.program import Program, Settings
    from ....parallel.layout import ArrayLayout, Layout, Mesh
    from ....parallel.mesh_engine import MeshEngine
    from ....parallel.pipeline import Pipeline
    from ....parallel.pipeline_devices import StageDevices
    from ....parallel.processes import Processes
    from ....parallel.stored import StoredArray

__all__ = ["JaxEngine"]


class JaxEngine(FrameworkEngine):
    """The engine of the JAX backend."""

    accepts_any_position = True

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.jax = backend._jax

    @property
    def array_type(self) -> Any:
        return self.backend._kind

    def native_dtype(self, dtype: str) -> Any:
        return np.dtype(getattr(self.jax.numpy, "bool_" if dtype == "bool" else str(dtypes.normalize(dtype))))

    def is_own(self, arg: Any) -> bool:
        return isinstance(arg, (self.jax.Array, DividedArray))

    def is_here(self, array: Any) -> bool:
        return (
            self.is_single_device
            or isinstance(array, (self.jax.core.Tracer, DividedArray))
            or array.devices() == {self.backend._device}
            or self._is_divided(array)
        )

    def _is_divided(self, array: Any) -> bool:
        """Whether an array lies on a mesh of several devices, which this one is of."""
        return len(array.sharding.device_set) > 1 and self.backend._device in array.sharding.device_set

    def layout_of(self, arrays: Mapping[str, Any]) -> ArrayLayout | None:
        return layout_of(arrays)

    def zeros_like(self, array: Any, dtype: str) -> Any:
        is_kept = isinstance(array, DividedArray)
        return array.zeros(dtype) if is_kept else super().zeros_like(array, dtype)

    def beside(self, array: Any, other: Any) -> Any:
        if isinstance(other, DividedArray) or isinstance(array, DividedArray):
            is_alike = not isinstance(array, DividedArray) and array.shape == other.shape
            return other.like(array) if is_alike else array
        if isinstance(other, self.jax.core.Tracer) or len(other.sharding.device_set) == 1:
            return array
        sharding = other.sharding
        if array.sharding == sharding:
            return array
        if array.shape != other.shape:
            sharding = self.jax.sharding.NamedSharding(sharding.mesh, self.jax.sharding.PartitionSpec())
        return placed(self.jax, array, sharding)

    def pieces(self, array: Any) -> list[Piece] | None:
        if isinstance(array, DividedArray) or array.is_fully_addressable:
            return None
        holders: dict[Any, set[int]] = {}
        for device, index in array.sharding.devices_indices_map(array.shape).items():
            holders.setdefault(_bounds(index, array.shape), set()).add(device.process_index)
        zeros = (0,) * array.ndim
        return [
            Piece(start, tuple(stop - low for low, stop in zip(start, stops, strict=True)), zeros, tuple(sorted(ranks)))
            for (start, stops), ranks in holders.items()
        ]

    def piece(self, array: Any, piece: Piece) -> Any:
        if isinstance(array, DividedArray):
            return array.full_tensor()
        if array.is_fully_addressable:
            return array
        shards = array.addressable_shards
        return next(shard.data for shard in shards if _bounds(shard.index, array.shape)[0] == piece.start)

    def restored(self, array: StoredArray, like: Any = None) -> Any:
        if isinstance(like, DividedArray):
            return like.read(array) if like.shape == array.shape else super().restored(array)
        sharding = getattr(like, "sharding", None)
        if sharding is None or len(sharding.device_set) == 1 or like.shape != array.shape:
            return super().restored(array, like)
        return restored(self.jax, array, sharding)

    def whole(self, array: Any) -> Any:
        return array.full_tensor() if isinstance(array, DividedArray) else whole(self.jax, array)

    def to_host(self, data: Any) -> np.ndarray[Any, Any]:
        return super().to_host(self.whole(data))

    def communicator(self, layout: Layout) -> Processes | None:
        return JaxProcesses(self.jax) if self.jax.process_count() > 1 else None

    def from_host(self, host: np.ndarray[Any, Any], dtype: dtypes.DType) -> Any:
        # A copy of our own: on the CPU, JAX would share memory with the caller's array.
        own = np.array(host, dtype=self.native_dtype(dtype), order="C")
        with self.jax.enable_x64(True), self.jax.ensure_compile_time_eval():
            return self.jax.device_put(own, self.backend._device)

    def share(self, host: np.ndarray[Any, Any]) -> Any:
        with self.jax.enable_x64(True), self.jax.ensure_compile_time_eval():
            return self.jax.device_put(host, self.backend._device)

    def convert(self, array: Any, dtype: dtypes.DType) -> Any:
        with self.jax.enable_x64(True):
            copied = self.jax.numpy.array(array, dtype=self.native_dtype(dtype), copy=True)
            return copied if self.is_here(copied) else self.jax.device_put(copied, self.backend._device)

    def full(self, shape: tuple[int, ...], value: float, dtype: dtypes.DType) -> Any:
        with self.jax.enable_x64(True), self.jax.ensure_compile_time_eval():
            return self.jax.numpy.full(shape, value, dtype=self.native_dtype(dtype), device=self.backend._device)

    def device_count(self) -> int:
        return len(self.jax.devices(self.backend._device.platform))

    def on_mesh(self, layout: Layout) -> MeshEngine:
        return JaxMeshEngine(self.backend, layout)

    def on_pipeline(self, pipeline: Pipeline) -> MeshEngine:
        return DevicePipelineEngine(self.backend, pipeline, pipeline_devices(self.backend, pipeline))

    def on_device(self, device: Any) -> Any:
        backend = self.backend
        precision = "float32" if backend._exact else None if backend.precision is None else str(backend.precision)
        options = {} if precision is None else {"precision": precision}
        return type(backend)(device=device, dtype=str(backend.default_dtype), **options)

    def on_stage(self, devices: list[Any], mesh: Mesh) -> StageDevices:
        return JaxStage(self.backend, devices, mesh)

    def placed(self, array: Any) -> Any:
        with self.jax.enable_x64(True):
            return self.jax.device_put(array, self.backend._device)

    def joined(self, parts: list[Any], axis: int) -> Any:
        with self.jax.enable_x64(True):
            return self.jax.numpy.concatenate(parts, axis)

    def load_steps(self, source: _core.Source) -> Any:
        module: Any = super().load_steps(source)
        return module if "host_call(" in source.text else module.compiled(self.jax.jit)

    def load_op(self, name: str, signature: list[Any]) -> Any:
        module: Any = super().load_op(name, signature)
        # Compiled as a whole: JAX would compile each function in it anyway. What users wrote may not be traceable.
        return module if self.backend._overrides else module.compiled(self.jax.jit)

    def load_source(self, source: _core.Source, name: str) -> Any:
        """Load a module: its constants are made on the device, in their dtypes, whatever is being traced."""
        jax = self.jax
        with jax.enable_x64(True), jax.ensure_compile_time_eval(), jax.default_device(self.backend._device):
            module = super().load_source(source, name)
        settings: list[tuple[Callable[..., Any], Any]] = []
        if source.is_wide:
            settings.append((jax.enable_x64, True))
        if not self.is_single_device:
            settings.append((jax.default_device, self.backend._device))
        if self.backend._exact:
            settings.append((jax.default_matmul_precision, "highest"))
        return _Module(module, settings, self._check_tracers if source.is_wide else None)

    def _check_tracers(self, groups: Any) -> None:
        """Refuse to be traced with floats of 64 bits where JAX has those turned off: it would narrow the gradients."""
        if not self.jax.config.jax_enable_x64:
            for group in groups:
                for name, value in group.items():
                    if isinstance(value, self.jax.core.Tracer) and value.dtype == np.float64:
                        raise InvalidValueError(
                            f"{name!r} is float64 inside a transformation of JAX, which has 64 bits turned off",
                            hint="turn them on for the whole process: backend.enable_x64()",
                        )

    def evaluator(self, program: Program) -> Callable[..., Any]:
        return self._finish(program, "evaluate", program.module.namespace["evaluate"], program.module)

    def framework_differentiator(
        self, program: Program, outputs: tuple[str, ...], names: tuple[str, ...]
    ) -> Callable[..., Any]:
        jax, evaluate, updates = self.jax, program.differentiable.namespace["evaluate"], bool(program.updates)

        def evaluate_gradients(params: Any, data: Any, state: Any, cotangents: Any) -> Any:
            def forward(leaves: Any) -> Any:
                result = evaluate({**params, **leaves}, data, state)
                values = result[0] if updates else result
                return {name: values[name] for name in outputs}, (result if updates else (values,))

            leaves = {name: params[name] for name in names}
            _, pull_back, result = jax.vjp(forward, leaves, has_aux=True)
            [pulled] = pull_back({name: cotangents[name] for name in outputs})
            # JAX sorts the keys of dicts.
            gradients = {name: pulled[name] for name in names}
            return (result[0], gradients, result[1]) if updates else (result[0], gradients)

        return self._finish(program, "gradients", evaluate_gradients, program.differentiable)

    def compile_graph_gradients(self, program: Program, module: Any) -> Callable[..., Any]:
        return self._finish(program, "gradients", module.namespace["evaluate_gradients"], module)

    def _finish(self, program: Program, what: str, function: Callable[..., Any], module: Any) -> Callable[..., Any]:
        """Compile a function if the program asks for it, and run it under the settings of its module."""
        if not program.settings.jit:
            return module.under_settings(function)  # type: ignore[no-any-return]
        traces = 0
        keys: list[tuple[str, ...]] = []

        def traced(*args: Any) -> Any:
            # JAX runs this once for each compilation. Tuples keep the order of keys, which JAX would sort.
            nonlocal traces
            traces += 1
            result = function(*args)
            dicts = result if isinstance(result, tuple) else (result,)
            keys[:] = [tuple(results) for results in dicts]
            return [list(results.values()) for results in dicts]

        compiled = self.jax.jit(traced, **self._jit_options(program.settings))

        def call(params: Any, data: Any, *rest: Any) -> Any:
            dicts = compiled(params, data, *rest)
            if len(dicts) == 1:
                return dict(zip(keys[0], dicts[0], strict=True))
            return tuple(dict(zip(names, values, strict=True)) for names, values in zip(keys, dicts, strict=True))

        return module.under_settings(observed(program.stats, what, call, lambda: traces))  # type: ignore[no-any-return]

    def _jit_options(self, settings: Settings) -> dict[str, Any]:
        options = dict(settings.jit_options)
        if settings.checkpoint and self.backend.device.startswith("cpu"):
            # On CPUs, XLA drops barriers before it merges equal computations, which would undo the checkpoints.
            keep = {"xla_disable_hlo_passes": "cse_barrier_expander"}
            options["compiler_options"] = {**keep, **(options.get("compiler_options") or {})}
        return options


class _Module:
    """A loaded module whose functions run under settings of JAX: pairs of a context and its value."""

    def __init__(
        self, module: Any, settings: list[tuple[Callable[..., Any], Any]], check: Callable[[Any], None] | None
    ) -> None:
        self._module, self._settings, self._check, self._compiler = module, settings, check, _unchanged
        self.source, self.namespace, self.explain = module.source, module.namespace, module.explain

    def function(self, name: str) -> Callable[..., Any]:
        return self.under_settings(self._compiler(self._module.function(name)))

    def compiled(self, compiler: Callable[..., Any]) -> _Module:
        """Let a compiler have the functions."""
        self._compiler = compiler
        return self

    def under_settings(self, function: Callable[..., Any]) -> Callable[..., Any]:
        for context, value in self._settings:
            function = _under(context, value, function)
        return function if self._check is None else _after(self._check, function)


def _after(check: Callable[[Any], None], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        check(args)
        return function(*args)

    return call


def _unchanged(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _under(context: Callable[..., Any], value: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with context(value):
            return function(*args)

    return call


def _bounds(index: Any, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return where a part of an array begins, and where it ends."""
    ends = [axis.indices(size) for axis, size in zip(index, shape, strict=True)]
    return tuple(start for start, _, _ in ends), tuple(stop for _, stop, _ in ends)
