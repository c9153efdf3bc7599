"""Layouts of exported programs: which one it is, and how the states of a training step are divided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import _core
from ..compiled import internals
from ..compiled.auto_layout import best_layout
from ..errors import BackendUnavailableError, ConflictingOptionError, InvalidValueError
from ..parallel.layout import Layout, as_layout
from ..parallel.mesh_engine import placed_axes
from ..parallel.pipeline import Pipeline
from ..parallel.strategies import PlannedLayout, Strategy, with_strategy

if TYPE_CHECKING:
    from ..compiled.physical_model import PhysicalModel

__all__ = ["export_layout", "refuse_divided", "with_layout", "with_slots"]

#: Why an option does not go with a layout.
_REASONS = {
    "batch": "each rank has a fixed part of the rows",
    "block": "each rank computes its part of the rows at once",
    "autotune": "kernels are measured in one process",
    "quantize": "weights in low bits are not divided",
    "weights_inside": "ranks hold different weights, in files",
}


def export_layout(model: PhysicalModel, layout: Any, strategy: Strategy | None) -> Layout | None:
    """Return the layout that is asked for, or that the model was compiled with; None for one process."""
    own = internals.program_settings(model).layout
    if layout is None and strategy is not None:
        if own is None:
            raise InvalidValueError(
                f"strategy={strategy!r} needs a mesh", hint="pass one: layout=ml.Mesh(data=2, model=4)"
            )
        layout = own.mesh
    asked = own if layout is None else with_strategy(strategy, layout)
    if asked is None:
        return None
    divided = as_layout(asked)
    if divided.batch_statistics != "whole":
        raise InvalidValueError(
            f"exported C has batch norms of the whole batch, and {divided!r} asks for those of parts",
            hint="leave out batch_statistics",
        )
    if isinstance(divided, Pipeline):
        raise BackendUnavailableError(
            f"exported C runs no pipelines, which {divided!r} is",
            hint="divide tensors: layout=ml.Layout(ml.Mesh(model=2), parameters='model')",
        )
    if isinstance(divided, PlannedLayout):
        logical, options = internals.logical_model(model), internals.compile_options(model)
        return best_layout(logical, options, model.backend, divided, None, pipelines=False)
    return divided


def refuse_divided(target: str, options: Mapping[str, Any]) -> None:
    """Raise an error for what an export with a layout does not do."""
    if target != "c":
        raise ConflictingOptionError(
            f'target="{target}" writes a program of one process, and a layout is one of several',
            hint='leave out the layout, or use target="c"',
        )
    for name, reason in _REASONS.items():
        if options[name]:
            raise ConflictingOptionError(
                f"{name} does not go with a layout: {reason}", hint=f"leave out {name}, or the layout"
            )


def with_layout(core: _core.Compiled, layout: Layout | None) -> _core.Compiled:
    """Return a compiled model that is divided."""
    return core if layout is None else core.with_layout(layout.argument())


def with_slots(core: _core.Compiled, layout: Layout, slots: Mapping[str, Sequence[str]]) -> Layout:
    """Return the layout of a training step: parameters are states, and slots are divided as their parameters."""
    partition = core.with_layout(layout.argument(sections=False)).source("numpy", "cpu").partition
    assert partition is not None
    tensors: dict[str, Any] = {}
    for name, role, _, shape, placed in partition.inputs():
        spec = placed_axes(tuple(layout.mesh.axes), placed, len(shape))
        if role == "param" and any(spec):
            tensors |= dict.fromkeys([name, *(f"{name}.{slot}" for slot in slots.get(name, ()))], spec)
    return Layout(layout.mesh, {**tensors, **layout.tensors}, batch=layout.batch, sequence=layout.sequence)
