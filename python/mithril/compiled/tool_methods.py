"""What a physical model can be asked besides computing: the functions of `mithril.tools` as its methods."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from .memory_plan import plan_memory

if TYPE_CHECKING:
    from .._core import Packed
    from ..optim.optimizer import Optimizer
    from ..tools.export import Exported
    from ..tools.nans import NanReport
    from ..tools.profile import Profile
    from .physical_model import PhysicalModel

__all__ = ["Tools"]


class Tools:
    """Methods of `PhysicalModel`. They import what they need when they are called."""

    def find_nans(self, params: Any = None, data: Any = None, output_gradients: Any = None) -> NanReport:
        """Find the ops where NaN and infinities come up; see `mithril.tools.nans.find_nans`."""
        from ..tools.nans import find_nans

        return find_nans(cast("PhysicalModel", self), params, data, output_gradients)

    def profile(self, params: Any = None, data: Any = None, output_gradients: Any = None, *, runs: int = 20) -> Profile:
        """Measure the steps of a model in C; see `mithril.tools.profile.profile`."""
        from ..tools.profile import profile

        return profile(cast("PhysicalModel", self), params, data, output_gradients, runs=runs)

    def pack(
        self,
        params: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        layout: str | None = None,
        names: Mapping[str, str] | None = None,
        state: Mapping[str, Any] | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> Packed:
        """Bring parameters into the order in which generated C reads them; see `mithril.tools.packing.pack`."""
        from ..tools.packing import pack

        model = cast("PhysicalModel", self)
        return pack(model, params, layout=layout, names=names, state=state, shapes=shapes)

    memory = property(plan_memory)

    def export(
        self,
        folder: str | os.PathLike[str],
        *,
        data: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        prefix: str = "model",
        weights_inside: bool | None = None,
        gradients: bool = False,
        optimizer: Optimizer | None = None,
        loss: str | None = None,
        lanes: int | None = None,
        autotune: bool = False,
        batch: str | None = None,
        block: int | None = None,
        threads: int = 1,
        memory_limit: int | str | None = None,
        cc: str | None = None,
        flags: Any = (),
    ) -> Exported:
        """Write the model as C that needs nothing of Mithril; see `mithril.tools.export.export`."""
        from ..tools.export import export

        return export(
            cast("PhysicalModel", self),
            folder,
            data=data,
            params=params,
            prefix=prefix,
            weights_inside=weights_inside,
            gradients=gradients,
            optimizer=optimizer,
            loss=loss,
            lanes=lanes,
            autotune=autotune,
            batch=batch,
            block=block,
            threads=threads,
            memory_limit=memory_limit,
            cc=cc,
            flags=flags,
        )
