"""Slices for PyTorch."""


def _index_copy(x, indices, source, axis):
    """A copy of x with the slices at indices along an axis replaced by those of source."""
    out = x.clone()
    out[(slice(None),) * axis + (indices,)] = source
    return out


def _index_copy_into(x, indices, source, axis):
    """x itself, with the slices at indices along an axis overwritten by those of source."""
    x[(slice(None),) * axis + (indices,)] = source
    return x


def _slice_update(x, update, slices):
    """A copy of x with a part replaced by update."""
    out = x.clone()
    out[tuple(slice(*s) for s in slices)] = update
    return out
