"""How models run as generated C."""

from __future__ import annotations

import sys
from typing import Any

from .... import _core
from ....errors import BackendUnavailableError
from ....parallel.layout import Layout
from ....parallel.mesh_engine import MeshEngine
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

    def on_mesh(self, layout: Layout) -> MeshEngine:
        count = layout.mesh.devices
        raise BackendUnavailableError(
            f"CBackend calls C in one process, and {layout.mesh!r} has {count} devices",
            hint="write a program for MPI: compile without the layout, then compiled.export(folder, layout=...), and "
            f"start it by mpirun -n {count}; or use NumpyBackend(devices=['cpu'] * {count})",
        )

    def program(self, core: _core.Compiled, *outputs: list[str]) -> Any:
        return _core.c_program(core, self.c_options("model_gradients" if outputs else "model"), *outputs)
