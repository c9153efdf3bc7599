"""Values that are known when a module is read: what is computed from its integer constants alone."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

__all__ = ["KnownValues"]

#: Ops whose results are numbers of Python, by which sizes may be computed.
NUMBERS = frozenset(("aten.item.default", "aten._local_scalar_dense.default"))


class KnownValues:
    """Values of the nodes of a graph that is being made, node after node.

    Parameters
    ----------
    constants : mapping
        Integer tensors of the module that it does not replace, by the names of placeholders.
    torch : module
        PyTorch.
    """

    def __init__(self, constants: Mapping[str, Any], torch: Any) -> None:
        self.constants = constants
        self.torch = torch
        self.values: dict[Any, Any] = {}
        #: Nodes whose memory an op wrote to: what they hold depends on when they are read.
        self.written: set[Any] = set()
        #: Values of PyTorch's symbols for numbers that it did not know.
        self.symbols: dict[Any, int] = {}

    def of(self, node: Any) -> Any:
        """Compute the value of a node; None if it is not known."""
        if not isinstance(node, self.torch.fx.Node):
            return node
        if node in self.written:
            return None
        if node not in self.values:
            self.values[node] = self._computed(node)
        return self.values[node]

    def number(self, node: Any, args: Any) -> Any:
        """Compute a number: one that is read from a tensor, or arithmetic of such; None if it is none, or not known."""
        if str(node.target) in NUMBERS:
            tensor = self.of(args[0])
            if tensor is None:
                return None
            value = tensor.item()
            symbol = getattr(getattr(node.meta.get("val"), "node", None), "expr", None)
            if isinstance(value, int) and getattr(symbol, "is_Symbol", False):
                self.symbols[symbol] = value
            return value
        if getattr(node.target, "__module__", "") == "_operator" and all(isinstance(x, (int, float)) for x in args):
            return node.target(*args)
        return None

    def sized(self, value: Any) -> Any:
        """Return the description of a result with the sizes that are known now."""
        if not self.symbols:
            return value
        if isinstance(value, (tuple, list)):
            return type(value)(self.sized(item) for item in value)
        if isinstance(value, self.torch.SymInt):
            return self._size(value)
        if not isinstance(value, self.torch.Tensor) or getattr(value, "fake_mode", None) is None:
            return value
        if not any(self._is_known(n) for n in (*value.shape, *value.stride())):
            return value
        shape, stride = ([self._size(n) for n in sizes] for sizes in (value.shape, value.stride()))
        with value.fake_mode:
            return self.torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)

    def _is_known(self, n: Any) -> bool:
        return not isinstance(n, int) and bool(n.node.expr.free_symbols & self.symbols.keys())

    def _size(self, n: Any) -> Any:
        if not self._is_known(n):
            return n
        size = n.node.expr.subs(self.symbols)
        return int(size) if size.is_Integer else n.node.shape_env.create_symintnode(size, hint=None)

    def write(self, node: Any) -> None:
        """Note what an op writes to."""
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            return
        for i, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                x = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
                while isinstance(x, self.torch.fx.Node):
                    self.written.add(x)
                    x = x.args[0] if self._is_view(x) else None
        # What was computed from that memory may be a view of it.
        self.values.clear()

    @staticmethod
    def _is_view(node: Any) -> bool:
        """Whether a result may lie in the memory of the first argument."""
        if node.target is operator.getitem:
            return True
        schema = getattr(node.target, "_schema", None)
        return bool(node.args) and schema is not None and any(r.alias_info is not None for r in schema.returns)

    def _computed(self, node: Any) -> Any:
        if node.op == "placeholder":
            return self.constants.get(node.name)
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or (schema is None and node.target is not operator.getitem):
            return None
        if schema is not None and (
            schema.is_mutable or self.torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        ):
            return None
        inputs = {n: self.of(n) for n in node.all_input_nodes}
        if not inputs or any(value is None for value in inputs.values()):
            return None
        args, kwargs = (self.torch.fx.node.map_arg(part, inputs.__getitem__) for part in (node.args, node.kwargs))
        with self.torch.no_grad():
            return node.target(*args, **kwargs)
