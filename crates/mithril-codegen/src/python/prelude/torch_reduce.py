"""Running sums and products for PyTorch."""

import torch


def _scan(function, start, x, axis, exclusive, reverse, dtype):
    """A running sum or product; exclusive leaves the element itself out, reverse runs from the end."""
    x = torch.movedim(x, axis, -1)
    if reverse:
        x = torch.flip(x, (-1,))
    if exclusive:
        x = torch.cat([torch.full_like(x[..., :1], start), x[..., :-1]], dim=-1)
    y = function(x, dim=-1, dtype=dtype)
    if reverse:
        y = torch.flip(y, (-1,))
    return torch.movedim(y, -1, axis)


def _cumsum(x, dim, exclusive=False, reverse=False, dtype=None):
    return _scan(torch.cumsum, 0, x, dim, exclusive, reverse, dtype)


def _cumprod(x, dim, exclusive=False, reverse=False, dtype=None):
    return _scan(torch.cumprod, 1, x, dim, exclusive, reverse, dtype)


def _cumulative_max(x, dim, reverse):
    """Largest element so far, from the end."""
    return torch.flip(torch.cummax(torch.flip(x, (dim,)), dim).values, (dim,))


def _cumulative_min(x, dim, reverse):
    """Smallest element so far, from the end."""
    return torch.flip(torch.cummin(torch.flip(x, (dim,)), dim).values, (dim,))
