"""What ``torch.export`` makes of a module, decomposed no further than the ops that Mithril has."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from ...errors import InvalidValueError, ModelFileError, UnsupportedOpError
from .files import load
from .graph import WRAPPERS, Program, flattened, name_outputs, remove_dead_code
from .modules import op_name
from .ops import OPS
from .quiet import quiet

__all__ = ["dim_names", "exported", "is_known"]


def exported(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any, torch: Any
) -> Program:
    """Export a module, or load a file; the program is functional, and in ops that can be converted."""
    if isinstance(module, (str, PathLike)):
        source = _load(os.fspath(module), torch)
    elif isinstance(module, torch.export.ExportedProgram):
        source = module
    elif isinstance(module, torch.nn.Module):
        source = _export(module, args, kwargs, dynamic_shapes, torch)
    else:
        raise InvalidValueError(
            f"from_torch takes a module, an exported program or the path of one, not {type(module).__name__}"
        )
    program = flattened(source, torch)
    remove_dead_code(program)
    if is_convertible(program) or not _is_decomposable(program):
        return program
    # What has a conversion stays whole; everything else goes through PyTorch's own decompositions.
    table = {op: rule for op, rule in _decompositions().items() if str(op) not in OPS}
    with quiet():
        program = flattened(program.exported(torch).run_decompositions(table), torch)
    remove_dead_code(program)
    return program


def is_convertible(program: Program) -> bool:
    """Whether a program has only ops that can be converted, and changes nothing: tracing it again takes as long again.

    An op that works in place on a tensor that nothing else sees becomes the one that makes a new tensor.
    """
    graph = program.graph
    if any(spec.kind.name != "USER_OUTPUT" for spec in program.graph_signature.output_specs):
        return False
    for node in list(graph.nodes):
        if node.op not in ("placeholder", "call_function", "output"):
            return False
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if _is_mutable(node):
            _make_out_of_place(node)
        if op_name(node) == "aten.batch_norm.default" and not _changes_statistics(node):
            _say_that_statistics_stay(node)
            continue
        if op_name(node) not in OPS or _is_mutable(node) or _changes_statistics(node):
            return False
    name_outputs(program)
    return True


def _schema(node: Any) -> Any:
    """Return what an op of PyTorch says of its arguments and results; None for others."""
    return getattr(node.target, "_schema", None)


def _name(node: Any) -> str:
    """Return the name of an op without namespace and overload, such as ``relu_``."""
    return op_name(node).split(".")[1] if _schema(node) is not None else ""


def _is_mutable(node: Any) -> bool:
    schema = _schema(node)
    return schema is not None and bool(schema.is_mutable)


def _make_out_of_place(node: Any) -> None:
    """Let an op in place make a new tensor, if it changes one that nothing else can see."""
    import torch

    space, name, overload = op_name(node).split(".")
    changed = node.args[0] if node.args else None
    if not name.endswith("_") or space != "aten" or f"aten.{name[:-1]}.{overload}" not in OPS:
        return
    if not isinstance(changed, torch.fx.Node):
        return
    made = changed.args[0] if changed.target is operator.getitem else changed
    is_fresh = (
        isinstance(made, torch.fx.Node)
        and made.op == "call_function"
        # It is no view of another tensor, and nobody has a view of it.
        and not _is_view(made)
        and not any(user.op != "output" and _is_view(user) for user in changed.users if user < node)
    )
    arguments = _schema(node).arguments
    written = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    if not is_fresh or written != [arguments[0].name]:
        return
    node.target = getattr(getattr(torch.ops.aten, name[:-1]), overload)
    for user in list(changed.users):
        # What comes later reads the new value.
        if user is not node and user > node:
            user.replace_input_with(changed, node)


def _say_that_statistics_stay(node: Any) -> None:
    """Replace a batch norm that may train by the one of inference."""
    import torch

    graph, (x, weight, bias, mean, variance, _, momentum, epsilon) = node.graph, node.args[:8]
    with graph.inserting_before(node):
        norm = getattr(torch.ops.aten, "_native_batch_norm_legit_no_training").default  # noqa: B009
        new = graph.call_function(norm, (x, weight, bias, mean, variance, momentum, epsilon))
        new.meta = {**node.meta, "val": (node.meta.get("val"), None, None)}
        result = graph.call_function(operator.getitem, (new, 0))
        result.meta = dict(node.meta)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _is_view(node: Any) -> bool:
    """Whether the results of a node may lie in the memory of its inputs."""
    schema = _schema(node)
    if schema is None or any(result.alias_info is not None for result in schema.returns):
        return True
    # Those that give back their input where there is nothing to do do not say so.
    return _name(node) in ("to", "contiguous", "reshape", "reshape_as", "flatten", "dropout", "type_as")


def _changes_statistics(node: Any) -> bool:
    """Whether a norm changes running statistics, which its schema does not say."""
    name = _name(node)
    if name == "batch_norm":
        return len(node.args) < 8 or bool(node.args[5])
    return "instance_norm" in name and len(node.args) > 3 and node.args[3] is not None


def _load(path: str, torch: Any) -> Any:
    if not Path(path).is_file():
        raise ModelFileError(f"{path!r} does not exist")
    # Of other libraries nothing is looked up that a file names.
    return load(path, torch, lambda op: op in OPS or op in WRAPPERS or (op.startswith("aten.") and is_known(op)))


def _is_decomposable(program: Program) -> bool:
    """Whether PyTorch's decompositions leave nothing that is certainly missing."""
    names = (op_name(node) for node in program.graph.nodes if node.op == "call_function")
    return not program.subgraphs and all(name == "operator.getitem" or is_known(name) for name in names)


