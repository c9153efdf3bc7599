"""Names for the leaves of pytrees: of arguments, parameters and results."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

__all__ = ["argument_names", "leaf_names", "unique"]


def leaf_names(tree: Any, prefix: str, jax: Any, separator: str) -> list[str]:
    """Name the leaves of a pytree by their keys, attributes and positions."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [_joined([prefix, *map(_key, path)], separator) for path, _ in paths]


def argument_names(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], skipped: int, jax: Any
) -> list[str]:
    """Name the leaves of positional and keyword arguments by those of the function."""
    try:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        known = [p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds][skipped:]
    except (TypeError, ValueError):
        known = []
    names: list[str] = []
    for i, value in enumerate(args):
        names += leaf_names(value, known[i] if i < len(known) else f"input_{i}", jax, "_")
    for key in sorted(kwargs):
        names += leaf_names(kwargs[key], key, jax, "_")
    return names


def unique(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Make names distinct by numbers behind, of each other and of the first parts of others."""
    known = {name.partition(".")[0] for name in taken}
    result = []
    for name in names:
        number, text = 0, name
        while text in known:
            number += 1
            text = f"{name}_{number}"
        known.add(text)
        result.append(text)
    return result


def _key(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _joined(parts: Sequence[str], separator: str) -> str:
    words = [word for part in parts for word in re.split(r"[./]", part) if word not in ("", "~")]
    # A name holds letters, digits and underscores.
    return separator.join(re.sub(r"\W", "_", word) for word in words)
