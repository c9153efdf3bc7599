"""Optimizers: from parameters and gradients to better parameters, on the arrays of any backend."""

from __future__ import annotations

from .adapters import from_mlx
from .optimizer import Optimizer
from .rules import SGD, Adam, AdamW

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "from_mlx"]
