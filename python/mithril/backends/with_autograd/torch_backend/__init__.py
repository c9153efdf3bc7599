"""The PyTorch backend. Importing this does not import PyTorch; constructing a `TorchBackend` does."""

from .backend import TorchBackend

__all__ = ["TorchBackend"]
