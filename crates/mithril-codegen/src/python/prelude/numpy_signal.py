"""Fourier transforms for NumPy, of real and imaginary parts."""

import numpy as np


def _complex(real, imag):
    """One complex array of two parts; half precision is computed in single."""
    wide = np.float32 if real.dtype == np.float16 else real.dtype
    if imag is None:
        return real.astype(wide, copy=False)
    x = np.empty(real.shape, np.result_type(wide, np.complex64))
    x.real, x.imag = real, imag
    return x


def _parts(x, dtype):
    """Real and imaginary part in dtype."""
    return x.real.astype(dtype, copy=False), x.imag.astype(dtype, copy=False)


def _fft(real, imag=None, axis=-1, norm="backward"):
    return _parts(np.fft.fft(_complex(real, imag), axis=axis, norm=norm), real.dtype)


def _ifft(real, imag=None, axis=-1, norm="backward"):
    return _parts(np.fft.ifft(_complex(real, imag), axis=axis, norm=norm), real.dtype)


def _rfft(x, axis=-1, norm="backward"):
    return _parts(np.fft.rfft(_complex(x, None), axis=axis, norm=norm), x.dtype)


def _irfft(real, imag, n=None, axis=-1, norm="backward"):
    return np.fft.irfft(_complex(real, imag), n=n, axis=axis, norm=norm).astype(real.dtype, copy=False)
