"""How a method that a user wrote is given the arguments of an op: its parameters against the ports of the op."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from .. import _core
from ..errors import InvalidValueError
from ..spellings import ORDERED, WORDS

__all__ = ["Ports", "Signature", "canonical", "ports", "read"]


@dataclass(frozen=True)
class Ports:
    """The ports of an op, from its row.

    Attributes
    ----------
    op : str
        Canonical name of the op.
    names : tuple of str
        Names of the ports.
    rows : tuple of dict
        What the row says about each.
    outputs : tuple of str
        Names of the outputs.
    """

    op: str
    names: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    outputs: tuple[str, ...]

    def is_tensor(self, i: int) -> bool:
        """Whether port ``i`` takes a tensor."""
        return self.rows[i]["kind"] in ("tensor", "optional", "variadic")

    def default(self, i: int) -> Any:
        """Value of port ``i`` when nothing is given."""
        return True if self.rows[i]["training"] else self.rows[i].get("default")

    @property
    def variadic(self) -> int | None:
        """Port that takes any number of tensors, if there is one."""
        return next((i for i, row in enumerate(self.rows) if row["kind"] == "variadic"), None)

    def places(self, taken: Iterable[int], has_options: bool) -> tuple[int, ...]:
        """Ports that the methods of our backends take by place, without those in ``taken``.

        With ``has_options`` only those that have to be given: the others can be given by name.
        """
        order = [i for i in range(len(self.names)) if i != self.variadic and self.rows[i]["required"]]
        if self.variadic is not None:
            order.append(self.variadic)
        elif not has_options:
            order = list(range(len(self.names)))
        else:
            # Literals by place might be read in the order of another library.
            order = list(
                itertools.takewhile(lambda i: self.rows[i]["required"] and self.is_tensor(i), range(len(self.names)))
            )
        used = set(taken)
        return tuple(i for i in order if i not in used)

    def find(self, parameter: str) -> int | None:
        """Port that a parameter of that name means, if its name says it."""
        for word in (parameter, *WORDS.get(parameter, ())):
            if word in self.names:
                return self.names.index(word)
        return None


@cache
def _rows() -> tuple[dict[str, Ports], dict[str, str]]:
    ports: dict[str, Ports] = {}
    names: dict[str, str] = {}
    for row in _core.op_definitions():
        rows = tuple(row["ports"])
        op = row["name"]
        ports[op] = Ports(op, tuple(p["name"] for p in rows), rows, tuple(row["outputs"]))
        names.update(dict.fromkeys((op, *row["aliases"]), op))
    return ports, names


def canonical(name: str) -> str | None:
    """Canonical name of the op with that name or alias, None if there is none."""
    return _rows()[1].get(name)


def names_of(op: str) -> list[str]:
    """All names of an op."""
    return [name for name, candidate in _rows()[1].items() if candidate == op]


def spellings() -> list[str]:
    """All names of all ops."""
    return list(_rows()[1])


def ports(op: str) -> Ports:
    """Ports of an op, by its canonical name."""
    return _rows()[0][op]


@dataclass(frozen=True)
class Signature:
    """What a method is given for a use of an op.

    Attributes
    ----------
    ports : Ports
        Of the op.
    arguments : tuple
        In order: keyword or None, kind, port, form of a literal. The kinds are ``port``; ``given``, which is left out
        where nothing stands at the port; ``rest`` and ``list``, all tensors from a port on; ``kernel_size``.
    absent : tuple of int
        Ports that the method does not take.
    parameters : dict
        Parameter of the method -> port.
    places : tuple of int
        Ports that the arguments of ``*args`` mean in a call by a user, in order.
    """

    ports: Ports
    arguments: tuple[tuple[str | None, str, int, str], ...]
    absent: tuple[int, ...]
    parameters: Mapping[str, int]
    places: tuple[int, ...] = ()

    def of_call(self, method: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """One argument per port, given those of a call of the method as a user makes it."""
        known, signature = self.ports, inspect.signature(method)
        arguments = [known.default(i) for i in range(len(known.names)) if i != known.variadic]
        rest: list[Any] = []
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                for i, one in enumerate(value):
                    port = self.places[i] if i < len(self.places) else known.variadic
                    if port is None:
                        raise InvalidValueError(
                            f"{known.op} takes {len(known.names)} arguments: {', '.join(known.names)}",
                            hint="leave out the others",
                        )
                    if port == known.variadic:
                        rest.append(one)
                    else:
                        arguments[port] = one
            elif kind is inspect.Parameter.VAR_KEYWORD:
                for word, one in value.items():
                    port = known.find(word)
                    if port is None:
                        raise InvalidValueError(
                            f"{known.op} has no argument {word!r}", hint=f"it takes {', '.join(known.names)}"
                        )
                    arguments[port] = one
            elif (port := self.parameters.get(name, -1)) == known.variadic:
                rest += value if isinstance(value, (list, tuple)) else [value]
            elif port >= 0:
                arguments[port] = value
        return arguments + rest

    def to_ports(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """One argument per port, given those of a call of the method as generated code makes it."""
        arguments: dict[int, Any] = {}
        rest: list[Any] = []
        places = list(args)
        for keyword, kind, port, _ in self.arguments:
            if kind == "rest":
                rest, places = places, []
                continue
            if kind == "optional" and keyword not in kwargs:
                continue
            value = kwargs[keyword] if keyword is not None else places.pop(0)
            if kind == "list":
                rest = list(value)
            elif kind != "kernel_size":
                arguments[port] = value
        return [
            arguments.get(i, self.ports.default(i)) for i in range(len(self.ports.names)) if i != self.ports.variadic
        ] + rest


def read(op: str, method: Callable[..., Any]) -> Signature | str:
    """Match the parameters of a method (without ``self``) with the ports of an op.

    What ``*args`` and ``**kwargs`` take is given as the methods of our backends take it, so that a method may pass it
    on: ``super().softmax(*args, **kwargs)``.

    Returns
    -------
    Signature or str
        A text says why the method cannot be given what the op is.
    """
    known = ports(op)
    parameters = list(inspect.signature(method).parameters.values())
    taken = _assign(known, parameters)
    if isinstance(taken, str):
        return taken
    kinds = {p.kind for p in parameters}
    has_options = inspect.Parameter.VAR_KEYWORD in kinds
    is_open = inspect.Parameter.VAR_POSITIONAL in kinds
    # Parameters in front of `*args` may take the first of any number of tensors.
    places = known.places((i for i in taken.values() if i != known.variadic), has_options) if is_open else ()
    if not (has_options or all(map(known.is_tensor, places))) and ORDERED & set(names_of(op)):
        return "another library calls it with other arguments by place: add `**kwargs` behind `*args`"
    arguments: list[tuple[str | None, str, int, str]] = []
    by_place = True
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            for port in places:
                arguments.append((None, "rest" if port == known.variadic else "port", port, "plain"))
                taken[known.names[port]] = port
            by_place = False
        elif parameter.kind is parameter.VAR_KEYWORD:
            left = [i for i in range(len(known.names)) if i not in taken.values() and i != known.variadic]
            arguments += [(known.names[i], "optional" if known.is_tensor(i) else "port", i, "plain") for i in left]
            taken |= {known.names[i]: i for i in left}
        elif is_open and taken.get(parameter.name, -1) == known.variadic:
            continue
        elif parameter.name in taken:
            port = taken[parameter.name]
            kind = "kernel_size" if port < 0 else "list" if port == known.variadic else "port"
            is_place = parameter.kind is not parameter.KEYWORD_ONLY and by_place
            # What stands in front of arguments by place is given by place too.
            is_first = is_place and (kind == "list" or bool(places) or (kind == "port" and known.is_tensor(port)))
            by_place = by_place and (is_first or parameter.kind is parameter.POSITIONAL_ONLY)
            keyword = None if is_first or parameter.kind is parameter.POSITIONAL_ONLY else parameter.name
            arguments.append((keyword, kind, ~port if port < 0 else port, _form(parameter.default)))
        else:
            if by_place and places and parameter.kind is not parameter.KEYWORD_ONLY:
                return f"its parameter `{parameter.name}` in front of `*args` is none of {', '.join(known.names)}"
            by_place = False
    absent = [i for i in range(len(known.names)) if i not in taken.values()]
    # Indices beside a tensor are not in every use.
    has_first = any(known.rows[i]["required"] and known.is_tensor(i) and i != known.variadic for i in taken.values())
    needed = [known.names[i] for i in absent if known.rows[i]["required"] and not (has_first and i == known.variadic)]
    if needed:
        return f"it takes no `{needed[0]}`"
    everything = (
        known.places([p for n, p in taken.items() if n in {q.name for q in parameters}], False) if places else ()
    )
    return Signature(known, tuple(arguments), tuple(absent), taken, everything)


def _assign(known: Ports, parameters: list[inspect.Parameter]) -> dict[str, int] | str:
    """Port of each parameter; the complement of a port means the sizes of its kernel."""
    plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    taken: dict[str, int] = {}
    for parameter in plain:
        port = known.find(parameter.name)
        if port is None and parameter.name == "kernel_size" and "weight" in known.names:
            taken[parameter.name] = ~known.names.index("weight")
        elif port is not None and port not in taken.values():
            taken[parameter.name] = port
    open_ports = [i for i, row in enumerate(known.rows) if row["required"] or i == known.variadic]
    free = iter([i for i in open_ports if i not in taken.values()])
    for parameter in plain:
        if parameter.name in taken or parameter.default is not parameter.empty:
            continue
        port = next(free, None)
        if port is None:
            return f"its parameter `{parameter.name}` is none of {', '.join(known.names)}"
        taken[parameter.name] = port
    return taken


def _form(default: Any) -> str:
    """Form in which the method wants a literal, as its default shows."""
    if isinstance(default, tuple) and default:
        return str(len(default))
    if isinstance(default, str) and default and default in (default.upper(), default.lower()):
        return "upper" if default == default.upper() else "lower"
    return "plain"
