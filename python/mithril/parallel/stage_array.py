"""Arrays that stages of a pipeline keep, where the script runs on their devices: this process has those of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from .divided_array import DividedArray
from .mesh_engine import Spec
from .pieces import Piece

if TYPE_CHECKING:
    from .layout import Mesh
    from .pipeline import Pipeline
    from .stored import StoredArray

__all__ = ["StageArray", "StageKeeper"]


class StageKeeper(Protocol):
    """What keeps arrays on stages."""

    backend: Any
    layout: Pipeline

    def distribute_to(self, array: Any, stage: int, spec: Spec) -> Any:
        """Return a whole array, or one in a file, that a stage keeps."""

    def zeros_on(self, stage: int, shape: tuple[int, ...], dtype: str, spec: Spec) -> Any:
        """Return zeros that a stage keeps; ``shape`` is that of the part of a device."""

    def gathered_from(self, array: StageArray) -> Any:
        """Return the whole of an array that a stage keeps."""


class StageArray(DividedArray):
    """An array that a stage of a pipeline keeps; it cannot be changed.

    Attributes
    ----------
    keeper : StageKeeper
        What runs the pipeline.
    value : array or None
        What this process has of it.
    """

    def __init__(
        self, keeper: StageKeeper, value: Any, dtype: str, block: tuple[int, ...], mesh: Mesh, spec: Spec, stage: int
    ) -> None:
        super().__init__(keeper.backend, dtype, block, mesh, spec, (keeper.layout, stage))
        self.keeper = keeper
        self.value = value
        self.stage = stage

    def full_tensor(self) -> Any:
        """Return the whole array, on this process; all processes have to call this."""
        return self.keeper.gathered_from(self)

    def like(self, array: Any) -> Any:
        """Return a whole array of the same shape that is kept as this one is."""
        return self.keeper.distribute_to(array, self.stage, self.spec)

    def zeros(self, dtype: str) -> Any:
        """Return zeros that are kept as this one is."""
        return self.keeper.zeros_on(self.stage, self.block_shape, dtype, self.spec)

    def read(self, array: StoredArray) -> Any:
        """Return an array of a checkpoint that is kept as this one is; each process reads its part."""
        return self.keeper.distribute_to(array, self.stage, self.spec)

    def block(self, piece: Piece) -> Any:
        """Return a piece that this process has."""
        return self.value[tuple(slice(o, o + size) for o, size in zip(piece.offset, piece.shape, strict=True))]
