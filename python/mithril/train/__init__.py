"""Training compiled models on data: `fit` with everything, `train_model` for a quick start."""

from __future__ import annotations

from .callbacks import Callback, MLflow, TensorBoard
from .checkpoints import load_checkpoint
from .fitting import fit, train_model
from .history import History
from .metrics import Metric
from .step import TrainingStep

__all__ = [
    "Callback",
    "History",
    "MLflow",
    "Metric",
    "TensorBoard",
    "TrainingStep",
    "fit",
    "load_checkpoint",
    "train_model",
]
