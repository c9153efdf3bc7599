"""Calls as users of other libraries write them: `dim` for `axis`, and the order of arguments that PyTorch has.

The signatures are the core's (``_core.library_signatures``, ``_core.port_aliases``). Generated methods of ops and
classes of layers are wrapped by `op` and `layer`: a call in another library's order is brought into ours, or refused if
it could mean either.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from . import _core
from .errors import ConflictingOptionError, InvalidValueError

__all__ = ["layer", "op"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Other words for ports.
WORDS: dict[str, tuple[str, ...]] = {word: tuple(ports) for word, ports in _core.port_aliases()}
_COUNTS = {name: len(params) for what, name, _, params, _ in _core.library_signatures() if what == "op"}
_LAYERS = {name for what, name, *_ in _core.library_signatures() if what == "layer"}
#: Names of ops that another library calls with its arguments in another order.
ORDERED = frozenset(_COUNTS)
#: Aliases that have the order of another library alone, with its parameters.
_ALONE = {
    name: [theirs for theirs, _ in params]
    for what, name, _, params, only in _core.library_signatures()
    if what == "op" and only
}


def op(name: str, ports: Sequence[str], variadic: bool = False) -> Callable[[_Function], _Function]:
    """Wrap the method of an op so that it takes calls as other libraries write them.

    Parameters
    ----------
    name : str
        The op or alias.
    ports : sequence of str
        Names of its ports in order, without a variadic one.
    variadic : bool, optional
        Whether the method takes any number of tensors first.
    """
    has_order = name in _COUNTS
    has_kernel = "weight" in ports and "kernel_size" not in ports
    packs = len(ports) == 2 and not variadic
    count = _COUNTS.get(name)

    def wrap(method: _Function) -> _Function:
        @functools.wraps(method)
        def called(self: Any, *given: Any, **kwargs: Any) -> Any:
            args: tuple[Any, ...] = given
            if kwargs:
                kwargs = _canonical(name, ports, kwargs, has_kernel)
            if packs and len(args) > 2 and len(args) != count and all(type(a) is int for a in args[1:]):
                # x.reshape(2, -1) is x.reshape((2, -1)).
                args = (args[0], tuple(args[1:]))
            if variadic and len(args) == 2 and isinstance(args[0], (list, tuple)) and "axis" in ports:
                # torch.cat((a, b), 1), np.concatenate((a, b), 1)
                items, axis = args
                if type(axis) is int and "axis" not in kwargs:
                    args, kwargs = (items,), {**kwargs, "axis": axis}
            elif has_order and len(args) > 1:
                args, kwargs = _in_our_order(name, ports, args, kwargs)
            if has_kernel and "kernel_size" in kwargs:
                if any(isinstance(a, _core.Connection) for a in (*args, *kwargs.values())):
                    return _core.apply_called(name, list(args), kwargs)
                kwargs = dict(kwargs)
                _check_kernel(name, args[1] if len(args) > 1 else kwargs.get("weight"), kwargs.pop("kernel_size"))
            return method(self, *args, **kwargs)

        if name in _ALONE:
            theirs = [inspect.Parameter(p, inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in ("self", *_ALONE[name])]
            called.__signature__ = inspect.Signature(theirs)  # type: ignore[attr-defined]
        return called  # type: ignore[return-value]

    return wrap


def layer(name: str, params: Sequence[str], aliases: Mapping[str, str]) -> Callable[[_Function], _Function]:
    """Wrap the constructor of a layer: what is given twice is refused, and what another library reads differently.

    Parameters
    ----------
    name : str
        The layer.
    params : sequence of str
        Its arguments in order.
    aliases : mapping of str to str
        Other names of arguments, and what they stand for.
    """

    def wrap(init: _Function) -> _Function:
        @functools.wraps(init)
        def called(self: Any, *args: Any, **kwargs: Any) -> None:
            named = {k: v for k, v in kwargs.items() if k != "name"}
            if args and name in _LAYERS:
                _core.check_layer(name, list(args), list(named))
            given = dict(zip(params, args, strict=False))
            words = {param: param for param in given}
            for word, value in named.items():
                param = word if word in params else aliases.get(word, word)
                if param in given and given[param] != value:
                    raise ConflictingOptionError(
                        f"{name} is given `{words[param]}` = {given[param]!r} and `{word}` = {value!r}",
                        hint="both are one argument; give it once",
                    )
                given[param], words[param] = value, word
            init(self, *args, **kwargs)

        return called  # type: ignore[return-value]

    return wrap


def _canonical(name: str, ports: Sequence[str], kwargs: dict[str, Any], has_kernel: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word, value in kwargs.items():
        port = word
        if word not in ports and not (word == "kernel_size" and has_kernel):
            port = next((p for p in WORDS.get(word, ()) if p in ports), word)
        if port in found:
            raise InvalidValueError(f"{name} is given `{port}` twice, once as `{word}`", hint="give it once")
        found[port] = value
    return found


def _in_our_order(
    name: str, ports: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    slots = _core.resolve_arguments(name, [_kind(a) for a in args], [_written(a) for a in args], list(kwargs))
    if slots is None:
        return args, kwargs
    found = dict(kwargs)
    for slot, arg in zip(slots, args, strict=True):
        if slot == -1:
            found["kernel_size"] = arg
        elif slot >= 0:
            found[ports[slot]] = arg
    first: list[Any] = []
    while len(first) < len(ports) and ports[len(first)] in found:
        first.append(found.pop(ports[len(first)]))
    return tuple(first), found


def _kind(arg: Any) -> str:
    if arg is None:
        return "none"
    if isinstance(arg, (bool, int, float, str)):
        return type(arg).__name__ if type(arg) in (bool, int, float) else "str" if isinstance(arg, str) else "int"
    if isinstance(arg, (list, tuple)) and all(type(item) is int for item in arg):
        return f"ints{len(arg)}"
    is_array = isinstance(arg, _core.Connection) or hasattr(arg, "shape")
    return "tensor" if is_array and not isinstance(arg, type) else "other"


def _written(arg: Any) -> str:
    return repr(arg) if _kind(arg) not in ("tensor", "other") else "x"


def _check_kernel(name: str, weight: Any, sizes: Any) -> None:
    own = tuple(weight.shape[2:]) if hasattr(weight, "shape") else ()
    wanted = (sizes,) * len(own) if isinstance(sizes, int) else tuple(sizes)
    if own and own != wanted:
        raise InvalidValueError(
            f"`kernel_size` of {name} is {sizes}, but the filters have kernels of {own}",
            hint="leave `kernel_size` out: the filters determine it",
        )
