"""Reductions and sorting for MLX."""

import mlx.core as mx


def _reduced(function, nothing, x, axis=None, keepdims=False, **options):
    """A reduction, `nothing` over a dimension of size 0: there, MLX reads beyond the array, or never ends."""
    if x.size:
        return function(x, axis=axis, keepdims=keepdims, **options)
    chosen = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    chosen = [a % x.ndim for a in chosen]
    dtype = mx.bool_ if isinstance(nothing, bool) else x.dtype
    y = mx.full([1 if i in chosen else n for i, n in enumerate(x.shape)], nothing, dtype)
    return y if keepdims else mx.squeeze(y, chosen)


def _argsort(x, axis, descending):
    """Positions in order of size; equal elements keep their order. No gradient flows back."""
    x = mx.moveaxis(mx.stop_gradient(x), axis, -1)
    if descending:
        order = x.shape[-1] - 1 - mx.argsort(x[..., ::-1], axis=-1).astype(mx.int64)[..., ::-1]
    else:
        order = mx.argsort(x, axis=-1).astype(mx.int64)
    return mx.moveaxis(order, -1, axis)


def _root(x):
    """Square root whose gradient at 0 is 0."""
    is_zero = x == 0
    return mx.where(is_zero, 0, mx.sqrt(mx.where(is_zero, 1, x)))


def _std(x, axis=None, keepdims=False, ddof=0):
    """Standard deviation, whose gradient is 0 where all elements are equal."""
    return _root(_reduced(mx.var, mx.nan, _widened(x), axis=axis, keepdims=keepdims, ddof=ddof)).astype(x.dtype)


def _norm(x, axis=None, keepdims=False):
    """Euclidean norm, whose gradient at 0 is 0."""
    return _root(_reduced(mx.sum, 0, mx.square(_widened(x)), axis=axis, keepdims=keepdims)).astype(x.dtype)


def _logsumexp(x, axis=None, keepdims=False):
    """log(sum(exp(x))) of doubles, which `mx.logsumexp` computes in float32."""
    peak = mx.stop_gradient(mx.max(x, axis=axis, keepdims=True))
    peak = mx.where(mx.isfinite(peak), peak, 0)
    y = mx.log(mx.sum(_exp(x - peak), axis=axis, keepdims=True)) + peak
    return y if keepdims else mx.squeeze(y, axis)


def _extreme_so_far(function, x, axis, reverse):
    """Values from where a running extreme last was new. MLX forgets NaN, and cannot differentiate its own."""
    axis = axis % x.ndim
    if x.size == 0:
        return x
    fixed = mx.stop_gradient(x)
    places = mx.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    is_it = (fixed == function(fixed, axis=axis, reverse=reverse)) | (fixed != fixed)
    lost = mx.cumsum((fixed != fixed).astype(mx.int32), axis=axis, reverse=reverse) > 0
    is_it = mx.where(lost, fixed != fixed, is_it)
    if reverse:
        places = mx.cummin(mx.where(is_it, places, x.shape[axis] - 1), axis=axis, reverse=True)
    else:
        places = mx.cummax(mx.where(is_it, places, 0), axis=axis)
    return mx.take_along_axis(x, places, axis=axis)


def _cumulative_max(x, axis, reverse):
    """Largest element so far; reverse runs from the end."""
    return _extreme_so_far(mx.cummax, x, axis, reverse)


def _cumulative_min(x, axis, reverse):
    """Smallest element so far; reverse runs from the end."""
    return _extreme_so_far(mx.cummin, x, axis, reverse)
