"""Backends that users write: which ops their classes define, and what generated code of theirs is given.

A class that derives from `Backend` may define any op by its name or alias. Compiled models then call that method;
see ``docs/custom-backends.md``. Generated code reads three globals: ``backend`` (`Calls`), ``reference``
(`Reference`), and ``host_call``, which calls functions that cannot be traced.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core, dtypes
from ..errors import BackendWarning, InvalidValueError, ShapeError, TypeInferenceError, UnsupportedOpError
from ..suggestions import nearest
from ..tracing import host_functions
from . import signatures

if TYPE_CHECKING:
    from .backend import Backend

__all__ = [
    "Calls",
    "Override",
    "Reference",
    "active",
    "adopt",
    "explain_passed_over",
    "explain_referred",
    "is_plain",
    "running",
]

#: Modules of the backends that are part of Mithril; one beside them in the same folders is a user's own.
_OWN = re.compile(
    r"mithril\.(?!backends\.with_(autograd|manualgrad)\."
    r"(?!backend$|framework$|(numpy|torch|jax|mlx|c|ggml|interpreter)_backend(\.|$)))"
)
#: Methods that create arrays; what they do when called differs from the ops of these names.
CREATORS = ("tensor", "zeros", "ones")
#: Ops whose methods have another signature than the op, which no warning is about.
_OTHERWISE = {"zeros", "ones", "eye", "fft", "ifft", "rfft", "irfft"}
_RANDOM = re.compile("random_")


@dataclass(frozen=True)
class Override:
    """An op that a user's class defines.

    Attributes
    ----------
    op : str
        Canonical name of the op.
    method : str
        Name under which the class defines it.
    signature : Signature or str
        How the method is given its arguments; a text says why compiled models cannot call it.
    """

    op: str
    method: str
    signature: signatures.Signature | str


# --- adopting a class ---------------------------------------------------------------------------------------------


def is_own(cls: type) -> bool:
    """Whether a class is part of Mithril."""
    return _OWN.match(cls.__module__) is not None


def adopt(cls: Any) -> None:
    """Prepare a class that derives from `Backend`: its ops are found, and its table of the compiler is made."""
    if is_own(cls):
        return
    for name, value in list(vars(cls).items()):
        if isinstance(value, (FunctionType, staticmethod)):
            _adopt_method(cls, name, value)
    _warn_of_misspelled(cls)
    overrides = _find(cls)
    cls._overrides = {o.op: o for o in overrides.values() if isinstance(o.signature, signatures.Signature)}
    cls._unused = {o.op: o for o in overrides.values() if isinstance(o.signature, str)}
    for override in cls._unused.values():
        if override.method in vars(cls) and not (override.op in _OTHERWISE or _RANDOM.match(override.op)):
            warnings.warn(
                f"compiled models cannot call {cls.__name__}.{override.method}: {override.signature}; "
                f"the op takes {', '.join(signatures.ports(override.op).names)}",
                BackendWarning,
                stacklevel=_level(),
            )
    cls._backwards = _find_backwards(cls)
    base = str(getattr(cls.target, "base", cls.target))
    if cls._overrides or cls._backwards or base == "custom":
        cls.target = _target(cls, base, cls._overrides)


def _warn_of_misspelled(cls: Any) -> None:
    """Warn of methods that look like an op and are none, nor anything of a base class: nothing would ever call them."""
    inherited = {name for base in cls.__mro__[1:] for name in vars(base)}
    for name, value in vars(cls).items():
        if name.startswith("_") or name in inherited or not isinstance(value, (FunctionType, staticmethod)):
            continue
        stem = name.removeprefix("backward_")
        if signatures.canonical(stem) is not None:
            continue
        near = nearest(stem, signatures.spellings(), cutoff=0.82)
        if near:
            meant = name.replace(stem, near)
            warnings.warn(
                f"{cls.__name__}.{name} is not an op, so models never call it; did you mean `{meant}`?",
                BackendWarning,
                stacklevel=_level(),
            )


def is_plain(backend: Backend) -> bool:
    """Whether the backend derives from none of ours but the base class."""
    return bool(getattr(backend.target, "base", backend.target) == "custom")


def is_overridden(backend: Backend, name: str) -> bool:
    """Whether a class of a user's own defines a method that creates arrays."""
    return hasattr(getattr(type(backend), name), "_mithril_raw")


def _adopt_method(cls: Any, name: str, value: Any) -> None:
    if name in CREATORS:
        setattr(cls, name, _creator(name, value))
        return
    op = signatures.canonical(name)
    if op is None:
        return
    method = _method(op, name, value)
    for other in signatures.names_of(op):
        if other == name or other not in vars(cls):
            setattr(cls, other, method)


