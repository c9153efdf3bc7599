"""The GGML backend."""

from .backend import GGMLBackend, GgmlBackend

__all__ = ["GGMLBackend", "GgmlBackend"]
