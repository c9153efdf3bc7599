"""The reference interpreter as a backend: the definition of every op, slow and exact."""

from __future__ import annotations

from typing import Any

from .... import _core
from ....compiled.loading import Runner
from ...numpy_arrays import NumpyArrays

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

    def _load(self, core: _core.Compiled) -> Runner:
        return Runner(core.runner())

    def _load_gradients(self, core: _core.Compiled, outputs: list[str], inputs: list[str]) -> Runner:
        return Runner(core.gradient_runner(outputs, inputs))

    def _load_op(self, name: str, signature: list[Any]) -> Runner:
        return Runner(_core.eager_runner(name, signature, str(self.default_dtype)))
