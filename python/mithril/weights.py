"""Weights from elsewhere: open checkpoints, load them into a model, move arrays between backends."""

from .checkpoints.report import MisShaped, Report
from .checkpoints.weights import Checkpoint, load_weights, open, transfer

__all__ = ["Checkpoint", "MisShaped", "Report", "load_weights", "open", "transfer"]
