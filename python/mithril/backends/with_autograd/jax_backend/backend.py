"""The JAX backend: readable generated code over `jax.numpy`, JAX's own gradients and compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from .... import dtypes
from ....compile_stats import observed
from ....errors import BackendUnavailableError
from ....parameters import Parameters
from ...frameworks import require
from ..framework import Framework

if TYPE_CHECKING:
    from .... import _core
    from ....program import Program

__all__ = ["JaxBackend"]


class JaxBackend(Framework):
    """Runs models with JAX.

    JAX computes with 64-bit numbers only where it is told to. Models that contain them (``dtype=ml.float64``,
    int64 labels or positions) run inside `jax.enable_x64`; the setting outside stays as it is. `enable_x64`
    turns it on for the whole process.

    Parameters
    ----------
    dtype : dtype, optional
        Dtype of floats (default ``float32``). Also spelled ``default_dtype``.
    device : str or jax.Device, optional
        ``"cpu"``, ``"gpu"`` (also ``"cuda"``), ``"tpu"``, ``"gpu:1"``. Default: what JAX prefers.
        Also spelled ``platform``.
    seed : int, optional
        Seed of the random numbers (default 0).
    jit : bool, optional
        Compile models with `jax.jit` unless `mithril.compile` says otherwise (default False).
        Also spelled ``jit_compile``.

    Examples
    --------
    >>> import mithril as ml
    >>> backend = ml.JaxBackend()
    >>> backend.add(backend.tensor([1.0, 2.0]), 0.5)
    Array([1.5, 2.5], dtype=float32)
    """

    name = "jax"
    target = "jax"

    def __init__(self, **given: Any) -> None:
        self._jax = require(type(self).__name__, "jax")
        _register_parameters(self._jax)
        super().__init__(**given)

    def __reduce__(self) -> Any:
        return _restore, (type(self), {"dtype": str(self.default_dtype), "device": self.device, "seed": self._seed})

    # --- devices ----------------------------------------------------------------------------------------------

    def _find_device(self, device: Any) -> str:
        jax = self._jax
        if device is None:
            self._device = jax.devices()[0]
        elif isinstance(device, jax.Device):
            self._device = device
        else:
            platform, _, number = str(device).lower().partition(":")
            try:
                self._device = jax.devices({"cuda": "gpu", "rocm": "gpu"}.get(platform, platform))[int(number or 0)]
            except (RuntimeError, IndexError, ValueError) as error:
                raise BackendUnavailableError(
                    f"JaxBackend has no device {str(device)!r} here; JAX finds {', '.join(self.devices)}",
                    hint='for NVIDIA GPUs: pip install "jax[cuda13]"; for TPUs: pip install "jax[tpu]"',
                ) from error
        return f"{self._device.platform}:{self._device.id}" if self._device.id else str(self._device.platform)

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that JAX finds on this machine."""
        return tuple(f"{d.platform}:{d.id}" for d in self._jax.devices())

    # --- arrays -----------------------------------------------------------------------------------------------

    @property
    def _array_type(self) -> Any:
        return type(self._jax.numpy.zeros(0))

    def _native(self, dtype: str) -> Any:
        return np.dtype(getattr(self._jax.numpy, "bool_" if dtype == "bool" else str(dtypes.normalize(dtype))))

    def _convert_dtype(self, dtype: Any) -> Any:
        return None if dtype is None else self._native(dtype)

    def _is_own(self, arg: Any) -> bool:
        return isinstance(arg, self._jax.Array)

    def _is_here(self, array: Any) -> bool:
        return True

    def _from_host(self, host: np.ndarray[Any, Any], dtype: dtypes.DType) -> Any:
        with self._jax.enable_x64(True):
            # A copy of our own: on the CPU, JAX would share memory with the caller's array.
            return self._jax.device_put(np.array(host, dtype=self._native(dtype), order="C"), self._device)

    def _to(self, array: Any, dtype: dtypes.DType) -> Any:
        with self._jax.enable_x64(True):
            return self._jax.numpy.array(array, dtype=self._native(dtype), copy=True)

    def _full(self, shape: tuple[int, ...], value: float, dtype: dtypes.DType) -> Any:
        with self._jax.enable_x64(True):
            return self._jax.numpy.full(shape, value, dtype=self._native(dtype), device=self._device)

    def _wait(self, arrays: list[Any]) -> None:
        self._jax.block_until_ready(arrays)

    # --- programs ---------------------------------------------------------------------------------------------

    def _wide(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Let a function compute with 64-bit numbers."""
        enable = self._jax.enable_x64

        def call(*args: Any) -> Any:
            with enable(True):
                return function(*args)

        return call

    def _load_op(self, name: str, signature: list[Any]) -> Any:
        module: Any = super()._load_op(name, signature)
        return _WideModule(self, module) if module.source.is_wide else module

    def _load(self, core: _core.Compiled) -> Any:
        module: Any = super()._load(core)
        return _WideModule(self, module) if module.source.is_wide else module

    def _evaluator(self, program: Program) -> Callable[..., Any]:
        return self._finish(program, "evaluate", program.module.namespace["evaluate"], program.module)

    def _differentiator(self, program: Program, outputs: tuple[str, ...], names: tuple[str, ...]) -> Callable[..., Any]:
        jax, evaluate, updates = self._jax, program.module.namespace["evaluate"], bool(program.updates)

        def evaluate_gradients(params: Any, data: Any, state: Any, cotangents: Any) -> Any:
            def forward(leaves: Any) -> Any:
                result = evaluate({**params, **leaves}, data, state)
                found = result[0] if updates else result
                return {name: found[name] for name in outputs}, (result if updates else (found,))

            leaves = {name: params[name] for name in names}
            _, pull_back, result = jax.vjp(forward, leaves, has_aux=True)
            [pulled] = pull_back({name: cotangents[name] for name in outputs})
            # JAX sorts the keys of dicts.
            gradients = {name: pulled[name] for name in names}
            return (result[0], gradients, result[1]) if updates else (result[0], gradients)

        return self._finish(program, "gradients", evaluate_gradients, program.module)

    def _compile_graph_gradients(self, program: Program, module: Any) -> Callable[..., Any]:
        return self._finish(program, "gradients", module.namespace["evaluate_gradients"], module)

    def _finish(self, program: Program, what: str, function: Callable[..., Any], module: Any) -> Callable[..., Any]:
        """Compile a function if the program asks for it, and let it compute with 64 bits if it has to."""
        if program.settings.jit:
            traces = 0
            keys: list[tuple[str, ...]] = []

            def traced(*args: Any) -> Any:
                # JAX runs this once for each compilation. Tuples keep the order of keys, which JAX would sort.
                nonlocal traces
                traces += 1
                result = function(*args)
                dicts = result if isinstance(result, tuple) else (result,)
                keys[:] = [tuple(found) for found in dicts]
                return [list(found.values()) for found in dicts]

            compiled = self._jax.jit(traced, **program.settings.jit_options)

            def call(params: Any, data: Any, *rest: Any) -> Any:
                # Flattening a class of our own would cost more than copying its entries.
                found = compiled(dict(params), dict(data), *rest)
                if len(found) == 1:
                    return dict(zip(keys[0], found[0], strict=True))
                return tuple(dict(zip(names, values, strict=True)) for names, values in zip(keys, found, strict=True))

            finished = observed(program.stats, what, call, lambda: traces)
        else:
            finished = function
        return self._wide(finished) if module.source.is_wide else finished

    # --- gradients of functions -------------------------------------------------------------------------------

    def _native_value_and_grad(self, function: Callable[..., Any], argnums: int | Sequence[int]) -> Callable[..., Any]:
        def with_gradient(*args: Any) -> Any:
            places = self._places(argnums, args)
            arrays = [a if self._is_own(a) else self.array(a) for a in args]
            checked = lambda *given: self._check_number(function(*given))  # noqa: E731 - one line is clearer
            with self._jax.enable_x64(True):
                value, gradients = self._jax.value_and_grad(checked, places)(*arrays)
            return value, gradients[0] if isinstance(argnums, int) else gradients

        return with_gradient


class _WideModule:
    """A module whose functions compute with 64-bit numbers."""

    def __init__(self, backend: JaxBackend, module: Any) -> None:
        self._backend, self._module = backend, module
        self.source, self.namespace, self.explain = module.source, module.namespace, module.explain

    def function(self, name: str) -> Callable[..., Any]:
        return self._backend._wide(self._module.function(name))


def _register_parameters(jax: Any) -> None:
    """Let `jax.jit` and `jax.tree.map` see into `Parameters`, once per process."""

    def flatten(params: Parameters) -> tuple[list[Any], tuple[str, ...]]:
        return list(params.values()), tuple(params.keys())

    def unflatten(names: tuple[str, ...], values: Any) -> Parameters:
        return Parameters.of(dict(zip(names, values, strict=True)))

    # A second registration is refused; another backend of this process may have been first.
    with suppress(ValueError):
        jax.tree_util.register_pytree_node(Parameters, flatten, unflatten)


def _restore(kind: type[JaxBackend], options: dict[str, Any]) -> JaxBackend:
    return kind(**options)
