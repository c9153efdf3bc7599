"""What the frontends write models with: uses of Mithril's ops."""

from __future__ import annotations

from typing import Any

from .. import _core
from ..backends.signatures import ports

__all__ = ["apply", "cast", "is_connection", "times"]


def apply(op: str, *args: Any, **named: Any) -> Any:
    """Use one of Mithril's ops; arguments that are left out have their defaults."""
    known = ports(op)
    variadic = [i for i in range(len(known.names)) if known.rows[i]["kind"] == "variadic"]
    count = variadic[0] if variadic else len(known.names)
    chosen = [known.default(i) for i in range(count)]
    chosen[: min(len(args), count)] = args[:count]
    for name, value in named.items():
        chosen[known.names.index(name)] = value
    result = _core.apply_op(op, chosen + list(args[count:]))
    return list(result) if isinstance(result, tuple) else result


def is_connection(x: Any) -> bool:
    """Whether this is a connection rather than a number."""
    return isinstance(x, _core.Connection)


def cast(x: Any, dtype: str) -> Any:
    """Cast a tensor to another dtype."""
    return apply("cast", x, dtype)


def times(count: int) -> str:
    """Say how often something occurs, before the place where it does."""
    return "once" if count == 1 else f"{count} times, first"
