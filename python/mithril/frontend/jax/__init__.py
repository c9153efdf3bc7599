"""Functions of JAX, read from their jaxpr.

``convert.py`` traces a function and walks through its jaxpr, ``trees.py`` names arguments, parameters and results,
``ops/`` says what each primitive becomes.
"""

from .convert import from_jax

__all__ = ["from_jax"]
