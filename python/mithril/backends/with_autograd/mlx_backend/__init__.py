"""The MLX backend: not part of this version."""

from ...later import __getattr__ as __getattr__

__all__ = ["MlxBackend"]
