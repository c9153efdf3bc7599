"""The NumPy backend: readable generated code that needs nothing but NumPy."""

from __future__ import annotations

from ...numpy_arrays import NumpyArrays

__all__ = ["NumpyBackend"]


class NumpyBackend(NumpyArrays):
    """Runs models with NumPy on the CPU.

    Parameters
    ----------
    dtype : dtype, optional
        Dtype of floats: float16, bfloat16 (needs ``ml_dtypes``), float32 (default) or float64.
        Also spelled ``default_dtype``.
    device : str, optional
        Only ``"cpu"``.
    seed : int, optional
        Seed of the random numbers (default 0). Also spelled ``random_seed``.

    Examples
    --------
    >>> import mithril as ml
    >>> backend = ml.NumpyBackend(dtype=ml.float64)
    >>> backend.add(backend.tensor([1, 2, 3]), 0.5)
    array([1.5, 2.5, 3.5])
    """

    name = "numpy"
    target = "numpy"
