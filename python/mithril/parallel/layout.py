"""Meshes of devices with named axes, and layouts: which axis of a tensor is divided along which axis of the mesh."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from ..errors import InvalidValueError
from ..suggestions import did_you_mean

__all__ = ["ArrayLayout", "Layout", "Mesh", "as_layout"]

#: How one axis of a tensor is divided: whole, along an axis of the mesh, or along several.
Axis: TypeAlias = str | Sequence[str] | None


class Mesh:
    """Devices in a grid whose axes have names.

    Parameters
    ----------
    **axes : int
        The size of each axis; the first is the outermost, devices beside each other differ in the last one.

    Raises
    ------
    InvalidValueError
        If there is no axis, or a size is not a positive integer.

    Examples
    --------
    >>> import mithril as ml
    >>> mesh = ml.Mesh(data=2, model=4)
    >>> mesh, mesh.devices
    (Mesh(data=2, model=4), 8)
    """

    def __init__(self, **axes: int) -> None:
        if not axes:
            raise InvalidValueError("a mesh without axes", hint="name its axes and their sizes: Mesh(data=2, model=4)")
        for name, size in axes.items():
            if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= 1 << 31:
                raise InvalidValueError(
                    f"axis {name!r} of the mesh has size {size!r}", hint="the size is the number of devices: 1 or more"
                )
        self._axes = dict(axes)

    @property
    def axes(self) -> dict[str, int]:
        """Sizes by name."""
        return dict(self._axes)

    @property
    def devices(self) -> int:
        """Number of devices."""
        count = 1
        for size in self._axes.values():
            count *= size
        return count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and list(self._axes.items()) == list(other._axes.items())

    def __hash__(self) -> int:
        return hash(tuple(self._axes.items()))

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{name}={size}' for name, size in self._axes.items())})"


class Layout:
    """Which tensors of a model are divided over a mesh, and how. What is not named is replicated on all devices.

    Parameters
    ----------
    mesh : Mesh
        The devices.
    tensors : mapping of str to tuple, optional
        Patterns of names of parameters, data and states (``*`` stands for any text); the first that fits holds. The
        value has an entry for each axis of the tensor: None (whole), the name of an axis of the mesh, or several names.
        Entries may be left out at the end.
    batch : str or sequence of str, optional
        The axis of the mesh along which the first axis of all data is divided.
    sequence : str or sequence of str, optional
        The axis of the mesh along which the second axis of all data is divided: in batches of texts the tokens.
    parameters : str or sequence of str, optional
        The axis of the mesh along which all parameters of two axes or more that ``tensors`` does not name are divided,
        each along its longest axis that divides.
    experts : str or sequence of str, optional
        The axis of the mesh along which the parameters of experts that ``tensors`` does not name are divided, expert by
        expert: those of three axes that products of matrices take one by one along the first.
    batch_statistics : str, optional
        Of which examples batch norms take the statistics in training: of the ``"whole"`` batch, as on one device; or
        ``"local"``: of the part of each device, so that no batch norm waits for other devices.

    Raises
    ------
    InvalidValueError
        If an axis of the mesh is not known, or named twice for one tensor.

    Examples
    --------
    Two linear layers, the first divided by its outputs and the second by its inputs:

    >>> import mithril as ml
    >>> mesh = ml.Mesh(data=2, model=4)
    >>> ml.Layout(mesh, {"up.weight": ("model", None), "down.weight": (None, "model")}, batch="data")
    Layout(Mesh(data=2, model=4), {'up.weight': ('model', None), 'down.weight': (None, 'model')}, batch='data')

    Fully sharded data parallelism: parameters are gathered where they are needed, and their gradients reduced in parts.

    >>> ml.Layout(ml.Mesh(data=4), batch="data", parameters="data")
    Layout(Mesh(data=4), batch='data', parameters='data')
    """

    def __init__(
        self,
        mesh: Mesh,
        tensors: Mapping[str, Axis | Sequence[Axis]] | None = None,
        *,
        batch: str | Sequence[str] | None = None,
        sequence: str | Sequence[str] | None = None,
        parameters: str | Sequence[str] | None = None,
        experts: str | Sequence[str] | None = None,
        batch_statistics: str = "whole",
    ) -> None:
        if not isinstance(mesh, Mesh):
            raise InvalidValueError(f"{mesh!r} is not a mesh", hint="make one: ml.Mesh(data=2, model=4)")
        self.mesh = mesh
        self.batch, self.sequence, self.parameters, self.experts = batch, sequence, parameters, experts
        self.tensors = dict(tensors or {})
        self._batch = self._names(batch, "the batch")
        self._sequence = self._names(sequence, "the sequence")
        self._parameters = self._names(parameters, "each parameter")
        self._experts = self._names(experts, "each expert")
        for first, second, what in (
            (self._batch, self._sequence, "batch and sequence"),
            (self._parameters, self._experts, "parameters and experts"),
        ):
            for name in set(first) & set(second):
                raise InvalidValueError(
                    f"{what} are both divided along {name!r}", hint="an axis of the mesh divides one axis of a tensor"
                )
        if batch_statistics not in ("whole", "local"):
            raise InvalidValueError(f"batch_statistics is {batch_statistics!r}", hint='give "whole" or "local"')
        if batch_statistics == "local" and not self._batch:
            raise InvalidValueError(
                'batch_statistics is "local", and the layout divides no batch',
                hint="say along which axis of the mesh it is divided: batch='data'",
            )
        self.batch_statistics = batch_statistics
        self._tensors = [(pattern, self._spec(pattern, spec)) for pattern, spec in self.tensors.items()]

    def _spec(self, pattern: str, spec: Axis | Sequence[Axis]) -> list[list[str]]:
        entries: Sequence[Axis] = [spec] if spec is None or isinstance(spec, str) else list(spec)
        axes = [self._names(entry, f"{pattern!r}") for entry in entries]
        names = [name for entry in axes for name in entry]
        for name in names:
            if names.count(name) > 1:
                raise InvalidValueError(
                    f"{pattern!r} is divided along {name!r} twice",
                    hint="an axis of the mesh divides one axis of a tensor",
                )
        return axes

    def _names(self, entry: Axis, what: str) -> list[str]:
        names = [] if entry is None else [entry] if isinstance(entry, str) else list(entry)
        for name in names:
            if name not in self.mesh.axes:
                hint = did_you_mean(str(name), self.mesh.axes, f"its axes are {', '.join(self.mesh.axes)}")
                raise InvalidValueError(f"{what} is divided along {name!r}, which {self.mesh} does not have", hint=hint)
        return names

    @property
    def data_axes(self) -> list[str]:
        """The axes of the mesh that divide data which are not named."""
        return [*self._batch, *self._sequence]

    @property
    def patterns(self) -> list[tuple[str, list[list[str]]]]:
        """Patterns with the axes of the mesh for each axis of a tensor."""
        return [(pattern, [list(axis) for axis in spec]) for pattern, spec in self._tensors]

    @property
    def batch_groups(self) -> int:
        """Into how many groups batches are divided that have statistics of their own."""
        names = self._batch if self.batch_statistics == "local" else ()
        return math.prod(self.mesh.axes[name] for name in names)

    def with_whole_batch(self) -> Layout:
        """Return the layout that divides no data but what is named."""
        return Layout(self.mesh, self.tensors, parameters=self.parameters, experts=self.experts)

    def argument(self, *, sections: bool = True) -> Any:
        """Return what the compiler is given; whether it may divide fused weights section by section."""
        kinds = [list(names) for names in (self._batch, self._sequence, self._parameters, self._experts)]
        return list(self.mesh.axes.items()), kinds, self.patterns, sections

    def __repr__(self) -> str:
        parts = [repr(self.mesh)]
        if self.tensors:
            parts.append(repr(self.tensors))
        for name in ("batch", "sequence", "parameters", "experts"):
            if getattr(self, name) is not None:
                parts.append(f"{name}={getattr(self, name)!r}")
        if self.batch_statistics != "whole":
            parts.append(f"batch_statistics={self.batch_statistics!r}")
        return f"Layout({', '.join(parts)})"


class ArrayLayout(Layout):
    """The layout that arrays have already, whatever a backend would choose.

    Attributes
    ----------
    results : dict of str to str
        Results of the program that takes the arrays, with the array that each of them is a new value of.
    """

    results: Mapping[str, str] = MappingProxyType({})

    def renamed(self, names: Mapping[str, str], ordered: Collection[str] = ()) -> ArrayLayout:
        """Return the layout of other arrays, each of which lies as one of these does: its name to that of this one.

        The parts of those in ``ordered`` follow each other, also where an axis is divided section by section.
        """
        known = {name: self.tensors[like] for name, like in names.items() if like in self.tensors}
        return ArrayLayout(self.mesh, {name: _in_order(s) if name in ordered else s for name, s in known.items()})


def _in_order(spec: Axis | Sequence[Axis]) -> Axis | Sequence[Axis]:
    """Return how a tensor is divided, without the sections of its axes."""
    if spec is None or isinstance(spec, str):
        return None if spec is None else str(spec)
    return tuple(_in_order(axis) for axis in spec)  # type: ignore[misc]


def as_layout(layout: Layout | Mesh) -> Layout:
    """Return a layout; a mesh stands for data parallelism along its first axis."""
    if isinstance(layout, Mesh):
        return Layout(layout, batch=next(iter(layout.axes)))
    if not isinstance(layout, Layout):
        raise InvalidValueError(f"{layout!r} is not a layout", hint="pass ml.Layout(mesh, ...) or ml.Mesh(...)")
    return layout
