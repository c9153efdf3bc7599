"""The MLX backend: readable generated code over `mlx.core`, MLX's own gradients and compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from typing_extensions import Unpack

from .... import dtypes
from ....errors import BackendUnavailableError, InvalidValueError, MithrilError, NumericsError
from ... import options
from ...exchange import to_host
from ...frameworks import require
from ...keywords import MlxOptions, accepts, names
from ..framework import Framework
from .engine import MlxEngine

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
    _engine_type = MlxEngine
    _ignored = ("enable_mps_optimization", "use_ane")
    _options = names(MlxOptions, _ignored)

    @accepts(MlxOptions)
    def __init__(self, **keywords: Unpack[MlxOptions]) -> None:
        self._mx = require("MlxBackend", "mlx.core")
        super().__init__(**keywords)
        self.engine.native_dtype(self.default_dtype)
        if keywords.get("memory_limit") is not None or keywords.get("mem_size") is not None:
            limit = options.memory("memory_limit", keywords.get("memory_limit", keywords.get("mem_size")))
            self._mx.set_memory_limit(limit)
        if options.switch("auto_free_tensors", keywords.get("auto_free_tensors") or False):
            self._mx.set_cache_limit(0)

    def __reduce__(self) -> Any:
        keywords = {"dtype": str(self.default_dtype), "device": self.device, "seed": self._seed, "jit": self.jit}
        precision = {} if self.precision is None else {"precision": str(self.precision)}
        return _restore, (type(self), keywords | precision)

    # --- devices ----------------------------------------------------------------------------------------------

    def _find_device(self, device: Any) -> str:
        mx = self._mx
        if device is None:
            target = mx.default_device()
        elif isinstance(device, mx.Device):
            target = device
        else:
            kind, _, number = str(device).lower().removeprefix("devicetype.").partition(":")
            kinds = {"cpu": mx.cpu, "gpu": mx.gpu, "metal": mx.gpu, "cuda": mx.gpu}
            if kind not in kinds:
                raise BackendUnavailableError(
                    f"MlxBackend has no device {str(device)!r}", hint=f"available: {', '.join(self.devices)}"
                )
            target = mx.Device(kinds[kind], int(number or 0))
        if not mx.is_available(target):
            raise BackendUnavailableError(
                f"MlxBackend has no device {str(device)!r} here; MLX finds {', '.join(self.devices)}",
                hint='GPUs need Apple silicon, or on Linux: pip install "mlx[cuda]"',
            )
        self._device = target
        name = str(target.type).removeprefix("DeviceType.")
        name = f"{name}:{target.index}" if getattr(target, "index", 0) else name
        return name

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that MLX finds on this machine."""
        mx = self._mx
        return ("cpu", "gpu") if mx.is_available(mx.gpu) else ("cpu",)

    def _wait(self, arrays: list[Any]) -> None:
        with _explained():
            self._mx.eval([array for array in arrays if self.engine.is_own(array)])

    def _memory(self) -> dict[str, int]:
        mx = self._mx
        return {
            "used": mx.get_active_memory(),
            "peak": mx.get_peak_memory(),
            "limit": mx.get_memory_limit() if hasattr(mx, "get_memory_limit") else 0,
            "cache": mx.get_cache_memory(),
        }

    # --- arrays -----------------------------------------------------------------------------------------------

    def _convert_dtype(self, dtype: Any) -> Any:
        return None if dtype is None else self.engine.native_dtype(dtype)

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        """Convert an array of this backend to NumPy; waits until it is computed."""
        with _explained():
            return to_host(tensor)

    def dtype(self, tensor: Any) -> dtypes.DType:
        """Dtype of an array."""
        array = tensor if hasattr(tensor, "dtype") else self.array(tensor)
        return dtypes.normalize(str(array.dtype).removeprefix("mlx.core."))

    # --- gradients of functions -------------------------------------------------------------------------------

    def _native_value_and_grad(self, function: Callable[..., Any], argnums: int | Sequence[int]) -> Callable[..., Any]:
        def with_gradient(*args: Any) -> Any:
            places = self._places(argnums, args)
            arrays = [a if self.engine.is_own(a) else self.array(a) for a in args]
            # MLX gives one gradient alone for a list of one place.
            numbers = places[0] if len(places) == 1 else list(places)
            value, gradients = self._mx.value_and_grad(
                lambda *values: self._check_number(function(*values)), argnums=numbers
            )(*arrays)
            if isinstance(argnums, int):
                return value, gradients
            return value, (gradients,) if len(places) == 1 else tuple(gradients)

        scoped: Callable[..., Any] = self.engine.scoped(with_gradient)
        return scoped


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
                hint="its rows must be linearly independent; a small multiple of the identity added may help",
            ) from error
        if "in current thread" in text:
            raise InvalidValueError(
                f"the array was made by another thread and is not computed yet: {text}",
                hint="call mlx.core.eval on it in the thread that made it",
            ) from error
        raise


def _restore(kind: type[MlxBackend], options: dict[str, Any]) -> MlxBackend:
    return kind(**options)
