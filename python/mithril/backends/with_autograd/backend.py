"""Base class of backends that bring their own automatic differentiation."""

from __future__ import annotations

from ..backend import Backend

__all__ = ["AutogradBackend"]


class AutogradBackend(Backend):
    """A backend that differentiates by itself: override `grad` and `value_and_grad`."""

    is_manualgrad = False