def _find(cls: Any) -> dict[str, Override]:
    overrides: dict[str, Override] = {}
    for parent in cls.__mro__:
        if is_own(parent):
            break
        for name, value in vars(parent).items():
            op = signatures.canonical(name)
            raw = getattr(value, "_mithril_raw", None)
            if op is None or raw is None or name != getattr(value, "_mithril_name", name):
                continue
            if op not in overrides:
                overrides[op] = Override(op, name, signatures.read(op, functools.partial(raw, None)))
    return overrides


def _find_backwards(cls: Any) -> dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Op -> method, ports that it does not take, ports that it is given by name."""
    backwards: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {}
    for parent in cls.__mro__:
        if is_own(parent):
            break
        for name, value in vars(parent).items():
            op = signatures.canonical(name.removeprefix("backward_")) if name.startswith("backward_") else None
            if op is None or not callable(value) or op in backwards:
                continue
            taken = list(inspect.signature(value).parameters.values())[4:]
            known = signatures.ports(op)
            named = {p.name for p in taken if p.kind is not p.VAR_KEYWORD}
            everything = any(p.kind is p.VAR_KEYWORD for p in taken)
            attrs = [i for i in range(len(known.names)) if not known.is_tensor(i)]
            options = tuple(i for i in attrs if everything or known.names[i] in named)
            backwards[op] = (name, tuple(i for i in attrs if i not in options), options)
    return backwards


def _target(cls: Any, base: str, overrides: Mapping[str, Override]) -> _core.Target:
    methods = [
        (o.op, o.method, list(o.signature.arguments), list(o.signature.absent))
        for o in overrides.values()
        if isinstance(o.signature, signatures.Signature)
    ]
    backwards = [(op, name, list(absent), list(options)) for op, (name, absent, options) in cls._backwards.items()]
    target: _core.Target = _core.Target.over(base, cls.__name__, methods, backwards)
    return target


def target_without(cls: Any, op: str) -> _core.Target:
    """Make the table of a class without its method for an op: what ``super().op`` means."""
    known = cls.__dict__.get("_targets_without")
    if known is None:
        known = cls._targets_without = {}
    if op not in known:
        base = str(getattr(cls.target, "base", cls.target))
        known[op] = _target(cls, base, {name: o for name, o in cls._overrides.items() if name != op})
    target: _core.Target = known[op]
    return target


# --- methods that users wrote -------------------------------------------------------------------------------------


class _Running(threading.local):
    """Ops whose methods are running in this thread."""

    def __init__(self) -> None:
        self.ops: list[tuple[int, str]] = []


_running = _Running()


def active(backend: Backend, op: str) -> bool:
    """Whether the user's method for the op is running, so that the op itself means the one of the parent class."""
    return (id(backend), op) in _running.ops


@contextmanager
def running(backend: Backend, op: str) -> Iterator[None]:
    """Mark the user's method for an op as running."""
    _running.ops.append((id(backend), op))
    try:
        yield
    finally:
        _running.ops.pop()


def _plain_function(value: Any) -> Callable[..., Any]:
    if isinstance(value, staticmethod):
        inner = value.__func__

        @functools.wraps(inner)
        def without_self(self: Any, *args: Any, **kwargs: Any) -> Any:
            return inner(*args, **kwargs)

        signature = inspect.signature(inner)
        this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        without_self.__signature__ = signature.replace(parameters=[this, *signature.parameters.values()])  # type: ignore[attr-defined]
        return without_self
    function: Callable[..., Any] = value
    return function


def _method(op: str, name: str, value: Any) -> Any:
    """Make the method for an op: connections become a part of a model, arrays go to what the user wrote."""
    raw = _plain_function(value)

    @functools.wraps(raw)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _holds_connection(args) or _holds_connection(tuple(kwargs.values())):
            return _apply_to_connections(op, raw, args, kwargs)
        with running(self, op):
            return raw(self, *args, **kwargs)

    method._mithril_raw = raw  # type: ignore[attr-defined]
    # Other names of the op get the same function.
    method._mithril_name = name  # type: ignore[attr-defined]
    return method


def _holds_connection(args: tuple[Any, ...]) -> bool:
    return any(
        isinstance(a, _core.Connection) or (isinstance(a, (list, tuple)) and _holds_connection(tuple(a))) for a in args
    )


