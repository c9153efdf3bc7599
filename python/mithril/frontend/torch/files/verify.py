"""Whether the values of a program are what its file says: shapes and dtypes are computed again.

Conversions go by the shapes and dtypes of nodes. A file in which these are wrong would become a wrong model.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from .expressions import Malformed

__all__ = ["verify"]

#: Ops that return as many tensors as an axis has elements, or as a number says.
_PARTS = frozenset(
    ("unbind", "split", "chunk", "tensor_split", "hsplit", "vsplit", "dsplit", "unsafe_split", "unsafe_chunk")
)
#: Steps of recurrent networks, which are unrolled.
_STEPS = 10_000


def verify(program: Any, torch: Any) -> None:
    """Compute all values of a program without data, and compare them with those that are recorded.

    Raises
    ------
    Malformed
        If they differ.
    """
    module = program.graph_module
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    tensors = [node.meta["val"] for node in placeholders]
    mode = next((v.fake_mode for v in tensors if hasattr(v, "fake_mode")), None)
    if mode is None:
        return
    with mode, torch.no_grad():
        _graph(module, tensors, torch)


def _graph(module: Any, args: Sequence[Any], torch: Any) -> Any:
    values: dict[Any, Any] = {}
    arguments = iter(args)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(arguments)
        elif node.op == "get_attr":
            values[node] = getattr(module, node.target)
        elif node.op == "output":
            return torch.fx.node.map_arg(node.args[0], values.__getitem__)
        else:
            inputs = torch.fx.node.map_arg(node.args, values.__getitem__)
            named = torch.fx.node.map_arg(node.kwargs, values.__getitem__)
            values[node] = _call(node, inputs, named, torch)
            if node.target is not operator.getitem:
                _compare(node, values[node], node.meta.get("val"), torch)
    return None


def _call(node: Any, args: Any, kwargs: Any, torch: Any) -> Any:
    target, name = node.target, getattr(node.target, "__name__", "")
    if name == "wrap_with_set_grad_enabled":
        return _graph(args[1], args[2:], torch)
    if name == "wrap_with_autocast":
        return _graph(args[4], args[5:], torch)
    if name == "cond":
        results = [_graph(branch, args[3], torch) for branch in args[1:3]]
        return results[0]
    _check_counts(node, args, torch)
    return target(*args, **kwargs)


def _check_counts(node: Any, args: Any, torch: Any) -> None:
    """Refuse results and steps beyond what the file lists, before they are made."""
    base = str(node.target).split(".")[1] if str(node.target).count(".") > 1 else ""
    x = next((arg for arg in args if isinstance(arg, torch.Tensor)), None)
    recorded = node.meta.get("val")
    if base in _PARTS and x is not None and isinstance(recorded, (tuple, list)):
        sections = [n for n in args[1:] if type(n) is int]
        most = max([int(n) if isinstance(n, int) else 0 for n in x.shape], default=0)
        if base == "unbind" or (sections and base in ("split", "unsafe_split") and sections[0] <= 1):
            axis = args[1] if base == "unbind" and len(args) > 1 else args[2] if len(args) > 2 else 0
            size = x.shape[axis]
            most = size if isinstance(size, int) else len(recorded)
        elif sections and base in ("split", "unsafe_split"):
            most = -(-most // sections[0])
        elif sections:
            most = min(most, sections[0]) if "chunk" in base else sections[0]
        if most > 2 * len(recorded) + 1000:
            raise Malformed(f"{node.name} has {len(recorded)} results where {most} follow from its inputs")
    if base in ("lstm", "gru", "rnn_tanh", "rnn_relu") and x is not None and max(map(int, x.shape), default=0) > _STEPS:
        raise Malformed(f"{node.name} has more than {_STEPS} steps")


def _compare(node: Any, value: Any, recorded: Any, torch: Any) -> None:
    if recorded is None:
        return
    is_list = isinstance(value, (tuple, list))
    values, described = (value, recorded) if is_list else ((value,), (recorded,))
    if is_list != isinstance(recorded, (tuple, list)) or len(values) != len(described):
        raise Malformed(f"{node.name} has other results than the file says")
    for item, other in zip(values, described, strict=True):
        if isinstance(item, (tuple, list)):
            _compare(node, item, other, torch)
        elif other is not None and not _is_same(item, other, torch):
            raise Malformed(f"{node.name} has another shape or dtype than the file says")


def _is_same(value: Any, recorded: Any, torch: Any) -> bool:
    if isinstance(value, torch.Tensor) and isinstance(recorded, torch.Tensor):
        sizes = zip(value.shape, recorded.shape, strict=False)
        return value.dtype == recorded.dtype and value.dim() == recorded.dim() and all(_equal(a, b) for a, b in sizes)
    if isinstance(value, torch.Tensor) or isinstance(recorded, torch.Tensor):
        return False
    return _equal(value, recorded)


def _equal(a: Any, b: Any) -> bool:
    """Whether two sizes are equal: by their expressions, or for the sizes that were traced."""
    if not hasattr(a, "node") and not hasattr(b, "node"):
        return bool(a == b)
    x, y = (getattr(v.node, "expr", v) if hasattr(v, "node") else v for v in (a, b))
    if str(x) == str(y):
        return True
    hints = [v.node.hint if hasattr(v, "node") else v for v in (a, b)]
    # A size that depends on data has none.
    return None in hints or bool(hints[0] == hints[1])
