"""The JAX backend. Importing this does not import JAX; constructing a `JaxBackend` does."""

from .backend import JaxBackend

__all__ = ["JaxBackend"]
