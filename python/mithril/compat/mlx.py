"""``mlx.core.devices``, which some documents use and MLX does not have."""

from __future__ import annotations

from types import SimpleNamespace

from ..backends.frameworks import require

__all__ = ["install"]


def install() -> None:
    """Add ``mx.devices.cpu`` and ``mx.devices.gpu`` to `mlx.core` in this process, unless MLX has them.

    Mithril never does this on its own: ``mx.cpu`` and ``mx.gpu`` are the names of MLX.

    Raises
    ------
    BackendUnavailableError
        If MLX is not installed.
    """
    mx = require("mithril.compat.mlx", "mlx.core")
    if not hasattr(mx, "devices"):
        mx.devices = SimpleNamespace(cpu=mx.cpu, gpu=mx.gpu)
