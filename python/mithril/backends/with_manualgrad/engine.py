"""The engine of backends whose models are functions of the core: C, and plans of ggml."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ... import _core
from ...errors import MithrilError
from ..numpy_engine import NumpyEngine

__all__ = ["NativeEngine", "NativeModule"]


class NativeModule:
    """A function of the core in the place of a module of Python."""

    def __init__(self, program: Any) -> None:
        self.source = program

    def function(self, name: str) -> Callable[..., Any]:
        """Return the one function there is."""
        call: Callable[..., Any] = self.source.call
        return call

    def explain(self, error: BaseException) -> MithrilError | None:
        """Errors of the core say by themselves what is wrong."""
        return None


class NativeEngine(NumpyEngine):
    """The engine of backends whose models are functions of the core."""

    def program(self, core: _core.Compiled, *outputs: list[str]) -> Any:
        """Make the program of the outputs, or that of gradients of the outputs and inputs that are named."""
        raise NotImplementedError

    def load(self, core: _core.Compiled) -> Any:
        return NativeModule(self.program(core))

    def load_gradients(self, core: _core.Compiled, outputs: list[str], inputs: list[str]) -> Any:
        return NativeModule(self.program(core, outputs, inputs))

    def prepare(self, program: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
        program.module.source.prepare(dict(shapes))

    def stages(
        self, core: _core.Compiled, module: Any, outputs: Sequence[str] = (), inputs: Sequence[str] = ()
    ) -> dict[str, str]:
        # The passes before a target is chosen are those of every backend.
        graphs = core.stages(self.backend.target, list(outputs), list(inputs))
        common = {name: text for name, text in graphs if name not in ("legalize", "cleanup")}
        return {**common, **dict(module.source.stages), "emit": module.source.text}
