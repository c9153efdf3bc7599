"""The interface of all backends, and what they have in common."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from .. import _core, dtypes
from .._generated.ops import Ops
from ..dtypes import DType
from ..errors import ConflictingOptionError, InvalidValueError, UnsupportedOpError
from ..parallel.layout import Layout
from ..parallel.pipeline import Pipeline
from ..suggestions import nearest
from . import custom, options
from .conversions import Conversions
from .eager import EagerOps
from .engine import Engine
from .exchange import to_host
from .functions import RegisteredFunctions
from .keywords import BackendOptions, accepts, names
from .memory import process_memory
from .shapes import read_shape, refuse_sizes_last

__all__ = ["Backend"]


class Backend(RegisteredFunctions, Conversions, EagerOps, Ops, ABC):
    """Creates arrays, applies ops to them at once, and runs compiled models.

    A backend of your own derives from this class (or from a built-in one) and defines `tensor`, `zeros` and
    `ones`; everything else has a default.

    Parameters
    ----------
    dtype : dtype, optional
        Dtype of floats (default ``float32``).
    seed : int, optional
        Seed of the random numbers (default 0). The same seed gives the same numbers on every backend.
    jit : bool, optional
        Whether models are compiled further by the framework's compiler, where `mithril.compile` does not say
        (default False).
    precision : dtype, optional
        Dtype in which models multiply matrices and convolve (``"bfloat16"``, ``"float16"``), while parameters,
        inputs and outputs stay ``dtype``; sums, norms, softmax and losses stay in float32. Default: ``dtype``.
    amp : bool, optional
        Automatic mixed precision: a ``precision`` that suits the device.
    """

    #: Name under which the backend is registered.
    name: str = "custom"
    #: Target of the compiler.
    target: Any = "custom"
    #: Options of the constructor.
    _options: tuple[str, ...] = names(BackendOptions)
    #: Where gradients can come from; the first is the default.
    _autodiff: tuple[str, ...] = ("graph",)
    #: Options that are accepted for the sake of other backends.
    _ignored: tuple[str, ...] = ()
    #: dtype name -> dtype of the framework, for `_convert_dtype`.
    dtype_map: dict[str, Any] = {}  # noqa: RUF012 - a table that subclasses replace
    #: What is known not to work: patterns of op and dtype (``("solve", "*float16")``) -> the reason; of gradients or
    #: special values alone as ``"gradient:solve"``, ``"special:solve"``.
    #: `run_backend_tests` counts it as limited, and fails if it works after all.
    limitations: Mapping[tuple[str, str], str] = {}
    #: Ops that a class of a user's own defines, by canonical name; see `custom`.
    _overrides: Mapping[str, custom.Override] = {}
    #: The same of methods that compiled models cannot call.
    _unused: Mapping[str, custom.Override] = {}
    #: Ops whose gradients it defines: method, ports that it does not take, ports given by name.
    _backwards: Mapping[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {}

    #: The layout of models that are compiled without one; None means a single device.
    layout: Layout | None = None
    #: Devices as the user named them.
    listed_devices: tuple[Any, ...] = ()
    #: Class of `engine`.
    _engine_type: type[Engine] = Engine

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        custom.adopt(cls)

    @accepts(BackendOptions)
    def __init__(self, **keywords: Any) -> None:
        settings = options.normalize(type(self).__name__, keywords, self._options, self._ignored)
        self.ignored_options: tuple[str, ...] = tuple(name for name in settings if name in self._ignored)
        self.default_dtype: DType = dtypes.normalize(settings.get("dtype", dtypes.float32))
        if not self.default_dtype.is_floating:
            raise InvalidValueError(
                f"the dtype of a backend is that of its floats, not {self.default_dtype}",
                hint="use float16, bfloat16, float32 or float64",
            )
        self.jit: bool = options.switch("jit", settings.get("jit", False))
        self.device: str = self._find_device(options.one_of(type(self).__name__, settings))
        #: Dtype of the products of matrices and convolutions inside a model; None: that of the backend.
        self.precision: DType | None = self._find_precision(settings)
        self._stream = 0
        self._seed = 0
        self.set_seed(settings.get("seed", 0))
        self._eager: dict[Any, Callable[..., Any]] = {}
        self._told: set[str] = set()
        self.listed_devices = tuple(options.listed(settings.get("devices", ())))
        #: The strategy that was asked for by name.
        self.parallel_strategy: Any = settings.get("parallel_strategy")
        self.layout = options.layout(settings, lambda: self.engine.device_count())
        #: Models that were placed on several devices, by identity, and where.
        self.placements: dict[int, tuple[_core.Model, Pipeline]] = {}
        if self.layout is not None:
            self.engine.on_layout(self.layout)

    @cached_property
    def engine(self) -> Any:
        """What compiled models and the compiler ask of this backend, an `Engine`; not for users."""
        return self._engine_type(self)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has an engine of its own.
        return {name: value for name, value in self.__dict__.items() if name != "engine"}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(device='{self.device}', dtype={self.default_dtype})"

    def __getattr__(self, name: str) -> Any:
        near = nearest(name, [n for n in dir(self) if not n.startswith("_")])
        guess = f"; did you mean {near!r}?" if near else ""
        raise AttributeError(f"{type(self).__name__} has no op and no attribute {name!r}{guess}")

    # --- what a backend defines -------------------------------------------------------------------------------

    def tensor(self, data: Any, dtype: Any = None) -> Any:
        """Create an array. A backend of your own has to define it."""
        raise self._missing("tensor")

    def zeros(self, *shape: Any, dtype: Any = None) -> Any:
        """Create an array of zeros. A backend of your own has to define it."""
        raise self._missing("zeros")

    def ones(self, *shape: Any, dtype: Any = None) -> Any:
        """Create an array of ones. A backend of your own has to define it."""
        raise self._missing("ones")

    def capabilities(self) -> dict[str, Any]:
        """Tell what the backend can do.

        Returns
        -------
        dict
            ``name``, ``device``, ``devices``, ``dtypes``, ``default_dtype``, ``autodiff`` (where gradients can come
            from, the default first), ``jit`` (whether models can be compiled further); the number of ops that are
            ``native``, ``expanded`` into others, run on the host by the ``reference``, or ``missing``, and ``ops``,
            which says it for each; ``methods`` and ``gradients`` that a class of your own defines,
            ``unused_methods`` (why compiled models cannot call them), and known ``limitations``.

        Examples
        --------
        >>> import mithril as ml
        >>> capabilities = ml.NumpyBackend().capabilities()
        >>> capabilities["autodiff"], capabilities["missing"], capabilities["ops"]["matmul"]
        (['graph'], 0, 'native')
        """
        from .capabilities import capabilities

        return capabilities(self)

    def unsupported(self, op: str, reason: str = "") -> UnsupportedOpError:
        """Make the error that an op is not supported; to be raised by methods of a backend of your own.

        Examples
        --------
        >>> import mithril as ml
        >>> class Small(ml.NumpyBackend):
        ...     def sort(self, x, axis=-1, descending=False):
        ...         raise self.unsupported("sort", "the device cannot sort")
        >>> Small().sort([2.0, 1.0])
        Traceback (most recent call last):
        ...
        mithril.errors.UnsupportedOpError: error[M0601]: Small does not support sort: the device cannot sort
        """
        return UnsupportedOpError(f"{type(self).__name__} does not support {op}" + (f": {reason}" if reason else ""))

    def _missing(self, method: str) -> UnsupportedOpError:
        return UnsupportedOpError(
            f"{type(self).__name__} does not define `{method}`", hint=f"define `{method}` in {type(self).__name__}"
        )

    def _find_device(self, device: Any) -> str:
        """Canonical name of the device asked for; None asks for the usual one."""
        return "cpu" if device is None else str(device)

    def set_device(self, device: Any) -> None:
        """Move to another device: what is created and compiled from now on is there.

        Also called ``set_platform`` and ``set_default_device``. Arrays and compiled models that exist stay where
        they are.
        """
        self.device = self._find_device(device)
        self._eager.clear()

    set_platform = set_device
    set_default_device = set_device

    def _find_precision(self, settings: Mapping[str, Any]) -> DType | None:
        """Dtype to compute in, from the options ``precision`` and ``amp``."""
        requested = settings.get("precision")
        precision = None if requested is None else dtypes.normalize(requested)
        if precision is not None and not precision.is_floating:
            raise InvalidValueError(f"precision is {precision}, which is not a float", hint='for example "bfloat16"')
        if options.switch("amp", settings.get("amp", False)):
            if precision is not None and precision.itemsize > 2:
                raise ConflictingOptionError(
                    f"amp=True asks for mixed precision, but precision is {precision}",
                    hint='leave one out, or give precision="bfloat16"',
                )
            precision = precision or self._half()
        return None if precision == self.default_dtype else precision

    def _half(self) -> DType:
        """Half-precision dtype that automatic mixed precision uses on this device."""
        return dtypes.bfloat16

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that the backend finds on this machine."""
        return (self.device,)

    def place_model(self, model: _core.Model, placement: Mapping[str, int]) -> _core.Model:
        """Place layers of a model on devices, by name and number.

        On several devices, `mithril.compile` makes a pipeline of the model; see `mithril.Pipeline`. `TorchBackend`,
        `NumpyBackend` and `JaxBackend` with ``devices=[...]`` run pipelines. Elsewhere, a placement on the device of
        the backend is accepted, and any other an error, so that no layer runs elsewhere than it says.

        Parameters
        ----------
        model : Model
            The model.
        placement : mapping of str to int
            Layer -> number of a device, counted from 0 among the devices of the backend's kind.

        Returns
        -------
        Model
            The model itself.

        Raises
        ------
        KeyNotFoundError
            If the placement names what is not a layer.
        BackendUnavailableError
            If there is no such device, or the backend runs no pipelines.

        Examples
        --------
        >>> import mithril as ml
        >>> model = ml.Model()
        >>> model |= ml.Linear(4, name="layer1")(input="input", output="output")
        >>> ml.NumpyBackend().place_model(model, {"layer1": 0}) is model
        True
        """
        from .parallel import place_model

        return place_model(self, model, placement)

    def _convert_dtype(self, dtype: Any) -> Any:
        """Dtype of the framework for a dtype of ours; None stays None."""
        return None if dtype is None else self.dtype_map.get(dtypes.normalize(dtype))

    # --- conversion -------------------------------------------------------------------------------------------

    def array(self, data: Any, dtype: Any = None) -> Any:
        """Create an array of this backend.

        Parameters
        ----------
        data : array_like
            A list, a number, a NumPy array or anything that converts to one.
        dtype : dtype, optional
            Default: floats become the dtype of the backend, integers and booleans stay.

        Returns
        -------
        array

        Examples
        --------
        >>> import mithril as ml
        >>> ml.NumpyBackend().array([1.5, 2.0]).dtype
        dtype('float32')
        """
        if dtype is None and custom.is_plain(self):
            host = to_host(data)
            name = host.dtype.name
            return self.tensor(host, self.default_dtype if "float" in name else name)
        return self.tensor(data, dtype)

    asarray = array

    def from_numpy(self, data: Any, dtype: Any = None) -> Any:
        """Create an array from a NumPy array; see `array`."""
        return self.array(data, dtype)

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        """Convert an array of this backend to NumPy."""
        return np.asarray(tensor)

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """Shape of an array, a tuple of ints."""
        return tuple(int(n) for n in (tensor if hasattr(tensor, "shape") else self.array(tensor)).shape)

    def dtype(self, tensor: Any) -> DType:
        """Dtype of an array.

        Examples
        --------
        >>> import mithril as ml
        >>> backend = ml.NumpyBackend()
        >>> backend.dtype(backend.zeros(2)) == "float32"
        True
        """
        return dtypes.normalize((tensor if hasattr(tensor, "dtype") else self.array(tensor)).dtype)

    # --- waiting and memory ------------------------------------------------------------------------------------

    def synchronize(self, arrays: Any = ()) -> None:
        """Wait until arrays are computed: some frameworks return before that.

        Parameters
        ----------
        arrays : array, mapping or sequence of them, optional
            What to wait for, as deeply nested as you like; devices with one queue finish all that was started.

        Examples
        --------
        >>> import mithril as ml
        >>> backend = ml.NumpyBackend()
        >>> backend.synchronize({"output": backend.ones(2)})
        """
        self._wait(list(_flat(arrays)))

    def _wait(self, arrays: list[Any]) -> None:
        """Wait for arrays; nothing to do where results are computed before they are returned."""

    def get_memory_info(self) -> dict[str, float]:
        """Memory in use on the device of the backend; on the CPU that of the whole process.

        Returns
        -------
        dict
            ``used``, ``peak``, ``limit`` and ``cache`` in megabytes (10⁶ bytes), and the same in bytes as
            ``used_bytes`` … A limit of 0 is none. The peak is never less than what is used.

        Examples
        --------
        >>> import mithril as ml
        >>> ml.NumpyBackend().get_memory_info()["used"] > 0
        True
        """
        told = self._memory()
        info = {name: int(told.get(name, 0)) for name in ("used", "peak", "limit", "cache")}
        # Allocators of frameworks update the two one after the other.
        info["peak"] = max(info["peak"], info["used"])
        return {name: n / 1e6 for name, n in info.items()} | {f"{name}_bytes": n for name, n in info.items()}

    def _memory(self) -> dict[str, int]:
        return process_memory()

    # --- random numbers ---------------------------------------------------------------------------------------

    def set_seed(self, seed: int) -> None:
        """Restart the random numbers; the same seed gives the same numbers on every backend."""
        self._seed = options.seed(seed)
        self._stream = 0
        #: Another one whenever the random numbers are started again.
        self._seeding = object()

    def _next_key(self) -> Any:
        """Key of the next draw: the seed and a counter."""
        self._stream += 1
        return self.tensor(np.array([self._seed, self._stream], dtype=np.int64), "int64")

    def randn(self, *shape: Any, dtype: Any = None) -> Any:
        """Draw from the standard normal distribution.

        Examples
        --------
        >>> import mithril as ml
        >>> ml.NumpyBackend(seed=1).randn(3, 4).shape
        (3, 4)
        """
        return self.random_normal(read_shape(shape), dtype=dtype)

    def random_normal(self, shape: Any = (), mean: float = 0.0, stddev: float = 1.0, dtype: Any = None) -> Any:
        """Draw from a normal distribution."""
        return self._op("random_normal", (self._next_key(), read_shape((shape,)), mean, stddev, self._float(dtype)))

    def normal(self, *args: Any, **options: Any) -> Any:
        """`random_normal`; numbers in the order that NumPy takes, ``normal(0.0, 1.0, size)``, are refused."""
        return self.random_normal(*refuse_sizes_last("normal", args, "mean=0.0, stddev=1.0"), **options)

    def rand(self, *shape: Any, dtype: Any = None) -> Any:
        """Draw uniformly from 0 to 1."""
        return self.random_uniform(read_shape(shape), dtype=dtype)

    def random_uniform(self, shape: Any = (), low: float = 0.0, high: float = 1.0, dtype: Any = None) -> Any:
        """Draw uniformly from ``low`` to ``high``."""
        return self._op("random_uniform", (self._next_key(), read_shape((shape,)), low, high, self._float(dtype)))

    def uniform(self, *args: Any, **options: Any) -> Any:
        """`random_uniform`; numbers in the order that NumPy takes, ``uniform(0.0, 1.0, size)``, are refused."""
        return self.random_uniform(*refuse_sizes_last("uniform", args, "low=0.0, high=1.0"), **options)

    def randint(self, low: int, high: int, shape: Any = ()) -> Any:
        """Draw integers from ``low`` to ``high - 1``."""
        return self._op("random_randint", (self._next_key(), read_shape((shape,)), low, high))

    def _float(self, dtype: Any) -> DType:
        return self.default_dtype if dtype is None else dtypes.normalize(dtype)

    # --- gradients --------------------------------------------------------------------------------------------

    def grad(self, function: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
        """Gradient of a function with one number as its result.

        Parameters
        ----------
        function : callable
            Takes arrays, returns a 0-d array, and is made of ops of this backend and operators.
        argnums : int or sequence of int
            Arguments to differentiate with respect to.

        Returns
        -------
        callable
            Takes what ``function`` takes, returns the gradient (a tuple for several ``argnums``).

        Examples
        --------
        >>> import mithril as ml
        >>> backend = ml.NumpyBackend()
        >>> def f(x):
        ...     return backend.reduce_sum(backend.power(x, 2))
        >>> print(backend.grad(f)(backend.tensor([1.0, 2.0, 3.0])))
        [2. 4. 6.]
        """
        # A user's own may take the function alone.
        with_value = self.value_and_grad(function) if argnums == 0 else self.value_and_grad(function, argnums)

        def gradient(*args: Any) -> Any:
            return with_value(*args)[1]

        return gradient

    def value_and_grad(self, function: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
        """As `grad`, returning the pair of value and gradient."""
        from ..tracing.trace import value_and_grad

        return value_and_grad(self, function, argnums)


def _flat(arrays: Any) -> Iterator[Any]:
    """Arrays in mappings and sequences."""
    if isinstance(arrays, (Mapping, list, tuple)):
        for item in arrays.values() if isinstance(arrays, Mapping) else arrays:
            yield from _flat(item)
    else:
        yield arrays
