"""What `compile(..., verbose=True)` prints: phases with their times, the ops, the layers, the memory of parameters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .. import _core, dtypes

if TYPE_CHECKING:
    from .program import Program

__all__ = ["describe"]


def describe(model: _core.Model, program: Program, phases: dict[str, float]) -> str:
    """Describe a program that was compiled.

    Parameters
    ----------
    model : Model
        What was compiled.
    program : Program
        What came out.
    phases : dict
        Name of a phase to its seconds, in order.

    Returns
    -------
    str
    """
    times = ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in phases.items())
    lines = [f"compiled {model} for {program.backend}", f"phases: {times}"]
    counts: dict[tuple[str, str], int] = {}
    for use in _core.uses(program.core, program.backend.engine.table):
        key = (use["support"], use["op"])
        counts[key] = counts.get(key, 0) + 1
    for support in dict.fromkeys(support for support, _ in counts):
        named = (f"{n} {op}" for (kind, op), n in counts.items() if kind == support)
        lines.append(f"ops, {support}: {', '.join(named)}")
    lines.append(f"parameters: {_megabytes(program.params)}; state: {_megabytes(program.state)}")
    return "\n".join([*lines, str(program.core.summary())])


def _megabytes(inputs: tuple[tuple[str, str, tuple[Any, ...]], ...]) -> str:
    """Memory of inputs, of which those with open sizes are counted apart."""
    known = [(dtype, shape) for _, dtype, shape in inputs if all(isinstance(n, int) for n in shape)]
    total = sum(dtypes.normalize(dtype).itemsize * math.prod(shape) for dtype, shape in known)
    more = f" and {len(inputs) - len(known)} of open size" if len(known) < len(inputs) else ""
    return f"{total / 1e6:.2f} MB in {len(known)} arrays{more}"
