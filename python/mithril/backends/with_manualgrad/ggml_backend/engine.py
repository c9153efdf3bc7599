"""How models run on ggml."""

from __future__ import annotations

from typing import Any

from .... import _core
from ..engine import NativeEngine
from .quantization import expanded

__all__ = ["GgmlEngine"]


class GgmlEngine(NativeEngine):
    """The engine of the GGML backend."""

    table = "ggml"
    tests_compiled_ops = True
    reads_blocks = True
    checks_positions = True

    def program(self, core: _core.Compiled, *outputs: list[str]) -> Any:
        shapes = {name: shape for name, _, shape in core.inputs("param")}
        options = {
            "threads": self.backend.num_threads,
            "memory_limit": self.backend.memory_limit,
            "quantize": None if self.backend.quantize is None else expanded(self.backend.quantize, shapes),
            "strict": self.backend.quantize_strict,
            "repack": self.backend.repack,
        }
        return _core.ggml_program(core, options, *outputs)
