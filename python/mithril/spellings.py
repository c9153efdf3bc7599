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
from .suggestions import did_you_mean

__all__ = ["layer", "op"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Other words for ports.
WORDS: dict[str, tuple[str, ...]] = {word: tuple(ports) for word, ports in _core.port_aliases()}
_COUNTS = {name: len(params) for what, name, _, params, _ in _core.library_signatures() if what == "op"}
_LAYERS = {name for what, name, *_ in _core.library_signatures() if what == "layer"}
#: Names of ops that another library calls with its arguments in another order.
ORDERED = frozenset(_COUNTS)
#: Keywords that mean something else in another library, by the name of the op or layer.
_FOREIGN: dict[str, set[str]] = {}
for _word, _names in _core.foreign_keywords():
    for _name in _names:
        _FOREIGN.setdefault(_name, set()).add(_word)
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
    known = {*ports, "kernel_size"} if has_kernel else set(ports)
    implied = _FOREIGN.get(name, set())

    def wrap(method: _Function) -> _Function:
        @functools.wraps(method)
        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            words = kwargs
            if implied and not implied.isdisjoint(kwargs):
                _check_words(name, ports, args, kwargs)
            if kwargs:
                kwargs = _canonical(name, ports, kwargs, has_kernel)
                if not known.issuperset(kwargs):
                    raise _unknown(name, ports, next(word for word in kwargs if word not in known))
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
            if has_kernel:
                _check_weight(name, args[1] if len(args) > 1 else kwargs.get("weight"), words)
            if name == "gather":
                values = {**dict(zip(ports, args, strict=False)), **kwargs}
                _check_gather(*(values.get(port) for port in ports))
            if not variadic and (
                len(args) > len(ports) or (kwargs and not kwargs.keys().isdisjoint(ports[: len(args)]))
            ):
                raise _too_many(name, ports, args, words)
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
    words_elsewhere = {word for names in _FOREIGN.values() for word in names}

    def wrap(init: _Function) -> _Function:
        @functools.wraps(init)
        def called(self: Any, *args: Any, **kwargs: Any) -> None:
            named = {k: v for k, v in kwargs.items() if k != "name"}
            if args and name in _LAYERS:
                _core.check_layer(name, list(args), list(named))
            if len(args) > len(params):
                taken = f"it is called {name}({', '.join(params)})"
                count = f"{len(params) or 'no'} argument{'' if len(params) == 1 else 's'}"
                raise InvalidValueError(
                    f"{name} takes {count}, but {len(args)} {'is' if len(args) == 1 else 'are'} given",
                    hint=f"{taken}; its inputs are given when the layer is called: {name}(...)(input=...)",
                )
            values = dict(zip(params, args, strict=False))
            words = {param: param for param in values}
            for word, value in named.items():
                param = word if word in params else aliases.get(word, word)
                if param in values and values[param] != value:
                    raise ConflictingOptionError(
                        f"{name} is given `{words[param]}` = {values[param]!r} and `{word}` = {value!r}",
                        hint="both are one argument; give it once",
                    )
                values[param], words[param] = value, word
            if words_elsewhere and not words_elsewhere.isdisjoint(named):
                _core.check_layer_keywords(name, list(args), list(named.items()))
            init(self, *args, **kwargs)

        return called  # type: ignore[return-value]

    return wrap


def _canonical(name: str, ports: Sequence[str], kwargs: dict[str, Any], has_kernel: bool) -> dict[str, Any]:
    canonical: dict[str, Any] = {}
    for word, value in kwargs.items():
        port = word
        if word not in ports and not (word == "kernel_size" and has_kernel):
            port = next((p for p in WORDS.get(word, ()) if p in ports), word)
        if port in canonical:
            raise InvalidValueError(f"{name} is given `{port}` twice, once as `{word}`", hint="give it once")
        canonical[port] = value
    return canonical


def _check_words(name: str, ports: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse words by which another library means something else than the op does."""
    values = dict(zip(ports, args, strict=False))
    values |= {next((p for p in WORDS.get(word, ()) if p in ports), word): value for word, value in kwargs.items()}
    _core.check_op_keywords(name, list(kwargs), list(values), [_kind(value) for value in values.values()])


def _check_gather(x: Any, indices: Any, axis: Any) -> None:
    """Refuse an index that PyTorch takes as a part, and `take_along_axis` stretches."""
    sizes, own = getattr(x, "shape", None), getattr(indices, "shape", None)
    if not isinstance(sizes, tuple) or not isinstance(own, tuple) or len(sizes) != len(own) or type(axis) is not int:
        return
    axis = axis % len(sizes) if sizes else 0
    if any(n == 1 != size for i, (n, size) in enumerate(zip(own, sizes, strict=True)) if i != axis):
        raise InvalidValueError(
            f"gather of {list(sizes)} at indices of {list(own)} leaves out all but the first elements in PyTorch",
            hint="slice the input as the indices are; take_along_axis(x, indices, axis) stretches the indices instead",
        )


#: Arguments of other libraries that there are not here, and what to write.
_INSTEAD = {
    ("divide", "rounding_mode"): "floor_divide(a, b) rounds down, and trunc(divide(a, b)) toward 0",
    ("round", "decimals"): "round(x * 10**n) / 10**n rounds to n decimals",
    ("round", "ndigits"): "round(x * 10**n) / 10**n rounds to n decimals",
}


def _unknown(name: str, ports: Sequence[str], word: str) -> InvalidValueError:
    """Make the error for an argument that an op does not have."""
    hint = _INSTEAD.get((name, word)) or did_you_mean(word, ports, f"it is called {name}({', '.join(ports)})")
    return InvalidValueError(f"{name} has no argument {word!r}", hint=hint)


def _too_many(name: str, ports: Sequence[str], args: Sequence[Any], words: Mapping[str, Any]) -> InvalidValueError:
    """Make the error for what is given by place and by name, or for too many arguments."""
    for word in words:
        port = word if word in ports else next((p for p in WORDS.get(word, ()) if p in ports), word)
        if port in ports[: len(args)]:
            as_word = "" if word == port else f", there as `{word}`"
            return InvalidValueError(f"{name} is given `{port}` by place and by name{as_word}", hint="give it once")
    hint = next((text for (op, _), text in _INSTEAD.items() if op == name), f"it is called {name}({', '.join(ports)})")
    plural = "" if len(ports) == 1 else "s"
    return InvalidValueError(f"{name} takes {len(ports)} argument{plural}, but {len(args)} are given", hint=hint)


def _in_our_order(
    name: str, ports: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    slots = _core.resolve_arguments(name, [_kind(a) for a in args], [_written(a) for a in args], list(kwargs))
    if slots is None:
        return args, kwargs
    named = dict(kwargs)
    for slot, arg in zip(slots, args, strict=True):
        if slot == -1:
            named["kernel_size"] = arg
        elif slot >= 0:
            named[ports[slot]] = arg
    first: list[Any] = []
    while len(first) < len(ports) and ports[len(first)] in named:
        first.append(named.pop(ports[len(first)]))
    return tuple(first), named


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


def _check_weight(name: str, weight: Any, words: Mapping[str, Any]) -> None:
    """Raise if a number is given as the weights of a convolution, as layers take it."""
    if type(weight) is int:
        word = "filters" if "filters" in words else "weight"
        raise InvalidValueError(
            f"`{word}` of {name} is {weight}, but it is the array of weights, [filters, channels, kernel sizes ...]",
            hint="pass the array; a layer that has weights of its own takes the number: ml.Conv2d(4, kernel_size=3)",
        )


def _check_kernel(name: str, weight: Any, sizes: Any) -> None:
    own = tuple(weight.shape[2:]) if hasattr(weight, "shape") else ()
    expected = (sizes,) * len(own) if isinstance(sizes, int) else tuple(sizes)
    if own and own != expected:
        raise InvalidValueError(
            f"`kernel_size` of {name} is {sizes}, but the filters have kernels of {own}",
            hint="leave `kernel_size` out: the filters determine it",
        )
