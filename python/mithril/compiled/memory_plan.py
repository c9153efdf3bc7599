"""How much memory a model needs, as it was planned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import _core
from ..errors import UnresolvedShapeError, UnsupportedOpError

if TYPE_CHECKING:
    from .physical_model import PhysicalModel

__all__ = ["MemoryPlan", "plan_memory"]


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes that a model needs for the sizes of its last call.

    Attributes
    ----------
    weights : int
        Weights that are read where they lie: in arrays, or in a mapped file.
    prepared : int
        What is made of the other weights when they are packed, and constants.
    graph : int
        Values between the steps, and inside of graphs.
    work : int
        What threads work in.
    packing : int
        Needed while weights are packed, beside what is prepared.
    total : int
        The most that is needed at a time.
    all_sizes : int
        What all choices of sizes need together that the program was called with; this is what `memory_limit` limits.
    """

    weights: int
    prepared: int
    graph: int
    work: int
    packing: int
    total: int
    all_sizes: int

    def __str__(self) -> str:
        parts = ("weights", "prepared", "graph", "work", "packing", "total")
        lines = [f"{name:<9}{getattr(self, name):>16,} bytes" for name in parts]
        if self.all_sizes > self.total:
            lines.append(f"all sizes{self.all_sizes:>16,} bytes")
        return "\n".join(lines)


def plan_memory(model: PhysicalModel) -> MemoryPlan:
    """Return what a model on ggml needs.

    Parameters
    ----------
    model : PhysicalModel
        A model compiled with `GGMLBackend`.

    Returns
    -------
    MemoryPlan
        Bytes by what they are for.

    Raises
    ------
    UnsupportedOpError
        If the model runs elsewhere.
    UnresolvedShapeError
        If the sizes are not known yet.

    Examples
    --------
    >>> import mithril as ml
    >>> model = ml.Model()
    >>> model |= ml.Linear(16)(input="input", output="output")
    >>> compiled = ml.compile(model, ml.GGMLBackend(num_threads=1), shapes={"input": [2, 8]}, inference=True)
    >>> compiled.memory.weights == 4 * (16 * 8 + 16), compiled.memory.prepared
    (True, 0)
    """
    source = getattr(model._known().module, "source", None)
    if not isinstance(source, _core.GgmlProgram):
        raise UnsupportedOpError("only models on ggml plan their memory", hint="compile with GGMLBackend")
    plan = source.memory
    if plan is None:
        raise UnresolvedShapeError(
            "the shapes of the inputs are not known yet",
            hint="pass shapes={'input': [...]} to compile, or call evaluate once",
        )
    return MemoryPlan(**plan)
