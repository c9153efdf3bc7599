"""Where arrays lie that the stages of a pipeline keep: the step of an optimizer is computed where they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .layout import ArrayLayout, Axis, Layout, Mesh
from .pipeline import TIME, Pipeline

__all__ = ["ArrayPipeline"]


class ArrayPipeline(Pipeline, ArrayLayout):
    """Arrays on the stages of a pipeline, as the layout of a program that reads them as data.

    Each node of the program is computed where its largest operand is, so that numbers are sent between stages, and no
    arrays.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline.
    places : mapping of str to int
        The stage of each array.
    specs : mapping of str to tuple
        How the devices of the stage divide it.
    """

    def __init__(
        self, pipeline: Pipeline, places: Mapping[str, int], specs: Mapping[str, Axis | Sequence[Axis]]
    ) -> None:
        self._pipeline = pipeline
        self.places = dict(places)
        inner = None if pipeline.layout is None else Layout(pipeline.inner_mesh, specs)
        stages = {f"data:{name}": stage for name, stage in places.items()}
        super().__init__(stages or {"": 0}, micro_batches=1, layout=inner)
        self.grid, self.axis = pipeline.grid, pipeline.axis
        self.specs = dict(specs)

    @property
    def stage_count(self) -> int:
        """Number of stages, also of those that have none of the arrays."""
        return self._pipeline.stage_count

    def renamed(self, names: Mapping[str, str], ordered: Collection[str] = ()) -> ArrayPipeline:
        """Return the layout of other arrays, each of which lies as one of these does: its name to that of this one."""
        specs = ArrayLayout(self._pipeline.inner_mesh, self.specs).renamed(names, ordered).tensors
        known = {name: like for name, like in names.items() if like in self.places}
        places = {name: self.places[like] for name, like in known.items()}
        return ArrayPipeline(self._pipeline, places, specs)

    def with_count(self, count: int, data: Sequence[tuple[str, int]] = ()) -> Layout:
        """Return how the devices of a stage divide the arrays; nothing is divided in time."""
        if self.layout is None:
            return Layout(Mesh(**{TIME: count}))
        return Layout(Mesh(**{TIME: count, **self.layout.mesh.axes}), self.layout.tensors)

    def check_layers(self, layers: Sequence[str]) -> None:
        """Arrays are placed, and no layers."""

    def __repr__(self) -> str:
        return f"ArrayPipeline({self._pipeline!r}, {self.places}, {self.specs})"
