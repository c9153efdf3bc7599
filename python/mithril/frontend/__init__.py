"""Models that were defined elsewhere: a frontend makes a Mithril model of the graph of another framework."""

from .jax import from_jax
from .onnx import from_onnx
from .torch import from_torch

__all__ = ["from_jax", "from_onnx", "from_torch"]
