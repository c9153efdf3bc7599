"""Slices for PyTorch."""


def _index_copy(x, indices, source, axis):
    """A copy of x with the slices at indices along an axis replaced by those of source; the last one stays."""
    return _index_copy_into(x.clone(), indices, source, axis)


def _index_copy_into(x, indices, source, axis):
    """x itself, with the slices at indices along an axis overwritten by those of source; the last one stays."""
    count = indices.shape[0]
    if count > 1:
        # PyTorch may keep any of several slices for a position: all become the last one, which alone gets a gradient.
        own = torch.arange(count, device=indices.device)
        at = indices.long() % max(x.shape[axis], 1)
        last = own.new_zeros(max(x.shape[axis], 1)).scatter_reduce(0, at, own, "amax")[at]
        is_kept = (last == own).reshape((count,) + (1,) * (x.ndim - axis - 1))
        source = torch.where(is_kept, source, source.detach().index_select(axis, last))
    x[(slice(None),) * axis + (indices,)] = source
    return x


def _slice_update(x, update, slices):
    """A copy of x with a part replaced by update."""
    out = x.clone()
    out[tuple(slice(*s) for s in slices)] = update
    return out
