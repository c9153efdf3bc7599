"""How models run as generated C."""

from __future__ import annotations

import sys
from typing import Any

from .... import _core
from ..engine import NativeEngine

__all__ = ["CEngine"]


class CEngine(NativeEngine):
    """The engine of the C backend."""

    table = "c"

    def c_options(self, prefix: str) -> dict[str, Any]:
        """Options of code generation and of the C compiler, as the core takes them."""
        backend = self.backend
        quantize = None
        if backend.quantize is not None:
            rules, ranges, strict = backend.quantize, backend.quantize_ranges, backend.quantize_strict
            quantize = {"rules": rules, "ranges": ranges, "strict": strict}
        return {
            "prefix": prefix,
            "threads": backend.num_threads,
            "cc": backend.cc,
            "flags": list(backend.flags),
            "python": sys.executable or None,
            "memory_limit": backend.memory_limit,
            "lanes": None,
            "in_place": False,
            "autotune": backend.autotune,
            "quantize": quantize,
            "batch": backend.batch,
            "block": backend.block,
            "packs_alike": False,
            "registers": None,
        }

    def program(self, core: _core.Compiled, *outputs: list[str]) -> Any:
        return _core.c_program(core, self.c_options("model_gradients" if outputs else "model"), *outputs)