def _apply_to_connections(op: str, raw: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    signature = signatures.read(op, functools.partial(raw, None))
    if isinstance(signature, str):
        raise InvalidValueError(f"{raw.__qualname__} cannot become a part of a model: {signature}")
    return _core.apply_op(op, signature.of_call(functools.partial(raw, None), args, kwargs))


def _creator(name: str, value: Any) -> Any:
    """`tensor`, `zeros` or `ones` as a user wrote it, given a tuple and the name of a dtype."""
    raw = _plain_function(value)
    takes_sizes = any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(raw).parameters.values())

    @functools.wraps(raw)
    def tensor(self: Any, data: Any, dtype: Any = None) -> Any:
        return raw(self, data, _dtype_name(dtype))

    @functools.wraps(raw)
    def filled(self: Any, *shape: Any, dtype: Any = None) -> Any:
        from .shapes import read_shape_and_dtype

        sizes, dtype = read_shape_and_dtype(shape, dtype)
        if takes_sizes:
            return raw(self, *sizes, dtype=_dtype_name(dtype))
        return raw(self, sizes, _dtype_name(dtype))

    @functools.wraps(raw)
    def filled_by_name(self: Any, *shape: Any, dtype: Any = None, **named: Any) -> Any:
        return filled(self, *(shape or (named.pop("shape", ()),)), dtype=dtype, **named)

    creator = tensor if name == "tensor" else filled_by_name
    creator._mithril_raw = raw  # type: ignore[attr-defined]
    return creator


def _dtype_name(dtype: Any) -> str | None:
    return None if dtype is None else str(dtypes.normalize(dtype))


# --- what generated code is given ---------------------------------------------------------------------------------


def namespace_of(backend: Backend) -> dict[str, Any]:
    """Globals of generated code of a backend."""
    values: dict[str, Any] = {"host_call": functools.partial(host_functions.host_call, backend)}
    if isinstance(backend.target, _core.Target):
        values["backend"] = Calls(backend)
        values["reference"] = Reference(backend)
    return values


def make(backend: Backend, data: Any, dtype: Any) -> Any:
    """Create an array with the user's `tensor`, and check what comes."""
    target_dtype, shape = dtypes.normalize(dtype), tuple(np.shape(data))
    array = backend.tensor(data, target_dtype)
    _check(backend, "tensor", array, str(target_dtype), shape)
    return array


def _check(backend: Backend, op: str, array: Any, dtype: str, shape: tuple[int, ...]) -> None:
    owner = type(backend).__name__
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise TypeInferenceError(
            f"{owner}.{op} returns a {type(array).__name__}, not an array",
            hint="return an array with the attributes `shape` and `dtype`",
        )
    if backend.shape(array) != shape:
        raise ShapeError(
            f"{owner}.{op} returns shape {list(backend.shape(array))}, but must return {list(shape)}",
            hint=f"see `help(ml.NumpyBackend.{op})` for what the op is",
        )
    native = backend.engine.native_dtype(dtype)
    if array.dtype is not native and array.dtype != native:
        raise TypeInferenceError(
            f"{owner}.{op} returns {array.dtype}, but must return {dtype}",
            hint=f'convert the result, e.g. result.astype(self._convert_dtype("{dtype}"))',
        )


def check_gradient(backend: Backend, name: str, gradient: Any, parameter: Any) -> None:
    """Check the gradient by a parameter that a user's `value_and_grad` returned."""
    what, hint = f"the gradient by {name!r}", "a gradient has the shape and dtype of what it is by"
    host_functions.check_declared(
        backend, what, gradient, backend.shape(parameter), str(backend.dtype(parameter)), hint
    )


class Calls:
    """The global ``backend`` of generated code: the user's methods, with what they return checked.

    An attribute is the method of that name; `tensor` is the one that creates arrays.
    """

    def __init__(self, backend: Backend) -> None:
        self.tensor = functools.partial(make, backend)
        # All of them now: a compiler of a framework could not look into how they are made.
        for override in backend._overrides.values():
            setattr(self, override.method, _checked(backend, override))


def _checked(backend: Backend, override: Override) -> Callable[..., Any]:
    method = getattr(backend, override.method)
    signature = override.signature
    assert isinstance(signature, signatures.Signature)
    known: dict[Any, list[tuple[str, tuple[int, ...]]]] = {}
    is_traced = _is_traced(backend)
    raw = getattr(type(backend), override.method)._mithril_raw

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_traced():
            # Its own shape inference runs instead; a wrong shape shows where it does not fit.
            return raw(backend, *args, **kwargs)
        result = method(*args, **kwargs)
        key = tuple(map(_key, args)) + tuple(map(_key, kwargs.values()))
        cached = known.get(key)
        if cached is None:
            described = [backend._signature(a, []) for a in signature.to_ports(args, kwargs)]
            types = _core.eager_types(override.op, described, str(backend.default_dtype))
            cached = known[key] = [(dtype, tuple(shape)) for dtype, shape in types]
        if len(cached) == 1:
            _check(backend, override.method, result, *cached[0])
            return result
        if "complex" in str(getattr(result, "dtype", "")) and signature.ports.outputs[:1] == ("output_real",):
            # Complex numbers are pairs of real tensors.
            result = (result.real, result.imag)
        if not isinstance(result, (tuple, list)) or len(result) != len(cached):
            raise InvalidValueError(
                f"{type(backend).__name__}.{override.method} must return {len(cached)} arrays",
                hint=f"they are {', '.join(signature.ports.outputs)}",
            )
        for one, (dtype, shape) in zip(result, cached, strict=True):
            _check(backend, override.method, one, dtype, shape)
        return tuple(result)

    return call


