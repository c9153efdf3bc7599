"""From a file of ``torch.export`` to its program, without running anything that is in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ....errors import MithrilError, ModelFileError
from ..quiet import quiet
from .archive import Archive
from .expressions import Malformed
from .schema import NUMBERS, checked_program, graphs
from .verify import verify

__all__ = ["load"]


def load(path: str, torch: Any, is_known: Callable[[str], bool]) -> Any:
    """Load a program.

    Parameters
    ----------
    path : str
        A zip.
    torch : module
        PyTorch.
    is_known : callable
        Whether an op, such as ``aten.add.Tensor``, can be converted, here or by PyTorch's decompositions. Others are
        not looked up, and reported together.

    Returns
    -------
    torch.export.ExportedProgram
        Its parameters lie in the memory of the file.

    Raises
    ------
    ModelFileError
        If the file is damaged, or is not what ``torch.export.save`` writes.
    UnsupportedOpError
        If it has ops that cannot be converted.
    """
    name = os.fspath(path)
    try:
        archive = Archive(name)
        description = checked_program(archive.program())
        _refuse_unknown(description, is_known)
        weights, constants = (
            archive.tensors(kind, torch) if _needs(kind, description) else {} for kind in ("weights", "constants")
        )
        with quiet():
            return _assembled(description, weights, constants, torch)
    except MithrilError:
        raise
    except Malformed as error:
        raise ModelFileError(f"{name!r} is not a file of torch.export: {error}", hint=_hint(str(error))) from error
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelFileError(
            f"PyTorch {torch.__version__} cannot read {name!r}: {reason[:500]}",
            hint="load and save it again with the PyTorch that wrote it, or give the module itself to ml.from_torch",
        ) from error


def _hint(reason: str) -> str:
    if "pickle of torch.save" in reason:
        return (
            "a pickle may run code, and is not opened: load the module with PyTorch, if you trust the file, and give "
            "it to ml.from_torch(module, args); weights alone are read by ml.weights.open"
        )
    if "TorchScript" in reason:
        return "give the module that it was made of to ml.from_torch(module, args)"
    if "torch.vmap" in reason:
        return "write what program.run_decompositions({}) returns, or give the module itself to ml.from_torch"
    return "write it with torch.export.save, or give the module itself to ml.from_torch(module, args)"


def _refuse_unknown(description: Mapping[str, Any], is_known: Callable[[str], bool]) -> None:
    from ..missing import Missing

    missing = Missing()
    for graph in graphs(description["graph_module"]["graph"]):
        for node in graph["nodes"]:
            target = node["target"].removeprefix("torch.ops.")
            if node["target"] not in NUMBERS and not is_known(target):
                metadata = node["metadata"]
                entries = metadata.get("nn_module_stack", "").split(";")
                path = entries[-1].split(",")[1] if "," in entries[-1] else ""
                missing.add(target, path, metadata.get("stack_trace", ""))
    missing.refuse()


def _needs(kind: str, description: Mapping[str, Any]) -> bool:
    """Whether a program has weights or constants."""
    specs = description["graph_module"]["signature"]["input_specs"]
    if kind == "weights":
        return any("parameter" in spec or spec.get("buffer", {}).get("persistent") for spec in specs)
    return any("tensor_constant" in spec or spec.get("buffer", {}).get("persistent") is False for spec in specs)


def _assembled(description: dict[str, Any], weights: dict[str, Any], constants: dict[str, Any], torch: Any) -> Any:
    """Let PyTorch make the program of a description that was checked, and check what it says of its values."""
    from torch._export.serde import schema
    from torch._export.serde.serialize import ExportedProgramDeserializer, _dict_to_dataclass

    _check_tensors(description, (weights, constants), torch)
    serialized = _dict_to_dataclass(schema.ExportedProgram, description)  # type: ignore[no-untyped-call]
    program = ExportedProgramDeserializer().deserialize(serialized, weights, constants, None)
    verify(program, torch)
    return program


def _check_tensors(description: Mapping[str, Any], tensors: tuple[dict[str, Any], dict[str, Any]], torch: Any) -> None:
    """Check that parameters and buffers exist, with the sizes that the graph gives them."""
    module = description["graph_module"]
    metas = module["graph"]["tensor_values"]
    for spec in module["signature"]["input_specs"]:
        ((kind, content),) = spec.items()
        if kind not in ("parameter", "buffer", "tensor_constant"):
            continue
        name = content[f"{kind}_name"]
        owner = next((group for group in tensors if name in group), None)
        if owner is None:
            raise Malformed(f"it has no tensor {name!r}")
        meta = metas.get(content["arg"]["name"])
        if meta is None or [part.get("as_int") for part in meta["sizes"]] != list(owner[name].shape):
            raise Malformed(f"the tensor {name!r} does not have the shape that the program gives it")
        if kind == "parameter" and not isinstance(owner[name], torch.nn.Parameter):
            owner[name] = torch.nn.Parameter(owner[name], requires_grad=meta["requires_grad"])
