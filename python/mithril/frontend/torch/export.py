"""What ``torch.export`` makes of a module, decomposed no further than the ops that Mithril has."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from ...errors import InvalidValueError, ModelFileError, UnsupportedOpError
from .autograd_functions import exported_with_rules, warn_of
from .conditions import Conditions, described
from .derivatives import traced_below_autograd, watched_gradients
from .files import load
from .functional import functionalized, is_functional
from .graph import WRAPPERS, Program, flattened, remove_dead_code
from .missing import error
from .modules import op_name
from .ops import OPS
from .quiet import quiet
from .replaced import replaced_functions
from .torchvision_ops import decompositions_of_torchvision

__all__ = ["dim_names", "export", "exported", "is_known"]


def exported(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any, torch: Any
) -> Program:
    """Export a module, or load a file; the program is functional, and in ops that can be converted."""
    if isinstance(module, (str, PathLike)):
        source = _load(os.fspath(module), torch)
    elif isinstance(module, torch.export.ExportedProgram):
        source = module
    elif isinstance(module, torch.nn.Module):
        source = export(module, args, kwargs, dynamic_shapes, torch)
    else:
        raise InvalidValueError(
            f"from_torch takes a module, an exported program or the path of one, not {type(module).__name__}"
        )
    conditions, names = Conditions(source), dim_names(source, dynamic_shapes)
    if source is module or isinstance(module, (str, PathLike)):
        _refuse_other_sizes("the program", conditions.counterexample("asserted"), names)
    program = flattened(source, torch)
    if not _has_batches(program):
        remove_dead_code(program)
        functional = program if is_functional(program) else functionalized(program, torch)
        if functional is not None and (all(map(is_converted, functional.graph.nodes)) or not _is_decomposable(program)):
            remove_dead_code(functional)
            return functional
    # What has a conversion stays whole; everything else goes through PyTorch's own decompositions.
    table = {op: rule for op, rule in _decompositions().items() if str(op) not in OPS or str(op) in CHANGING}
    table |= decompositions_of_torchvision(torch)
    try:
        with quiet(), replaced_functions(torch):
            decomposed = program.exported(torch).run_decompositions(table)
    except Exception as reason:
        raise UnsupportedOpError(
            f"PyTorch cannot decompose the ops of the program: {_reason(reason)}",
            hint="call run_decompositions() on what torch.export.export returns to see PyTorch's whole report",
        ) from reason
    _refuse_other_sizes("the program", conditions.counterexample("new"), names)
    program = flattened(decomposed, torch)
    remove_dead_code(program)
    return program


#: Ops that PyTorch has to rewrite where they change statistics.
CHANGING = frozenset(("aten.batch_norm.default", "aten.instance_norm.default"))


def is_converted(node: Any) -> bool:
    """Whether a node has a conversion, or is none of an op."""
    if node.op != "call_function":
        return node.op in ("placeholder", "output")
    return op_name(node) in OPS or op_name(node) == "operator.getitem"


def _has_batches(program: Program) -> bool:
    """Whether there are calls of torch.vmap, which PyTorch writes as marks between ops and has to resolve."""
    return any(op_name(node).startswith("torch._functorch.") for node in program.graph.nodes)


def _load(path: str, torch: Any) -> Any:
    if not Path(path).is_file():
        raise ModelFileError(f"{path!r} does not exist")
    # Of other libraries nothing is looked up that a file names.
    return load(path, torch, lambda op: op in OPS or op in WRAPPERS or (op.startswith("aten.") and is_known(op)))


def _is_decomposable(program: Program) -> bool:
    """Whether PyTorch's decompositions leave nothing that is certainly missing."""
    names = (op_name(node) for node in program.graph.nodes if node.op == "call_function")
    return not program.attributes and all(name == "operator.getitem" or is_known(name) for name in names)


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
    if overload in _decompositions() or overload in decompositions_of_torchvision(torch):
        return True
    if overload.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd):
        return True
    # In place of a tensor: PyTorch writes it as the op that makes a new one.
    base = parts[1][:-1]
    return parts[1].endswith("_") and not base.endswith("_") and is_known(f"{parts[0]}.{base}.{parts[2]}")


