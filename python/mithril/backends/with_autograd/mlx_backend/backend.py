"""The MLX backend: readable generated code over `mlx.core`, MLX's own gradients and compiler."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import Unpack

from .... import dtypes
from ....compiled.compile_stats import observed
from ....compiled.loading import Module
from ....errors import BackendUnavailableError, InvalidValueError, MithrilError, NumericsError, UnsupportedOpError
from ... import options
from ...exchange import to_host
from ...frameworks import require
from ...keywords import MlxOptions, accepts, names
from ..framework import Framework

if TYPE_CHECKING:
    from ....compiled.program import Program

__all__ = ["MLXBackend", "MlxBackend"]


class MlxBackend(Framework):
    """Runs models with MLX.

    Parameters
    ----------
    dtype : dtype, optional
        Dtype of floats (default ``float32``); float64 on the CPU only. Also spelled ``default_dtype``.
    device : str or mlx.core.Device, optional
        ``"cpu"`` or ``"gpu"``. Default: what MLX prefers.
    seed : int, optional
        Seed of the random numbers (default 0). Also spelled ``random_seed``.
    jit : bool, optional
        Compile models with `mlx.core.compile` unless `mithril.compile` says otherwise (default False).
        Also spelled ``use_graph``.
    memory_limit : int or str, optional
        Bytes, ``"4GB"`` or ``"512MiB"``: what MLX may use in this process (`mlx.core.set_memory_limit`).
    auto_free_tensors : bool, optional
        Give memory back to the system as soon as it is free, instead of keeping it for later arrays
        (`mlx.core.set_cache_limit`, for this process; default False).
    enable_mps_optimization, use_ane : bool, optional
        Ignored, with a warning: MLX runs on the CPU and on the GPU.

    Examples
    --------
    >>> import mithril as ml
    >>> backend = ml.MlxBackend()
    >>> backend.add(backend.tensor([1.0, 2.0]), 0.5)
    array([1.5, 2.5], dtype=float32)
    """

    name = "mlx"
    target = "mlx"
    _takes_any_position = True
    _ignored = ("enable_mps_optimization", "use_ane")
    _options = names(MlxOptions, _ignored)

    @accepts(MlxOptions)
    def __init__(self, **given: Unpack[MlxOptions]) -> None:
        self._mx = require("MlxBackend", "mlx.core")
        super().__init__(**given)
        self._native(self.default_dtype)
        if given.get("memory_limit") is not None or given.get("mem_size") is not None:
            limit = options.memory("memory_limit", given.get("memory_limit", given.get("mem_size")))
            self._mx.set_memory_limit(limit)
        if options.switch("auto_free_tensors", given.get("auto_free_tensors") or False):
            self._mx.set_cache_limit(0)

    def __reduce__(self) -> Any:
        given = {"dtype": str(self.default_dtype), "device": self.device, "seed": self._seed, "jit": self.jit}
        precision = {} if self.precision is None else {"precision": str(self.precision)}
        return _restore, (type(self), given | precision)

    # --- devices ----------------------------------------------------------------------------------------------

    def _find_device(self, device: Any) -> str:
        mx = self._mx
        if device is None:
            wanted = mx.default_device()
        elif isinstance(device, mx.Device):
            wanted = device
        else:
            kind, _, number = str(device).lower().removeprefix("devicetype.").partition(":")
            kinds = {"cpu": mx.cpu, "gpu": mx.gpu, "metal": mx.gpu, "cuda": mx.gpu}
            if kind not in kinds:
                raise BackendUnavailableError(
                    f"MlxBackend has no device {str(device)!r}", hint=f"there are: {', '.join(self.devices)}"
                )
            wanted = mx.Device(kinds[kind], int(number or 0))
        if not mx.is_available(wanted):
            raise BackendUnavailableError(
                f"MlxBackend has no device {str(device)!r} here; MLX finds {', '.join(self.devices)}",
                hint='GPUs need Apple silicon, or on Linux: pip install "mlx[cuda]"',
            )
        self._device = wanted
        name = str(wanted.type).removeprefix("DeviceType.")
        name = f"{name}:{wanted.index}" if getattr(wanted, "index", 0) else name
        return name

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that MLX finds on this machine."""
        mx = self._mx
        return ("cpu", "gpu") if mx.is_available(mx.gpu) else ("cpu",)

    def _scoped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Run a function on the device of the backend, whatever the user's default is."""
        stream, device = self._mx.stream, self._device

        def call(*args: Any) -> Any:
            with stream(device):
                return function(*args)

        return call

    def _wait(self, arrays: list[Any]) -> None:
        with _explained():
            self._mx.eval([array for array in arrays if self._is_own(array)])

    def _memory(self) -> dict[str, int]:
        mx = self._mx
        return {
            "used": mx.get_active_memory(),
            "peak": mx.get_peak_memory(),
            "limit": mx.get_memory_limit() if hasattr(mx, "get_memory_limit") else 0,
            "cache": mx.get_cache_memory(),
        }

    # --- arrays -----------------------------------------------------------------------------------------------

    @property
    def _array_type(self) -> Any:
        return self._mx.array

    def _native(self, dtype: str) -> Any:
        if dtype == "float64" and self._device.type != self._mx.cpu:
            raise UnsupportedOpError("MLX has no float64 on the GPU", hint='use dtype="float32", or device="cpu"')
        return getattr(self._mx, "bool_" if dtype == "bool" else str(dtypes.normalize(dtype)))

    def _convert_dtype(self, dtype: Any) -> Any:
        return None if dtype is None else self._native(dtype)

    def _is_own(self, arg: Any) -> bool:
        return isinstance(arg, self._mx.array)

    def _is_here(self, array: Any) -> bool:
        return True

    def _from_host(self, host: np.ndarray[Any, Any], dtype: dtypes.DType) -> Any:
        if host.dtype.name == "bfloat16":
            host = host.astype(np.float32)
        if host.dtype == np.float64 and dtype != "float64":
            # MLX makes float32 of a double on its own; the rounding to halves has to happen once.
            host = host.astype(np.float16 if dtype == "float16" else np.float32)
        plain = np.array(host, dtype=host.dtype.newbyteorder("="), order="C")
        native = self._native(dtype)
        with self._mx.stream(self._device):
            array = self._mx.array(plain, dtype=native)
            if plain.dtype.name != dtype:
                # A conversion that is still to be done could be done by this thread alone.
                self._mx.eval(array)
        return array

    def _shared(self, host: np.ndarray[Any, Any]) -> Any:
        # MLX copies what comes from NumPy.
        if host.dtype.name == "bfloat16":
            return self._from_host(host, dtypes.bfloat16)
        with self._mx.stream(self._device):
            return self._mx.array(host, dtype=self._native(host.dtype.name))

    def _to(self, array: Any, dtype: dtypes.DType) -> Any:
        with self._mx.stream(self._device):
            return self._mx.array(array, dtype=self._native(dtype))

    def _full(self, shape: tuple[int, ...], value: float, dtype: dtypes.DType) -> Any:
        native = self._native(dtype)
        with self._mx.stream(self._device):
            return self._mx.full(shape, self._mx.array(value, native))

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        """Convert an array of this backend to NumPy; waits until it is computed."""
        with _explained():
            return to_host(tensor)

    def dtype(self, tensor: Any) -> dtypes.DType:
        """Dtype of an array."""
        found = tensor if hasattr(tensor, "dtype") else self.array(tensor)
        return dtypes.normalize(str(found.dtype).removeprefix("mlx.core."))

    # --- programs ---------------------------------------------------------------------------------------------

    def _load_source(self, source: Any, name: str) -> Module:
        module = super()._load_source(source, name)
        module.around = self._scoped
        return module

    def _evaluator(self, program: Program) -> Callable[..., Any]:
        return self._finish(program, "evaluate", program.module.function("evaluate"))

    def _differentiator(self, program: Program, outputs: tuple[str, ...], names: tuple[str, ...]) -> Callable[..., Any]:
        mx, evaluate, updates = self._mx, program.differentiable.function("evaluate"), bool(program.updates)

        def evaluate_gradients(params: Any, data: Any, state: Any, cotangents: Any) -> Any:
            def weighted(leaves: Any) -> Any:
                result = evaluate({**params, **leaves}, data, state)
                found = result[0] if updates else result
                # The derivative of this sum is what the cotangents pull back.
                total = sum((found[name] * cotangents[name]).sum() for name in outputs)
                return total, (result if updates else (found,))

            leaves = {name: params[name] for name in names}
            (_, result), gradients = mx.value_and_grad(weighted)(leaves)
            if program.settings.jit:
                # Of two results that are computed alike, MLX's compiler would lose one. What is contiguous is not
                # copied here.
                result = tuple({name: mx.contiguous(array) for name, array in part.items()} for part in result)
            return (result[0], gradients, result[1]) if updates else (result[0], gradients)

        return self._finish(program, "gradients", self._scoped(evaluate_gradients))

    def _compile_graph_gradients(self, program: Program, module: Any) -> Callable[..., Any]:
        return self._finish(program, "gradients", module.function("evaluate_gradients"))

    def _finish(self, program: Program, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compile a function if the program asks for it."""
        updates = bool(program.updates)
        if not program.settings.jit:
            return self._settled(function, updates)
        traces = 0

        def traced(*args: Any) -> Any:
            # MLX runs this once for each compilation.
            nonlocal traces
            traces += 1
            return function(*args)

        compiled = self._mx.compile(traced, **program.settings.jit_options)
        return self._settled(observed(program.stats, what, compiled, lambda: traces), updates)

    def _settled(self, function: Callable[..., Any], updates: bool) -> Callable[..., Any]:
        """Start to compute what other threads may read: a thread cannot compute what another one has recorded.

        That is the state, which all calls share, and whatever another thread than the main one returns.
        """
        main = threading.main_thread()

        def call(*args: Any) -> Any:
            result = function(*args)
            if threading.current_thread() is not main:
                self._start(result)
            elif updates:
                self._start(result[-1])
            return result

        return call

    def _start(self, arrays: Any) -> None:
        try:
            self._mx.async_eval(arrays)
        except ValueError as error:
            # Inside `mlx.core.grad` or `compile` of the user's nothing can be computed, and nothing has to be.
            if "transformation" not in str(error):
                raise

    # --- gradients of functions -------------------------------------------------------------------------------

    def _native_value_and_grad(self, function: Callable[..., Any], argnums: int | Sequence[int]) -> Callable[..., Any]:
        def with_gradient(*args: Any) -> Any:
            places = self._places(argnums, args)
            arrays = [a if self._is_own(a) else self.array(a) for a in args]
            # MLX gives one gradient alone for a list of one place.
            wanted = places[0] if len(places) == 1 else list(places)
            value, gradients = self._mx.value_and_grad(
                lambda *given: self._check_number(function(*given)), argnums=wanted
            )(*arrays)
            if isinstance(argnums, int):
                return value, gradients
            return value, (gradients,) if len(places) == 1 else tuple(gradients)

        return self._scoped(with_gradient)


#: The other spelling of the class.
MLXBackend = MlxBackend


@contextmanager
def _explained() -> Iterator[None]:
    """Make errors of ours of what MLX finds when it computes at last."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, MithrilError):
            raise
        text = str(error)
        if "factorization failed" in text or "inversion failed" in text:
            raise NumericsError(
                f"a matrix is singular: {text}",
                hint="its rows have to be linearly independent; a small multiple of the identity added may help",
            ) from error
        if "in current thread" in text:
            raise InvalidValueError(
                f"the array was made by another thread and is not computed yet: {text}",
                hint="call mlx.core.eval on it in the thread that made it",
            ) from error
        raise


def _restore(kind: type[MlxBackend], options: dict[str, Any]) -> MlxBackend:
    return kind(**options)
