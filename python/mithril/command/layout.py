"""Layouts as they are written on the command line."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConflictingOptionError, InvalidValueError
from ..parallel.hardware import Hardware, as_hardware
from ..parallel.layout import Layout, Mesh
from ..parallel.pipeline import Pipeline
from ..parallel.strategies import PIPELINE, Strategy, strategy_layout
from ..suggestions import did_you_mean

__all__ = ["hardware_of", "layout_of", "pipeline_of", "strategy_of"]


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
        pattern, separator, spec = entry.partition("=")
        if not pattern or not separator:
            raise InvalidValueError(f"--divide {entry} names no axes", hint="write --divide 'down.weight=,model'")
        tensors[pattern] = tuple(axis.strip() or None for axis in spec.split(","))
    if not (tensors or batch or parameters):
        return Mesh(**axes)
    return Layout(Mesh(**axes), tensors, batch=batch, parameters=parameters)


def pipeline_of(
    layout: Layout | Mesh, strategy: Strategy | None, schedule: str | None, micro_batches: int | None
) -> Pipeline:
    """Return the pipeline over a mesh.

    Examples
    --------
    >>> import mithril as ml
    >>> from mithril.command.layout import pipeline_of
    >>> pipeline_of(ml.Mesh(stage=4), "pipeline_parallel", "gpipe", 8)
    Pipeline(4, micro_batches=8, schedule='gpipe')
    """
    names = strategy.values() if isinstance(strategy, Mapping) else [strategy]
    if PIPELINE not in names or not isinstance(layout, Mesh):
        raise ConflictingOptionError(
            "--schedule and --micro-batches are for pipelines", hint=f"add --strategy {PIPELINE}, or leave them out"
        )
    pipeline: Any = strategy_layout(strategy, layout)
    return Pipeline(
        pipeline.stages, micro_batches=micro_batches, schedule=schedule or "1f1b", layout=pipeline.layout
    ).over(pipeline.grid, pipeline.axis)


def strategy_of(text: str | None, layout: Layout | Mesh) -> Strategy | None:
    """Read a strategy, or one for each axis of a mesh.

    Examples
    --------
    >>> import mithril as ml
    >>> from mithril.command.layout import strategy_of
    >>> strategy_of("data=fully_sharded,model=tensor_parallel", ml.Mesh(data=2, model=2))
    {'data': 'fully_sharded', 'model': 'tensor_parallel'}
    """
    if text is None:
        return None
    if isinstance(layout, Layout):
        raise ConflictingOptionError(
            f"--strategy {text} says what is divided, and --batch, --parameters or --divide do too",
            hint="leave out one of them",
        )
    if "=" not in text:
        return text
    by_axis: dict[str, str] = {}
    for part in text.split(","):
        axis, _, name = (word.strip() for word in part.partition("="))
        if not axis or not name or axis in by_axis:
            raise InvalidValueError(
                f"--strategy {text} has the part {part!r}",
                hint="write one for each axis: --strategy data=data_parallel,model=tensor_parallel",
            )
        by_axis[axis] = name
    return by_axis


def hardware_of(text: str) -> Hardware:
    """Read hardware by its name, with figures of its own.

    Examples
    --------
    >>> from mithril.command.layout import hardware_of
    >>> hardware_of("a100:memory=4e10").memory
    40000000000
    """
    name, _, figures = text.partition(":")
    hardware = as_hardware(name.strip())
    known = [field.name for field in dataclasses.fields(Hardware)]
    for entry in filter(None, (part.strip() for part in figures.split(","))):
        key, equals, value = (word.strip() for word in entry.partition("="))
        if not equals or key not in known:
            hint = did_you_mean(key, known, f"its figures are {', '.join(known)}")
            raise InvalidValueError(f"--hardware {text}: {entry!r} is not a figure of it", hint=hint)
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise InvalidValueError(f"--hardware {text}: {value!r} is not a number", hint=f"write {name}:{key}=1e10")
        figure: dict[str, Any] = {key: int(number) if key == "memory" else number}
        hardware = dataclasses.replace(hardware, **figure)
    return hardware
