"""Containers of arguments and results in files: PyTorch would import their classes, here they are those of Python."""

from __future__ import annotations

import json
from typing import Any

from .expressions import Malformed

__all__ = ["container"]

_SEQUENCES = {
    "builtins.tuple": "builtins.tuple",
    "builtins.list": "builtins.list",
    "collections.namedtuple": "builtins.tuple",
    "collections.deque": "builtins.list",
    "torch.Size": "builtins.tuple",
    "immutable_collections.immutable_list": "builtins.list",
    "torch.fx.immutable_collections.immutable_list": "builtins.list",
}
_DEPTH, _LENGTH = 100, 1 << 24


def container(text: Any) -> tuple[str, int]:
    """Check the text of a container (``treespec_dumps``), and write it with the containers of Python alone.

    Classes of users and libraries that are registered with PyTorch, such as the outputs of transformers, become dicts.

    Returns
    -------
    str, int
        The text, and how many leaves there are.
    """
    if not isinstance(text, str) or len(text) > _LENGTH:
        raise Malformed("the containers of inputs or outputs are not text")
    try:
        protocol, tree = json.loads(text)
        cleaned, leaves = _node(tree, 0)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Malformed("the containers of inputs or outputs are malformed") from error
    if protocol != 1:
        raise Malformed(f"containers of version {protocol!r} are not known")
    return json.dumps([1, cleaned]), leaves


def _node(tree: Any, depth: int) -> tuple[dict[str, Any], int]:
    kind, context, children = tree["type"], tree["context"], tree["children_spec"]
    if depth > _DEPTH or not isinstance(children, list):
        raise Malformed("the containers of inputs or outputs are malformed")
    if kind is None:
        if children:
            raise Malformed("the containers of inputs or outputs are malformed")
        return {"type": None, "context": None, "children_spec": []}, 1
    parts = [_node(child, depth + 1) for child in children]
    count = sum(leaves for _, leaves in parts)
    nodes = [node for node, _ in parts]
    if kind in _SEQUENCES:
        return {"type": _SEQUENCES[kind], "context": "null", "children_spec": nodes}, count
    keys = _keys(context)
    if len(keys) != len(nodes) or len(set(keys)) != len(keys):
        raise Malformed(f"the keys of a {str(kind)[:80]} are not those of its items")
    return {"type": "builtins.dict", "context": json.dumps(keys), "children_spec": nodes}, count


def _keys(context: Any) -> list[Any]:
    """Find the keys of a dict, or the fields of an object that becomes one."""
    value = json.loads(context) if isinstance(context, str) else context
    if isinstance(value, dict):
        # A defaultdict, whose factory stays behind.
        value = value.get("dict_context")
    if isinstance(value, list) and len(value) == 2 and all(isinstance(part, list) for part in value):
        # Fields of a dataclass, and those that are None.
        value = value[0]
    if not isinstance(value, list) or not all(type(key) in (str, int, bool) for key in value):
        raise Malformed("the keys of a container of inputs or outputs are not texts or numbers")
    return value
