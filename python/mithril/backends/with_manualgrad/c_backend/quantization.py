"""Which weights the C backend keeps in few bits, as users say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....errors import InvalidValueError

__all__ = ["SCHEMES", "Rules", "rules"]

#: Ways to keep weights in few bits.
SCHEMES = ("int8", "int8_weights", "int4_weights")

#: Patterns of names, and how the weights are kept; None: in float32. The first that fits counts.
Rules = list[tuple[str, str | None]]


def rules(given: Any) -> Rules | None:
    """Read the option ``quantize``.

    Examples
    --------
    >>> from mithril.backends.with_manualgrad.c_backend.quantization import rules
    >>> rules("int8"), rules({"head.*": None, "*": "int4_weights"})
    ([('*', 'int8')], [('head.*', None), ('*', 'int4_weights')])
    """
    if given is None:
        return None
    found = list(given.items()) if isinstance(given, Mapping) else [("*", given)]
    for pattern, scheme in found:
        is_scheme = scheme in SCHEMES or (scheme is None and isinstance(given, Mapping))
        if not isinstance(pattern, str) or not isinstance(scheme, (str, type(None))) or not is_scheme:
            known = ", ".join(repr(name) for name in SCHEMES)
            raise InvalidValueError(
                f"quantize is {given!r}",
                hint=f"give one of {known}, or a mapping from patterns of names to one of them or None",
            )
    return found
