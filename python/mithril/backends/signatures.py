"""How a method that a user wrote is given the arguments of an op: its parameters against the ports of the op."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from .. import _core
from ..spellings import WORDS

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

    def find(self, parameter: str) -> int | None:
        """Port that a parameter of that name means, if its name says it."""
        for word in (parameter, *WORDS.get(parameter, ())):
            if word in self.names:
                return self.names.index(word)
        return None


@cache
def _rows() -> tuple[dict[str, Ports], dict[str, str]]:
    found: dict[str, Ports] = {}
    names: dict[str, str] = {}
    for row in _core.op_definitions():
        rows = tuple(row["ports"])
        op = row["name"]
        found[op] = Ports(op, tuple(p["name"] for p in rows), rows, tuple(row["outputs"]))
        names.update(dict.fromkeys((op, *row["aliases"]), op))
    return found, names


def canonical(name: str) -> str | None:
    """Canonical name of the op with that name or alias, None if there is none."""
    return _rows()[1].get(name)


def names_of(op: str) -> list[str]:
    """All names of an op."""
    return [name for name, found in _rows()[1].items() if found == op]


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
        In order: keyword or None, kind (``port``, ``rest``, ``kernel_size``), port, form of a literal.
    absent : tuple of int
        Ports that the method does not take.
    parameters : dict
        Parameter of the method -> port.
    """

    ports: Ports
    arguments: tuple[tuple[str | None, str, int, str], ...]
    absent: tuple[int, ...]
    parameters: Mapping[str, int]

    def of_call(self, method: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """One argument per port, given those of a call of the method as a user makes it."""
        known = self.ports
        found = [known.default(i) for i in range(len(known.names)) if known.rows[i]["kind"] != "variadic"]
        rest: list[Any] = []
        for name, value in inspect.signature(method).bind(*args, **kwargs).arguments.items():
            port = self.parameters.get(name, -1)
            if port >= len(found):
                rest += value
            elif port >= 0:
                found[port] = value
            elif isinstance(value, dict):
                for other, one in value.items():
                    found[known.names.index(other)] = one
        return found + rest

    def to_ports(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """One argument per port, given those of a call of the method as generated code makes it."""
        found: dict[int, Any] = {}
        rest: list[Any] = []
        places = list(args)
        for keyword, kind, port, _ in self.arguments:
            if kind == "rest":
                rest, places = places, []
                continue
            value = kwargs[keyword] if keyword is not None else places.pop(0)
            if kind == "port":
                found[port] = value
        count = len(self.ports.names)
        if rest or any(row["kind"] == "variadic" for row in self.ports.rows):
            count -= 1
        return [found.get(i, self.ports.default(i)) for i in range(count)] + rest


def read(op: str, method: Callable[..., Any]) -> Signature | str:
    """Match the parameters of a method (without ``self``) with the ports of an op.

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
    arguments: list[tuple[str | None, str, int, str]] = []
    by_place = True
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = [i for i in range(len(known.names)) if known.is_tensor(i) and i not in taken.values()]
            arguments += [(None, "rest", i, "plain") for i in rest[:1]]
            if rest:
                taken[parameter.name] = rest[0]
            by_place = False
        elif parameter.kind is parameter.VAR_KEYWORD:
            rest = [i for i in range(len(known.names)) if i not in taken.values() and not known.is_tensor(i)]
            arguments += [(known.names[i], "port", i, "plain") for i in rest]
            taken.update({known.names[i]: i for i in rest})
        elif parameter.name in taken:
            port = taken[parameter.name]
            kind = "kernel_size" if port < 0 else "port"
            is_place = parameter.kind is not parameter.KEYWORD_ONLY and by_place
            is_first = is_place and (kind == "port" and known.is_tensor(port))
            by_place = by_place and (is_first or parameter.kind is parameter.POSITIONAL_ONLY)
            keyword = None if is_first or parameter.kind is parameter.POSITIONAL_ONLY else parameter.name
            arguments.append((keyword, kind, ~port if port < 0 else port, _form(parameter.default)))
        else:
            by_place = False
    absent = [i for i in range(len(known.names)) if i not in taken.values()]
    needed = [known.names[i] for i in absent if known.rows[i]["required"]]
    if needed:
        return f"it takes no `{needed[0]}`"
    return Signature(known, tuple(arguments), tuple(absent), taken)


def _assign(known: Ports, parameters: list[inspect.Parameter]) -> dict[str, int] | str:
    """Port of each parameter; the complement of a port means the sizes of its kernel."""
    plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    taken: dict[str, int] = {}
    for parameter in plain:
        port = known.find(parameter.name)
        if port is None and parameter.name == "kernel_size" and "weight" in known.names:
            taken[parameter.name] = ~known.names.index("weight")
        elif port is not None and port not in taken.values() and known.rows[port]["kind"] != "variadic":
            taken[parameter.name] = port
    open_ports = [i for i, row in enumerate(known.rows) if row["required"] and row["kind"] != "variadic"]
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
