"""Look-up by index for NumPy."""

import numpy as np


def _accumulator(x):
    """A copy of x to add to; half precision adds in float32, so that long sums keep their digits."""
    half = x.dtype.itemsize == 2 and x.dtype.kind not in "iu"
    return x.astype(np.float32 if half else x.dtype)


def _index_add(x, indices, source, axis):
    """x with the slices of source added at indices along an axis; repeated indices add up."""
    out = _accumulator(x)
    np.add.at(np.moveaxis(out, axis, 0), indices, np.moveaxis(source, axis, 0))
    return out.astype(x.dtype, copy=False)


def _scatter_add(x, indices, source, axis):
    """x with each element of source added at its own position along an axis; repeated positions add up."""
    out = _accumulator(x)
    places = list(np.indices(indices.shape, sparse=True))
    places[axis] = indices
    np.add.at(out, tuple(places), source)
    return out.astype(x.dtype, copy=False)


def _index_copy(x, indices, source, axis):
    """A copy of x with the slices at indices along an axis replaced by those of source."""
    return _index_copy_into(x.copy(), indices, source, axis)


def _index_copy_into(x, indices, source, axis):
    """x itself, with the slices at indices along an axis overwritten by those of source."""
    np.moveaxis(x, axis, 0)[indices] = np.moveaxis(source, axis, 0)
    return x


def _places(indices, axis):
    """For each index the place of its element: its own coordinates, and along the axis the index."""
    places = list(np.indices(indices.shape, sparse=True))
    places[axis] = indices
    return tuple(places)


def _scatter(x, indices, source, axis):
    """x with each element of source in place of that at its own position along an axis; the last one stays."""
    out = x.copy()
    out[_places(indices, axis)] = source
    return out


def _scatter_merged(function, x, indices, source, axis):
    """x with each element of source brought together with that at its own position along an axis."""
    out = _accumulator(x)
    function.at(out, _places(indices, axis), source)
    return out.astype(x.dtype, copy=False)
