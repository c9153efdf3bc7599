"""What a backend can do, as data."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from .. import _core, dtypes
from ..errors import MithrilError
from .custom import is_plain
from .engine import Engine

if TYPE_CHECKING:
    from .backend import Backend

__all__ = ["capabilities"]


def capabilities(backend: Backend) -> dict[str, Any]:
    """Find what a backend can do; see `Backend.capabilities`."""
    support = dict(_core.op_support(backend.engine.table))
    if backend.name == "interpreter":
        # It runs the definitions.
        support = dict.fromkeys(support, "native")
    elif is_plain(backend) or backend.name == "ggml":
        support = {op: "reference" if kind == "missing" else kind for op, kind in support.items()}
    counts = Counter(support.values())
    return {
        "name": backend.name,
        "device": backend.device,
        "devices": list(backend.devices),
        "dtypes": [str(dtype) for dtype in dtypes.ALL if _has(backend, dtype)],
        "default_dtype": str(backend.default_dtype),
        "autodiff": list(backend.engine.autodiff),
        "jit": type(backend.engine).evaluator is not Engine.evaluator,
        "native": counts["native"],
        "expanded": counts["expanded"],
        "reference": counts["reference"],
        "missing": counts["missing"],
        "ops": support,
        "methods": sorted(override.method for override in backend._overrides.values()),
        "unused_methods": {o.method: str(o.signature) for o in backend._unused.values()},
        "gradients": sorted(name for name, _, _ in backend._backwards.values()),
        "limitations": {f"{op} of {dtype}": reason for (op, dtype), reason in backend.limitations.items()},
    }


def _has(backend: Backend, dtype: dtypes.DType) -> bool:
    try:
        native = backend.engine.native_dtype(dtype)
        return native is not None and str(backend.dtype(backend.zeros((1,), dtype=dtype))) == dtype
    except (MithrilError, TypeError, ValueError, NotImplementedError, RuntimeError):
        return False
