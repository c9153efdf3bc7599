"""An optimizer as it is written on the command line."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from typing import Any

from .. import optim
from ..errors import InvalidValueError
from ..optim.optimizer import Optimizer
from ..suggestions import among, did_you_mean

__all__ = ["NAMES", "optimizer_of"]

_CLASSES: Mapping[str, Any] = {
    name.lower(): kind
    for name, kind in vars(optim).items()
    if inspect.isclass(kind) and issubclass(kind, Optimizer) and kind is not Optimizer and kind.__name__ == name
}
#: What they are called on the command line.
NAMES = tuple(sorted(_CLASSES))


def optimizer_of(text: str) -> Optimizer:
    """Read an optimizer such as ``"adam"`` or ``"sgd:learning_rate=0.1,momentum=0.9"``.

    Raises
    ------
    InvalidValueError
        If there is none of the name, or an option is not one of its.

    Examples
    --------
    >>> from mithril.command.optimizer import optimizer_of
    >>> optimizer_of("sgd:learning_rate=0.1,momentum=0.9").learning_rate
    0.1
    """
    name, _, options = text.partition(":")
    kind = _CLASSES.get(name.strip().lower())
    if kind is None:
        hint = among(name.strip().lower(), NAMES)
        raise InvalidValueError(f"--optimizer is {text!r}: there is none called {name!r}", hint=hint)
    known = [n for n, p in inspect.signature(kind).parameters.items() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    result: dict[str, Any] = {}
    for entry in filter(None, (part.strip() for part in options.split(","))):
        key, equals, value = (part.strip() for part in entry.partition("="))
        if not equals or key not in known:
            hint = did_you_mean(key, known, f"{name} takes {', '.join(known)}")
            raise InvalidValueError(f"--optimizer is {text!r}: {entry!r} is not an option of {name}", hint=hint)
        try:
            result[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise InvalidValueError(
                f"--optimizer is {text!r}: {value!r} is not a number", hint=f"write {name}:{key}=0.01"
            ) from None
    optimizer: Optimizer = kind(**result)
    return optimizer
