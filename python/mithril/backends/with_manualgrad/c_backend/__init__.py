"""The C backend."""

from .backend import CBackend, RawCBackend

__all__ = ["CBackend", "RawCBackend"]
