"""The graph of an exported program, with the regions that PyTorch wraps written out in it.

``torch.no_grad``, ``torch.autocast`` and ``torch.cond`` are calls of graphs of their own. Those that are known become
part of the graph around them, so that it is converted as it is; what leaves ``no_grad`` is detached, as in PyTorch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from .known import KnownValues
from .modules import op_name
from .schemas import source_of_view, written

__all__ = ["WRAPPERS", "Program", "flattened", "name_outputs", "remove_dead_code"]

#: Calls of graphs that are written out, if they can be.
WRAPPERS = frozenset(f"higher_order.{n}" for n in ("wrap_with_set_grad_enabled", "wrap_with_autocast", "cond"))

#: Ops that compute nothing.
ASSERTIONS = frozenset(
    f"aten.{n}"
    for n in (
        *("_assert_scalar.default", "_assert_tensor_metadata.default", "_assert_async.msg", "_assert_async.default"),
        *("sym_constrain_range_for_size.default", "sym_constrain_range.default"),
    )
)


@dataclass
class Program:
    """What is converted: a graph that belongs to nobody else, and what its inputs and outputs are.

    Attributes
    ----------
    graph : torch.fx.Graph
        The graph.
    graph_signature : torch.export.ExportGraphSignature
        What its inputs and outputs are.
    state_dict, constants : mapping
        Tensors by name.
    out_spec : TreeSpec
        The containers of its outputs.
    range_constraints : mapping
        Bounds of symbols.
    source : torch.export.ExportedProgram
        The program that it was.
    attributes : dict
        Graphs that are still called, and other attributes that nodes read, by name.
    differentiable : set
        Nodes that PyTorch would differentiate.
    """

    graph: Any
    graph_signature: Any
    state_dict: Mapping[str, Any]
    constants: Mapping[str, Any]
    out_spec: Any
    range_constraints: Mapping[Any, Any]
    source: Any
    attributes: dict[str, Any] = field(default_factory=dict)
    differentiable: set[Any] = field(default_factory=set)

    def tensors(self) -> dict[str, Any]:
        """All tensors by name."""
        return {**dict(self.state_dict), **self.constants}

    def with_graph(self, graph: Any) -> Program:
        """Return the same with another graph."""
        signature = copy(self.graph_signature)
        signature.input_specs = [copy(spec) for spec in signature.input_specs]
        signature.output_specs = [copy(spec) for spec in signature.output_specs]
        return replace(self, graph=graph, graph_signature=signature)

    def exported(self, torch: Any) -> Any:
        """Write it as a program of PyTorch again."""
        source = self.source
        module = torch.nn.Module()
        for name, value in self.attributes.items():
            setattr(module, name, value)
        return torch.export.ExportedProgram(
            root=module,
            graph=self.graph,
            graph_signature=self.graph_signature,
            state_dict=source.state_dict,
            range_constraints=source.range_constraints,
            module_call_graph=source.module_call_graph,
            example_inputs=None,
            constants=source.constants,
            verifiers=source.verifiers,
        )


def flattened(program: Any, torch: Any) -> Program:
    """Copy the graph of a program, with regions in it written out.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        The program, which stays as it is.
    torch : module
        PyTorch.
    """
    signature = copy(program.graph_signature)
    signature.input_specs = [copy(spec) for spec in signature.input_specs]
    signature.output_specs = [copy(spec) for spec in signature.output_specs]
    copying = _Copy(program, torch)
    copying.run()
    result = Program(
        graph=copying.graph,
        graph_signature=signature,
        state_dict=program.state_dict,
        constants=program.constants,
        out_spec=program.call_spec.out_spec,
        range_constraints=program.range_constraints,
        source=program,
        attributes=copying.attributes,
        differentiable=copying.differentiable,
    )
    name_outputs(result)
    return result


def name_outputs(program: Any) -> None:
    """Name the nodes that are the outputs now in the signature, where others took the places of those that it names."""
    output = next(node for node in reversed(program.graph.nodes) if node.op == "output")
    for spec, value in zip(program.graph_signature.output_specs, output.args[0], strict=True):
        name = getattr(value, "name", None)
        if name is not None and getattr(spec.arg, "name", name) != name:
            spec.arg = replace(spec.arg, name=name)


def remove_dead_code(program: Program) -> None:
    """Remove what no output depends on: also assertions, which hold for what was exported."""
    for node in list(program.graph.nodes):
        if op_name(node) in ASSERTIONS:
            program.graph.erase_node(node)
    program.graph.eliminate_dead_code()


class _Copy:
    """A copy of a graph that is being made."""

    def __init__(self, program: Any, torch: Any) -> None:
        self.program = program
        self.torch = torch
        self.graph = torch.fx.Graph()
        self.attributes: dict[str, Any] = {}
        #: Nodes that PyTorch would differentiate, were it not for regions without gradients.
        self.differentiable: set[Any] = set()
        #: Nodes that were made in regions without gradients.
        self.without: set[Any] = set()
        signature = program.graph_signature
        self.constants = {**dict(program.state_dict), **program.constants}
        self.targets = {s.arg.name: s for s in signature.input_specs if getattr(s.arg, "name", None)}
        self.changed = {s.target for s in signature.output_specs if s.kind.name != "USER_OUTPUT"}
        self.known = KnownValues(dict(self._integers()), torch)
        self.names = {node.name for node in program.graph.nodes}

    def run(self) -> None:
        """Copy the graph of the program."""
        source = self.program.graph_module
        outputs = self._copied(source, None, True)
        node = self.graph.output(outputs)
        old = next(node for node in reversed(source.graph.nodes) if node.op == "output")
        node.meta = dict(old.meta)

    def _copied(self, module: Any, operands: Sequence[Any] | None, gradients: bool) -> Any:
        """Copy the nodes of a graph; returns what it returns, in nodes of the copy."""
        values: dict[Any, Any] = {}
        arguments = iter(operands or ())
        is_outer = operands is None
        for node in module.graph.nodes:
            if node.op == "output":
                return self._mapped(node.args[0], values)
            if node.op == "placeholder" and not is_outer:
                values[node] = next(arguments)
            elif node.op == "get_attr" and self._is_graph(module, node):
                values[node] = getattr(module, node.target)
            elif node.op == "get_attr":
                values[node] = self._attribute(node, getattr(module, node.target))
            elif node.op == "call_function" and node.target is operator.getitem and self._is_written_out(values, node):
                values[node] = values[node.args[0]][node.args[1]]
            else:
                region = self._region(node, values, gradients) if node.op == "call_function" else None
                values[node] = self._node(node, values, gradients, is_outer) if region is None else region[0]
        return ()

    def _is_graph(self, module: Any, node: Any) -> bool:
        return isinstance(getattr(module, str(node.target), None), self.torch.fx.GraphModule)

    @staticmethod
    def _is_written_out(values: Mapping[Any, Any], node: Any) -> bool:
        return isinstance(values.get(node.args[0]), (tuple, list))

    def _mapped(self, tree: Any, values: Mapping[Any, Any]) -> Any:
        return self.torch.fx.node.map_arg(tree, lambda node: values[node])

    def _node(self, node: Any, values: Mapping[Any, Any], gradients: bool, is_outer: bool) -> Any:
        def value(argument: Any) -> Any:
            attribute = values[argument]
            return (
                self._attribute(argument, attribute) if isinstance(attribute, self.torch.fx.GraphModule) else attribute
            )

        args, kwargs = (self.torch.fx.node.map_arg(part, value) for part in (node.args, node.kwargs))
        changed = None
        if not gradients and args and 0 in written(node) and self._has_gradient(args[0]):
            # Autograd does not see what is written: the tensor keeps its gradient.
            changed = args[0]
            args = (self._detached(changed), *args[1:])
        number = self.known.number(node, args) if node.op == "call_function" else None
        if number is not None:
            return number
        new = self.graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        # PyTorch's own names stay, also those that it would not choose here, such as `input`.
        new.name = node.name if is_outer else self._fresh(node.name)
        new.meta = copy(node.meta)
        if "val" in new.meta:
            new.meta["val"] = self.known.sized(new.meta["val"])
        if node.op == "call_function":
            self.known.write(new)
        if node.op == "placeholder":
            if self._is_trained(node):
                self.differentiable.add(new)
        elif op_name(new) != "aten.detach.default" and self._is_float(new):
            self.differentiable.update([new] if self.differentiable.intersection(new.all_input_nodes) else [])
        if not gradients:
            self.without.add(new)
        return new if changed is None else changed

    def _has_gradient(self, node: Any) -> bool:
        """Whether autograd knows a gradient of a tensor, or of one that it is a view of."""
        while node in self.without and (source := source_of_view(node)) is not None:
            node = source
        return node in self.differentiable and node not in self.without

    def _fresh(self, name: str) -> str:
        number, text = 0, name
        while text in self.names:
            number += 1
            text = f"{name}_{number}"
        self.names.add(text)
        return text

    def _attribute(self, node: Any, value: Any) -> Any:
        """Enter a graph that stays one of its own, or another attribute, such as the description of a function."""
        name = self._fresh(f"{node.target}_region")
        self.attributes[name] = value
        new = self.graph.create_node("get_attr", name, name=name)
        new.name = name
        new.meta = copy(node.meta)
        return new

    def _integers(self) -> Iterator[tuple[str, Any]]:
        """List the constants that hold no floating-point numbers, by the names of their placeholders."""
        for name, spec in self.targets.items():
            tensor = None if spec.target in self.changed else self.constants.get(spec.target)
            if isinstance(tensor, self.torch.Tensor) and not (tensor.is_floating_point() or tensor.is_complex()):
                yield name, tensor

    def _is_trained(self, node: Any) -> bool:
        spec = self.targets.get(node.name)
        if spec is not None and spec.target is not None:
            return bool(getattr(self.constants.get(spec.target), "requires_grad", False))
        return self._is_float(node)

    @staticmethod
    def _is_float(node: Any) -> bool:
        value = node.meta.get("val")
        values = value if isinstance(value, (tuple, list)) else [value]
        return any(getattr(getattr(v, "dtype", None), "is_floating_point", False) for v in values)

    # --- regions ----------------------------------------------------------------------------------------------------

    def _region(self, node: Any, values: Mapping[Any, Any], gradients: bool) -> tuple[Any] | None:
        """Write a region out, if the node is one and it is known."""
        name = op_name(node).rpartition(".")[2]
        if not op_name(node).startswith("torch.ops.higher_order."):
            return None
        args = self._mapped(node.args, values)
        if name == "wrap_with_set_grad_enabled":
            enabled, module, *operands = args
            operands = [self._across(x, gradients, enabled) for x in operands]
            results = self._copied(module, operands, enabled)
            return (self._each(results, lambda x: self._across(x, enabled, gradients)),)
        if name == "wrap_with_autocast" and not args[2]:
            return (self._copied(args[4], args[5:], gradients),)
        if name == "cond":
            predicate = self.known.of(args[0])
            if predicate is not None:
                return (self._copied(args[1] if bool(predicate) else args[2], args[3], gradients),)
            if isinstance(args[0], self.torch.fx.Node) and hasattr(args[0].meta.get("val"), "dtype"):
                return (self._selected(node, args, gradients),)
        return None

    def _selected(self, node: Any, args: Any, gradients: bool) -> Any:
        """Write out both branches of a condition that is data, and select the results of one."""
        aten = self.torch.ops.aten
        predicate, *branches, operands = args
        if predicate.meta["val"].dim():
            scalar = predicate.meta["val"].reshape(())
            predicate = self._new(aten.reshape.default, (predicate, []), scalar, node)

        def guarded(x: Any, is_taken: bool) -> Any:
            # Zero times an infinite slope of the other branch would be NaN: no gradient leaves it.
            if x not in self.differentiable or not gradients:
                return x
            value = x.meta["val"]
            still = self._new(aten.detach.default, (x,), value, node)
            new = self._new(aten.where.self, (predicate, *((x, still) if is_taken else (still, x))), value, node)
            self.differentiable.add(new)
            return new

        def select(x: Any, y: Any) -> Any:
            if isinstance(x, (tuple, list)):
                return tuple(select(*pair) for pair in zip(x, y, strict=True))
            if x is y or not isinstance(x, self.torch.fx.Node) or not isinstance(y, self.torch.fx.Node):
                return x
            new = self._new(aten.where.self, (predicate, x, y), x.meta["val"], node)
            if self.differentiable.intersection((x, y)):
                self.differentiable.add(new)
            return new

        results = [
            self._copied(branch, [guarded(x, is_first) for x in operands], gradients)
            for branch, is_first in zip(branches, (True, False), strict=True)
        ]
        return select(*results)

    def _new(self, target: Any, args: Any, value: Any, origin: Any) -> Any:
        """Add a node that stands where another one does."""
        new = self.graph.call_function(target, args)
        new.name = self._fresh(new.name)
        new.meta = {k: v for k, v in origin.meta.items() if k in ("nn_module_stack", "stack_trace")} | {"val": value}
        return new

    def _each(self, tree: Any, function: Callable[[Any], Any]) -> Any:
        if isinstance(tree, (tuple, list)):
            return tuple(self._each(item, function) for item in tree)
        return function(tree)

    def _across(self, value: Any, inside: bool, outside: bool) -> Any:
        """Detach what goes from a region without gradients into one with them."""
        if inside or not outside or value not in self.without or value not in self.differentiable:
            return value
        return self._detached(value)

    def _detached(self, value: Any) -> Any:
        new = self.graph.call_function(self.torch.ops.aten.detach.default, (value,))
        new.name = self._fresh(f"{value.name}_detached")
        new.meta = {k: v for k, v in value.meta.items() if k in ("val", "nn_module_stack", "stack_trace")}
        return new
