"""The keyword options of the constructors of backends and of `compile`, for type checkers, editors and `help`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from typing_extensions import TypedDict

from ..parallel.hardware import Hardware
from ..parallel.layout import Layout, Mesh
from ..parallel.strategies import Strategy
from .options import ALIASES

__all__ = [
    "BackendOptions",
    "COptions",
    "CheckOptions",
    "CompileOptions",
    "FrameworkOptions",
    "GgmlOptions",
    "InferenceOptions",
    "JaxOptions",
    "LoadOptions",
    "MlxOptions",
    "NativeOptions",
    "NumpyOptions",
    "QuantizeOptions",
    "TorchOptions",
    "accepts",
    "names",
    "passes_on",
]

Constructor = TypeVar("Constructor", bound=Callable[..., None])
Function = TypeVar("Function", bound=Callable[..., Any])


class BackendOptions(TypedDict, total=False):
    """What every backend takes; the second paragraph lists other spellings."""

    dtype: Any
    device: Any
    seed: int | None
    jit: bool | None
    precision: Any
    amp: bool | None

    default_dtype: Any
    random_seed: int | None
    platform: Any
    enable_amp: bool | None
    use_amp: bool | None
    jit_compile: bool | None
    compile: bool | None
    use_graph: bool | None
    compute_dtype: Any
    compute_precision: Any


class FrameworkOptions(BackendOptions, total=False):
    """What the backends of PyTorch, JAX and MLX take."""

    device_mesh: int | Iterable[int] | None
    devices: Iterable[Any] | None
    parallel_strategy: Strategy | Sequence[str] | None


class QuantizeOptions(TypedDict, total=False):
    """What backends take that keep weights in 8 bits."""

    quantize: str | Mapping[str, str | None] | None
    quantize_strict: bool | None


class NumpyOptions(BackendOptions, QuantizeOptions, total=False):
    """Options of `NumpyBackend`."""

    device_mesh: int | Iterable[int] | None
    devices: Iterable[Any] | None
    parallel_strategy: Strategy | Sequence[str] | None


class TorchOptions(FrameworkOptions, QuantizeOptions, total=False):
    """Options of `TorchBackend`."""

    cudnn_benchmark: bool | None


class JaxOptions(FrameworkOptions, QuantizeOptions, total=False):
    """Options of `JaxBackend`."""

    pre_allocate: bool | None
    preallocate: bool | None


class MlxOptions(FrameworkOptions, total=False):
    """Options of `MlxBackend`; the last two are ignored, with a warning."""

    memory_limit: int | str | None
    mem_size: int | str | None
    auto_free_tensors: bool | None
    enable_mps_optimization: bool | None
    use_ane: bool | None


class NativeOptions(BackendOptions, total=False):
    """What `CBackend` and `GGMLBackend` take."""

    num_threads: int | None
    memory_limit: int | str | None
    mem_size: int | str | None


class COptions(NativeOptions, total=False):
    """Options of `CBackend`."""

    cc: str | None
    flags: Iterable[str] | None
    autotune: bool | None
    quantize: str | Mapping[str, str | None] | None
    quantize_ranges: Mapping[str, Any] | None
    quantize_strict: bool | None
    batch: str | None
    block: int | None


class GgmlOptions(NativeOptions, total=False):
    """Options of `GGMLBackend`."""

    quantize: str | Mapping[str, str | None] | None
    quantize_strict: bool | None
    repack: bool | None


class InferenceOptions(TypedDict, total=False):
    """Options of `mithril.compile` that what compiles for inference passes on."""

    dtypes: Mapping[str, Any] | None
    data_keys: Iterable[str] | None
    constant_keys: Mapping[str, Any] | None
    trainable_keys: Iterable[str] | None
    freeze: Iterable[str] | None
    initializers: Mapping[str, Any] | None
    discard_keys: Iterable[str] | None
    donate: Iterable[str] | None
    static_shapes: bool
    jit: bool | None
    jit_options: Mapping[str, Any] | None
    auto_scalar_promotion: bool
    gradient_checkpointing: bool
    autodiff: str | None
    precision: Any
    layout: Layout | Mesh | None
    strategy: Strategy | None
    hardware: Hardware | str | None
    file_path: str | None
    verbose: bool

    types: Mapping[str, Any] | None
    checkpoint: bool
    compute_precision: Any
    compute_dtype: Any


class LoadOptions(InferenceOptions, total=False):
    """Options of `mithril.compile` that what loads models for inference passes on."""

    strict: bool


class CheckOptions(InferenceOptions, total=False):
    """Options of `mithril.compile` that `check` passes on."""

    inference: bool
    static_inference: bool


class CompileOptions(CheckOptions, total=False):
    """Options of `mithril.compile` but for shapes, which functions that compile take themselves."""

    strict: bool


def names(options: type, ignored: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the canonical names of options, without those that are accepted and ignored.

    Examples
    --------
    >>> from mithril.backends.keywords import BackendOptions, names
    >>> names(BackendOptions)
    ('dtype', 'device', 'seed', 'jit', 'precision', 'amp')
    """
    return tuple(name for name in options.__annotations__ if name not in ALIASES and name not in ignored)


def accepts(options: type) -> Callable[[Constructor], Constructor]:
    """Show options as the signature of a constructor, whose arguments are read by `options.normalize`.

    Examples
    --------
    >>> import inspect
    >>> import mithril as ml
    >>> print(str(inspect.signature(ml.NumpyBackend))[:78])
    (*, dtype=None, device=None, seed=None, jit=None, precision=None, amp=None, qu
    """
    keywords = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in names(options)]
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    rest = inspect.Parameter("other_spellings", inspect.Parameter.VAR_KEYWORD)

    def with_signature(constructor: Constructor) -> Constructor:
        constructor.__signature__ = inspect.Signature([first, *keywords, rest])  # type: ignore[attr-defined]
        return constructor

    return with_signature


def passes_on(*sources: Callable[..., Any] | type, without: Iterable[str] = ()) -> Callable[[Function], Function]:
    """Show the options of other functions in the signature of one that passes them on with ``**options``.

    Parameters
    ----------
    *sources : callable or type
        The functions that take the options, or classes such as `TorchOptions`, whose options are None by default.
    without : iterable of str, optional
        Options that the function sets itself.

    Examples
    --------
    >>> import inspect
    >>> from mithril.backends.keywords import passes_on
    >>> def inner(*, size=1, name=None): ...
    >>> @passes_on(inner, without=["name"])
    ... def outer(x, **options): ...
    >>> inspect.signature(outer)
    <Signature (x, *, size=1)>
    """
    keyword, collecting = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD

    def with_signature(function: Function) -> Function:
        own = inspect.signature(function)
        parameters = [p for p in own.parameters.values() if p.kind is not collecting]
        taken = {p.name for p in parameters} | set(without)
        rest = None
        for source in sources:
            if isinstance(source, type):
                options = [inspect.Parameter(name, keyword, default=None) for name in names(source)]
            else:
                signature_parameters = inspect.signature(source).parameters.values()
                options = [p for p in signature_parameters if p.kind is keyword]
                rest = next((p for p in signature_parameters if p.kind is collecting), rest)
            parameters += [p for p in options if p.name not in taken]
            taken |= {p.name for p in options}
        if rest is not None:
            parameters.append(rest)
        function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return with_signature
