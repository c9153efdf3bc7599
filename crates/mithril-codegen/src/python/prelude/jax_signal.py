"""Fourier transforms for JAX on pairs of real and imaginary parts; halves are transformed in float32."""

import jax
import jax.numpy as jnp


def _complex(real, imag):
    wide = jnp.promote_types(real.dtype, jnp.float32)
    real = real.astype(wide)
    return jax.lax.complex(real, jnp.zeros_like(real) if imag is None else imag.astype(wide))


def _parts(y, dtype):
    return y.real.astype(dtype), y.imag.astype(dtype)


def _fft(real, imag, axis, norm):
    """Fourier transform of real + i·imag."""
    return _parts(jnp.fft.fft(_complex(real, imag), axis=axis, norm=norm), real.dtype)


def _ifft(real, imag, axis, norm):
    """Inverse Fourier transform of real + i·imag."""
    return _parts(jnp.fft.ifft(_complex(real, imag), axis=axis, norm=norm), real.dtype)


def _rfft(x, axis, norm):
    """Fourier transform of a real signal, the frequencies from 0."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return _parts(jnp.fft.rfft(wide, axis=axis, norm=norm), x.dtype)


def _irfft(real, imag, n, axis, norm):
    """The real signal of size n with these frequencies."""
    return jnp.fft.irfft(_complex(real, imag), n=n, axis=axis, norm=norm).astype(real.dtype)
