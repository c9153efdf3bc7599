"""What a search for a layout finds: what it looked at, what each costs, and what was chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import tables

if TYPE_CHECKING:
    from .layout import Layout

__all__ = ["Candidate", "Search"]

#: By how much of its time a layout has to be faster than one that divides less.
_MARGIN = 0.005


@dataclass(frozen=True)
class Candidate:
    """A layout that the search looked at.

    Attributes
    ----------
    name : str
        The strategy along each axis of the mesh, or ``"chosen"``.
    seconds : float
        Estimated time of a step.
    memory : int
        Bytes on a device.
    fits : bool
        Whether they fit.
    """

    name: str
    seconds: float
    memory: int
    fits: bool

    def is_better(self, other: Candidate) -> bool:
        """Whether it is to be chosen instead of another one, on devices with the same memory.

        What is faster by less than the estimate can tell is not better.
        """
        if self.fits and other.fits:
            return self.seconds < other.seconds * (1 - _MARGIN)
        return self.fits or (not other.fits and self.memory < other.memory)


@dataclass(frozen=True)
class Search:
    """What a search found.

    Attributes
    ----------
    layout : Layout
        The layout, or the `Pipeline`.
    candidates : tuple of Candidate
        The known strategies in the order in which they were tried, then pipelines, and at last what was chosen.
    evaluated : int
        How many layouts were partitioned and costed.
    """

    layout: Layout
    candidates: tuple[Candidate, ...]
    evaluated: int

    @property
    def chosen(self) -> Candidate:
        """What was chosen."""
        return self.candidates[-1]

    def ranking(self, count: int = 6) -> list[Candidate]:
        """Return what was chosen, then the best of the others, those that fit first."""
        best = sorted(self.candidates[:-1], key=lambda c: (not c.fits, c.seconds))
        return [self.chosen, *best[:count]]

    def sentences(self) -> list[str]:
        """Say what was chosen, beside what else there was."""
        took = tables.seconds
        cells = [[c.name, took(c.seconds), f"{c.memory:,}", "yes" if c.fits else "no"] for c in self.ranking()]
        table = tables.text(["layout", "time", "bytes on a device", "fits"], cells).splitlines()
        return [f"chosen of {self.evaluated} layouts: {self.layout!r}", *table]
