"""What the tables of torch ops have in common."""

import numpy as np
import torch

DTYPES = {
    name: getattr(torch, name)
    for name in (
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
    )
}


def torch_dtype(dtype):
    return None if dtype is None else DTYPES[str(dtype)]


def as_tuple(value, n):
    return tuple(value) if isinstance(value, tuple) else (value,) * n


def all_axes(x, axis):
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return tuple(a % x.ndim if x.ndim else 0 for a in axes)


def at_positions(x, key):
    """Read ``x[key]`` with NumPy's rules, through the positions of the elements."""
    positions = np.arange(x.numel()).reshape(tuple(x.shape))[key]
    return x.reshape(-1)[torch.tensor(np.array(positions))]


def pad_pairs(pads, n):
    if isinstance(pads, int):
        return ((pads, pads),) * n
    if isinstance(pads[0], tuple):
        return pads
    return (pads,) * n if len(pads) == 2 else tuple(zip(pads[::2], pads[1::2], strict=True))