@functools.cache
def _decompositions() -> Any:
    import torch

    return torch.export.default_decompositions()


def export(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic: Any, torch: Any) -> Any:
    """Export a module by ``torch.export``; what PyTorch refuses is said in short."""
    if isinstance(args, torch.Tensor) or type(args).__module__ == "numpy":
        args = (args,)
    import torch.utils._pytree as pytree

    for leaf in pytree.tree_leaves((tuple(args), dict(kwargs or {}))):
        if type(leaf).__module__ == "numpy":
            raise InvalidValueError(
                f"the example inputs hold an array of NumPy: {type(module).__name__} takes tensors of PyTorch",
                hint="convert it: torch.from_numpy(array), or torch.tensor(number)",
            )
    if isinstance(module, torch.jit.ScriptModule):
        raise InvalidValueError(
            f"{type(module).__name__} is of TorchScript, which torch.export does not take",
            hint="give the module that it was made of",
        )
    _check_call(module, args, kwargs or {})
    _check_observers(module)
    args, kwargs = distinct((tuple(args), dict(kwargs or {})), module, torch)
    taken: list[str] = []

    def exported(*, with_conditions: bool) -> Any:
        options = {"prefer_deferred_runtime_asserts_over_guards": True} if with_conditions else {}
        return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic, strict=False, **options)

    def traced() -> Any:
        with watched_gradients(torch) as calls:
            try:
                return exported(with_conditions=False)
            except Exception as reason:
                if "Constraints violated" not in str(reason):
                    raise
                return _with_conditions(exported, name, dynamic, reason)
            finally:
                taken[:] = calls

    name = type(module).__name__
    with quiet(), replaced_functions(torch):
        try:
            program, left_out = exported_with_rules(traced, torch)
        except UnsupportedOpError:
            raise
        except Exception as reason:
            if not taken:
                raise _refusal(name, reason) from reason
        if taken:
            try:
                with traced_below_autograd(module, args, kwargs or {}, bool(dynamic), torch):
                    program, left_out = traced(), {}
            except UnsupportedOpError:
                raise
            except Exception as reason:
                raise _refusal(name, reason) from reason
    warn_of(left_out)
    return program


def _with_conditions(exported: Callable[..., Any], name: str, dynamic: Any, reason: Exception) -> Any:
    """Export with the conditions on sizes that PyTorch cannot prove, where all of them hold."""
    try:
        program = exported(with_conditions=True)
    except Exception:
        raise reason from None
    _refuse_other_sizes(name, Conditions(program).counterexample(), dim_names(program, dynamic))
    return program


def _refuse_other_sizes(name: str, found: tuple[Any, Any] | None, names: Mapping[str, str]) -> None:
    """Raise an error if a condition was found that does not hold for all sizes."""
    if found is not None:
        raise error(
            f"{name} computes something else for other sizes: it was traced where {described(found, names)}",
            [],
            'give bounds or a multiple, such as Dim("t", min=…, max=…) or 2 * Dim("t"); or leave the size fixed',
        )


#: Folders whose lines are none of the user's.
_TORCH = f"{os.sep}torch{os.sep}"
_NETWORKS = (f"{_TORCH}nn{os.sep}", f"{_TORCH}ao{os.sep}")
_HERE = str(Path(__file__).parents[2])


