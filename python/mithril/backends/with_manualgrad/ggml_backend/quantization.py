"""Which weights the GGML backend keeps in few bits, as users say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .... import _core
from ....errors import InvalidValueError
from ..native import unknown_quantization

__all__ = ["ALIASES", "Rules", "rules", "types"]

#: Other names of types.
ALIASES = {"int8": "q8_0", "int4": "q4_0", "float16": "f16", "bfloat16": "bf16", "float32": "f32"}

#: Patterns of names, and the type of ggml; None: as they are given. The first that fits counts.
Rules = list[tuple[str, str | None]]


def types() -> dict[str, str]:
    """Types of weights that ggml makes without samples of data, by their names in small letters.

    Examples
    --------
    >>> from mithril.backends.with_manualgrad.ggml_backend.quantization import types
    >>> types()["q4_k"]
    'q4_K'
    """
    return {name.lower(): name for name in _core.ggml_types()}


def rules(given: Any) -> Rules | None:
    """Read the option ``quantize``.

    Examples
    --------
    >>> from mithril.backends.with_manualgrad.ggml_backend.quantization import rules
    >>> rules("int8"), rules({"head.*": None, "*": "q4_k"})
    ([('*', 'q8_0')], [('head.*', None), ('*', 'q4_K')])
    """
    if given is None:
        return None
    known = types()
    found: Rules = []
    for pattern, name in given.items() if isinstance(given, Mapping) else [("*", given)]:
        if not isinstance(pattern, str):
            raise InvalidValueError(f"the pattern {pattern!r} of quantize is no text", hint='e.g. {"*": "q8_0"}')
        if name is None and isinstance(given, Mapping):
            found.append((pattern, None))
            continue
        wanted = name.lower() if isinstance(name, str) else None
        wanted = ALIASES.get(wanted, wanted) if wanted else None
        if wanted not in known:
            raise unknown_quantization(given, pattern, name, [*known, *ALIASES])
        found.append((pattern, known[wanted]))
    return found
