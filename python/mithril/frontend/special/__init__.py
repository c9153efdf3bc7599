"""Functions without an op, in terms of ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..rows import cast
from .chebyshev import erfcx, i0, i0e, i1, i1e, log_ndtr, ndtri
from .gamma import digamma, lgamma, polygamma, zeta
from .running import logcumsumexp

__all__ = ["FUNCTIONS", "digamma", "lgamma", "logcumsumexp", "polygamma", "zeta"]


def _wide(function: Callable[[Any], Any]) -> Callable[[Any, str], Any]:
    """Compute half precisions in float32."""

    def computed(x: Any, dtype: str) -> Any:
        if dtype in ("float16", "bfloat16"):
            return cast(function(cast(x, "float32")), dtype)
        return function(x)

    return computed


#: By name: functions of a tensor and its dtype.
FUNCTIONS: dict[str, Callable[[Any, str], Any]] = {
    "lgamma": lgamma,
    "digamma": digamma,
    **{f.__name__: _wide(f) for f in (erfcx, i0, i0e, i1, i1e, log_ndtr, ndtri)},
}
