"""How models run as generated C."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from .... import _core
from ....errors import BackendUnavailableError
from ....parallel.layout import Layout
from ....parallel.mesh_engine import MeshEngine
from ...keywords import COptions, names
from ..engine import NativeEngine

__all__ = ["CEngine", "plain_options"]


@cache
def plain_options() -> tuple[str, ...]:
    """Return the options that the backend and the C target call alike; attributes of the backend hold them.

    Examples
    --------
    >>> from mithril.backends.with_manualgrad.c_backend.engine import plain_options
    >>> plain_options()
    ('memory_limit', 'cc', 'flags', 'autotune', 'batch', 'block')
    """
    known = _core.c_options({})
    return tuple(name for name in names(COptions) if name in known and name != "quantize")


class CEngine(NativeEngine):
    """The engine of the C backend."""

    table = "c"

    def c_options(self, prefix: str, **changes: Any) -> dict[str, Any]:
        """Options of the C target by their names in the core; those of the backend, but for changes."""
        backend = self.backend
        quantize = None
        if backend.quantize is not None:
            rules, ranges, strict = backend.quantize, backend.quantize_ranges, backend.quantize_strict
            quantize = {"rules": rules, "ranges": ranges, "strict": strict}
        return {
            **{name: getattr(backend, name) for name in plain_options()},
            "prefix": prefix,
            "threads": backend.num_threads or None,
            "python": sys.executable or None,
            "quantize": quantize,
            **changes,
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
