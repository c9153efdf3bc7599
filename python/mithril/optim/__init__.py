"""Optimizers: from parameters and gradients to better parameters, on the arrays of any backend."""

from __future__ import annotations

from . import schedules
from .adapters import AdaptedOptimizer, from_mlx, from_optax, from_torch
from .algorithms import SGD, Adafactor, Adam, AdamW, Lion, RMSprop
from .average import EMA
from .optimizer import Optimizer

__all__ = [
    "EMA",
    "SGD",
    "Adafactor",
    "Adam",
    "AdamW",
    "AdaptedOptimizer",
    "Lion",
    "Optimizer",
    "RMSprop",
    "from_mlx",
    "from_optax",
    "from_torch",
    "schedules",
]
