"""Windows for JAX: gathered, and added up again where they were taken from."""

import jax
import jax.numpy as jnp


def _per_axis(value, n):
    """One value per axis."""
    return value if isinstance(value, tuple) else (value,) * n


def _spatial_pads(pads, n):
    """One pair per axis."""
    return pads if isinstance(pads, tuple) else ((pads, pads),) * n


def _window_index(sizes, window, stride, dilation):
    """An index that takes [..., *positions, *window] of [..., *sizes]."""
    n = len(sizes)
    index = [...]
    for i, (size, w, s, d) in enumerate(zip(sizes, window, stride, dilation)):
        positions = max((size - (w - 1) * d - 1) // s + 1, 0)
        places = jnp.arange(positions)[:, None] * s + jnp.arange(w) * d
        index.append(places.reshape((1,) * i + (positions,) + (1,) * (n - 1) + (w,) + (1,) * (n - i - 1)))
    return tuple(index)


def _windows(x, window, stride, pads, dilation, value):
    """Windows [n, c, *positions, *window] of x [n, c, *s]."""
    n = x.ndim - 2
    if jnp.issubdtype(x.dtype, jnp.integer):
        limits = jnp.iinfo(x.dtype)
        if abs(value) == jnp.inf:
            value = limits.min if value < 0 else limits.max
        # JAX takes no number that the dtype does not hold.
        value = (int(value) - limits.min) % (limits.max - limits.min + 1) + limits.min
    pads = ((0, 0), (0, 0), *_spatial_pads(pads, n))
    x = jax.lax.pad(x, jnp.array(value, x.dtype), [(low, high, 0) for low, high in pads])
    return x[_window_index(x.shape[2:], _per_axis(window, n), _per_axis(stride, n), _per_axis(dilation, n))]


def _fold_windows(g, sizes, stride, pads, dilation):
    """Adds windows [n, c, *positions, *window] up where they were taken from."""
    n = g.ndim // 2 - 1
    pads = _spatial_pads(pads, n)
    sizes = tuple(size + low + high for size, (low, high) in zip(_per_axis(sizes, n), pads))
    index = _window_index(sizes, g.shape[2 + n :], _per_axis(stride, n), _per_axis(dilation, n))
    is_half = jnp.issubdtype(g.dtype, jnp.floating) and g.dtype.itemsize < 4
    total = jnp.zeros(g.shape[:2] + sizes, jnp.float32 if is_half else g.dtype).at[index].add(g)
    total = total.astype(g.dtype)
    return jax.lax.pad(total, total.dtype.type(0), [(0, 0, 0)] * 2 + [(-low, -high, 0) for low, high in pads])


def _dilated_max_pool(x, window, stride, pads, dilation):
    """Largest element of each window; the gradient goes to the first of equal ones."""
    view = _windows(x, window, stride, pads, dilation, -jnp.inf)
    view = view.reshape(view.shape[: x.ndim] + (-1,))
    return jnp.take_along_axis(view, jnp.argmax(view, -1, keepdims=True), -1)[..., 0]
