"""Which weights the GGML backend keeps in low precision, as users say it."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any

from .... import _core
from ....errors import InvalidValueError
from ....quantization.mixtures import MIXTURES, assigned
from ..native import unknown_quantization

__all__ = ["ALIASES", "Rules", "expanded", "rules", "types"]

#: Other names of types.
ALIASES = {"int8": "q8_0", "int4": "q4_0", "float16": "f16", "bfloat16": "bf16", "float32": "f32"}

#: Patterns of names, and the type of ggml or a mixture; None: as they are given. The first that fits counts.
Rules = list[tuple[str, str | None]]


def types() -> dict[str, str]:
    """Types of weights, by their names in small letters.

    Examples
    --------
    >>> from mithril.backends.with_manualgrad.ggml_backend.quantization import types
    >>> types()["q4_k"]
    'q4_K'
    """
    return {name.lower(): name for name in _core.ggml_types()}


def rules(value: Any) -> Rules | None:
    """Read the option ``quantize``.

    Examples
    --------
    >>> from mithril.backends.with_manualgrad.ggml_backend.quantization import rules
    >>> rules("int8"), rules({"head.*": None, "*": "q4_k"})
    ([('*', 'q8_0')], [('head.*', None), ('*', 'q4_K')])
    """
    if value is None:
        return None
    known = types()
    result: Rules = []
    for pattern, name in value.items() if isinstance(value, Mapping) else [("*", value)]:
        if not isinstance(pattern, str):
            raise InvalidValueError(f"the pattern {pattern!r} of quantize is not a string", hint='e.g. {"*": "q8_0"}')
        if name is None and isinstance(value, Mapping):
            result.append((pattern, None))
            continue
        requested = name.lower() if isinstance(name, str) else None
        requested = ALIASES.get(requested, requested) if requested else None
        if requested not in known and requested not in MIXTURES:
            raise unknown_quantization(value, pattern, name, [*known, *ALIASES, *MIXTURES])
        result.append((pattern, known.get(requested, requested)))
    return result


def expanded(rules: Rules, shapes: Mapping[str, Any]) -> Rules:
    """Return rules in which a rule for each weight stands where a mixture stood.

    Examples
    --------
    >>> from mithril.backends.with_manualgrad.ggml_backend.quantization import expanded
    >>> shapes = {"h.0.attn.c_attn.weight": (768, 256), "h.0.mlp.c_fc.weight": (512, 256), "bias": (512,)}
    >>> expanded([("*c_fc*", "q8_0"), ("*.weight", "q4_k_m")], shapes)
    [('*c_fc*', 'q8_0'), ('h.0.attn.c_attn.weight', 'q5_K'), ('h.0.mlp.c_fc.weight', 'q4_K')]
    """
    known = types()
    result: Rules = []
    for pattern, form in rules:
        if form not in MIXTURES:
            result.append((pattern, form))
            continue
        fitting = [name for name in shapes if fnmatch.fnmatchcase(name, pattern)]
        assignment = assigned(form, shapes)
        own = [(name, assignment[name] and known[assignment[name] or ""]) for name in fitting]
        # A pattern that fits nothing is an error of the core.
        result += own or [(pattern, "q8_0")]
    return result
