"""The JAX backend: readable generated code over `jax.numpy`, JAX's own gradients and compiler."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy as np
from typing_extensions import Unpack

from .... import dtypes
from ....compiled.parameters import Parameters, gradient_order
from ....errors import IgnoredOptionWarning
from ... import options
from ...frameworks import require
from ...keywords import JaxOptions, accepts, names
from ...quantized import QuantizedWeights
from ..framework import Framework
from .devices import device_names, find_device, join_processes, preallocate
from .engine import JaxEngine

__all__ = ["JaxBackend"]


class JaxBackend(QuantizedWeights, Framework):
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
        Whether JAX takes most of the memory of a GPU when it starts. It must be said before anything else uses
        JAX; where that is too late, a warning says so.
    quantize : str or mapping, optional
        Keep the weights of products and convolutions in 8 bits. ``"int8"`` computes products in integers;
        ``"int8_weights"`` converts the weights to float where they are used, and so does ``"int8"`` for convolutions.
        Or a mapping from patterns of names to one of them or None, such as ``{"lm_head.*": None, "*": "int8"}``: the
        first pattern that fits counts. Needs models compiled with ``inference=True``.
    quantize_strict : bool, optional
        Whether a weight that cannot be kept as asked is an error (default False).
    device_mesh : int or tuple of int, optional
        Models are divided over so many devices: the batch, and with two numbers parameters; see `mithril.Layout`.
    parallel_strategy : str, optional
        What several devices divide: ``"data_parallel"``, ``"fully_sharded"``, ``"model_parallel"``; ``"auto"``
        searches for the fastest.
    devices : sequence, optional
        The devices of the mesh; a list of one is like ``device``.

    Examples
    --------
    >>> import mithril as ml
    >>> backend = ml.JaxBackend()
    >>> backend.add(backend.tensor([1.0, 2.0]), 0.5)
    Array([1.5, 2.5], dtype=float32)
    """

    name = "jax"
    target = "jax"
    _engine_type = JaxEngine
    _options = names(JaxOptions)

    @accepts(JaxOptions)
    def __init__(self, **keywords: Unpack[JaxOptions]) -> None:
        self._jax = require(type(self).__name__, "jax")
        _register_parameters(self._jax)
        join_processes(self._jax)
        settings = options.normalize(type(self).__name__, keywords, self._options)
        preallocation = settings.get("pre_allocate")
        in_time = preallocation is None or preallocate(options.switch("pre_allocate", preallocation))
        # JAX multiplies float32 in fewer bits on some devices; who asks for float32 by name gets it.
        self._exact = (
            settings.get("precision") is not None and dtypes.normalize(settings["precision"]) == dtypes.float32
        )
        super().__init__(**keywords)
        self._read_quantize(keywords)
        if preallocation is not None and self._device.platform == "cpu":
            warnings.warn("pre_allocate means nothing on the CPU", IgnoredOptionWarning, stacklevel=2)
        elif not in_time:
            warnings.warn(
                f"pre_allocate={preallocation} comes too late: JAX has started already. Construct this backend before "
                f"anything else uses JAX, or set XLA_PYTHON_CLIENT_PREALLOCATE={str(preallocation).lower()}",
                IgnoredOptionWarning,
                stacklevel=2,
            )

    def __reduce__(self) -> Any:
        keywords = {"dtype": str(self.default_dtype), "device": self.device, "seed": self._seed, "jit": self.jit}
        if self._exact or self.precision is not None:
            keywords["precision"] = "float32" if self._exact else str(self.precision)
        return _restore, (type(self), {**keywords, **self._quantize_options()})

    # --- devices ----------------------------------------------------------------------------------------------

    def _find_device(self, device: Any) -> str:
        with self._jax.ensure_compile_time_eval():
            self._kind = type(self._jax.numpy.zeros(0))
            self._device = find_device(self._jax, device)
        self.engine.is_single_device = len(self._jax.devices()) == 1
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

    def _convert_dtype(self, dtype: Any) -> Any:
        return None if dtype is None else self.engine.native_dtype(dtype)

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        """Convert an array of this backend to NumPy; one that lies divided among processes on all of them."""
        return np.asarray(self.engine.whole(tensor))

    def _wait(self, arrays: list[Any]) -> None:
        self._jax.block_until_ready(arrays)

    # --- gradients of functions -------------------------------------------------------------------------------

    def _native_value_and_grad(self, function: Callable[..., Any], argnums: int | Sequence[int]) -> Callable[..., Any]:
        def with_gradient(*args: Any) -> Any:
            places = self._places(argnums, args)
            arrays = [a if self.engine.is_own(a) else self.array(a) for a in args]
            checked = lambda *values: self._check_number(function(*values))  # noqa: E731 - one line is clearer
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


def _register_parameters(jax: Any) -> None:
    """Let `jax.jit` and `jax.tree.map` see into `Parameters`, once per process."""
    key = jax.tree_util.DictKey

    def flatten(params: Parameters) -> tuple[list[Any], Any]:
        # Gradients have the structure of the parameters: zeros for running statistics and what is frozen.
        names = gradient_order(params) or tuple(params)
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
