"""What the schemas of PyTorch's ops say of the memory of arguments and results."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["schema_of", "source_of_view", "written"]


def schema_of(node: Any) -> Any:
    """Return the schema of the op that a node calls; None if it calls none."""
    return getattr(node.target, "_schema", None)


def written(node: Any) -> list[int]:
    """Positions of the arguments that an op changes."""
    schema = schema_of(node)
    if schema is None or not schema.is_mutable:
        return []
    return [i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]


def source_of_view(node: Any) -> Any:
    """Return the node whose memory a result may lie in, also as one of several parts; None if it has its own."""
    if node.target is operator.getitem:
        return node.args[0]
    schema = schema_of(node)
    is_view = schema is not None and any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    return node.args[0] if is_view and node.args else None
