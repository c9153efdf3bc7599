"""The reference interpreter as a backend: the definition of every op, slow and exact."""

from __future__ import annotations

from ...numpy_arrays import NumpyArrays
from .engine import InterpreterEngine

__all__ = ["InterpreterBackend"]


class InterpreterBackend(NumpyArrays):
    """Runs models op by op on the reference evaluations of the core.

    Floats are computed in double precision and rounded once per op, so that its results are what the other
    backends are compared with. Arrays are NumPy arrays.

    Parameters
    ----------
    dtype : dtype, optional
        Dtype of floats (default ``float32``).
    seed : int, optional
        Seed of the random numbers (default 0).

    Examples
    --------
    >>> import mithril as ml
    >>> ml.InterpreterBackend().exp([0.0, 1.0])
    array([1.       , 2.7182817], dtype=float32)
    """

    name = "interpreter"
    target = "numpy"
    _engine_type = InterpreterEngine
