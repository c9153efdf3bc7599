"""The reference interpreter as a backend."""

from .backend import InterpreterBackend

__all__ = ["InterpreterBackend"]
