"""Tracing: Python functions as parts of models, as ops where they can be traced, as calls of the host otherwise."""

from .trace import Lambda, trace, value_and_grad

__all__ = ["Lambda", "trace", "value_and_grad"]
