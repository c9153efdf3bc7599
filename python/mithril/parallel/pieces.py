"""Which piece of an array each device of a mesh has."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .sections import Sections, positions

if TYPE_CHECKING:
    from .layout import Mesh
    from .mesh_engine import Spec

__all__ = ["Piece", "Range", "holders", "index_of", "pieces", "places", "ranges", "whole"]

#: First position along an axis, and the one behind the last.
Range = tuple[int, int]


class Piece(NamedTuple):
    """A box of an array that some devices have.

    Attributes
    ----------
    start, shape : tuple of int
        Where it begins in the array, and its sizes.
    offset : tuple of int
        Where it begins in the block of such a device: a fused weight is divided into several pieces for each.
    holders : tuple of int
        Ranks of the devices that have it.
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    holders: tuple[int, ...]


def places(mesh: Mesh, rank: int) -> dict[str, int]:
    """Return where a device is on each axis of a mesh."""
    place = {}
    for name, size in reversed(mesh.axes.items()):
        rank, place[name] = divmod(rank, size)
    return place


def holders(mesh: Mesh, spec: Spec) -> list[int]:
    """Return devices that hold all parts of an array together, each one once."""
    used = {name for names in spec for name in names}
    return [
        rank
        for rank in range(mesh.devices)
        if all(place == 0 for name, place in places(mesh, rank).items() if name not in used)
    ]


def index_of(mesh: Mesh, names: Sequence[str], place: dict[str, int]) -> tuple[int, int]:
    """Return which of how many parts of an axis a device has."""
    index, count = 0, 1
    for name in names:
        index, count = index * mesh.axes[name] + place[name], count * mesh.axes[name]
    return index, count


def whole(shape: Sequence[int]) -> list[list[Range]]:
    """Return the ranges of all of an array."""
    return [[(0, size)] for size in shape]


def ranges(shape: Sequence[int], mesh: Mesh, spec: Spec, rank: int) -> list[list[Range]]:
    """Return for each axis the ranges of an array that make up the block of a device, in their order there."""
    place = places(mesh, rank)
    result = []
    for axis, size in enumerate(shape):
        names = spec[axis] if axis < len(spec) else ()
        index, count = index_of(mesh, names, place)
        part = size // count
        if any(isinstance(name, Sections) for name in names):
            result.append(_runs(positions(size, names, mesh)[index * part : (index + 1) * part]))
        else:
            result.append([(index * part, (index + 1) * part)])
    return result


def _runs(order: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[Range]:
    """Return the ranges that positions consist of."""
    breaks = np.flatnonzero(np.diff(order) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(order, breaks) if len(run)]


def pieces(shape: Sequence[int], mesh: Mesh, spec: Spec) -> list[Piece]:
    """Return the pieces that an array is divided into, each once."""
    boxes: dict[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for rank in range(mesh.devices):
        axes = []
        for axis in ranges(shape, mesh, spec, rank):
            ends = itertools.accumulate((stop - start for start, stop in axis), initial=0)
            axes.append([(start, stop - start, offset) for (start, stop), offset in zip(axis, ends, strict=False)])
        for entries in itertools.product(*axes):
            start, sizes, offset = (tuple(entry[i] for entry in entries) for i in range(3))
            boxes.setdefault((start, sizes, offset), []).append(rank)
    return [Piece(*box, tuple(ranks)) for box, ranks in boxes.items()]