def _is_traced(backend: Backend) -> Callable[[], bool]:
    """Return a function that tells whether PyTorch's compiler is looking, which cannot look into our checks."""
    torch = sys.modules.get("torch") if backend.name == "torch" else None
    is_compiling: Callable[[], bool] = (lambda: False) if torch is None else torch.compiler.is_compiling
    return is_compiling


def _key(arg: Any) -> Any:
    if hasattr(arg, "shape") and hasattr(arg, "dtype"):
        return (str(arg.dtype), tuple(arg.shape))
    if isinstance(arg, slice):
        return ("slice", arg.start, arg.stop, arg.step)
    if isinstance(arg, (list, tuple)):
        return (type(arg), *map(_key, arg))
    return (type(arg), arg)


class Reference:
    """The global ``reference`` of generated code: ops that a backend lacks, run on the host by the interpreter.

    An attribute is an op; it takes tensors by place, arguments by name, and returns arrays of the backend.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, op: str) -> Any:
        from .with_manualgrad.interpreter_backend import InterpreterBackend

        backend, ports = self._backend, signatures.ports(op)
        interpreter = InterpreterBackend(dtype=backend.default_dtype)

        def call(*tensors: Any, **attrs: Any) -> Any:
            hosts = [t if t is None else np.asarray(backend.to_numpy(t)) for t in tensors]
            args: list[Any] = []
            for i, name in enumerate(ports.names):
                if ports.rows[i]["kind"] == "variadic":
                    args += hosts
                elif ports.is_tensor(i):
                    args.append(hosts.pop(0) if hosts else None)
                elif name in attrs and ports.rows[i]["kind"].startswith("dtype"):
                    args.append(dtypes.normalize(attrs[name]))
                else:
                    args.append(attrs.get(name, ports.default(i)))
            result = interpreter.engine.apply_op(op, args)
            if isinstance(result, tuple):
                return tuple(make(backend, one, one.dtype.name) for one in result)
            return make(backend, result, result.dtype.name)

        setattr(self, op, call)
        return call


def reads_tensors(op: str) -> bool:
    """Whether an op has tensors among its inputs."""
    known = signatures.ports(op)
    return any(map(known.is_tensor, range(len(known.names))))


def explain_referred(backend: Backend, referred: list[str], told: set[str], strict: bool) -> None:
    """Warn about ops that run on the host, or refuse them."""
    owner = type(backend).__name__
    # What creates arrays of literals moves nothing from the device to the host.
    lacking = [op for op in referred if reads_tensors(op)]
    if strict and lacking:
        raise UnsupportedOpError(
            f"{owner} has no {', '.join(lacking)}",
            hint=f"define these methods in {owner}, or compile without strict=True",
        )
    fresh = [op for op in lacking if op not in told]
    if not fresh:
        return
    told.update(fresh)
    names = ", ".join(fresh)
    warnings.warn(
        f"{owner} has no {names}: what it has no op for, the reference interpreter runs on the host, slowly. Define "
        f"methods of these names in {owner}; ml.compile(..., strict=True) makes this an error",
        BackendWarning,
        stacklevel=_level(),
    )


def explain_passed_over(backend: Backend, core: _core.Compiled, told: set[str], strict: bool) -> None:
    """Warn about uses of ops that the class defines and whose method cannot be given an argument, or refuse them."""
    if not isinstance(backend.target, _core.Target):
        return
    for row in _core.passed_over(core, backend.target):
        override = backend._overrides[row["op"]]
        key = f"{row['op']}({row['argument']})"
        if key in told and not strict:
            continue
        told.add(key)
        method = f"{type(backend).__name__}.{override.method}"
        takes = "takes no" if row["is_absent"] else "cannot be given this"
        message = f"{method} is not called for {row['path'] or row['op']}: it {takes} `{row['argument']}`"
        hint = f"add the parameter `{row['argument']}` to {method}"
        if strict:
            raise UnsupportedOpError(message, hint=hint)
        warnings.warn(f"{message}, so Mithril computes it by other ops; {hint}", BackendWarning, stacklevel=_level())


def _level() -> int:
    """How many calls up the first line is that is not Mithril's, for warnings."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith("mithril."):
        level, frame = level + 1, frame.f_back
    return level
