"""Optimizers: from parameters and gradients to better parameters, on the arrays of any backend."""

from __future__ import annotations

from .adapters import from_mlx
from .algorithms import SGD, Adafactor, Adam, AdamW, Lion, RMSprop
from .optimizer import Optimizer

__all__ = ["SGD", "Adafactor", "Adam", "AdamW", "Lion", "Optimizer", "RMSprop", "from_mlx"]
