"""The MLX backend. Importing this does not import MLX; constructing an `MlxBackend` does."""

from .backend import MLXBackend, MlxBackend

__all__ = ["MLXBackend", "MlxBackend"]
