"""Layouts as they are written on the command line."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidValueError
from ..parallel.layout import Layout, Mesh

__all__ = ["layout_of"]


def layout_of(
    mesh: str, divided: Sequence[str], *, batch: str | None = None, parameters: str | None = None
) -> Layout | Mesh:
    """Read a mesh such as ``"data=2,model=4"``, and patterns such as ``"down.weight=,model"``.

    Examples
    --------
    >>> from mithril.command.layout import layout_of
    >>> layout_of("data=2,model=4", ["down.weight=,model"], batch="data")
    Layout(Mesh(data=2, model=4), {'down.weight': (None, 'model')}, batch='data')
    """
    axes: dict[str, int] = {}
    for part in mesh.split(","):
        name, _, size = (text.strip() for text in part.partition("="))
        if not name or not size.isdecimal():
            raise InvalidValueError(f"--mesh {mesh} has the axis {part!r}", hint="write --mesh data=2,model=4")
        if name in axes:
            raise InvalidValueError(f"--mesh {mesh} has two axes {name!r}", hint="give each a name of its own")
        axes[name] = int(size)
    tensors: dict[str, tuple[str | None, ...]] = {}
    for entry in divided:
        pattern, found, spec = entry.partition("=")
        if not pattern or not found:
            raise InvalidValueError(f"--divide {entry} names no axes", hint="write --divide 'down.weight=,model'")
        tensors[pattern] = tuple(axis.strip() or None for axis in spec.split(","))
    if not (tensors or batch or parameters):
        return Mesh(**axes)
    return Layout(Mesh(**axes), tensors, batch=batch, parameters=parameters)
