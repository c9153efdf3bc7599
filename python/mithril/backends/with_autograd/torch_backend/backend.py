"""The PyTorch backend: readable generated code, PyTorch's own kernels, autograd and compiler."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from typing_extensions import Unpack

from .... import dtypes
from ....compiled.loading import is_out_of_memory, out_of_memory
from ....errors import BackendUnavailableError, InvalidValueError
from ... import options
from ...frameworks import require
from ...keywords import TorchOptions, accepts, names
from ...quantized import QuantizedWeights
from ..framework import Framework
from .engine import TorchEngine, materialized
from .kernels import explained

__all__ = ["TorchBackend"]


class TorchBackend(QuantizedWeights, Framework):
    """Runs models with PyTorch.

    Parameters
    ----------
    dtype : dtype, optional
        Dtype of floats (default ``float32``). Also spelled ``default_dtype``.
    device : str or torch.device, optional
        ``"cpu"`` (default), ``"cuda"``, ``"cuda:1"``, ``"mps"``, ``"xpu"``; ``"gpu"`` is CUDA or else MPS.
    seed : int, optional
        Seed of the random numbers (default 0).
    jit : bool, optional
        Compile models with `torch.compile` unless `mithril.compile` says otherwise (default False).
        Also spelled ``compile``.
    amp : bool, optional
        Automatic mixed precision: bfloat16, or float16 on GPUs without it. Also spelled ``enable_amp``, ``use_amp``.
    precision : dtype, optional
        Dtype to multiply matrices and convolve in, see `Backend`. ``"float32"`` means all its bits: by default, PyTorch
        convolves float32 on NVIDIA GPUs in TensorFloat-32, which has 10 bits.
    cudnn_benchmark : bool, optional
        Let cuDNN try its algorithms and keep the fastest, in calls of this backend only.
    quantize : str or mapping, optional
        Keep the weights of products and convolutions in 8 bits. ``"int8"`` computes products in integers;
        ``"int8_weights"`` converts the weights to float where they are used, and so does ``"int8"`` for convolutions.
        Or a mapping from patterns of names to one of them or None, such as ``{"lm_head.*": None, "*": "int8"}``: the
        first pattern that fits counts. Needs models compiled with ``inference=True``.
    quantize_strict : bool, optional
        Whether a weight that cannot be kept as asked is an error (default False).
    device_mesh : int or tuple of int, optional
        Models are divided over so many processes of this machine, which start by themselves, or of those that
        ``mithril launch`` or `torchrun` starts: the batch, and with two numbers parameters; see `mithril.Layout`.
    parallel_strategy : str, optional
        What several devices divide: ``"data_parallel"``, ``"fully_sharded"``, ``"model_parallel"``; ``"auto"``
        searches for the fastest.
    devices : sequence, optional
        The device of each process on this machine; a list of one is like ``device``.

    Examples
    --------
    >>> import mithril as ml
    >>> backend = ml.TorchBackend()
    >>> backend.add(backend.tensor([1.0, 2.0]), 0.5)
    tensor([1.5000, 2.5000])
    """

    name = "torch"
    target = "torch"
    _engine_type = TorchEngine
    _options: tuple[str, ...] = names(TorchOptions)
    limitations: Mapping[tuple[str, str], str] = {
        ("binary_cross_entropy", "*int*"): "PyTorch refuses what is not a probability, where others give NaN",
    }

    @accepts(TorchOptions)
    def __init__(self, **keywords: Unpack[TorchOptions]) -> None:
        self._torch = require(type(self).__name__, "torch")
        super().__init__(**keywords)
        self._read_quantize(keywords)
        settings = options.normalize(type(self).__name__, keywords, self._options)
        listed = [str(name) for name in self.listed_devices]
        if self._device.type == "cuda" and len({options.device_key(name) for name in listed}) < len(listed):
            raise InvalidValueError(
                f"devices={listed!r} names a GPU twice, and NCCL connects one process of each GPU",
                hint=f"name each once; this machine has {', '.join(self.devices)}",
            )
        requested = settings.get("precision")
        #: Whether float32 was asked for by name: on GPUs, PyTorch convolves it in fewer bits.
        self.is_exact: bool = requested is not None and dtypes.normalize(requested) == dtypes.float32
        #: Whether cuDNN tries its algorithms and keeps the fastest, in our calls only.
        self.cudnn_benchmark: bool = options.switch("cudnn_benchmark", keywords.get("cudnn_benchmark") or False)
        if self.cudnn_benchmark and self._device.type != "cuda":
            options.warn_ignored(type(self).__name__, "cudnn_benchmark", f"there is no cuDNN on {self.device}")
            self.ignored_options = (*self.ignored_options, "cudnn_benchmark")

        self.limitations = {**self.limitations, **self._wrong_gelus()}

    def __reduce__(self) -> Any:
        keywords = {"dtype": str(self.default_dtype), "device": self.device, "seed": self._seed, "jit": self.jit}
        if self.is_exact or self.precision is not None:
            keywords["precision"] = "float32" if self.is_exact else str(self.precision)
        if self.cudnn_benchmark:
            keywords["cudnn_benchmark"] = True
        return _restore, (type(self), {**keywords, **self._quantize_options()})

    def _wrong_gelus(self) -> dict[tuple[str, str], str]:
        """Return the dtypes in which `gelu` of infinity is wrong; that depends on the version and the processor."""
        torch = self._torch
        # Tensors of the device "meta" have no numbers.
        if self._device.type == "meta":
            return {}
        limitations = {}
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
            # As many as special values are tried in: loops over few elements are others.
            largest = torch.full((7, 3), torch.inf, dtype=dtype)
            if torch.nn.functional.gelu(largest.to(self._device)).isnan().any():
                limitations["special:gelu", str(dtype).rpartition(".")[2]] = "gelu of PyTorch gives NaN for infinity"
        return limitations

    # --- devices ----------------------------------------------------------------------------------------------

    def _find_device(self, device: Any) -> str:
        torch = self._torch
        requested = "cpu" if device is None else str(device).lower()
        if requested == "gpu":
            requested = "cuda" if torch.cuda.is_available() else "mps"
        if requested.startswith("rocm"):
            requested = requested.replace("rocm", "cuda")
        if requested.partition(":")[0] in ("tpu", "xla"):
            requested = _xla(requested, self.devices)
        try:
            # Of what is on it: "cuda" is the current device of several, and arrays there say which.
            self._device = torch.empty(0, device=requested).device
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            if is_out_of_memory(error):
                raise out_of_memory(error) from error
            raise BackendUnavailableError(
                f"TorchBackend has no device {str(device)!r} here: {str(error).splitlines()[0]}",
                hint=f"available: {', '.join(self.devices)}",
            ) from error
        # Kernels of a device end it where one of a processor raises an error.
        self.engine.accepts_any_position = self._device.type not in ("cpu", "meta")
        self.engine.is_single_device = self.devices == (str(self._device),)
        return str(self._device)

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that PyTorch finds on this machine."""
        torch = self._torch
        devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        if torch.backends.mps.is_available():
            devices.append("mps")
        return tuple(devices)

    def _half(self) -> dtypes.DType:
        capable = self._device.type != "cuda" or self._torch.cuda.is_bf16_supported()
        return dtypes.bfloat16 if capable else dtypes.float16

    def enable_deterministic(self) -> None:
        """Let PyTorch choose deterministic algorithms, in the whole process; ops without one raise an error."""
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        self._torch.use_deterministic_algorithms(True)

    def _wait(self, arrays: list[Any]) -> None:
        kind = self._device.type
        if kind != "cpu":
            with explained():
                getattr(self._torch, kind).synchronize()

    def _memory(self) -> dict[str, int]:
        if self._device.type != "cuda":
            return super()._memory()
        cuda, device = self._torch.cuda, self._device
        return {
            "used": cuda.memory_allocated(device),
            "peak": cuda.max_memory_allocated(device),
            "limit": cuda.get_device_properties(device).total_memory,
            "cache": cuda.memory_reserved(device),
        }

    # --- arrays -----------------------------------------------------------------------------------------------

    def _convert_dtype(self, dtype: Any) -> Any:
        return None if dtype is None else self.engine.native_dtype(dtype)

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        """Convert an array of this backend to NumPy."""
        from ...exchange import to_host

        with explained():
            return to_host(tensor)

    def dtype(self, tensor: Any) -> dtypes.DType:
        """Dtype of an array."""
        array = tensor if hasattr(tensor, "dtype") else self.array(tensor)
        return dtypes.normalize(str(array.dtype).removeprefix("torch."))

    # --- gradients of functions -------------------------------------------------------------------------------

    def _native_value_and_grad(self, function: Callable[..., Any], argnums: int | Sequence[int]) -> Callable[..., Any]:
        torch = self._torch

        def with_gradient(*args: Any) -> Any:
            places = self._places(argnums, args)
            arrays = [a if self.engine.is_own(a) else self.array(a) for a in args]
            # Gradients of gradients: what is being differentiated outside stays so.
            outer = any(a.requires_grad for a in arrays)
            for place in places:
                array = arrays[place]
                arrays[place] = array.view_as(array) if array.requires_grad else array.detach().requires_grad_()
            with torch.enable_grad():
                value = self._check_number(function(*arrays))
            inputs = [arrays[place] for place in places]
            if value.requires_grad:
                gradients = torch.autograd.grad(
                    value, inputs, create_graph=outer, allow_unused=True, materialize_grads=True
                )
            else:
                gradients = tuple(torch.zeros_like(a) for a in inputs)
            value, gradients = (value if outer else value.detach()), tuple(map(materialized, gradients))
            return value, gradients[0] if isinstance(argnums, int) else gradients

        return with_gradient


def _restore(kind: type[TorchBackend], options: dict[str, Any]) -> TorchBackend:
    return kind(**options)


def _xla(requested: str, devices: tuple[str, ...]) -> str:
    """Name of a TPU in PyTorch, which reaches it through torch_xla."""
    try:
        importlib.import_module("torch_xla")
    except ImportError as error:
        raise BackendUnavailableError(
            f"TorchBackend has no device {requested!r}: it runs on a TPU through torch_xla, which is not installed",
            hint="install it on a machine with a TPU: pip install torch_xla[tpu]; "
            f"here available: {', '.join(devices)}",
        ) from error
    return requested.replace("tpu", "xla")
