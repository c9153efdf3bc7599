"""Running sums of exponentials."""

from __future__ import annotations

from typing import Any

from ..rows import apply

__all__ = ["logcumsumexp"]


def logcumsumexp(x: Any, axis: int, size: int) -> Any:
    """Compute the logarithms of running sums of exponentials."""

    def along(x: Any, key: slice) -> Any:
        return x[(slice(None),) * axis + (key,)]

    # The sums would overflow or vanish: sums of logarithms, over twice as many places at each step.
    step = 1
    while step < size:
        both = apply("logaddexp", along(x, slice(step, None)), along(x, slice(None, -step)))
        x, step = apply("concat", axis, along(x, slice(None, step)), both), 2 * step
    return x
