"""One specialisation of a physical model: generated functions for shapes that are known, up to symbols."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from . import _core
from .loading import Module, Runner

if TYPE_CHECKING:
    from .backends.backend import Backend

__all__ = ["Program"]


class Program:
    """One specialisation: generated functions for shapes that are known, up to symbols."""

    def __init__(self, core: _core.Compiled, backend: Backend) -> None:
        self.core = core
        self.backend = backend
        self.params: tuple[tuple[str, str, tuple[Any, ...]], ...] = tuple(core.inputs("param"))
        self.data: tuple[tuple[str, str, tuple[Any, ...]], ...] = tuple(core.inputs("data"))
        # Dtypes as objects of the framework: comparing those is fast.
        self.param_types = tuple((name, backend._native(dtype), shape) for name, dtype, shape in self.params)
        self.shapes = [shape for _, _, shape in self.params]
        self.natives = [native for _, native, _ in self.param_types]
        self.read_params = _reader(tuple(name for name, _, _ in self.params))
        self.data_types = tuple((name, backend._native(dtype), dtype) for name, dtype, _ in self.data)
        self.state: tuple[tuple[str, str, tuple[Any, ...]], ...] = tuple(core.inputs("state"))
        self.updates: tuple[str, ...] = tuple(core.updates)
        self.module: Module | Runner = backend._load(core)
        self.evaluate: Callable[..., Any] = self.module.function("evaluate")
        self.gradients: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[Module | Runner, Callable[..., Any]]] = {}
        self.seen: set[Any] = set()

    def gradient(self, outputs: tuple[str, ...]) -> tuple[Module | Runner, Callable[..., Any]]:
        """Return the module and function that give the gradients of these outputs; made at the first call."""
        names = tuple(name for name, dtype, _ in self.params if "float" in dtype)
        found = self.gradients.get((outputs, names))
        if found is None:
            module = self.backend._load_gradients(self.core, list(outputs), list(names))
            found = self.gradients[(outputs, names)] = (module, module.function("evaluate_gradients"))
        return found


def _reader(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that reads these keys of a mapping at once."""
    if len(names) == 1:
        [only] = names
        return lambda mapping: (mapping[only],)
    return itemgetter(*names) if names else lambda mapping: ()
