"""Fourier transforms applied at once to NumPy arrays: complex arrays in and out.

Inside of models complex numbers are pairs of real tensors; NumPy has a complex dtype, so here it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _core, spellings
from .._generated.ops import Ops

__all__ = ["ComplexTransforms"]


def _parts(real: Any, imag: Any) -> tuple[Any, Any]:
    """Split a complex array into its parts."""
    if imag is None and not isinstance(real, _core.Connection) and np.iscomplexobj(real):
        real_part = np.asarray(real)
        return np.ascontiguousarray(real_part.real), np.ascontiguousarray(real_part.imag)
    return real, imag


def _complex(result: Any) -> Any:
    """Join a pair of arrays; connections stay a pair."""
    real, imag = result
    return result if isinstance(real, _core.Connection) else real + 1j * imag


class ComplexTransforms(Ops):
    """The transforms with complex arrays where the ops have pairs."""

    @spellings.op("fft", ("real", "imag", "axis", "norm"))
    def fft(self, real: Any, imag: Any = None, axis: int = -1, norm: Any = "backward") -> Any:
        """Discrete Fourier transform; complex64 for float32, complex128 for float64.

        Parameters
        ----------
        real : array
            Real part, or a complex array.
        imag : array, optional
            Imaginary part.
        axis : int, optional
            Axis of the transform.
        norm : {"backward", "ortho", "forward"}, optional
            Where the factor 1/n stands.

        Returns
        -------
        complex array
            In a function that is traced: the connections of the real and the imaginary part.

        Examples
        --------
        >>> import mithril as ml
        >>> ml.NumpyBackend().fft([1.0, 0.0, 0.0, 0.0])
        array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
        """
        real, imag = _parts(real, imag)
        return _complex(super().fft(real, imag, axis, norm))

    @spellings.op("ifft", ("real", "imag", "axis", "norm"))
    def ifft(self, real: Any, imag: Any = None, axis: int = -1, norm: Any = "backward") -> Any:
        """Inverse discrete Fourier transform; see `fft`."""
        real, imag = _parts(real, imag)
        return _complex(super().ifft(real, imag, axis, norm))

    @spellings.op("rfft", ("input", "axis", "norm"))
    def rfft(self, input: Any, axis: int = -1, norm: Any = "backward") -> Any:
        """Discrete Fourier transform of a real signal: the frequencies 0 to n/2; see `fft`."""
        return _complex(super().rfft(input, axis, norm))

    @spellings.op("irfft", ("real", "imag", "n", "axis", "norm"))
    def irfft(self, real: Any, imag: Any = None, n: int | None = None, axis: int = -1, norm: Any = "backward") -> Any:
        """Real signal of the frequencies 0 to n/2; see `fft`."""
        real, imag = _parts(real, imag)
        return super().irfft(real, real * 0.0 if imag is None else imag, n, axis, norm)
