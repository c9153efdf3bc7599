"""What ``torch.export`` makes of a module, decomposed no further than the ops that Mithril has."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from ...errors import InvalidValueError, ModelFileError, UnsupportedOpError
from .ops import OPS

__all__ = ["dim_names", "exported"]


def exported(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any, torch: Any
) -> Any:
    """Export a module, or load a file; the program is functional, and in ops that can be converted."""
    if isinstance(module, (str, PathLike)):
        program = _load(module, torch)
    elif isinstance(module, torch.export.ExportedProgram):
        program = module
    elif isinstance(module, torch.nn.Module):
        program = _export(module, args, kwargs, dynamic_shapes, torch)
    else:
        raise InvalidValueError(
            f"from_torch takes a module, an exported program or the path of one, not {type(module).__name__}"
        )
    # What has a conversion stays whole; everything else goes through PyTorch's own decompositions.
    table = {op: rule for op, rule in torch.export.default_decompositions().items() if str(op) not in OPS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return program.run_decompositions(table)


def _load(path: str | PathLike[str], torch: Any) -> Any:
    if not zipfile.is_zipfile(path):
        if not Path(path).exists():
            raise ModelFileError(f"{str(path)!r} does not exist")
        raise ModelFileError(f"{str(path)!r} is not a file of torch.export", hint="write it with torch.export.save")
    try:
        return torch.export.load(path)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelFileError(f"PyTorch cannot read {str(path)!r}: {reason}") from error


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
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(module, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic, strict=False)
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise UnsupportedOpError(
            f"torch.export cannot export {type(module).__name__}: {reason[0] if reason else type(error).__name__}",
            hint="call torch.export.export on the module to see PyTorch's whole report",
        ) from error


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
