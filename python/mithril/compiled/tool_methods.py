"""What a physical model can be asked besides computing: functions of `mithril.tools` as its methods."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .memory_plan import plan_memory

if TYPE_CHECKING:
    from ..tools import export as _export
    from ..tools import nans as _nans
    from ..tools import packing as _packing
    from ..tools import profile as _profile

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
