"""Fourier transforms for MLX, computed in float32; complex numbers are pairs of real arrays."""

import mlx.core as mx


def _pair(real, imag):
    """One complex array of two parts, of which the second may be absent."""
    real = real.astype(mx.float32)
    return real if imag is None else real + 1j * imag.astype(mx.float32)


def _transform(function, real, imag, axis, norm):
    """Real and imaginary part of a transform."""
    z = function(_pair(real, imag), axis=axis, norm=norm)
    return mx.real(z).astype(real.dtype), mx.imag(z).astype(real.dtype)


def _irfft(real, imag, n, axis, norm):
    """Real signal of the frequencies 0 to n/2."""
    return mx.fft.irfft(_pair(real, imag), n=n, axis=axis, norm=norm).astype(real.dtype)
