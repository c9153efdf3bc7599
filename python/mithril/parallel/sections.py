"""Axes of tensors that are divided section by section, as those of fused weights.

An array whose elements are put in another order along such an axis is divided into blocks like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .layout import Mesh
    from .mesh_engine import Spec

__all__ = ["Sections", "arranged", "decoded", "encoded", "positions", "restored", "same"]


class Sections(str):
    """The name of an axis of the mesh that divides each of some sections of an axis of a tensor.

    Attributes
    ----------
    sizes : tuple of int
        Sizes of the sections.
    """

    __slots__ = ("sizes",)
    sizes: tuple[int, ...]

    def __new__(cls, name: str, sizes: Sequence[int]) -> Sections:
        """Return a name with sections."""
        made = super().__new__(cls, name)
        made.sizes = tuple(sizes)
        return made

    def __reduce__(self) -> Any:
        return Sections, (str(self), self.sizes)


def arranged(value: Any, spec: Spec, mesh: Mesh, take: Callable[[Any, Any, int], Any]) -> Any:
    """Return a whole array in the order in which its blocks are the parts of the devices."""
    for axis, names in enumerate(spec):
        if any(isinstance(name, Sections) for name in names):
            value = take(value, positions(value.shape[axis], names, mesh), axis)
    return value


def restored(value: Any, spec: Spec, mesh: Mesh, take: Callable[[Any, Any, int], Any]) -> Any:
    """Return a whole array of which `arranged` made another one."""
    for axis, names in enumerate(spec):
        if any(isinstance(name, Sections) for name in names):
            value = take(value, np.argsort(positions(value.shape[axis], names, mesh)), axis)
    return value


def positions(size: int, names: Sequence[str], mesh: Mesh) -> Any:
    """Return the positions along an axis of the parts of all devices, one behind another."""
    if not names:
        return np.arange(size)
    name, *rest = names
    count = mesh.axes[name]
    sections = [np.arange(size)]
    if isinstance(name, Sections):
        sections = np.split(sections[0], np.cumsum(name.sizes)[:-1])
    parts = [np.concatenate([np.split(section, count)[i] for section in sections]) for i in range(count)]
    return np.concatenate([part[positions(len(part), rest, mesh)] for part in parts])


def same(one: Spec, other: Spec) -> bool:
    """Whether two arrays are divided alike."""
    return encoded(one) == encoded(other)


def encoded(spec: Spec) -> list[list[Any]]:
    """Return how an array is divided as JSON holds it."""
    cuts: list[list[Any]] = [
        [[str(name), list(name.sizes)] if isinstance(name, Sections) else str(name) for name in names] for names in spec
    ]
    while cuts and not cuts[-1]:
        cuts.pop()
    return cuts


def decoded(spec: list[list[Any]]) -> Spec:
    """Return what `encoded` was given."""
    return tuple(tuple(name if isinstance(name, str) else Sections(*name) for name in names) for names in spec)
