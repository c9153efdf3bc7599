"""The JAX backend: readable generated code over `jax.numpy`, JAX's own gradients and compiler."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import Unpack

from .... import dtypes
from ....compiled.compile_stats import observed
from ....compiled.parameters import Parameters
from ....errors import IgnoredOptionWarning, InvalidValueError
from ... import options
from ...frameworks import require
from ...keywords import JaxOptions, accepts, names
from ..framework import Framework
from .devices import device_names, find_device, preallocate

if TYPE_CHECKING:
    from .... import _core
    from ....compiled.program import Program, Settings

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
    precision : dtype, optional
        As in `Backend`. ``"float32"`` also sets the precision of JAX's products to ``"highest"`` inside models.
    amp : bool, optional
        Automatic mixed precision: bfloat16.
    pre_allocate : bool, optional
        Whether JAX takes most of the memory of a GPU when it starts. It has to be said before anything else uses
        JAX; where that is too late, a warning says so.
    device_mesh : tuple of int, optional
        ``(1,)``: this version runs a model on one device.

    Examples
    --------
    >>> import mithril as ml
    >>> backend = ml.JaxBackend()
    >>> backend.add(backend.tensor([1.0, 2.0]), 0.5)
    Array([1.5, 2.5], dtype=float32)
    """

    name = "jax"
    target = "jax"
    _takes_any_position = True
    _options = names(JaxOptions)

    @accepts(JaxOptions)
    def __init__(self, **given: Unpack[JaxOptions]) -> None:
        self._jax = require(type(self).__name__, "jax")
        _register_parameters(self._jax)
        found = options.normalize(type(self).__name__, given, self._options)
        wanted = found.get("pre_allocate")
        in_time = wanted is None or preallocate(options.switch("pre_allocate", wanted))
        # JAX multiplies float32 in fewer bits on some devices; who asks for float32 by name gets it.
        self._exact = found.get("precision") is not None and dtypes.normalize(found["precision"]) == dtypes.float32
        super().__init__(**given)
        if wanted is not None and self._device.platform == "cpu":
            warnings.warn("pre_allocate means nothing on the CPU", IgnoredOptionWarning, stacklevel=2)
        elif not in_time:
            warnings.warn(
                f"pre_allocate={wanted} comes too late: JAX has started already. Construct this backend before "
                f"anything else uses JAX, or set XLA_PYTHON_CLIENT_PREALLOCATE={str(wanted).lower()}",
                IgnoredOptionWarning,
                stacklevel=2,
            )

    def __reduce__(self) -> Any:
        found = {"dtype": str(self.default_dtype), "device": self.device, "seed": self._seed, "jit": self.jit}
        if self._exact or self.precision is not None:
            found["precision"] = "float32" if self._exact else str(self.precision)
        return _restore, (type(self), found)

    # --- devices ----------------------------------------------------------------------------------------------

    def _find_device(self, device: Any) -> str:
        with self._jax.ensure_compile_time_eval():
            self._kind = type(self._jax.numpy.zeros(0))
            self._device = find_device(self._jax, device)
        self._is_alone = len(self._jax.devices()) == 1
        return f"{self._device.platform}:{self._device.id}" if self._device.id else str(self._device.platform)

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that JAX finds on this machine."""
        return device_names(self._jax)

    def enable_x64(self) -> None:
        """Compute in 64 bits: turns it on in JAX, for the whole process, and makes float64 the dtype of floats.

        Examples
        --------
        >>> import mithril as ml
        >>> backend = ml.JaxBackend()
        >>> backend.enable_x64()
        >>> backend.ones(2)
        Array([1., 1.], dtype=float64)
        """
        self._jax.config.update("jax_enable_x64", True)
        self.default_dtype = dtypes.float64
        self._eager.clear()

    # --- arrays -----------------------------------------------------------------------------------------------

    @property
    def _array_type(self) -> Any:
        return self._kind

    def _native(self, dtype: str) -> Any:
        return np.dtype(getattr(self._jax.numpy, "bool_" if dtype == "bool" else str(dtypes.normalize(dtype))))

    def _convert_dtype(self, dtype: Any) -> Any:
        return None if dtype is None else self._native(dtype)

    def _is_own(self, arg: Any) -> bool:
        return isinstance(arg, self._jax.Array)

    def _is_here(self, array: Any) -> bool:
        return self._is_alone or isinstance(array, self._jax.core.Tracer) or array.devices() == {self._device}

    def _from_host(self, host: np.ndarray[Any, Any], dtype: dtypes.DType) -> Any:
        # A copy of our own: on the CPU, JAX would share memory with the caller's array.
        own = np.array(host, dtype=self._native(dtype), order="C")
        with self._jax.enable_x64(True), self._jax.ensure_compile_time_eval():
            return self._jax.device_put(own, self._device)

    def _shared(self, host: np.ndarray[Any, Any]) -> Any:
        with self._jax.enable_x64(True), self._jax.ensure_compile_time_eval():
            return self._jax.device_put(host, self._device)

    def _to(self, array: Any, dtype: dtypes.DType) -> Any:
        with self._jax.enable_x64(True):
            copied = self._jax.numpy.array(array, dtype=self._native(dtype), copy=True)
            return copied if self._is_here(copied) else self._jax.device_put(copied, self._device)

    def _full(self, shape: tuple[int, ...], value: float, dtype: dtypes.DType) -> Any:
        with self._jax.enable_x64(True), self._jax.ensure_compile_time_eval():
            return self._jax.numpy.full(shape, value, dtype=self._native(dtype), device=self._device)

    def _wait(self, arrays: list[Any]) -> None:
        self._jax.block_until_ready(arrays)

    # --- programs ---------------------------------------------------------------------------------------------

    def _load_op(self, name: str, signature: list[Any]) -> Any:
        module: Any = super()._load_op(name, signature)
        # Compiled as a whole: JAX would compile each function in it anyway. What users wrote may not be traceable.
        return module if self._overrides else module.compiled(self._jax.jit)

    def _load_source(self, source: _core.Source, name: str) -> Any:
        """Load a module: its constants are made on the device, in their dtypes, whatever is being traced."""
        jax = self._jax
        with jax.enable_x64(True), jax.ensure_compile_time_eval(), jax.default_device(self._device):
            module = super()._load_source(source, name)
        settings: list[tuple[Callable[..., Any], Any]] = []
        if source.is_wide:
            settings.append((jax.enable_x64, True))
        if not self._is_alone:
            settings.append((jax.default_device, self._device))
        if self._exact:
            settings.append((jax.default_matmul_precision, "highest"))
        return _Module(module, settings, self._check_tracers if source.is_wide else None)

    def _check_tracers(self, groups: Any) -> None:
        """Refuse to be traced with floats of 64 bits where JAX has those turned off: it would narrow the gradients."""
        if not self._jax.config.jax_enable_x64:
            for group in groups:
                for name, value in group.items():
                    if isinstance(value, self._jax.core.Tracer) and value.dtype == np.float64:
                        raise InvalidValueError(
                            f"{name!r} is float64 inside a transformation of JAX, which has 64 bits turned off",
                            hint="turn them on for the whole process: backend.enable_x64()",
                        )

    def _evaluator(self, program: Program) -> Callable[..., Any]:
        return self._finish(program, "evaluate", program.module.namespace["evaluate"], program.module)

    def _differentiator(self, program: Program, outputs: tuple[str, ...], names: tuple[str, ...]) -> Callable[..., Any]:
        jax, evaluate, updates = self._jax, program.differentiable.namespace["evaluate"], bool(program.updates)

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

        return self._finish(program, "gradients", evaluate_gradients, program.differentiable)

    def _compile_graph_gradients(self, program: Program, module: Any) -> Callable[..., Any]:
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
            keys[:] = [tuple(found) for found in dicts]
            return [list(found.values()) for found in dicts]

        compiled = self._jax.jit(traced, **self._jit_options(program.settings))

        def call(params: Any, data: Any, *rest: Any) -> Any:
            found = compiled(params, data, *rest)
            if len(found) == 1:
                return dict(zip(keys[0], found[0], strict=True))
            return tuple(dict(zip(names, values, strict=True)) for names, values in zip(keys, found, strict=True))

        return module.under_settings(observed(program.stats, what, call, lambda: traces))  # type: ignore[no-any-return]

    def _jit_options(self, settings: Settings) -> dict[str, Any]:
        options = dict(settings.jit_options)
        if settings.checkpoint and self.device.startswith("cpu"):
            # On CPUs, XLA drops barriers before it merges equal computations, which would undo the checkpoints.
            keep = {"xla_disable_hlo_passes": "cse_barrier_expander"}
            options["compiler_options"] = {**keep, **(options.get("compiler_options") or {})}
        return options

    # --- gradients of functions -------------------------------------------------------------------------------

    def _native_value_and_grad(self, function: Callable[..., Any], argnums: int | Sequence[int]) -> Callable[..., Any]:
        def with_gradient(*args: Any) -> Any:
            places = self._places(argnums, args)
            arrays = [a if self._is_own(a) else self.array(a) for a in args]
            checked = lambda *given: self._check_number(function(*given))  # noqa: E731 - one line is clearer
            with self._wide_for(arrays):
                value, gradients = self._jax.value_and_grad(checked, places)(*arrays)
            return value, gradients[0] if isinstance(argnums, int) else gradients

        return with_gradient

    def vmap(self, function: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
        """Map a function over an axis of its arguments, as `jax.vmap`.

        Examples
        --------
        >>> import mithril as ml
        >>> backend = ml.JaxBackend()
        >>> backend.vmap(backend.sum)(backend.tensor([[1.0, 2.0], [3.0, 4.0]]))
        Array([3., 7.], dtype=float32)
        """
        return self._transformed(self._jax.vmap(function, in_axes, out_axes))

    def jacobian(self, function: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
        """Jacobian of a function, as `jax.jacrev`.

        Examples
        --------
        >>> import mithril as ml
        >>> backend = ml.JaxBackend()
        >>> backend.jacobian(backend.square)(backend.tensor([1.0, 3.0]))
        Array([[2., 0.],
               [0., 6.]], dtype=float32)
        """
        return self._transformed(self._jax.jacrev(function, argnums))

    def _transformed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with self._wide_for(self._jax.tree.leaves(args)):
                return function(*args)

        return call

    def _wide_for(self, arrays: Sequence[Any]) -> AbstractContextManager[Any]:
        """Let JAX compute with 64 bits where floats of 64 bits come in."""
        is_wide = any(str(getattr(array, "dtype", "")) == "float64" for array in arrays)
        return self._jax.enable_x64(True) if is_wide else nullcontext()


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


def _register_parameters(jax: Any) -> None:
    """Let `jax.jit` and `jax.tree.map` see into `Parameters`, once per process."""
    key = jax.tree_util.DictKey

    def flatten(params: Parameters) -> tuple[list[Any], Any]:
        # Gradients have the structure of the parameters: zeros for running statistics and what is frozen.
        names = params._order or tuple(params)
        values = [(key(name), params[name]) for name in names]
        return values, (names, params.statistics, params.frozen)

    def unflatten(about: Any, values: Any) -> Parameters:
        names, statistics, frozen = about
        return Parameters.of(dict(zip(names, values, strict=True)), statistics, frozen)

    # A second registration is refused; another backend of this process may have been first.
    with suppress(ValueError):
        jax.tree_util.register_pytree_with_keys(Parameters, flatten, unflatten)


def _restore(kind: type[JaxBackend], options: dict[str, Any]) -> JaxBackend:
    return kind(**options)
