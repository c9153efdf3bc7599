"""Oracles from torch for ops that write at positions, take views, leave NaN out, or count."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch_common import all_axes, as_tuple


def counted(indices, size):
    return torch.where(indices < 0, indices + size, indices).long()


# --- writing at positions -----------------------------------------------------------------------------------


def written(x, places, values):
    """Elements of ``values`` at flat places; of several for one the last stays."""
    last = {int(place): i for i, place in enumerate(np.asarray(places).reshape(-1))}
    flat = x.reshape(-1).clone()
    if last:
        flat[torch.tensor(list(last))] = values.reshape(-1)[torch.tensor(list(last.values()))]
    return flat.reshape(x.shape)


def scatter(x, axis, indices, source):
    source = torch.as_tensor(source, dtype=x.dtype)
    source = source.expand(indices.shape) if source.ndim == 0 else source[tuple(slice(n) for n in indices.shape)]
    places = np.indices(tuple(indices.shape))
    places[axis] = counted(indices, x.shape[axis]).numpy()
    flat = np.ravel_multi_index(tuple(places), tuple(x.shape)) if places.size else np.zeros(0, np.int64)
    return written(x, flat, source)


def scatter_reduce(x, axis, indices, source, reduce, include_self):
    at, source = counted(indices, x.shape[axis]), source[tuple(slice(n) for n in indices.shape)]
    return torch.scatter_reduce(x, axis, at, source, reduce, include_self=include_self)


def merged(reduce):
    return lambda x, indices, source, axis: scatter_reduce(x, axis, indices, source, reduce, True)


def index_fill(x, axis, indices, value):
    return torch.index_fill(x, axis, counted(indices, x.shape[axis]).reshape(-1), torch.as_tensor(value, dtype=x.dtype))


def index_put(x, key, values, accumulate, *indices):
    rest = iter(indices)
    items = [next(rest).numpy() if k == "tensor" else k for k in (key if isinstance(key, tuple) else (key,))]
    key = tuple(np.array(k) if isinstance(k, tuple) else k for k in items)
    places = np.arange(x.numel()).reshape(tuple(x.shape))[key]
    values = values.expand(places.shape)
    if not accumulate:
        return written(x, places, values)
    flat = x.reshape(-1).index_add(0, torch.tensor(places.reshape(-1)), values.reshape(-1))
    return flat.reshape(x.shape)


def masked_scatter(x, mask, source):
    mask = mask.expand(x.shape)
    return written(x, np.flatnonzero(mask.numpy()), source.reshape(-1)[: int(mask.sum())])


# --- views --------------------------------------------------------------------------------------------------


def diff(x, n, axis, prepend, append):
    return torch.diff(x, n, axis, prepend, append)


def meshgrid(indexing, *inputs):
    # torch's own wants one dtype.
    sizes = [x.numel() for x in inputs]
    grids = [x.reshape([-1 if i == k else 1 for k in range(len(inputs))]).expand(sizes) for i, x in enumerate(inputs)]
    return [x.swapaxes(0, 1) if indexing == "xy" and len(inputs) > 1 else x for x in grids]


def patches(function):
    def run(x, *sizes):
        floats = x if x.is_floating_point() else x.double()
        return function(floats, *sizes).to(x.dtype)

    return run


# --- without NaN --------------------------------------------------------------------------------------------


def nanvar(x, axis, keepdim, correction):
    # None of the cases holds NaN; tests with NaN compare with NumPy.
    return torch.var(x, dim=axis, keepdim=keepdim, correction=correction)


def nanstd(x, axis, keepdim, correction):
    return torch.std(x, dim=axis, keepdim=keepdim, correction=correction)


def quantiles(function):
    def run(x, q, axis, keepdim, interpolation):
        x, axes = x.double(), all_axes(x, axis)
        rest = [i for i in range(x.ndim) if i not in axes]
        lines = x.permute((*rest, *axes)).reshape([*(x.shape[i] for i in rest), -1])
        q = torch.as_tensor(q, dtype=torch.float64)
        quantiles = function(lines, q, dim=-1, interpolation=interpolation)
        kept = [1 if i in axes else n for i, n in enumerate(x.shape)]
        return quantiles.reshape((*q.shape, *kept)) if keepdim else quantiles

    return run


def median(function):
    return lambda x, axis, keepdim: quantiles(function)(x, 0.5, axis, keepdim, "linear")


def running(function):
    def run(x, axis, reverse):
        x = x.flip(axis) if reverse else x
        result = function(x, axis).values
        return result.flip(axis) if reverse else result

    return run


def cosine_similarity(a, b, axis, eps):
    a, b = torch.broadcast_tensors(a, b)
    # Where a norm is below eps, torch's own gives a gradient that is not that of the value.
    return (F.normalize(a, dim=axis, eps=eps) * F.normalize(b, dim=axis, eps=eps)).sum(axis)


def nan_to_num(x, nan, posinf, neginf, *, default):
    if not x.is_floating_point():
        return x
    largest = torch.finfo(getattr(torch, default)).max
    return torch.nan_to_num(x, nan, largest if posinf is None else posinf, -largest if neginf is None else neginf)


def logaddexp2(a, b):
    # torch's own is not exact where both are equal.
    same = a == b
    below = torch.where(same, torch.zeros_like(a + b), -(a - b).abs())
    return torch.maximum(a, b) + torch.log1p(torch.exp2(below)) / math.log(2)


def lerp(x, end, weight):
    return torch.lerp(*torch.broadcast_tensors(x, end), weight)


# --- counting -----------------------------------------------------------------------------------------------


def searchsorted(sequence, values, right):
    dtype = torch.promote_types(sequence.dtype, values.dtype)
    return torch.searchsorted(sequence.to(dtype), values.to(dtype), right=right)


def bincount(x, length, weights):
    x = x.reshape(-1)
    weights = torch.ones_like(x, dtype=torch.int64) if weights is None else weights.reshape(-1)
    counts = (x >= 0) & (x < length)
    return torch.zeros(length, dtype=weights.dtype).index_add(0, x[counts].long(), weights[counts])


def histc(x, bins, low, high):
    return torch.histc(x.detach().double(), bins, low, high).to(x.dtype)


def histogram(x, bins, low, high, weights, density):
    x = x.double()
    bounds = np.histogram_bin_edges(x.numpy(force=True), bins, None if low is None else (low, high))
    low, high = (x.min(), x.max()) if low is None else (low, high)
    steps = torch.arange(bins + 1, dtype=torch.float64) / bins
    bucket = np.searchsorted(bounds, x.numpy(force=True).reshape(-1), side="right") - 1
    bucket = np.where(x.numpy(force=True).reshape(-1) == bounds[-1], bins - 1, bucket)
    counts = bincount(torch.tensor(bucket), bins, weights)
    if density:
        counts = counts.double() / counts.sum() / ((high - low) / bins)
    return counts, low + steps * (high - low)


def unique(x, size, fill_value):
    flat = x.reshape(-1)
    distinct, inverse, counts = np.unique(flat.numpy(force=True), return_inverse=True, return_counts=True)
    last = {int(rank): i for i, rank in enumerate(inverse)}
    values = flat[torch.tensor([last[rank] for rank in range(len(distinct))], dtype=torch.int64)]
    room = max(size - len(distinct), 0)
    least = values[:1] if len(distinct) else torch.zeros(1, dtype=x.dtype)
    fill = least if fill_value is None else torch.full((1,), fill_value, dtype=x.dtype)
    counts = np.concatenate([counts[:size], np.zeros(room, np.int64)])
    values = torch.cat([values[:size], fill.expand(room)])
    return values, torch.tensor(inverse).reshape(x.shape), torch.tensor(counts)


# --- complex numbers and sampling ---------------------------------------------------------------------------


def pair(function):
    """A function of complex tensors, of which each is given as two."""

    def run(*parts):
        complex_args = [torch.complex(*torch.broadcast_tensors(*parts[i : i + 2])) for i in range(0, len(parts), 2)]
        result = function(*complex_args)
        return result.real, result.imag

    return run


def split(complex_values):
    return complex_values.real, complex_values.imag


def angle(real, imag):
    return torch.angle(real) if imag is None else torch.angle(torch.complex(*torch.broadcast_tensors(real, imag)))


def polar(size, angle):
    return split(torch.polar(*torch.broadcast_tensors(size, angle)))


def view_as_complex(x):
    # torch wants both parts side by side in memory, also where there are none.
    return split(torch.complex(x[..., 0], x[..., 1]))


OPS = {
    "view_as_real": lambda real, imag: torch.stack(torch.broadcast_tensors(real, imag), -1),
    "view_as_complex": view_as_complex,
    "polar": polar,
    "angle": angle,
    "complex_multiply": pair(torch.mul),
    "complex_divide": pair(torch.div),
    "conj": pair(lambda x: x.conj().resolve_conj()),
    "grid_sample": F.grid_sample,
    "affine_grid": lambda theta, size, corners: F.affine_grid(theta, list(size), corners),
    "searchsorted": searchsorted,
    "bucketize": lambda x, boundaries, right: searchsorted(boundaries, x, right),
    "bincount": bincount,
    "histc": histc,
    "histogram": histogram,
    "unique": unique,
    "fmod": torch.fmod,
    "lerp": lerp,
    "hypot": torch.hypot,
    "logaddexp": torch.logaddexp,
    "logaddexp2": logaddexp2,
    "nan_to_num": nan_to_num,
    "cosine_similarity": cosine_similarity,
    "atleast_1d": torch.atleast_1d,
    "atleast_2d": torch.atleast_2d,
    "atleast_3d": torch.atleast_3d,
    "unflatten": lambda x, axis, sizes: x.unflatten(axis, as_tuple(sizes, 1)),
    "meshgrid": meshgrid,
    "diff": diff,
    "unfold_axis": lambda x, axis, size, step: x.unfold(axis, size, step),
    "unfold": patches(F.unfold),
    "fold": patches(F.fold),
    "scatter_prod": merged("prod"),
    "scatter_max": merged("amax"),
    "scatter_min": merged("amin"),
    "scatter": scatter,
    "scatter_reduce": scatter_reduce,
    "index_fill": index_fill,
    "index_put": index_put,
    "masked_fill": lambda x, mask, value: torch.broadcast_tensors(x, mask)[0].masked_fill(mask, value),
    "masked_scatter": masked_scatter,
    "nansum": lambda x, axis, keepdim: torch.nansum(x, dim=axis, keepdim=keepdim),
    "nanmean": lambda x, axis, keepdim: torch.nanmean(x, dim=axis, keepdim=keepdim),
    "nanvar": nanvar,
    "nanstd": nanstd,
    "nanmax": lambda x, axis, keepdim: torch.amax(x, all_axes(x, axis), keepdim),
    "nanmin": lambda x, axis, keepdim: torch.amin(x, all_axes(x, axis), keepdim),
    "nanargmax": lambda x, axis, keepdim: torch.as_tensor(np.nanargmax(x.numpy(force=True), axis, keepdims=keepdim)),
    "nanargmin": lambda x, axis, keepdim: torch.as_tensor(np.nanargmin(x.numpy(force=True), axis, keepdims=keepdim)),
    "quantile": quantiles(torch.quantile),
    "nanquantile": quantiles(torch.nanquantile),
    "median": median(torch.quantile),
    "nanmedian": median(torch.nanquantile),
    "cumulative_max": running(torch.cummax),
    "cumulative_min": running(torch.cummin),
    "cummax": torch.cummax,
    "cummin": torch.cummin,
}
