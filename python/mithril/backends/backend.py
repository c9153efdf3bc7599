"""The interface of all backends, and what they have in common."""

from __future__ import annotations

import difflib
import math
import operator
from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core, dtypes
from .._generated.ops import KINDS, Ops
from ..compiled.loading import Module, Runner, load
from ..dtypes import DType
from ..errors import ConflictingOptionError, InvalidValueError, ShapeError, UnsupportedOpError
from . import custom, options
from .conversions import Conversions
from .exchange import numpy_dtype, to_host
from .functions import RegisteredFunctions
from .keywords import BackendOptions, accepts, names
from .memory import process_memory

if TYPE_CHECKING:
    from ..compiled.program import Program

__all__ = ["Backend"]


class Backend(RegisteredFunctions, Conversions, Ops, ABC):
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
    #: Whether ops that would run on the host are refused.
    _strict: bool = False
    #: Ops whose gradients it defines: method, ports that it does not take, ports given by name.
    _backwards: Mapping[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        custom.adopt(cls)

    @accepts(BackendOptions)
    def __init__(self, **given: Any) -> None:
        found = options.normalize(type(self).__name__, given, self._options, self._ignored)
        self.ignored_options: tuple[str, ...] = tuple(name for name in found if name in self._ignored)
        self.default_dtype: DType = dtypes.normalize(found.get("dtype", dtypes.float32))
        if not self.default_dtype.is_floating:
            raise InvalidValueError(
                f"the dtype of a backend is that of its floats, not {self.default_dtype}",
                hint="use float16, bfloat16, float32 or float64",
            )
        self.jit: bool = options.switch("jit", found.get("jit", False))
        self.device: str = self._find_device(options.one_of(type(self).__name__, found))
        #: Dtype of the products of matrices and convolutions inside a model; None: that of the backend.
        self.precision: DType | None = self._find_precision(found)
        options.one_device(type(self).__name__, found, self.devices)
        self._stream = 0
        self._seed = 0
        self.set_seed(found.get("seed", 0))
        self._eager: dict[Any, Callable[..., Any]] = {}
        self._natives: dict[str, Any] = {}
        self._told: set[str] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(device='{self.device}', dtype={self.default_dtype})"

    def __getattr__(self, name: str) -> Any:
        near = difflib.get_close_matches(name, [n for n in dir(self) if not n.startswith("_")], n=1)
        guess = f"; did you mean {near[0]!r}?" if near else ""
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

    @property
    def _table(self) -> Any:
        """Target whose ops compiled models are made of."""
        return self.target

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
        >>> found = ml.NumpyBackend().capabilities()
        >>> found["autodiff"], found["missing"], found["ops"]["matmul"]
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

    def _find_precision(self, found: Mapping[str, Any]) -> DType | None:
        """Dtype to compute in, from the options ``precision`` and ``amp``."""
        given = found.get("precision")
        precision = None if given is None else dtypes.normalize(given)
        if precision is not None and not precision.is_floating:
            raise InvalidValueError(f"precision is {precision}, which is no float", hint='for example "bfloat16"')
        if options.switch("amp", found.get("amp", False)):
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

        This version of Mithril runs a model on one device, that of the backend. A placement on it is accepted; any
        other is a `BackendUnavailableError`, so that no layer runs elsewhere than it says.

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

    @property
    def _array_type(self) -> Any:
        """The exact type of most arrays: those are taken without a further look."""
        if "array type" not in self._natives:
            self._natives["array type"] = type(self.zeros((1,), dtype=self.default_dtype))
        return self._natives["array type"]

    #: Whether there is one device only, so that nobody needs to ask where an array is.
    _is_alone: bool = True

    def _is_here(self, array: Any) -> bool:
        """Whether an array of ours is on the device of the backend."""
        return True

    #: Whether the elements of an array may lie in memory in any order, as those of a transposed view do.
    _has_strides: bool = False

    #: Whether its programs refuse positions in tables and caches that are not there, so that nobody has to look before.
    _finds_positions: bool = False

    #: Whether it computes something for any position, so that those in the data are looked at before a call.
    _takes_any_position: bool = False

    #: Whether generated code may write into the memory of donated data; the three methods below are asked only then.
    _writes_in_place: bool = False

    def _span(self, array: Any) -> tuple[int, int]:
        """First address of the memory that an array is in, and the one behind it."""
        raise NotImplementedError

    def _is_writable(self, array: Any) -> bool:
        """Whether each element of an array has memory of its own that may be written."""
        raise NotImplementedError

    def _copied(self, array: Any) -> Any:
        """Copy an array into memory of its own."""
        raise NotImplementedError

    def _native(self, dtype: str) -> Any:
        """Dtype of the framework's arrays for a dtype of ours."""
        if dtype not in self._natives:
            found = self.zeros((), dtype=dtype).dtype
            if dtypes.normalize(found) != dtype:
                raise UnsupportedOpError(
                    f"{type(self).__name__} has no {dtype}: zeros((), {str(dtype)!r}) returns {found}",
                    hint="add it to what `zeros`, `ones` and `tensor` know, or use another dtype",
                )
            self._natives[dtype] = found
        return self._natives[dtype]

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
            Default: floats become the dtype of the backend, integers and truth values stay.

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

    def _as_array(self, data: Any, dtype: Any) -> Any:
        """As `tensor`, without a copy of what is an array of that dtype already."""
        if self._is_own(data) and self.dtype(data) == dtype:
            return data
        host = self._to_host(data)
        return custom.make(self, host.astype(numpy_dtype(dtype)), dtype)

    def _to_host(self, data: Any) -> np.ndarray[Any, Any]:
        """Convert data to NumPy: arrays of this backend by its own conversion, which others may not have."""
        return to_host(self.to_numpy(data) if self._is_own(data) else data)

    def _take(self, host: np.ndarray[Any, Any], dtype: DType | None) -> Any:
        """As `array`, for a NumPy array that nobody else will change: its memory is shared where that is possible."""
        return self.array(host, dtype)

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
        found = {name: int(told.get(name, 0)) for name in ("used", "peak", "limit", "cache")}
        # Allocators of frameworks update the two one after the other.
        found["peak"] = max(found["peak"], found["used"])
        return {name: n / 1e6 for name, n in found.items()} | {f"{name}_bytes": n for name, n in found.items()}

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
        return self.random_normal(_shape(shape), dtype=dtype)

    def random_normal(self, shape: Any = (), mean: float = 0.0, stddev: float = 1.0, dtype: Any = None) -> Any:
        """Draw from a normal distribution."""
        return self._op("random_normal", (self._next_key(), _shape((shape,)), mean, stddev, self._float(dtype)))

    def normal(self, *args: Any, **options: Any) -> Any:
        """`random_normal`; numbers in the order that NumPy takes, ``normal(0.0, 1.0, size)``, are refused."""
        return self.random_normal(*_sizes_first("normal", args, "mean=0.0, stddev=1.0"), **options)

    def rand(self, *shape: Any, dtype: Any = None) -> Any:
        """Draw uniformly from 0 to 1."""
        return self.random_uniform(_shape(shape), dtype=dtype)

    def random_uniform(self, shape: Any = (), low: float = 0.0, high: float = 1.0, dtype: Any = None) -> Any:
        """Draw uniformly from ``low`` to ``high``."""
        return self._op("random_uniform", (self._next_key(), _shape((shape,)), low, high, self._float(dtype)))

    def uniform(self, *args: Any, **options: Any) -> Any:
        """`random_uniform`; numbers in the order that NumPy takes, ``uniform(0.0, 1.0, size)``, are refused."""
        return self.random_uniform(*_sizes_first("uniform", args, "low=0.0, high=1.0"), **options)

    def randint(self, low: int, high: int, shape: Any = ()) -> Any:
        """Draw integers from ``low`` to ``high - 1``."""
        return self._op("random_randint", (self._next_key(), _shape((shape,)), low, high))

    def _float(self, dtype: Any) -> DType:
        return self.default_dtype if dtype is None else dtypes.normalize(dtype)

    # --- ops at once ------------------------------------------------------------------------------------------

    def _op(self, name: str, args: Sequence[Any]) -> Any:
        """Apply an op: at once to arrays; to a connection, as a part of the model being defined."""
        if any(isinstance(a, _core.Connection) for a in args) or any(
            isinstance(a, (list, tuple)) and any(isinstance(i, _core.Connection) for i in a) for a in args
        ):
            return _core.apply_op(name, list(args))
        # Inside the user's own method, the op is the one of the parent class.
        inherited = bool(self._overrides) and custom.active(self, name)
        key: list[Any] = [name, inherited]
        arrays: list[Any] = []
        kinds = KINDS[name]
        for i, arg in enumerate(args):
            is_tensor = kinds[min(i, len(kinds) - 1)] == "t"
            if not is_tensor:
                arg = _plain(arg)
            # Numbers in a list are one tensor; arrays in a list are several.
            if is_tensor and isinstance(arg, (list, tuple)) and not any(hasattr(item, "dtype") for item in arg):
                key.append(self._signature(self.array(arg), arrays))
            else:
                key.append(self._signature(arg, arrays))
        found = self._eager.get(signature := tuple(key))
        if found is None:
            if len(self._eager) > 4096:
                self._eager.clear()
            found = self._eager[signature] = self._build(name, key[2:], inherited)
        return found(arrays)

    def _signature(self, arg: Any, arrays: list[Any]) -> Any:
        """Return what of an argument decides the code; gather arrays in ``arrays``."""
        if arg is None or isinstance(arg, (str, slice, type(...))):
            return arg if not isinstance(arg, slice) else ("slice", arg.start, arg.stop, arg.step)
        if isinstance(arg, (bool, int, float)):
            return (type(arg).__name__, arg)
        if hasattr(arg, "shape") and hasattr(arg, "dtype") and not isinstance(arg, type):
            is_here = self._is_own(arg) and (self._is_alone or self._is_here(arg))
            arrays.append(arg if is_here else self._adopt(arg))
            own = arrays[-1]
            return ("array", str(own.dtype) if self._named else str(self.dtype(own)), tuple(own.shape))
        if isinstance(arg, (list, tuple)):
            return ("tuple", *(self._signature(a, arrays) for a in arg))
        if isinstance(arg, type) or "dtype" in type(arg).__name__.lower():
            return ("dtype", dtypes.normalize(arg))
        arrays.append(self.array(arg))
        return ("array", str(arrays[-1].dtype), tuple(arrays[-1].shape))

    #: Whether the text of an array's dtype is a name of the dtype.
    _named = True

    def _is_own(self, arg: Any) -> bool:
        kind = self._array_type
        return isinstance(arg, kind) and (kind is not np.ndarray or arg.dtype.name in dtypes.ALL)

    #: Whether the standard tests run ops as compiled models, since ops at once are those of another framework.
    _is_compiled = False
    #: Whether programs read parameters in blocks of few bits (`QuantizedArray`) as they are.
    _reads_blocks = False

    def _adopt(self, arg: Any) -> Any:
        """Array of ours of what has a shape and a dtype."""
        return self.array(arg)

    def _build(self, name: str, signature: list[Any], inherited: bool = False) -> Callable[[list[Any]], Any]:
        if inherited:
            target = custom.target_without(type(self), name)
            source = _core.eager_source(name, signature, target, str(self.default_dtype))
            module: Module | Runner = self._load_source(source, f"op.{name}")
        else:
            module = self._load_op(name, signature)
        self._report(module, self._told, self._strict)
        function, many = module.function("op"), module.source.many

        def call(arrays: list[Any]) -> Any:
            try:
                results = function({f"x{i}": a for i, a in enumerate(arrays)})
            except Exception as error:
                explained = module.explain(error)
                if explained is None:
                    raise
                raise explained from error
            return results if many else results[0]

        return call

    # --- how programs are loaded ------------------------------------------------------------------------------

    def _load(self, core: _core.Compiled) -> Module | Runner:
        return self._load_source(core.source(self.target, self.device), "model")

    def _load_checkpointed(self, core: _core.Compiled) -> Module | Runner:
        """Load ``evaluate`` in segments that the framework computes again when it differentiates."""
        return self._load_source(core.checkpointed_source(self.target, self.device), "checkpointed")

    def _load_gradients(self, core: _core.Compiled, outputs: list[str], inputs: list[str]) -> Module | Runner:
        return self._load_source(core.gradient_source(self.target, outputs, inputs, self.device), "gradients")

    def _load_source(self, source: _core.Source, name: str) -> Module:
        return load(source, name, self._constant, custom.given(self))

    def _report(self, module: Any, told: set[str], strict: bool) -> None:
        """Warn about ops that run on the host since the backend lacks them, once each; refuse them if strict."""
        if referred := getattr(module.source, "referred", None):
            custom.explain_referred(self, referred, told, strict)

    def _prepare(self, program: Program, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Make what a program needs for arrays of these shapes, where its code depends on them."""

    def _stages(self, core: _core.Compiled, module: Any) -> dict[str, str]:
        """Text after each stage of compiling, by name."""
        return {**dict(core.stages(self.target)), "emit": str(module.source.text)}

    def _evaluator(self, program: Program) -> Callable[..., Any]:
        """Return ``evaluate(params, data, state)`` of a program, compiled further if it asks for that."""
        function: Callable[..., Any] = program.module.function("evaluate")
        return function

    def _differentiator(self, program: Program, outputs: tuple[str, ...], names: tuple[str, ...]) -> Callable[..., Any]:
        """Return ``evaluate_gradients(params, data, state, cotangents)`` by the framework's own gradients."""
        raise self._missing("value_and_grad")

    def _compile_graph_gradients(self, program: Program, module: Module | Runner) -> Callable[..., Any]:
        """Return the function of a module of our gradient graph, compiled further if the program asks for that."""
        return module.function("evaluate_gradients")

    def _load_op(self, name: str, signature: list[Any]) -> Module | Runner:
        source = _core.eager_source(name, signature, self.target, str(self.default_dtype), self.device)
        return self._load_source(source, f"op.{name}")

    def _constant(self, host: np.ndarray[Any, Any]) -> Any:
        """Array of the backend for a constant of a generated module."""
        return custom.make(self, host, host.dtype.name) if custom.is_plain(self) else host

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


#: Most dimensions of an array.
_MAX_RANK = 64


def _shape(shape: Sequence[Any]) -> tuple[int, ...]:
    """Shape from ``(3, 4)``, ``((3, 4),)`` or ``(n,)``."""
    if len(shape) == 1 and not isinstance(shape[0], str) and isinstance(shape[0], Iterable):
        shape = list(shape[0])
    sizes = tuple(_size(n) for n in shape)
    if len(sizes) > _MAX_RANK:
        raise ShapeError(
            f"an array has {len(sizes)} dimensions", code="M0303", hint=f"at most {_MAX_RANK} are possible"
        )
    if math.prod(n for n in sizes if n) >= 2**60:
        raise ShapeError(f"an array of shape {list(sizes)} is too large", code="M0303", hint="check the sizes")
    return sizes


def _flat(arrays: Any) -> Iterator[Any]:
    """Arrays in mappings and sequences."""
    if isinstance(arrays, (Mapping, list, tuple)):
        for item in arrays.values() if isinstance(arrays, Mapping) else arrays:
            yield from _flat(item)
    else:
        yield arrays


def _size(n: Any) -> int:
    found = _integer(n)
    if found < 0:
        raise ShapeError(f"a size is {found}", code="M0303", hint="sizes are not negative")
    return found


def _integer(n: Any) -> int:
    if isinstance(n, (bool, type)) or not hasattr(n, "__index__"):
        raise InvalidValueError(f"{n!r} is no integer", hint="a shape is made of integers, e.g. (3, 4)")
    return operator.index(n)


def _plain(arg: Any) -> Any:
    """Value of an argument that is no tensor, with Python's numbers in the place of NumPy's."""
    if isinstance(arg, np.generic) or (isinstance(arg, np.ndarray) and arg.dtype.kind in "biu"):
        arg = arg.tolist()
    if isinstance(arg, (list, tuple, range)):
        return tuple(_plain(item) for item in arg)
    if isinstance(arg, Iterator):
        raise InvalidValueError(f"a {type(arg).__name__} cannot stand here", hint="give a tuple or a list")
    return arg


def _sizes_first(name: str, args: tuple[Any, ...], rest: str) -> tuple[Any, ...]:
    """Refuse a number where the shape stands and further numbers: NumPy and PyTorch put the shape last."""
    if len(args) > 1 and isinstance(args[0], (int, float, np.number)):
        written = ", ".join(map(repr, args))
        raise InvalidValueError(
            f"{name}({written}) is a range and a shape in NumPy, and a shape first in Mithril",
            hint=f"write the shape as a tuple and the rest by name: {name}((2, 3), {rest})",
        )
    return args