def _check_call(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check that the example inputs are those of ``forward``."""
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as reason:
        shown = ", ".join(str(p) if p.default is p.empty else f"{p.name}=…" for p in signature.parameters.values())
        raise InvalidValueError(
            f"the example inputs do not fit {type(module).__name__}.forward({shown}): {reason}",
            hint="give a tensor for each argument: ml.from_torch(module, (tensor, …)), and others by name: kwargs={…}",
        ) from None


def _check_observers(module: Any) -> None:
    """Refuse observers whose ranges get their shape from the first data: they would get it while they are traced."""
    for name, part in module.named_modules():
        least = getattr(getattr(part, "activation_post_process", None), "min_val", None)
        if getattr(part, "is_per_channel", False) and least is not None and least.numel() == 0:
            raise UnsupportedOpError(
                f"`{name}` has seen no data yet, so its ranges have no shape",
                hint="call the module once before it is imported: module(*inputs)",
            )


#: What to write in place of ops that have no rule for their shapes in PyTorch.
_INSTEAD = {
    "linalg_lstsq": "the solution is torch.linalg.pinv(a) @ b",
    "equal": "a truth value of Python depends on data: compare with torch.eq; "
    "for torch.cov and torch.corrcoef, center and multiply: c = x - x.mean(-1, keepdim=True); c @ c.mT / (n - 1)",
    "allclose": "a truth value of Python depends on data: compare with torch.isclose, or outside of the module",
}


#: How many conditions on sizes a message lists.
_CONDITIONS = 3

#: Functions of torch.nn that ask for the values of tensors, by file and name, and what to do instead.
_LOOKS_AT_DATA = {
    ("fake_quantize", "forward"): "it looks whether its observer is switched on: take "
    "torch.ao.quantization.FusedMovingAvgObsFakeQuantize, which computes both",
    ("rnn", "forward"): "sizes of packed sequences depend on data: run the module on padded ones, and take from its "
    "outputs what counts",
    ("batchnorm", "forward"): "an average over all batches (momentum=None) depends on their number: give a momentum",
}


def _is_network(file: str) -> bool:
    return any(folder in file for folder in _NETWORKS)


def _refusal(name: str, reason: Exception) -> UnsupportedOpError:
    """Say in short why PyTorch does not export a module."""
    text = _reason(reason)
    hint = "call torch.export.export on the module to see PyTorch's whole report"
    if "data-dependent" in text:
        text = "a size or a condition depends on data"
        hint = "in place of Python's if and for: torch.where, or torch.cond; sizes must follow from sizes of inputs"
    elif re.fullmatch(r"[\w:]+\.\w+\.\w+", text):
        hint = _INSTEAD.get(text.split(".")[1], "compute this part outside of the module, or write it with other ops")
        text = f"PyTorch cannot trace `{text}`"
    elif "Constraints violated" in text:
        return _too_few_sizes(name, str(reason), hint)
    frames = traceback.extract_tb(reason.__traceback__)
    own = [frame for frame in frames if _TORCH not in frame.filename and not frame.filename.startswith((_HERE, "<"))]
    notes = [f'in `{own[-1].name}` at "{own[-1].filename}", line {own[-1].lineno}'] if own else []
    # What the user called may not show that it looks at data.
    inside = [(Path(frame.filename).stem, frame.name) for frame in frames if _is_network(frame.filename)]
    known = [place for place in inside if place in _LOOKS_AT_DATA]
    if known and ("depends on data" in text or "FakeTensor" in text):
        notes.append(f"`{'.'.join(known[-1])}` of PyTorch looks at the data")
        hint = _LOOKS_AT_DATA[known[-1]]
    return error(f"torch.export cannot export {name}: {text}", notes, hint)


def _too_few_sizes(name: str, text: str, hint: str) -> UnsupportedOpError:
    """Say which conditions on sizes do not hold for all that the user allows, and what PyTorch suggests."""
    lines = [line.strip() for line in text.splitlines()]
    # What follows the first sentence concerns other ways to call PyTorch.
    notes = [re.sub(r"(constant \(\d+\))\..*", r"\1", line[2:]) for line in lines if line.startswith("- ")]
    if len(notes) > _CONDITIONS:
        notes[_CONDITIONS:] = [f"and {len(notes) - _CONDITIONS} more"]
    if any("specialized it to be a constant" in note for note in notes):
        hint = "a size became a number, as by float(size) or int(size): use torch.sym_float(size) and //"
    elif "Suggested fixes:" in lines:
        fixes = itertools.takewhile(bool, lines[lines.index("Suggested fixes:") + 1 :])
        hint = f"PyTorch suggests {'; '.join(fixes)}"
    return error(f"torch.export cannot export {name} for all sizes that dynamic_shapes allows", notes, hint)


def _reason(reason: Exception) -> str:
    """Return the first line of what PyTorch says, of which there may be thousands."""
    text = str(reason).strip()
    # Where it could not follow the code, the reason stands further down.
    explained = re.search(r"Explanation: (.*)", text)
    lines = explained.groups() if explained else text.splitlines()
    return lines[0][:300] if lines else type(reason).__name__


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
