"""What a module computes on its example inputs, to compare the model with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..._core import Model
from ...errors import InvalidValueError
from ..verification import verify
from .export import export
from .tensors import array

__all__ = ["verify_module"]


def verify_module(
    model: Model,
    params: Mapping[str, Any],
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    places: tuple[Mapping[str, int], Mapping[str, int]],
    torch: Any,
) -> None:
    """Compare a model with the module that it was made of, on the example inputs.

    Parameters
    ----------
    model, params
        The model and its parameters.
    module : torch.nn.Module or torch.export.ExportedProgram
        The module. Its buffers stay as they are.
    args, kwargs
        The example inputs; of a program that was exported those that it holds, if there are none.
    places : tuple of mapping
        For inputs and outputs of the model, which ones of the module they are.
    torch : module
        PyTorch.

    Raises
    ------
    NumericsError
        If an output differs by more than rounding.
    InvalidValueError
        If there is nothing to compare with: the path of a file, no example inputs, or a module that draws random
        numbers.
    """
    import torch.utils._pytree as pytree

    is_program = isinstance(module, torch.export.ExportedProgram)
    if not is_program and not isinstance(module, torch.nn.Module):
        raise InvalidValueError(
            "verify=True compares with the module, and nothing in a file is run",
            hint="give what torch.export.load reads, if you trust the file, or the module",
        )
    if is_program and not args and not kwargs:
        if not module.example_inputs:
            raise InvalidValueError("the program holds no example inputs", hint="give them as args and kwargs")
        args, kwargs = module.example_inputs
    source = type(module).__name__
    computed = _outputs(module.module() if is_program else module, args, kwargs, torch)
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs)))
    inputs, outputs = places

    def help() -> str:
        report = "please report this with the module"
        if is_program:
            return report
        again = _outputs(export(module, args, kwargs, None, torch).module(), args, kwargs, torch)
        if all(_is_same(first, second, torch) for first, second in zip(again, computed, strict=True)):
            return report
        return (
            "what torch.export makes of the module computes other numbers than the module itself, and from_torch "
            "follows the export. Look for what depends on values, or on what was computed before"
        )

    verify(
        model,
        params,
        {name: array(leaves[place]) for name, place in inputs.items()},
        {name: array(computed[place]) for name, place in outputs.items()},
        source,
        help,
    )


def _outputs(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], torch: Any) -> list[Any]:
    """Call a module, without a change of its buffers; the leaves of what it returns."""
    import torch.utils._pytree as pytree

    buffers = dict(module.named_buffers())
    results = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for seed in (0, 1):
            torch.manual_seed(seed)
            own, (given, named) = pytree.tree_map(_copied, (buffers, (tuple(args), dict(kwargs))))
            results.append(pytree.tree_leaves(torch.func.functional_call(module, own, given, named)))
    for first, second in zip(*results, strict=True):
        if not _is_same(first, second, torch):
            raise InvalidValueError(
                f"{type(module).__name__} draws random numbers: two calls of it differ, and verify=True compares one",
                hint="call module.eval() first if that is dropout, or leave verify out",
            )
    return results[0]


def _is_same(first: Any, second: Any, torch: Any) -> bool:
    """Whether two results are equal, NaN too; what is no tensor was known when exporting."""
    return not isinstance(first, torch.Tensor) or torch.equal(first.nan_to_num(), second.nan_to_num())


def _copied(value: Any) -> Any:
    return value.detach().clone() if hasattr(value, "detach") else value
