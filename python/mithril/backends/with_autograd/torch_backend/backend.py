"""The PyTorch backend: readable generated code, PyTorch's own kernels, autograd and compiler."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import Unpack

from .... import dtypes
from ....compiled.compile_stats import observed
from ....errors import BackendUnavailableError, ConflictingOptionError
from ... import options
from ...frameworks import require
from ...keywords import TorchOptions, accepts, names
from ..framework import Framework

if TYPE_CHECKING:
    from ....compiled.program import Program

__all__ = ["TorchBackend"]

#: Where some versions of PyTorch get `gelu` of infinity wrong.
_GELU = (("special:gelu", "float32"), ("special:gelu", "bfloat16"))


class TorchBackend(Framework):
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
        Dtype to multiply matrices and convolve in, see `Backend`.
    cudnn_benchmark : bool, optional
        Let cuDNN try its algorithms and keep the fastest, in calls of this backend only.
    device_mesh : int or tuple of int, optional
        ``(1,)``; meshes of more devices are not part of this version.

    Examples
    --------
    >>> import mithril as ml
    >>> backend = ml.TorchBackend()
    >>> backend.add(backend.tensor([1.0, 2.0]), 0.5)
    tensor([1.5000, 2.5000])
    """

    name = "torch"
    target = "torch"
    _options: tuple[str, ...] = names(TorchOptions)
    limitations: Mapping[tuple[str, str], str] = {
        ("binary_cross_entropy", "*int*"): "PyTorch refuses what is no probability, where others give NaN",
    }

    @accepts(TorchOptions)
    def __init__(self, **given: Unpack[TorchOptions]) -> None:
        self._torch = require(type(self).__name__, "torch")
        super().__init__(**given)
        #: Whether cuDNN tries its algorithms and keeps the fastest, in our calls only.
        self.cudnn_benchmark: bool = options.switch("cudnn_benchmark", given.get("cudnn_benchmark") or False)
        if self.cudnn_benchmark and self._device.type != "cuda":
            options.warn_ignored(type(self).__name__, "cudnn_benchmark", f"there is no cuDNN on {self.device}")
            self.ignored_options = (*self.ignored_options, "cudnn_benchmark")

        torch = self._torch
        largest = torch.full((64,), torch.inf, device=self._device)
        # Tensors of the device "meta" have no numbers.
        if self._device.type != "meta" and torch.nn.functional.gelu(largest).isnan().any():
            reason = "gelu of PyTorch gives NaN for infinity"
            self.limitations = {**self.limitations, **dict.fromkeys(_GELU, reason)}

    def __reduce__(self) -> Any:
        return _restore, (type(self), {"dtype": str(self.default_dtype), "device": self.device, "seed": self._seed})

    # --- devices ----------------------------------------------------------------------------------------------

    def _find_device(self, device: Any) -> str:
        torch = self._torch
        wanted = "cpu" if device is None else str(device).lower()
        if wanted == "gpu":
            wanted = "cuda" if torch.cuda.is_available() else "mps"
        if wanted.startswith("rocm"):
            wanted = wanted.replace("rocm", "cuda")
        if wanted.partition(":")[0] in ("tpu", "xla"):
            wanted = _xla(wanted, self.devices)
        try:
            self._device = torch.device(wanted)
            torch.empty(0, device=self._device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise BackendUnavailableError(
                f"TorchBackend has no device {str(device)!r} here: {str(error).splitlines()[0]}",
                hint=f"there are: {', '.join(self.devices)}",
            ) from error
        self._is_alone = self.devices == (str(self._device),)
        return str(self._device)

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that PyTorch finds on this machine."""
        torch = self._torch
        found = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        if torch.backends.mps.is_available():
            found.append("mps")
        return tuple(found)

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

    @property
    def _array_type(self) -> Any:
        return self._torch.Tensor

    def _native(self, dtype: str) -> Any:
        return getattr(self._torch, str(dtypes.normalize(dtype)))

    def _convert_dtype(self, dtype: Any) -> Any:
        return None if dtype is None else self._native(dtype)

    def _is_own(self, arg: Any) -> bool:
        return isinstance(arg, self._torch.Tensor)

    def _is_here(self, array: Any) -> bool:
        return bool(array.device == self._device)

    _has_strides = True
    _writes_in_place = True

    def _span(self, array: Any) -> tuple[int, int]:
        if array.is_contiguous():
            start = array.data_ptr()
            return start, start + array.nbytes
        memory = array.untyped_storage()
        return memory.data_ptr(), memory.data_ptr() + memory.nbytes()

    def _is_writable(self, array: Any) -> bool:
        return bool(array.is_contiguous())

    def _copied(self, array: Any) -> Any:
        return array.clone(memory_format=self._torch.contiguous_format)

    def _from_host(self, host: np.ndarray[Any, Any], dtype: dtypes.DType) -> Any:
        if host.dtype.name == "bfloat16":
            host = host.astype(np.float32)
        # PyTorch takes neither negative strides nor the other byte order, and warns about read-only memory.
        copied = self._torch.from_numpy(np.array(host, dtype=host.dtype.newbyteorder("="), order="C"))
        return copied.to(self._device, self._native(dtype))

    def _shared(self, host: np.ndarray[Any, Any]) -> Any:
        if host.dtype.name == "bfloat16":
            return self._torch.from_numpy(host.view(np.int16)).view(self._torch.bfloat16).to(self._device)
        return self._torch.from_numpy(host).to(self._device)

    def _to(self, array: Any, dtype: dtypes.DType) -> Any:
        return array.detach().to(self._device, self._native(dtype), copy=True)

    def _full(self, shape: tuple[int, ...], value: float, dtype: dtypes.DType) -> Any:
        return self._torch.full(shape, value, dtype=self._native(dtype), device=self._device)

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        """Convert an array of this backend to NumPy."""
        from ...exchange import to_host

        return to_host(tensor)

    def dtype(self, tensor: Any) -> dtypes.DType:
        """Dtype of an array."""
        found = tensor if hasattr(tensor, "dtype") else self.array(tensor)
        return dtypes.normalize(str(found.dtype).removeprefix("torch."))

    # --- programs ---------------------------------------------------------------------------------------------

    def _evaluator(self, program: Program) -> Callable[..., Any]:
        settings = program.settings
        is_inductor = settings.jit and settings.jit_options.get("backend", "inductor") == "inductor"
        if settings.checkpoint and settings.autodiff == "graph" and is_inductor:
            raise ConflictingOptionError(
                'gradient_checkpointing has no effect with jit=True and autodiff="graph": torch.compile merges what is '
                "computed again with what was computed first",
                hint='leave out autodiff="graph": PyTorch\'s own gradients keep the checkpoints',
            )
        function = program.module.function("evaluate")
        if program.settings.jit:
            function = self._compile(program, "evaluate", function)
        return self._with_cudnn(function) if self.cudnn_benchmark else function

    def _with_cudnn(self, function: Callable[..., Any]) -> Callable[..., Any]:
        flags = self._torch.backends.cudnn.flags

        def call(*args: Any) -> Any:
            with flags(benchmark=True):
                return function(*args)

        return call

    def _differentiator(self, program: Program, outputs: tuple[str, ...], names: tuple[str, ...]) -> Callable[..., Any]:
        torch, evaluate, updates = self._torch, self._differentiable(program), bool(program.updates)

        def evaluate_gradients(params: Any, data: Any, state: Any, cotangents: Any) -> Any:
            leaves = {name: params[name].detach().requires_grad_() for name in names}
            with torch.enable_grad():
                result = evaluate({**params, **leaves}, data, state)
            found = result[0] if updates else result
            kept = [name for name in outputs if found[name].requires_grad]
            gradients = torch.autograd.grad(
                [found[name] for name in kept],
                list(leaves.values()),
                [cotangents[name] for name in kept],
                allow_unused=True,
                materialize_grads=True,
            )
            values = {name: value.detach() for name, value in found.items()}
            by_name = {name: _solid(g) for name, g in zip(names, gradients, strict=True)}
            if not updates:
                return values, by_name
            return values, by_name, {name: value.detach() for name, value in result[1].items()}

        return evaluate_gradients

    def _differentiable(self, program: Program) -> Callable[..., Any]:
        if not program.settings.checkpoint:
            return program.evaluate
        function: Callable[..., Any] = program.differentiable.function("evaluate")
        if program.settings.jit:
            function = self._compile(program, "gradients", function)
        return self._with_cudnn(function) if self.cudnn_benchmark else function

    def _compile(self, program: Program, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        from torch._dynamo.utils import counters

        compiled = self._torch.compile(function, fullgraph=True, **program.settings.jit_options)
        return observed(program.stats, what, compiled, lambda: counters["stats"]["unique_graphs"])

    def _compile_graph_gradients(self, program: Program, module: Any) -> Callable[..., Any]:
        function = module.function("evaluate_gradients")
        return self._compile(program, "gradients", function) if program.settings.jit else function

    # --- gradients of functions -------------------------------------------------------------------------------

    def _native_value_and_grad(self, function: Callable[..., Any], argnums: int | Sequence[int]) -> Callable[..., Any]:
        torch = self._torch

        def with_gradient(*args: Any) -> Any:
            places = self._places(argnums, args)
            arrays = [a if self._is_own(a) else self.array(a) for a in args]
            # Gradients of gradients: what is being differentiated outside stays so.
            outer = any(a.requires_grad for a in arrays)
            for place in places:
                given = arrays[place]
                arrays[place] = given.view_as(given) if given.requires_grad else given.detach().requires_grad_()
            with torch.enable_grad():
                value = self._check_number(function(*arrays))
            inputs = [arrays[place] for place in places]
            if value.requires_grad:
                gradients = torch.autograd.grad(
                    value, inputs, create_graph=outer, allow_unused=True, materialize_grads=True
                )
            else:
                gradients = tuple(torch.zeros_like(a) for a in inputs)
            value, gradients = (value if outer else value.detach()), tuple(map(_solid, gradients))
            return value, gradients[0] if isinstance(argnums, int) else gradients

        return with_gradient


def _solid(gradient: Any) -> Any:
    """Return a gradient with memory: zeros that autograd knows of have none, and not all functions take them."""
    return gradient.clone() if gradient._is_zerotensor() else gradient


def _restore(kind: type[TorchBackend], options: dict[str, Any]) -> TorchBackend:
    return kind(**options)


def _xla(wanted: str, devices: tuple[str, ...]) -> str:
    """Name of a TPU in PyTorch, which reaches it through torch_xla."""
    try:
        importlib.import_module("torch_xla")
    except ImportError as error:
        raise BackendUnavailableError(
            f"TorchBackend has no device {wanted!r}: it runs on a TPU through torch_xla, which is not installed",
            hint="install it on a machine with a TPU: pip install torch_xla[tpu]; "
            f"here there are: {', '.join(devices)}",
        ) from error
    return wanted.replace("tpu", "xla")
