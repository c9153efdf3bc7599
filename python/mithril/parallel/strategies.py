"""Strategies: short names for layouts, one for each axis of a mesh."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from ..errors import ConflictingOptionError, InvalidValueError
from ..suggestions import nearest
from .layout import Layout, Mesh
from .pipeline import Pipeline

__all__ = [
    "AUTO",
    "AXES",
    "PIPELINE",
    "PlannedLayout",
    "Strategy",
    "check_name",
    "planned_layout",
    "strategy_layout",
    "with_strategy",
]

#: A strategy for a mesh of one axis (or ``"auto"`` for any), or for each axis by its name.
Strategy: TypeAlias = str | Mapping[str, str]

#: The strategy that is searched for.
AUTO = "auto"
#: The strategy that distributes layers and not tensors.
PIPELINE = "pipeline_parallel"
#: Strategies along one axis of a mesh, and what such an axis is called if nobody names it.
AXES: dict[str, str] = {
    "data_parallel": "data",
    "fully_sharded": "data",
    "tensor_parallel": "model",
    "model_parallel": "model",
    "sequence_parallel": "sequence",
    "expert_parallel": "expert",
    "spatial_parallel": "space",
}


def planned_layout(layout: Any) -> PlannedLayout | None:
    """Return what is to be decided of a layout: all of it, or that of the stages of a pipeline."""
    part = layout.layout if isinstance(layout, Pipeline) else layout
    return part if isinstance(part, PlannedLayout) else None


class PlannedLayout(Layout):
    """The place of a layout that is decided when the model is compiled.

    Parameters
    ----------
    mesh : Mesh
        The devices.
    strategies : mapping of str to str, optional
        The strategy along each axis of the mesh. Default: the layout is searched for.
    """

    def __init__(self, mesh: Mesh, strategies: Mapping[str, str] | None = None) -> None:
        super().__init__(mesh)
        self.strategies = None if strategies is None else dict(strategies)

    def __repr__(self) -> str:
        return f"the layout of strategy={AUTO if self.strategies is None else self.strategies!r} on {self.mesh}"


def check_name(name: Any, what: str) -> None:
    """Raise if there is no such strategy."""
    known = (*AXES, PIPELINE, AUTO)
    if not isinstance(name, str) or name not in known:
        near = nearest(name, known) if isinstance(name, str) else None
        guess = f"did you mean {near!r}? " if near else ""
        hint = f"{guess}there are {', '.join(map(repr, known))}, and any ml.Layout"
        raise InvalidValueError(f"{what} is {name!r}", hint=hint)


def strategy_layout(strategy: Any, mesh: Mesh) -> Layout:
    """Return the layout of a strategy on a mesh.

    Raises
    ------
    InvalidValueError
        If there is no such strategy, or it does not say what each axis of the mesh divides.

    Examples
    --------
    >>> import mithril as ml
    >>> from mithril.parallel.strategies import strategy_layout
    >>> strategy_layout({"data": "fully_sharded", "tokens": "sequence_parallel"}, ml.Mesh(data=4, tokens=2))
    Layout(Mesh(data=4, tokens=2), batch='data', sequence='tokens', parameters='data')
    >>> strategy_layout({"pipe": "pipeline_parallel", "data": "data_parallel"}, ml.Mesh(pipe=2, data=2))
    Pipeline(2, layout=Layout(Mesh(data=2), batch='data')).over(Mesh(pipe=2, data=2), 'pipe')
    """
    if not isinstance(strategy, Mapping):
        check_name(strategy, "the strategy")
        if strategy == AUTO:
            return PlannedLayout(mesh)
        if len(mesh.axes) > 1:
            example = dict(zip(mesh.axes, ("data_parallel", "tensor_parallel", "sequence_parallel"), strict=False))
            raise InvalidValueError(
                f"{mesh} has {len(mesh.axes)} axes, and strategy={strategy!r} is for one",
                hint=f"give one for each axis, e.g. strategy={example!r}",
            )
        strategy = dict.fromkeys(mesh.axes, strategy)
    for axis, name in strategy.items():
        if axis not in mesh.axes:
            near = nearest(str(axis), mesh.axes)
            hint = f"did you mean {near!r}?" if near else f"its axes are {', '.join(mesh.axes)}"
            raise InvalidValueError(f"the strategy names the axis {axis!r}, which {mesh} does not have", hint=hint)
        check_name(name, f"the strategy along {axis!r}")
        if name == AUTO and len(mesh.axes) > 1:
            raise InvalidValueError(
                f"{name!r} is not a strategy for one axis of several", hint='pass strategy="auto" for all axes'
            )
    left = [axis for axis in mesh.axes if axis not in strategy]
    if left:
        raise InvalidValueError(
            f"the strategy does not say what is divided along {', '.join(map(repr, left))}",
            hint=f"give one for each axis of {mesh}",
        )
    kinds_by_axis = {axis: strategy[axis] for axis in mesh.axes}
    kinds = set(kinds_by_axis.values())
    if AUTO in kinds:
        return PlannedLayout(mesh)
    if PIPELINE in kinds:
        return _pipeline(kinds_by_axis, mesh)
    if kinds.isdisjoint({"tensor_parallel", "spatial_parallel"}):
        return Layout(
            mesh,
            batch=_along(kinds_by_axis, "data_parallel", "fully_sharded"),
            sequence=_along(kinds_by_axis, "sequence_parallel"),
            parameters=_along(kinds_by_axis, "fully_sharded", "model_parallel"),
            experts=_along(kinds_by_axis, "expert_parallel"),
        )
    if "model_parallel" in kinds:
        if "tensor_parallel" in kinds:
            both = "model_parallel and tensor_parallel both divide the products"
            hint = "use tensor_parallel for both axes"
        else:
            both = "model_parallel and spatial_parallel are strategies of different kinds"
            hint = "use tensor_parallel, or an ml.Layout that names the axes of the images"
        raise InvalidValueError(both, hint=hint)
    return PlannedLayout(mesh, kinds_by_axis)


def _pipeline(strategies: Mapping[str, str], mesh: Mesh) -> Pipeline:
    """Return the pipeline along one axis of a mesh, whose stages are divided along the others."""
    axes = [axis for axis, name in strategies.items() if name == PIPELINE]
    if len(axes) > 1:
        raise InvalidValueError(
            f"the layers are distributed along {' and '.join(map(repr, axes))}",
            hint="one axis of the mesh is that of the stages: make it as large as both",
        )
    rest = {axis: name for axis, name in strategies.items() if name != PIPELINE}
    if not rest:
        return Pipeline(mesh.devices)
    inner = strategy_layout(rest, Mesh(**{axis: mesh.axes[axis] for axis in rest}))
    return Pipeline(mesh.axes[axes[0]], layout=inner).over(mesh, axes[0])


def _along(strategies: Mapping[str, str], *names: str) -> Any:
    return short([axis for axis, name in strategies.items() if name in names])


def short(axes: Iterable[str]) -> Any:
    """Return axes of a mesh as a user writes them."""
    names = tuple(axes)
    return None if not names else names[0] if len(names) == 1 else names


def with_strategy(strategy: Any, layout: Any) -> Any:
    """Return the layout that is asked for by the options `strategy` and `layout`."""
    if strategy is None:
        return layout
    if isinstance(layout, Layout):
        raise ConflictingOptionError(
            f"strategy={strategy!r} is a layout, and {layout!r} is another one",
            hint="pass the mesh alone: layout=ml.Mesh(data=2, model=4); or leave strategy out",
        )
    if not isinstance(layout, Mesh):
        raise InvalidValueError(
            f"strategy={strategy!r} needs a mesh, not {layout!r}", hint="pass one: layout=ml.Mesh(data=2, model=4)"
        )
    return strategy_layout(strategy, layout)
