"""Linear algebra for NumPy."""

import numpy as np


def _triangular_solve(a, b, lower=True, transpose=False):
    """The x with a @ x = b, or a.T @ x = b, reading only one triangle of a."""
    a = np.tril(a) if lower else np.triu(a)
    return np.linalg.solve(np.swapaxes(a, -1, -2) if transpose else a, b)


def _cholesky(a):
    """The lower factor of the symmetric part of a."""
    return np.linalg.cholesky((a + np.swapaxes(a, -1, -2)) / 2)
