"""Slices for PyTorch."""


def _slice_update(x, update, slices):
    """A copy of x with a part replaced by update."""
    out = x.clone()
    out[tuple(slice(*s) for s in slices)] = update
    return out
