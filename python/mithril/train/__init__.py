"""Training compiled models on data: `fit` with everything, `train_model` for a quick start."""

from __future__ import annotations

from .checkpoints import load_checkpoint
from .fitting import fit, train_model
from .history import History
from .metrics import Metric
from .step import TrainingStep

__all__ = ["History", "Metric", "TrainingStep", "fit", "load_checkpoint", "train_model"]
