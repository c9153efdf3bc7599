"""The one table of option spellings, and the function every constructor uses to read options."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import ConflictingOptionError, IgnoredOptionWarning, InvalidValueError

#: Accepted spelling -> canonical option.
ALIASES: dict[str, str] = {
    "default_dtype": "dtype",
    "random_seed": "seed",
    "platform": "device",
    "enable_amp": "amp",
    "use_amp": "amp",
    "jit_compile": "jit",
    "compile": "jit",
    "use_graph": "jit",
    "compute_dtype": "precision",
    "compute_precision": "precision",
    "mem_size": "memory_limit",
    "preallocate": "pre_allocate",
}


def normalize(
    owner: str, given: Mapping[str, Any], allowed: tuple[str, ...], ignored: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Bring options to their canonical names.

    Parameters
    ----------
    owner : str
        Class that takes the options, for messages.
    given : mapping
        Options as the user wrote them.
    allowed : tuple of str
        Canonical options that mean something here.
    ignored : tuple of str
        Canonical options that are accepted and do nothing here, with one warning.

    Returns
    -------
    dict
        Canonical options.

    Raises
    ------
    ConflictingOptionError
        If two spellings of one option are given with different values.
    TypeError
        If an option is not known.
    """
    found: dict[str, tuple[str, Any]] = {}
    for name, value in given.items():
        canonical = ALIASES.get(name, name)
        if canonical not in allowed and canonical not in ignored:
            raise TypeError(_unknown(owner, name, allowed))
        if canonical in found and found[canonical][1] != value:
            first = found[canonical][0]
            raise ConflictingOptionError(
                f"{owner}: `{first}` and `{name}` are the same option and differ", hint=f"give `{canonical}` once"
            )
        found[canonical] = (name, value)
    for canonical, (name, _) in found.items():
        if canonical in ignored:
            warnings.warn(f"{owner} ignores `{name}`: it means nothing there", IgnoredOptionWarning, stacklevel=4)
    return {name: value for name, (_, value) in found.items()}


def _unknown(owner: str, name: str, allowed: tuple[str, ...]) -> str:
    spellings = [*allowed, *(a for a, c in ALIASES.items() if c in allowed)]
    near = difflib.get_close_matches(name, spellings, n=1)
    guess = f"; did you mean `{near[0]}`?" if near else ""
    return f"{owner} has no option `{name}`{guess} It takes: {', '.join(allowed)}"


def seed(given: Any) -> int:
    """Read a seed: any integer, wrapped around to 64 bits."""
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
        raise InvalidValueError(f"a seed is an integer, not {given!r}")
    return (int(given) + 2**63) % 2**64 - 2**63