@functools.cache
def is_known(op: str) -> bool:
    """Whether an op, such as ``aten.add.Tensor``, is converted, or decomposed by PyTorch."""
    if op in OPS:
        return True
    parts = op.split(".")
    if len(parts) != 3:
        return False
    import torch
    from torch._C import DispatchKey
    from torch._ops import OpOverload

    overload = getattr(getattr(getattr(torch.ops, parts[0]), parts[1], None), parts[2], None)
    if not isinstance(overload, OpOverload):
        return False
    if overload in _decompositions() or overload.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd):
        return True
    # In place of a tensor: PyTorch writes it as the op that makes a new one.
    base = parts[1][:-1]
    return parts[1].endswith("_") and not base.endswith("_") and is_known(f"{parts[0]}.{base}.{parts[2]}")


@functools.cache
def _decompositions() -> Any:
    import torch

    return torch.export.default_decompositions()


def _export(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic: Any, torch: Any) -> Any:
    if isinstance(args, torch.Tensor) or type(args).__module__ == "numpy":
        args = (args,)
    import torch.utils._pytree as pytree

    for leaf in pytree.tree_leaves((tuple(args), dict(kwargs or {}))):
        if type(leaf).__module__ == "numpy":
            raise InvalidValueError(
                f"the example inputs hold an array of NumPy: {type(module).__name__} takes tensors of PyTorch",
                hint="convert it: torch.from_numpy(array), or torch.tensor(number)",
            )
    args, kwargs = distinct((tuple(args), dict(kwargs or {})), module, torch)
    try:
        with quiet():
            return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic, strict=False)
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise UnsupportedOpError(
            f"torch.export cannot export {type(module).__name__}: {reason[0] if reason else type(error).__name__}",
            hint="call torch.export.export on the module to see PyTorch's whole report",
        ) from error


def distinct(examples: Any, module: Any, torch: Any) -> Any:
    """Copy tensors that share memory with others: PyTorch takes one tensor in two places for one input."""
    import torch.utils._pytree as pytree

    seen = {_memory(tensor) for tensor in (*module.parameters(), *module.buffers())}

    def own(tensor: Any) -> Any:
        memory = _memory(tensor)
        if memory is None or memory not in seen:
            seen.add(memory)
            return tensor
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(torch.Tensor, own, examples)


def _memory(tensor: Any) -> Any:
    """Tell the memory of a tensor from that of others; None if it has none."""
    try:
        storage = tensor.untyped_storage()
        return (str(tensor.device), storage.data_ptr()) if storage.nbytes() else None
    except (RuntimeError, NotImplementedError):
        # Tensors of other layouts.
        return id(tensor)


def dim_names(program: Any, dynamic_shapes: Any) -> dict[str, str]:
    """Find the names that a user gave to symbolic sizes, by PyTorch's own names for them."""
    nodes = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    inputs = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
    if isinstance(dynamic_shapes, Mapping):
        pairs = [(nodes.get(name), dynamic_shapes.get(name)) for name in inputs]
    else:
        pairs = [(nodes.get(name), spec) for name, spec in zip(inputs, dynamic_shapes or (), strict=False)]
    names: dict[str, str] = {}
    value: Any
    for value, spec in pairs:
        axes = spec.items() if isinstance(spec, Mapping) else enumerate(spec) if isinstance(spec, (list, tuple)) else ()
        for axis, dim in axes:
            name = getattr(dim, "__name__", None)
            size: Any = value.shape[axis] if hasattr(value, "shape") else None
            if name and hasattr(size, "node"):
                names[str(size.node.expr)] = name
    return names
