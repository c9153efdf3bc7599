"""What a physical model can be asked besides computing: functions of `mithril.tools` as its methods."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from . import internals
from .memory_plan import plan_memory

if TYPE_CHECKING:
    from ..tools import export as _export
    from ..tools import nans as _nans
    from ..tools import packing as _packing
    from ..tools import profile as _profile
    from .physical_model import PhysicalModel

__all__ = ["Tools"]


class _Late:
    """A method that is a function of another module, imported when it is first used: that module imports this one."""

    def __init__(self, module: str, function: str) -> None:
        self._module, self._function = module, function
        self.__doc__ = f"See `mithril.{module}.{function}`."

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: Any, owner: type) -> Any:
        function: Callable[..., Any] = getattr(import_module(f"mithril.{self._module}"), self._function)
        setattr(self._owner, self._name, function)
        return getattr(owner if instance is None else instance, self._name)


class Tools:
    """Methods of `PhysicalModel`, with the signatures and the documentation of the functions that they are."""

    if TYPE_CHECKING:
        find_nans = _nans.find_nans
        profile = _profile.profile
        pack = _packing.pack
        export = _export.export
    else:
        find_nans = _Late("tools.nans", "find_nans")
        profile = _Late("tools.profile", "profile")
        pack = _Late("tools.packing", "pack")
        export = _Late("tools.export", "export")

    memory = property(plan_memory)

    def summary_rows(self) -> list[tuple[str, int, str, str, int | str | None]]:
        """Return the rows of `summary`: path, depth, layer, output shapes, number of parameters.

        Numbers that depend on symbols are text; those that are not known are None.
        """
        model = cast("PhysicalModel", self)
        program = internals.current_program(model)
        return list((internals.logical_model(model) if program is None else program.core).summary_rows())

    def _repr_html_(self) -> str:
        """Return the summary as a tree for notebooks, whose parts open and close."""
        model = cast("PhysicalModel", self)
        program = internals.current_program(model)
        if program is None:
            return str(internals.logical_model(model)._repr_html_())
        return str(program.core.summary_html())
