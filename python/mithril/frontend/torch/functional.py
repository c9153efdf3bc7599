"""Changes in place as new values: what is written into a view is written into the tensor that it is a view of.

PyTorch does the same by tracing a program again, which takes as long as exporting it. Here the graph is rewritten:
every tensor has a current value, views of it are taken anew once it has changed, and buffers that changed are outputs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from .graph import Program, name_outputs
from .modules import op_name
from .schemas import schema_of, source_of_view, written

__all__ = ["functionalized", "is_functional"]


class _Unknown(Exception):
    """A change that cannot be followed: PyTorch has to do it."""


def is_functional(program: Program) -> bool:
    """Whether a program changes nothing in place."""
    return not any(node.op == "call_function" and (written(node) or _statistics(node)) for node in program.graph.nodes)


def functionalized(program: Program, torch: Any) -> Program | None:
    """Rewrite a program so that it changes nothing in place; None if only PyTorch can."""
    try:
        return _Rewriting(program, torch).result()
    except _Unknown:
        return None


def _statistics(node: Any) -> bool:
    """Whether a norm changes running statistics, which its schema does not say."""
    name = op_name(node)
    if name == "aten.batch_norm.default":
        return bool(node.args[5]) and node.args[3] is not None
    return name == "aten.instance_norm.default" and len(node.args) > 3 and node.args[3] is not None and node.args[5]


class _Rewriting:
    def __init__(self, program: Program, torch: Any) -> None:
        self.program = program
        self.torch = torch
        self.aten = torch.ops.aten
        self.graph = torch.fx.Graph()
        self.names = {node.name for node in program.graph.nodes}
        #: New nodes of old ones that are no views.
        self.values: dict[Any, Any] = {}
        #: Of a view: what it is a view of, how it is taken, and how it is put back.
        self.views: dict[Any, tuple[Any, Callable[[Any], Any], Callable[[Any, Any], Any] | None]] = {}
        #: How often each tensor has changed, and with which change a view was taken.
        self.changes: dict[Any, int] = {}
        self.taken: dict[Any, tuple[int, Any]] = {}
        #: With which change several views were taken at once.
        self.several: dict[Any, int] = {}
        self.node: Any = None

    def result(self) -> Program:
        """Rewrite the graph."""
        placeholders = []
        for node in self.program.graph.nodes:
            self.node = node
            if node.op == "output":
                outputs = self.torch.fx.node.map_arg(node.args[0], self._read)
                break
            if node.op == "placeholder":
                new = self.graph.create_node(node.op, node.target, node.args, {}, node.name, node.type)
                new.name, new.meta = node.name, node.meta
                self.values[node] = new
                placeholders.append(node)
            else:
                self._rewrite(node)
        result = self.program.with_graph(self.graph)
        signature = result.graph_signature
        specs = {spec.arg.name: spec for spec in signature.input_specs if getattr(spec.arg, "name", None)}
        added, changed = [], []
        for node in placeholders:
            if self.changes.get(node):
                added.append(self._mutation(specs.get(node.name), self.values[node]))
                changed.append(self.values[node])
        end = self.graph.output((*changed, *outputs))
        end.meta = dict(self.node.meta)
        signature.output_specs = [*added, *signature.output_specs]
        name_outputs(result)
        return result

    def _mutation(self, spec: Any, value: Any) -> Any:
        from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument

        if spec is None:
            raise _Unknown
        kinds = {"BUFFER": OutputKind.BUFFER_MUTATION, "USER_INPUT": OutputKind.USER_INPUT_MUTATION}
        if spec.kind.name not in kinds:
            raise _Unknown
        target = spec.arg.name if spec.kind.name == "USER_INPUT" else spec.target
        return OutputSpec(kind=kinds[spec.kind.name], arg=TensorArgument(name=value.name), target=target)

    # --- values -----------------------------------------------------------------------------------------------------

    def _version(self, node: Any) -> int:
        return self.changes.get(self._base(node), 0)

    def _base(self, node: Any) -> Any:
        while node in self.views:
            node = self.views[node][0]
        return node

    def _read(self, node: Any) -> Any:
        """Return the current value of a node; a view of what has changed since is taken again."""
        if node not in self.views:
            return self.values[node]
        version = self._version(node)
        known = self.taken.get(node)
        if known is None or known[0] != version:
            source, take, _ = self.views[node]
            known = self.taken[node] = (version, take(self._read(source)))
        return known[1]

    def _write(self, node: Any, value: Any) -> None:
        """Let a node have a new value, and with it all that share its memory."""
        if node not in self.views:
            self.values[node] = value
            self.changes[node] = self.changes.get(node, 0) + 1
            return
        source, _, put = self.views[node]
        if put is None:
            raise _Unknown
        self._write(source, put(self._read(source), value))
        self.taken[node] = (self._version(node), value)

    def _emit(self, target: Any, args: Sequence[Any], value: Any, like: Any, kwargs: Any = None) -> Any:
        """Add a node with what PyTorch says its result is."""
        new = self.graph.call_function(target, tuple(args), dict(kwargs or {}))
        new.name = self._fresh(like.name)
        new.meta = {**like.meta, "val": value}
        return new

    def _fresh(self, name: str) -> str:
        number, text = 0, name
        while text in self.names:
            number += 1
            text = f"{name}_{number}"
        self.names.add(text)
        return text

    # --- nodes ------------------------------------------------------------------------------------------------------

    def _rewrite(self, node: Any) -> None:
        if node.op == "call_function" and written(node):
            self._change(node)
        elif node.op == "call_function" and _statistics(node):
            self._norm(node)
        elif node.op == "call_function" and node.target is operator.getitem and node.args[0] in self.several:
            self._part(node)
        elif node.op == "call_function" and self._is_view(node):
            self._view(node)
        else:
            self.values[node] = self._copied(node)
            if self._has_parts(node):
                self.several[node] = self._version(node.args[0])

    def _copied(self, node: Any) -> Any:
        args, kwargs = (self.torch.fx.node.map_arg(part, self._read) for part in (node.args, node.kwargs))
        new = self.graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        new.name, new.meta = node.name, node.meta
        return new

    def _change(self, node: Any) -> None:
        """Replace an op in place by the one that makes a new tensor."""
        space, name, overload = op_name(node).split(".")
        if space != "aten" or not name.endswith("_") or written(node) != [0] or not node.args:
            raise _Unknown
        name, overload = _RANDOM.get((name, overload), (name[:-1], overload))
        packet = getattr(self.aten, name, None)
        target, changed = getattr(packet, overload, None), node.args[0]
        if target is None or not isinstance(changed, self.torch.fx.Node):
            raise _Unknown
        operands = [n.meta.get("val") for n in node.all_input_nodes if n is not changed]
        dtype = changed.meta["val"].dtype
        floats = {v.dtype for v in operands if isinstance(v, self.torch.Tensor) and v.dtype.is_floating_point}
        if dtype.is_floating_point and floats - {dtype} and name != "copy":
            # PyTorch computes in the wider dtype, and rounds once.
            raise _Unknown
        args, kwargs = (self.torch.fx.node.map_arg(part, self._read) for part in (node.args, node.kwargs))
        value = self._emit(target, args, changed.meta["val"], node, kwargs)
        self._write(changed, value)
        # What it returns is the tensor that it changed.
        self.views[node] = (changed, lambda x: x, lambda _, y: y)

    def _norm(self, node: Any) -> None:
        """Replace a batch norm in training by the one that returns new statistics."""
        if op_name(node) != "aten.batch_norm.default":
            raise _Unknown
        x, weight, bias, mean, variance, training, momentum, epsilon = node.args[:8]
        read = [self._read(n) if n is not None else None for n in (x, weight, bias, mean, variance)]
        norm = getattr(self.aten, "_native_batch_norm_legit_functional").default  # noqa: B009
        y, old = node.meta["val"], mean.meta["val"]
        new = self._emit(norm, (*read, training, momentum, epsilon), (y, None, None, old, old), node)
        self.values[node] = self._emit(operator.getitem, (new, 0), y, node)
        for i, buffer in ((3, mean), (4, variance)):
            self._write(buffer, self._emit(operator.getitem, (new, i), old, node))

    # --- views ------------------------------------------------------------------------------------------------------

    def _is_view(self, node: Any) -> bool:
        """Whether the result of an op lies in the memory of its first argument."""
        source, value = node.args[0] if node.args else None, node.meta.get("val")
        if schema_of(node) is None or not isinstance(source, self.torch.fx.Node):
            return False
        x = source.meta.get("val")
        if not isinstance(x, self.torch.Tensor) or not isinstance(value, self.torch.Tensor):
            return False
        name = op_name(node).split(".")[1]
        if name in ("to", "type_as", "type", "float", "double", "half", "_to_copy"):
            return name != "_to_copy" and x.dtype == value.dtype and True not in node.args[3:]
        if name == "contiguous":
            return bool(x.is_contiguous())
        if name in ("dropout", "feature_dropout", "alpha_dropout"):
            return not node.args[2] or not node.args[1]
        if name in ("reshape", "reshape_as", "flatten"):
            return self._can_be_viewed(x, value)
        return source_of_view(node) is not None

    @staticmethod
    def _can_be_viewed(x: Any, value: Any) -> bool:
        try:
            x.view(value.shape)
        except (RuntimeError, ValueError):
            return False
        return True

    def _view(self, node: Any) -> None:
        source = node.args[0]
        kwargs = self.torch.fx.node.map_arg(node.kwargs, self._read)

        def take(x: Any) -> Any:
            if node not in self.taken:
                new = self.graph.create_node(node.op, node.target, (x, *rest), kwargs, node.name, node.type)
                new.name, new.meta = node.name, node.meta
                return new
            return self._emit(node.target, (x, *rest), node.meta["val"], node, kwargs)

        rest = self.torch.fx.node.map_arg(node.args[1:], self._read)
        self.views[node] = (source, take, self._put(node, rest))
        # Where it stands, so that the order of nodes stays.
        self._read(node)

    def _put(self, node: Any, rest: Sequence[Any]) -> Callable[[Any, Any], Any] | None:
        """Find how a new value of a view becomes one of what it is a view of."""
        name, source = op_name(node), node.args[0]
        whole = source.meta["val"]
        scatters = {
            "aten.select.int": self.aten.select_scatter.default,
            "aten.slice.Tensor": self.aten.slice_scatter.default,
        }

        def emit(target: Any, *args: Any) -> Any:
            return self._emit(target, args, whole, self.node)

        if name in scatters and not node.kwargs:
            return lambda x, y: emit(scatters[name], x, y, *rest)
        if name == "aten.narrow.default" and all(isinstance(n, int) for n in rest[1:]):
            dim, start, length = rest
            return lambda x, y: emit(self.aten.slice_scatter.default, x, y, dim, start, start + length)
        if name in ("aten.movedim.int", "aten.movedim.intlist"):
            return lambda x, y: emit(node.target, y, rest[1], rest[0])
        if name in ("aten.transpose.int", "aten.swapaxes.default", "aten.t.default", "aten.mT.default"):
            return lambda x, y: emit(node.target, y, *rest)
        if name == "aten.permute.default":
            dims = [d % len(rest[0]) for d in rest[0]]
            return lambda x, y: emit(node.target, y, [dims.index(i) for i in range(len(dims))])
        if name in _IDENTITIES and whole.dtype == node.meta["val"].dtype:
            return lambda x, y: y
        if name == "aten.detach.default":
            if self._base(source) not in self.program.differentiable:
                return lambda x, y: y
            return lambda x, y: self._with_gradient_of(x, y, whole)
        is_fixed = all(isinstance(n, int) for n in whole.shape)
        if name in _RESHAPES and is_fixed and math.prod(whole.shape) == node.meta["val"].numel():
            return lambda x, y: emit(self.aten.reshape.default, y, list(whole.shape))
        return None

    def _with_gradient_of(self, x: Any, y: Any, like: Any) -> Any:
        """Give a tensor the gradient of what it was written over through ``detach``: autograd does not see it."""
        aten, node = self.aten, self.node
        still = self._emit(aten.detach.default, (y,), like, node)
        change = self._emit(aten.sub.Tensor, (x, self._emit(aten.detach.default, (x,), like, node)), like, node)
        is_number = self._emit(aten.isfinite.default, (x,), like.to(self.torch.bool), node)
        zero = self._emit(aten.where.ScalarOther, (is_number, change, 0.0), like, node)
        return self._emit(aten.add.Tensor, (still, zero), like, node)

    def _has_parts(self, node: Any) -> bool:
        """Whether an op returns several views of its first argument."""
        schema = schema_of(node)
        if schema is None or not isinstance(node.meta.get("val"), (tuple, list)):
            return False
        return source_of_view(node) is not None

    def _part(self, node: Any) -> None:
        """Take one of several views: as a view of its own, once there are changes."""
        several, i = node.args
        name, source, value = op_name(several).split(".")[1], several.args[0], node.meta["val"]
        whole = source.meta["val"]
        target, scatter = self.aten.slice.Tensor, self.aten.slice_scatter.default
        place: tuple[Any, ...] | None = None
        dim = [*several.args, 0][1 if name == "unbind" else 2]
        sizes = [part.shape[dim] for part in several.meta["val"][:i]] if name in _PARTS else []
        if name == "unbind":
            target, scatter, place = self.aten.select.int, self.aten.select_scatter.default, (dim, i)
        elif name in _PARTS and all(isinstance(n, int) for n in (*sizes, value.shape[dim])):
            place = (dim, sum(sizes), sum(sizes) + value.shape[dim])

        def take(x: Any) -> Any:
            if self.several[several] == self._version(source):
                return self._copied(node) if node not in self.taken else self.taken[node][1]
            if place is None:
                raise _Unknown
            return self._emit(target, (x, *place), value, node)

        def put(x: Any, y: Any) -> Any:
            return self._emit(scatter, (x, y, *place), whole, self.node)  # type: ignore[misc]

        self.views[node] = (source, take, None if place is None else put)
        self._read(node)


#: Ops that return slices of a tensor.
_PARTS = frozenset(("split", "split_with_sizes", "chunk", "tensor_split"))
#: Ops in place whose counterparts have other names.
_RANDOM = {
    ("normal_", "default"): ("normal_functional", "default"),
    ("bernoulli_", "float"): ("bernoulli", "p"),
}
#: Views that are the tensor itself.
_IDENTITIES = frozenset(
    (
        *("aten.alias.default", "aten.contiguous.default", "aten.to.dtype", "aten.to.device", "aten.to.dtype_layout"),
        *("aten.type_as.default", "aten.float.default", "aten.dropout.default", "aten.feature_dropout.default"),
    )
)
#: Views in the order of the elements.
_RESHAPES = frozenset(
    (
        *("aten.view.default", "aten.reshape.default", "aten.flatten.using_ints", "aten.unflatten.int"),
        *("aten.unsqueeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default"),
        *("aten._unsafe_view.default", "aten.reshape_as.default", "aten.view_as.default"),
    )
)
